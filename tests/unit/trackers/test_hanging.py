"""A mount that hangs keeps nobody else's files from being followed, on one that never answers and on looks that a
test holds."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.sources.confinement import Confinement
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.trackers import tracker, watch_modes
from ctxd.trackers.polling_watcher import PollingWatcher
from ctxd.trackers.tracked_files import TIMED_OUT, TrackedFiles
from ctxd.trackers.tracker import FileTrackers, Followed, PathEntry, entry_of
from ctxd.trackers.watch_modes import identity_at, moved_among, timeout_refusal
from ctxd.trackers.watcher_interface import WatchRefused
from tests.fakes.watcher import FakeWatcher
from tests.unit.trackers.following import followed, following, make_trackers, running

pytestmark = pytest.mark.anyio

HANGS_S = 0.5
ENDS_S_MAX = 30.0
"""Seconds that anything may take that does not wait for what hangs."""
HELD_S_MAX = 600.0
"""Seconds after which a look that hangs would end by itself: longer than any test."""
TOLD_HANGING = "its file system does not respond; nothing below is tracked"


class Far:
    """A directory of which nothing that is looked at answers while it ``hangs``."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True)
        self.looks = 0
        self._answers = threading.Event()
        self._answers.set()

    def hangs(self, *, hangs: bool = True) -> None:
        if hangs:
            self._answers.clear()
        else:
            self._answers.set()

    def wait(self, path: str) -> None:
        if f"{os.path.realpath(path)}/".startswith(f"{self.place}/"):
            self.looks += 1
            self._answers.wait(HELD_S_MAX)


class FarWatcher(FakeWatcher):
    """One that looks where it watches, as those of the system do."""

    def __init__(self, lookups: Lookups, far: Far) -> None:
        super().__init__()
        self._lookups = lookups
        self._far = far

    async def watch(self, directories: Sequence[str]) -> list[WatchRefused | None]:
        def look(directory: str) -> WatchRefused | None:
            self._far.wait(directory)
            return self._watch(directory)

        return await self._lookups.each(directories, look, lambda directory: timeout_refusal())

    async def verify(self) -> dict[str, str]:
        far = str(self._far.place)
        known = [(each, (0, 0)) for each in self._watched if each.startswith(far)]
        moved = await moved_among(self._lookups, known)
        return {each: why for each, why in moved.items() if why == TIMED_OUT} | await super().verify()


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    made = Far(tmp_path.resolve() / "far")

    def entry_at(path: str, *rest: object) -> PathEntry:
        made.wait(path)
        return entry_of(path, Confinement())

    def identity_of(directory: str) -> tuple[int, int] | None:
        made.wait(directory)
        return identity_at(directory)

    monkeypatch.setattr(tracker, "entry_of", entry_at)
    monkeypatch.setattr(watch_modes, "identity_at", identity_of)
    yield made
    made.hangs(hangs=False)


Make = Callable[[], tuple[FileTrackers, FakeWatcher, list[tuple[str, str, str]]]]


@pytest.fixture
def make(far: Far, tmp_path: Path) -> Make:
    def made() -> tuple[FileTrackers, FakeWatcher, list[tuple[str, str, str]]]:
        mounts = tmp_path / "mountinfo"
        mounts.write_text(f"1 0 8:1 / / rw - ext4 x rw\n2 1 8:2 / {far.place} rw - nfs x rw\n")
        lookups = Lookups(SystemClock(), 2, hangs_s=HANGS_S, mountinfo=str(mounts))
        tracked, told, fake = TrackedFiles(), list[tuple[str, str, str]](), FarWatcher(lookups, far)
        fake.mkdir(str(tmp_path.resolve() / "near"))
        fake.mkdir(str(far.place))
        polling = PollingWatcher(SystemClock(), tracked.polled_names, lookups)
        trackers = make_trackers(tracked, fake, polling, sweep_s=0.05, lookups=lookups,
            report=lambda *said: told.append(said),
        )  # fmt: skip
        return trackers, fake, told

    return made


def files_in(tmp_path: Path) -> dict[str, str]:
    place = tmp_path.resolve()
    (place / "near").mkdir()
    for name in ("far/a", "far/b", "near/n", "far/target"):
        (place / name).write_text("1")
    os.symlink(place / "far" / "target", place / "near" / "link")
    return {"a": f"{place}/far/a", "b": f"{place}/far/b", "n": f"{place}/near/n", "link": f"{place}/near/link"}


@pytest.mark.requirement("TRK-9")
async def test_files_of_a_hanging_mount_are_reported_and_recover_while_others_are_followed(
    tmp_path: Path, far: Far, make: Make
) -> None:
    files = files_in(tmp_path)
    trackers, fake, told = make()
    tracked = trackers.tracked
    async with running(trackers, files) as handed:
        await following(trackers, handed)
        assert [tracked.files[key].state for key in files] == ["attached"] * 4
        far.hangs()
        await handed.until(lambda: all(not tracked.files[key].active for key in ("a", "b", "link")))
        assert {tracked.files[key].reason for key in ("a", "b", "link")} == {TIMED_OUT}
        assert tracked.files["n"].state == "attached"
        for number in range(5):
            Path(files["n"]).write_text(f"changed {number}")
            fake.tell(files["n"], "written")
            await handed.last("n", f"changed {number}")
        looks = far.looks
        await anyio.sleep(0.3)
        assert far.looks == looks, "it is left alone until it answers"
        assert not any(key in ("a", "b", "link") for key, _ in handed.seen), "nothing of it is read"
        Path(files["a"]).write_text("meanwhile")
        (far.place / "target").write_text("meanwhile too")
        far.hangs(hangs=False)
        await handed.last("a", "meanwhile")
        await handed.last("link", "meanwhile too")
        await handed.until(lambda: all(tracked.files[key].active for key in files))
    assert tracked.files["a"].state == tracked.files["link"].state == "resumed"
    assert told == [
        ("tracker.hung", str(far.place), TOLD_HANGING),
        ("tracker.recovered", str(far.place), "its file system responds again"),
    ]


@pytest.mark.requirement("TRK-9")
async def test_a_mount_hanging_from_the_start_is_attached_once_it_responds(
    tmp_path: Path, far: Far, make: Make
) -> None:
    files = files_in(tmp_path)
    trackers, _, _ = make()
    tracked = trackers.tracked
    far.hangs()
    async with running(trackers, files) as handed:
        with anyio.fail_after(ENDS_S_MAX):
            trackers.lease("s", followed(files))
            await trackers.wait_until_attached()
        assert tracked.files["n"].state == "attached"
        assert [(tracked.files[key].state, tracked.files[key].reason) for key in ("a", "link")] == [
            ("orphaned", TIMED_OUT)
        ] * 2
        await handed.last("n", "1")
        far.hangs(hangs=False)
        for key in ("a", "b", "link"):
            await handed.last(key, "1")
        await handed.until(lambda: all(tracked.files[key].active for key in files))


@pytest.mark.requirement("TRK-9")
async def test_trackers_end_while_a_mount_hangs_and_forget_hung_files(tmp_path: Path, far: Far, make: Make) -> None:
    files = files_in(tmp_path)
    trackers, _, _ = make()
    far.hangs()
    async with running(trackers, files):
        trackers.lease("s", {"link": Followed(files["link"])})
        with anyio.fail_after(ENDS_S_MAX):
            await trackers.wait_until_attached()
        trackers.release("s")
        assert not trackers.tracked.hung
        trackers.lease("s", followed({"a": files["a"]}))
        await anyio.sleep(0.02)
        # The end would come after this test's time if it waited for what hangs.
