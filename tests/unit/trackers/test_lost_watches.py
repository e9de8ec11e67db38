"""A watch that is lost or cannot be had is told with its reason, had again once it can be, and makes nothing stale."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.trackers.polling_watcher import PollingWatcher
from ctxd.trackers.tracked_files import TrackedFiles
from ctxd.trackers.tracker import BATCH
from ctxd.trackers.watcher_interface import WatcherChoice, WatchRefused
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


@pytest.mark.anyio
@pytest.mark.requirement("TRK-4")
async def test_a_removed_tree_is_reported_and_followed_again_when_it_returns(
    tmp_path: Path, choice: WatcherChoice
) -> None:
    tree, away = tmp_path / "tree", tmp_path / "away"
    (tree / "d").mkdir(parents=True)
    files = {name: str(tree / "d" / name) for name in ("a", "b")}
    for path in files.values():
        Path(path).write_text("1")
    trackers = make_file_trackers(choice=choice)
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


class CountedPolling(PollingWatcher):
    """``looked_at``: the directories that it polls."""

    def __init__(self, tracked: TrackedFiles) -> None:
        super().__init__(SystemClock(), tracked.polled_names, Lookups(SystemClock()), interval_s=0.02)
        self.looked_at = set[str]()

    async def watch(self, directories: Sequence[str]) -> list[WatchRefused | None]:
        refusals = await super().watch(directories)
        self.looked_at |= {each for each, refused in zip(directories, refusals, strict=True) if refused is None}
        return refusals

    async def unwatch(self, directories: Sequence[str]) -> None:
        await super().unwatch(directories)
        self.looked_at.difference_update(directories)


@pytest.mark.anyio
@pytest.mark.requirement("TRK-4")
async def test_a_directory_without_a_free_watch_is_polled_reported_and_recovers(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    directory, told, fake = str(tmp_path), [], FakeWatcher()
    fake.mkdir(directory)
    fake.refusing[directory] = WatchRefused("limit", "no watch left")
    tracked = TrackedFiles()
    polling = CountedPolling(tracked)
    trackers = make_trackers(tracked, fake, polling, sweep_s=0.05, report=lambda *said: told.append(said))
    async with running(trackers, {"a": str(tmp_path / "a")}) as handed:
        await following(trackers, handed)
        assert (tracked.files["a"].state, tracked.files["a"].reason) == ("attached", "no watch left")
        assert (tracked.directories[directory].mode, polling.looked_at) == ("polled", {directory})
        (tmp_path / "a").write_text("seen by looking")
        await handed.last("a", "seen by looking")
        del fake.refusing[directory]
        await handed.until(lambda: tracked.directories[directory].mode == "watched")
        await handed.until(lambda: not polling.looked_at)
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
    fake, tracked = FakeWatcher(), TrackedFiles()
    fake.mkdir(str(tmp_path))
    polling = PollingWatcher(SystemClock(), tracked.polled_names, Lookups(SystemClock()))
    trackers = make_trackers(tracked, fake, polling, sweep_s=0.05)
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
@on_linux
async def test_restarted_trackers_resume_their_tracked_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    trackers = make_file_trackers()
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
    file, mounts, root = tmp_path / "a", tmp_path / "mountinfo", "1 0 8:1 / / rw - ext4 x rw\n"
    file.write_text("1")
    mounts.write_text(root)
    fake, tracked = FakeWatcher(), TrackedFiles()
    lookups = Lookups(SystemClock(), mountinfo=str(mounts))
    fake.mkdir(str(tmp_path))
    polling = PollingWatcher(SystemClock(), tracked.polled_names, lookups, interval_s=0.02)
    trackers = make_trackers(tracked, fake, polling, sweep_s=0.05, lookups=lookups)
    async with running(trackers, {"a": str(file)}) as handed:
        await following(trackers, handed)
        file.write_text("mounted over it, and no watch tells")
        mounts.write_text(f"{root}2 1 8:1 /x {file} rw - ext4 x rw\n")
        await handed.last("a", "mounted over it, and no watch tells")
        file.write_text("written where it comes from")
        await handed.last("a", "written where it comes from")
        mounts.write_text(root)
        await handed.until(lambda: not tracked.polled_names(str(tmp_path)))


@pytest.mark.anyio
@pytest.mark.requirement("TRK-4")
async def test_files_pending_when_the_trackers_broke_are_attached_by_the_next_run(
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
    trackers = make_file_trackers()
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
