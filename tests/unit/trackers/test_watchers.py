"""Every watcher keeps the promises of one."""

import errno
import sys
from functools import partial
from pathlib import Path

import pytest
from watchfiles import awatch

from ctxd.clock import SystemClock
from ctxd.sources.confinement import Confinement
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.trackers.polling_watcher import PollingWatcher
from ctxd.trackers.watchfiles_watcher import NativeWatcher
from tests.suites.watcher import WatcherSuite, running
from tests.unit.trackers.watched_places import DiskYard, MemoryYard

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
    @pytest.mark.requirement("TRK-1")
    async def test_of_many_events_at_once_the_last_are_told_though_none_comes_after_them(
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
    async def test_it_ends_at_once_when_it_is_cancelled(self, yard: DiskYard, monkeypatch: pytest.MonkeyPatch) -> None:
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
