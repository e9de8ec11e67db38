"""The trackers over a watcher: what is handed on, and what happens when watching fails."""

import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.trackers.events import Refused
from ctxd.trackers.opening import Choice, file_trackers
from ctxd.trackers.polling import PollingWatcher
from ctxd.trackers.tracked import Tracked
from ctxd.trackers.tracker import BATCH, FileTrackers, Followed
from tests.fakes.watcher import FakeWatcher

WAIT_S_MAX = 20.0
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


class Handed:
    """What was handed on: the content of each file at that time, null for none."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self.paths = dict(paths)
        self.seen: list[tuple[str, str | None]] = []
        self.refusing = 0
        self._more = anyio.Event()

    async def handle(self, keys: Sequence[str]) -> Mapping[str, bool | None]:
        await anyio.lowlevel.checkpoint()
        if self.refusing:
            self.refusing -= 1
            return {}
        present: dict[str, bool | None] = {}
        for key in keys:
            path = Path(self.paths[key])
            text = path.read_text() if path.is_file() else None
            present[key] = text is not None if path.parent.is_dir() else None
            if text != next((seen for known, seen in reversed(self.seen) if known == key), ""):
                self.seen.append((key, text))
        self._more.set()
        self._more = anyio.Event()
        return present

    async def until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(WAIT_S_MAX):
            while not holds():
                with anyio.move_on_after(0.02):
                    await self._more.wait()

    async def last(self, key: str, text: str | None) -> None:
        """Return once the newest content handed on of ``key`` is ``text``."""
        await self.until(lambda: next((seen for k, seen in reversed(self.seen) if k == key), "") == text)

    def of(self, key: str) -> list[str | None]:
        return [text for known, text in self.seen if known == key]


@asynccontextmanager
async def running(trackers: FileTrackers, paths: Mapping[str, str]) -> AsyncIterator[Handed]:
    handed = Handed(paths)
    async with anyio.create_task_group() as tasks:
        await tasks.start(trackers.run, handed.handle)
        yield handed
        tasks.cancel_scope.cancel()


@pytest.fixture(params=["inotify", "native", "polling"])
def choice(request: pytest.FixtureRequest) -> Choice:
    if request.param == "inotify" and sys.platform != "linux":
        pytest.skip("inotify is Linux's")
    found: Choice = request.param
    return found


def followed(paths: Mapping[str, str]) -> dict[str, Followed]:
    """Files of which nobody knows when they were read."""
    return {key: Followed(path) for key, path in paths.items()}


async def following(trackers: FileTrackers, handed: Handed, *, session: str = "s") -> None:
    """Have all files of ``handed`` followed, and looked at for the first time."""
    trackers.lease(session, followed(handed.paths))
    await trackers.settled()
    await handed.until(lambda: all(handed.of(key) for key, path in handed.paths.items() if os.path.exists(path)))
    handed.seen.clear()


@pytest.mark.anyio
@pytest.mark.requirement("TRK-1")
async def test_what_becomes_of_a_followed_file_is_handed_on_to_its_end(tmp_path: Path, choice: Choice) -> None:
    file, other = tmp_path / "a", tmp_path / "beside"
    file.write_text("1")
    trackers = file_trackers(SystemClock(), choice=choice)
    async with running(trackers, {"a": str(file)}) as handed:
        await following(trackers, handed)
        other.write_text("nobody's")
        file.write_text("22")
        await handed.last("a", "22")
        (tmp_path / "a.new").write_text("333")
        os.replace(tmp_path / "a.new", file)
        await handed.last("a", "333")
        file.unlink()
        await handed.last("a", None)
        assert (trackers.tracked.files["a"].state, trackers.tracked.files["a"].reason) == (
            "orphaned",
            "the file is deleted",
        )
        file.write_text("4444")
        await handed.last("a", "4444")
        await handed.until(lambda: trackers.tracked.files["a"].state == "resumed")


@pytest.mark.anyio
async def test_what_changed_before_the_watch_was_there_is_handed_on_too(tmp_path: Path, choice: Choice) -> None:
    (tmp_path / "a").write_text("1")
    trackers = file_trackers(SystemClock(), choice=choice)
    async with running(trackers, {"a": str(tmp_path / "a")}) as handed:
        trackers.lease("s", followed(handed.paths))
        (tmp_path / "a").write_text("2, at once")
        await handed.last("a", "2, at once")


@pytest.mark.anyio
async def test_only_what_may_have_changed_since_it_was_read_is_handed_on_at_first(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_text("1")
    long_after = SystemClock().wall_ms() + 60_000
    paths = {name: str(tmp_path / name) for name in ("old", "new", "none")}
    trackers = file_trackers(SystemClock())
    async with running(trackers, paths) as handed:
        read = {name: Followed(path, long_after) for name, path in paths.items()} | {"new": Followed(paths["new"], 1)}
        trackers.lease("s", read)
        await handed.last("new", "1")
        (tmp_path / "none").write_text("1")
        await handed.last("none", "1")
        assert handed.of("old") == []


@pytest.mark.anyio
@on_linux
@pytest.mark.requirement("TRK-3")
@pytest.mark.parametrize(
    "editor",
    [
        "write",
        "append twice",
        "vim with a backup",
        "emacs with a lock",
        "sed -i",
        "git checkout",
        "truncate, then write",
    ],
)
async def test_an_editor_s_save_is_at_most_one_look_before_the_last(tmp_path: Path, editor: str) -> None:
    file = tmp_path / "a"
    file.write_text("before")
    trackers = file_trackers(SystemClock(), choice="inotify")
    async with running(trackers, {"a": str(file)}) as handed:
        await following(trackers, handed)
        save(editor, file)
        await handed.last("a", "after")
        assert len(handed.of("a")) <= 2
        assert None not in handed.of("a"), "nobody looks while the name is away"


def save(editor: str, file: Path) -> None:
    """Have ``file`` hold "after", as the editor does it."""
    match editor:
        case "write":
            file.write_text("after")
        case "append twice":
            file.write_text("af")
            with file.open("a") as opened:
                opened.write("ter")
        case "vim with a backup":
            os.rename(file, f"{file}~")
            file.write_text("after")
            os.unlink(f"{file}~")
        case "emacs with a lock":
            os.symlink("me@host.1:1", file.parent / ".#a")
            os.rename(file, f"{file}~")
            file.write_text("after")
            os.unlink(file.parent / ".#a")
        case "sed -i":
            (file.parent / "sedXYZ").write_text("after")
            os.rename(file.parent / "sedXYZ", file)
        case "git checkout":
            file.unlink()
            file.write_text("after")
        case _:
            with file.open("r+") as opened:
                opened.truncate(0)
                opened.flush()
                opened.write("after")


@pytest.mark.anyio
@pytest.mark.requirement("TRK-3")
async def test_a_thousand_writes_are_a_few_looks_and_one_at_the_last(tmp_path: Path, choice: Choice) -> None:
    file = tmp_path / "a"
    file.write_text("0")
    trackers = file_trackers(SystemClock(), choice=choice)
    async with running(trackers, {"a": str(file)}) as handed:
        await following(trackers, handed)

        def write_often() -> None:
            for number in range(1_000):
                file.write_text(f"write {number:04}")

        await anyio.to_thread.run_sync(write_often)
        await handed.last("a", "write 0999")
        assert len(handed.of("a")) <= 100


@pytest.mark.anyio
@pytest.mark.requirement("TRK-4")
async def test_a_tree_that_goes_is_told_and_followed_again_when_it_is_back(tmp_path: Path, choice: Choice) -> None:
    tree, away = tmp_path / "tree", tmp_path / "away"
    (tree / "d").mkdir(parents=True)
    files = {name: str(tree / "d" / name) for name in ("a", "b")}
    for path in files.values():
        Path(path).write_text("1")
    trackers = file_trackers(SystemClock(), choice=choice)
    async with running(trackers, files) as handed:
        await following(trackers, handed)
        os.rename(tree, away)
        await handed.until(lambda: trackers.tracked.files["a"].state == "orphaned")
        assert trackers.tracked.files["a"].reason != ""
        (away / "d" / "a").write_text("changed while away")
        os.rename(away, tree)
        await handed.last("a", "changed while away")
        await handed.until(lambda: trackers.tracked.files["a"].state == "resumed")
        shutil.rmtree(tree)
        (tree / "d").mkdir(parents=True)
        for path in files.values():
            Path(path).write_text("another tree")
        for key in files:
            await handed.last(key, "another tree")


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
    trackers = file_trackers(SystemClock(), choice="inotify")
    async with running(trackers, files):
        for session in range(10):
            trackers.lease(f"s{session}", followed(files))
        await trackers.settled()
        assert trackers.watches == 20
        for session in range(9):
            trackers.release(f"s{session}")
        await trackers.settled()
        assert trackers.watches == 20
        trackers.release("s9")
        await trackers.settled()
        assert trackers.watches == 0
        assert trackers.tracked.files == {}


@pytest.mark.anyio
@on_linux
@pytest.mark.requirement("TRK-1")
async def test_what_is_written_through_a_symlink_s_target_or_another_hard_link_is_handed_on(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "d").mkdir()
    target, other = tmp_path / "far" / "target", tmp_path / "far" / "other"
    target.write_text("1")
    other.write_text("1")
    os.symlink(target, tmp_path / "d" / "link")
    os.link(other, tmp_path / "d" / "hard")
    trackers = file_trackers(SystemClock(), choice="inotify")
    async with running(
        trackers, {"link": str(tmp_path / "d" / "link"), "hard": str(tmp_path / "d" / "hard")}
    ) as handed:
        await following(trackers, handed)
        target.write_text("22")
        await handed.last("link", "22")
        other.write_text("22")
        await handed.last("hard", "22")
        (tmp_path / "far" / "second").write_text("333")
        os.symlink(tmp_path / "far" / "second", tmp_path / "d" / "new")
        os.replace(tmp_path / "d" / "new", tmp_path / "d" / "link")
        await handed.last("link", "333")
        (tmp_path / "far" / "second").write_text("4444")
        await handed.last("link", "4444")


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

    def escapes(path: str, led_to: str) -> bool:
        return path.startswith(f"{inside}/") and not f"{led_to}/".startswith(f"{inside}/")

    trackers = file_trackers(SystemClock(), choice="inotify", escapes=escapes)
    files = {"door": str(inside / "door" / "secret"), "link": str(inside / "d" / "link")}
    async with running(trackers, files) as handed:
        trackers.lease("s", followed(handed.paths))
        await trackers.settled()
        assert trackers.watches == 1
        assert list(trackers.tracked.directories) == [str(inside / "door"), str(inside / "d")]
        assert trackers.tracked.files["door"].state == "orphaned"
        assert "symlink" in trackers.tracked.files["door"].reason


@pytest.mark.anyio
@pytest.mark.requirement("TRK-4")
async def test_without_a_watch_left_a_directory_is_looked_at_says_so_and_recovers(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    directory, told, fake = str(tmp_path), [], FakeWatcher()
    fake.mkdir(directory)
    fake.refusing[directory] = Refused("limit", "no watch left")
    tracked = Tracked()
    polling = PollingWatcher(SystemClock(), tracked.looked_at, interval_s=0.02)
    trackers = FileTrackers(SystemClock(), tracked, fake, polling, sweep_s=0.05, tell=lambda *said: told.append(said))
    async with running(trackers, {"a": str(tmp_path / "a")}) as handed:
        await following(trackers, handed)
        assert (tracked.files["a"].state, tracked.files["a"].reason) == ("attached", "no watch left")
        assert tracked.directories[directory].mode == "polled"
        (tmp_path / "a").write_text("seen by looking")
        await handed.last("a", "seen by looking")
        del fake.refusing[directory]
        await handed.until(lambda: tracked.directories[directory].mode == "watched")
        (tmp_path / "a").write_text("told")
        fake.tell(f"{directory}/a", "written")
        await handed.last("a", "told")
    assert [event for event, where, _ in told if where == directory] == ["tracker.polled", "tracker.watched"]


@pytest.mark.anyio
@pytest.mark.requirement("TRK-4")
async def test_after_an_overflow_and_after_an_unmount_every_file_is_looked_at(tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in ("a", "b", "c")}
    for path in files.values():
        Path(path).write_text("1")
    fake, tracked = FakeWatcher(), Tracked()
    fake.mkdir(str(tmp_path))
    polling = PollingWatcher(SystemClock(), tracked.looked_at)
    trackers = FileTrackers(SystemClock(), tracked, fake, polling, sweep_s=0.05)
    async with running(trackers, files) as handed:
        await following(trackers, handed)
        for path in files.values():
            Path(path).write_text("told by nobody")
        fake.overflow()
        for key in files:
            await handed.last(key, "told by nobody")
        assert trackers.overflows == 1
        for path in files.values():
            Path(path).write_text("another disk")
        fake.end(str(tmp_path), "it was unmounted")
        for key in files:
            await handed.last(key, "another disk")
        await handed.until(lambda: trackers.tracked.files["a"].state == "resumed")


@pytest.mark.anyio
async def test_what_could_not_be_dealt_with_is_handed_on_again(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    trackers = file_trackers(SystemClock())
    async with running(trackers, {"a": str(file)}) as handed:
        await following(trackers, handed)
        handed.refusing = 1
        file.write_text("2")
        await handed.last("a", "2")
        assert handed.refusing == 0


@pytest.mark.anyio
@pytest.mark.requirement("TRK-6")
async def test_leases_that_nobody_renews_end_and_those_that_are_kept_do_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("1")
    fake, tracked = FakeWatcher(), Tracked()
    fake.mkdir(str(tmp_path))
    trackers = FileTrackers(
        SystemClock(),
        tracked,
        fake,
        PollingWatcher(SystemClock(), tracked.looked_at),
        lease_s=0.05,
        sweep_s=0.02,
        keeps=lambda session: session == "kept",
    )
    async with running(trackers, {name: str(tmp_path / name) for name in ("a", "b")}) as handed:
        trackers.lease("idle", {"a": Followed(handed.paths["a"])})
        trackers.lease("kept", {"b": Followed(handed.paths["b"])})
        await handed.until(lambda: list(tracked.files) == ["b"])
        assert tracked.files["b"].state == "attached"


@pytest.mark.anyio
@on_linux
async def test_run_again_the_trackers_take_up_what_they_tracked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    trackers = file_trackers(SystemClock())
    files = {"a": str(tmp_path / "a")}
    async with running(trackers, files) as handed:
        await following(trackers, handed)
    (tmp_path / "a").write_text("while nobody watched")
    async with running(trackers, files) as handed:
        await handed.last("a", "while nobody watched")
        (tmp_path / "a").write_text("watched")
        await handed.last("a", "watched")


@pytest.mark.anyio
@pytest.mark.requirement("TRK-4")
async def test_a_file_that_is_mounted_from_elsewhere_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    fake, tracked, mounted = FakeWatcher(), Tracked(), set[str]()
    fake.mkdir(str(tmp_path))
    polling = PollingWatcher(SystemClock(), tracked.looked_at, interval_s=0.02)
    trackers = FileTrackers(SystemClock(), tracked, fake, polling, sweep_s=0.05, mounted=lambda: frozenset(mounted))
    async with running(trackers, {"a": str(file)}) as handed:
        await following(trackers, handed)
        file.write_text("mounted over it, and no watch tells")
        mounted.add(str(file))
        await handed.last("a", "mounted over it, and no watch tells")
        file.write_text("written where it comes from")
        await handed.last("a", "written where it comes from")
        mounted.clear()
        await handed.until(lambda: not tracked.looked_at(str(tmp_path)))


class Meddled(FakeWatcher):
    """Has something happen just before a directory is watched, once, or fails then."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile: Callable[[], None] | None = meanwhile

    async def watch(self, directories: Sequence[str]) -> list[Refused | None]:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return await super().watch(directories)


