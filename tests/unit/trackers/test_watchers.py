"""Every watcher keeps the promises of one."""

import errno
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from watchfiles import awatch

from ctxd.clock import SystemClock
from ctxd.sources.confinement import Confinement
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.trackers.polling_watcher import PollingWatcher
from ctxd.trackers.watcher_interface import WatchLost
from ctxd.trackers.watchfiles_watcher import NativeWatcher
from tests.suites.watcher import WatcherSuite, running
from tests.unit.trackers.watched_places import DiskYard, MemoryYard
from tests.waiting import until

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


@on_linux
class TestInotify(WatcherSuite):
    @pytest.fixture
    def yard(self, tmp_path: Path) -> DiskYard:
        from ctxd.trackers.inotify_watcher import InotifyWatcher

        yard = DiskYard(tmp_path)
        yard.watcher = InotifyWatcher(Lookups(SystemClock()), Confinement())
        return yard

    @pytest.mark.anyio
    @pytest.mark.requirement("TRK-4")
    async def test_without_a_descriptor_left_each_directory_is_refused_for_the_limit_and_watched_later(
        self, yard: DiskYard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def refuse(**_: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        directories = [str(tmp_path / name) for name in ("one", "two")]
        for each in directories:
            Path(each).mkdir()
        with monkeypatch.context() as patched:
            patched.setattr("ctxd.trackers.inotify_watcher.Inotify", refuse)
            refused = await yard.watcher.watch(directories)
        assert [each.cause for each in refused if each is not None] == ["limit", "limit"]
        async with running(yard.watcher):
            assert await yard.watcher.watch(directories) == [None, None]

    @pytest.mark.anyio
    @pytest.mark.requirement("TRK-4")
    async def test_a_directory_that_is_deleted_while_its_watch_is_added_is_reported_as_lost(
        self, yard: DiskYard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        yard.mkdir("d")
        yard.mkdir("other")
        close, main, closed = os.close, threading.main_thread(), list[int]()

        def delete_and_close(file: int) -> None:
            is_first = not closed and threading.current_thread() is not main
            if is_first:
                closed.append(file)
                yard.remove("d")
            close(file)
            if is_first:
                # Time for the loop to read the events.
                time.sleep(0.2)

        async with running(yard.watcher) as told:
            assert await yard.watcher.watch([yard.path("other")]) == [None]
            with monkeypatch.context() as patched:
                patched.setattr(os, "close", delete_and_close)
                assert await yard.watcher.watch([yard.path("d")]) == [None]
            await until(lambda: WatchLost(yard.path("d"), "it was deleted") in told.events)
            assert yard.watcher.watches == 1

    @pytest.mark.anyio
    @pytest.mark.requirement("TRK-4")
    async def test_paths_of_one_directory_are_watched_while_its_events_are_reported(self, yard: DiskYard) -> None:
        usual = sys.getswitchinterval()
        yard.mkdir("real")
        links = [yard.path(f"link{number}") for number in range(400)]
        for link in links:
            Path(link).symlink_to(yard.path("real"))
        ended = threading.Event()

        def touch() -> None:
            while not ended.is_set():
                yard.write("real/file")

        thread = threading.Thread(target=touch)
        async with running(yard.watcher):
            thread.start()
            try:
                sys.setswitchinterval(1e-6)
                for _ in range(5):
                    assert set(await yard.watcher.watch(links)) == {None}
                    await yard.watcher.unwatch(links[1:])
            finally:
                sys.setswitchinterval(usual)
                ended.set()
                thread.join()

    @pytest.mark.anyio
    @pytest.mark.requirement("TRK-1")
    async def test_the_last_of_many_simultaneous_events_are_reported_without_a_later_one(
        self, yard: DiskYard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ctxd.trackers.inotify_watcher.EVENTS_MAX", 3)
        yard.mkdir("d")
        async with running(yard.watcher) as told:
            await yard.watcher.watch([yard.path("d")])
            for number in range(10):
                yard.write(f"d/{number}")
            for number in range(10):
                await told.of(yard.path(f"d/{number}"))


class TestNative(WatcherSuite):
    @pytest.fixture
    def yard(self, tmp_path: Path) -> DiskYard:
        yard = DiskYard(tmp_path)
        yard.watcher = NativeWatcher(SystemClock(), yard.names_of, Lookups(SystemClock()), Confinement(), look_s=0.2)
        return yard

    @pytest.mark.anyio
    async def test_a_cancelled_watcher_ends_immediately(self, yard: DiskYard, monkeypatch: pytest.MonkeyPatch) -> None:
        # The notifier's thread would otherwise return at its next time limit: longer than the limit of a test.
        monkeypatch.setattr("ctxd.trackers.watchfiles_watcher.awatch", partial(awatch, rust_timeout=600_000))
        yard.mkdir("d")
        async with running(yard.watcher) as told:
            await yard.watcher.watch([yard.path("d")])
            yard.write("d/a")
            await told.of(yard.path("d/a"))


class TestPolling(WatcherSuite):
    @pytest.fixture
    def yard(self, tmp_path: Path) -> DiskYard:
        yard = DiskYard(tmp_path)
        yard.watcher = PollingWatcher(SystemClock(), yard.names_of, Lookups(SystemClock()), interval_s=0.02)
        return yard


class TestFake(WatcherSuite):
    @pytest.fixture
    def yard(self) -> MemoryYard:
        return MemoryYard()
