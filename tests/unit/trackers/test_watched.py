"""What is watched, and for how long: a directory once, nothing outside, nothing that nobody follows any more."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from ctxd.clock import SystemClock
from ctxd.sources.confinement import Confinement
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.trackers.polling_watcher import PollingWatcher
from ctxd.trackers.tracked_files import TrackedFiles
from ctxd.trackers.tracker import Followed
from tests.fakes.watcher import FakeWatcher
from tests.unit.trackers.following import (
    followed,
    following,
    make_file_trackers,
    make_trackers,
    meddled,
    on_linux,
    running,
)

T = TypeVar("T")


@pytest.mark.anyio
@on_linux
@pytest.mark.requirement("TRK-2")
async def test_a_directory_takes_one_watch_for_all_its_files_and_sessions_and_none_after_the_last(
    tmp_path: Path,
) -> None:
    files: dict[str, str] = {}
    for directory in range(20):
        (tmp_path / f"d{directory}").mkdir()
        for name in "abc":
            files[f"{directory}{name}"] = str(tmp_path / f"d{directory}" / name)
    for path in files.values():
        Path(path).write_text("1")
    trackers = make_file_trackers(choice="inotify")
    async with running(trackers, files):
        for session in range(10):
            trackers.lease(f"s{session}", followed(files))
        await trackers.wait_until_attached()
        assert trackers.watches == 20
        for session in range(9):
            trackers.release(f"s{session}")
        await trackers.wait_until_attached()
        assert trackers.watches == 20
        trackers.release("s9")
        await trackers.wait_until_attached()
        assert trackers.watches == 0
        assert trackers.tracked.files == {}


class Counted(Lookups):
    """Notes what is looked at."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.looked_at: set[str] = set()

    async def each(self, paths: Sequence[str], look: Callable[[str], T], hung: Callable[[str], T]) -> list[T]:
        self.looked_at |= set(paths)
        return await super().each(paths, look, hung)


@pytest.mark.anyio
@pytest.mark.requirement("TRK-2")
@pytest.mark.parametrize("place", ["d3", "new"], ids=["of a directory that is watched", "of another"])
async def test_leasing_or_releasing_a_file_checks_no_other_file(tmp_path: Path, place: str) -> None:
    fake, tracked, lookups = FakeWatcher(), TrackedFiles(), Counted()
    for name in [*(f"d{number}" for number in range(20)), "new"]:
        (tmp_path / name).mkdir()
        fake.mkdir(str(tmp_path / name))
    files = {f"{number}": str(tmp_path / f"d{number}" / "a") for number in range(20)}
    one, before = str(tmp_path / place / "b"), str(tmp_path / "d3" / "before")
    for path in (*files.values(), one, before):
        Path(path).write_text("1")
    polling = PollingWatcher(SystemClock(), tracked.polled_names, Lookups(SystemClock()))
    trackers = make_trackers(tracked, fake, polling, sweep_s=3600, lookups=lookups)
    async with running(trackers, files) as handed:
        await following(trackers, handed)
        handed.paths |= {"b": one, "before": before}
        # What is handed on is looked at once more afterwards: when this one is handed on, the others have been.
        trackers.lease("s", {"before": Followed(before)})
        await handed.last("before", "1")
        await trackers.wait_until_attached()
        lookups.looked_at.clear()
        fake.asked = 0
        trackers.lease("t", {"b": Followed(one)})
        await trackers.wait_until_attached()
        await handed.last("b", "1")
        trackers.release("t")
        await trackers.wait_until_attached()
        assert lookups.looked_at - {before} == {one}
        assert fake.asked == (place == "new")
        assert trackers.watches == 20


@pytest.mark.anyio
@on_linux
@pytest.mark.requirement("TRK-7")
async def test_nothing_is_watched_where_a_symlink_leads_out(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "d").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("1")
    os.symlink(outside, inside / "door")
    os.symlink(outside / "secret", inside / "d" / "link")

    confinement = Confinement()
    confinement.confine(str(inside))
    trackers = make_file_trackers(choice="inotify", confinement=confinement)
    files = {"door": str(inside / "door" / "secret"), "link": str(inside / "d" / "link")}
    async with running(trackers, files) as handed:
        trackers.lease("s", followed(handed.paths))
        await trackers.wait_until_attached()
        assert trackers.watches == 1
        assert list(trackers.tracked.directories) == [str(inside / "door"), str(inside / "d")]
        assert trackers.tracked.files["door"].state == "orphaned"
        assert "symlink" in trackers.tracked.files["door"].reason


@pytest.mark.anyio
@pytest.mark.requirement("TRK-6")
async def test_unrenewed_leases_expire_and_kept_ones_do_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("1")
    fake, tracked = FakeWatcher(), TrackedFiles()
    fake.mkdir(str(tmp_path))
    trackers = make_trackers(
        tracked,
        fake,
        PollingWatcher(SystemClock(), tracked.polled_names, Lookups(SystemClock())),
        lease_s=0.05,
        sweep_s=0.02,
    )
    async with running(trackers, {name: str(tmp_path / name) for name in ("a", "b")}) as handed:
        handed.kept = {"kept"}
        trackers.lease("idle", {"a": Followed(handed.paths["a"])})
        trackers.lease("kept", {"b": Followed(handed.paths["b"])})
        # On a busy machine the lease of "a" ends before "b" is attached.
        await handed.until(lambda: list(tracked.files) == ["b"] and tracked.files["b"].state == "attached")


@pytest.mark.anyio
@pytest.mark.requirement("TRK-6")
async def test_a_file_released_and_leased_again_while_attaching_is_attached(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")

    def meanwhile() -> None:
        trackers.release("s")
        trackers.lease("s", {"a": Followed(str(file))})

    async with running(trackers := meddled(tmp_path, meanwhile), {"a": str(file)}) as handed:
        trackers.lease("s", {"a": Followed(str(file))})
        await handed.until(lambda: trackers.tracked.files["a"].state == "attached")