def meddled(tmp_path: Path, meanwhile: Callable[[], None]) -> FileTrackers:
    fake, tracked = Meddled(meanwhile), Tracked()
    fake.mkdir(str(tmp_path))
    return FileTrackers(SystemClock(), tracked, fake, PollingWatcher(SystemClock(), tracked.looked_at))


def read_long_ago(path: Path) -> Followed:
    """``path``, changed ten seconds ago and read five seconds later."""
    now_ms = SystemClock().wall_ms()
    os.utime(path, ns=((now_ms - 10_000) * 1_000_000,) * 2)
    return Followed(str(path), now_ms + 5_000)


@pytest.mark.anyio
@pytest.mark.requirement("TRK-1")
@pytest.mark.parametrize("change", ["written", "deleted"])
async def test_what_changes_between_the_look_at_a_file_and_its_watch_is_handed_on(tmp_path: Path, change: str) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    read = read_long_ago(file)

    def meanwhile() -> None:
        if change == "deleted":
            file.unlink()
        else:
            file.write_text("2, in between")
            os.utime(file, ns=((read.read_at + 1) * 1_000_000,) * 2)

    async with running(trackers := meddled(tmp_path, meanwhile), {"a": str(file)}) as handed:
        trackers.lease("s", {"a": read})
        await handed.last("a", None if change == "deleted" else "2, in between")


@pytest.mark.anyio
@pytest.mark.requirement("TRK-6")
async def test_a_file_given_up_and_taken_up_again_while_it_is_attached_is_attached(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")

    def meanwhile() -> None:
        trackers.release("s")
        trackers.lease("s", {"a": Followed(str(file))})

    async with running(trackers := meddled(tmp_path, meanwhile), {"a": str(file)}) as handed:
        trackers.lease("s", {"a": Followed(str(file))})
        await handed.until(lambda: trackers.tracked.files["a"].state == "attached")


@pytest.mark.anyio
@pytest.mark.requirement("TRK-4")
async def test_what_was_not_attached_yet_when_the_trackers_broke_is_attached_when_they_run_again(
    tmp_path: Path,
) -> None:
    paths = {f"f{number}": str(tmp_path / f"f{number}") for number in range(BATCH + 1)}
    for path in paths.values():
        Path(path).write_text("1")

    def meanwhile() -> None:
        raise OSError("broken")

    trackers = meddled(tmp_path, meanwhile)
    with pytest.raises(ExceptionGroup):
        async with running(trackers, paths):
            trackers.lease("s", followed(paths))
            await anyio.sleep_forever()
    async with running(trackers, paths) as handed:
        await handed.until(lambda: all(file.state != "orphaned" for file in trackers.tracked.files.values()))


@pytest.mark.anyio
@on_linux
@pytest.mark.requirement("TRK-4")
async def test_events_dropped_by_the_kernel_make_nothing_stale(tmp_path: Path) -> None:
    with open("/proc/sys/fs/inotify/max_queued_events") as limit:
        queued = int(limit.read())
    names = [f"f{number}" for number in range(300)]
    for name in names:
        (tmp_path / name).write_text("1")
    trackers = file_trackers(SystemClock())
    async with running(trackers, {name: str(tmp_path / name) for name in names}) as handed:
        await following(trackers, handed)
        # The loop is held up, so nobody reads events meanwhile.
        for number in range(queued // 4 + 100):
            path = tmp_path / f"x{number}"
            path.write_text("1")
            path.unlink()
        for name in names:
            (tmp_path / name).write_text("2")
        for name in names:
            await handed.last(name, "2")
        assert trackers.overflows > 0
