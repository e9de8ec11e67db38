"""Trackers that run over real files, what they hand on, and watchers that are meddled with."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.sources.confinement import Confinement
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.trackers.polling_watcher import PollingWatcher
from ctxd.trackers.tracked_files import TrackedFiles
from ctxd.trackers.tracker import FILES_MAX, FileTrackers, Followed, file_trackers
from ctxd.trackers.watcher_interface import Report, Watcher, WatcherChoice, WatchRefused
from tests.fakes.watcher import FakeWatcher

WAIT_S_MAX = 20.0
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


class Handed:
    """What was handed on: the content of each file at that time, null for none."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self.paths = dict(paths)
        self.seen: list[tuple[str, str | None]] = []
        self.refusing = 0
        self.kept: set[str] = set()
        self._more = anyio.Event()

    def is_busy(self, key: str) -> bool:
        return False

    def keeps(self, session: str) -> bool:
        return session in self.kept

    def room(self, session: str) -> int:
        return FILES_MAX

    async def changed(self, keys: Sequence[str]) -> Mapping[str, bool | None]:
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
        await tasks.start(trackers.run, handed)
        yield handed
        tasks.cancel_scope.cancel()


def followed(paths: Mapping[str, str]) -> dict[str, Followed]:
    """Files of which nobody knows when they were read."""
    return {key: Followed(path) for key, path in paths.items()}


async def following(trackers: FileTrackers, handed: Handed, *, session: str = "s") -> None:
    """Have all files of ``handed`` followed, and looked at for the first time."""
    trackers.lease(session, followed(handed.paths))
    await trackers.wait_until_attached()
    await handed.until(lambda: all(handed.of(key) for key, path in handed.paths.items() if os.path.exists(path)))
    handed.seen.clear()


def unreported(event: str, directory: str, reason: str) -> None:
    """Log nothing."""


def make_file_trackers(
    *, choice: WatcherChoice = "auto", confinement: Confinement | None = None, report: Report = unreported
) -> FileTrackers:
    """Trackers as the daemon makes them."""
    return file_trackers(SystemClock(), confinement or Confinement(), report, choice=choice)


def make_trackers(
    tracked: TrackedFiles,
    watcher: Watcher,
    polling: PollingWatcher,
    *,
    lookups: Lookups | None = None,
    report: Report = unreported,
    **seconds: float,
) -> FileTrackers:
    """Trackers over a watcher that the test meddles with."""
    lookups = lookups or Lookups(SystemClock())
    return FileTrackers(SystemClock(), tracked, watcher, polling, lookups, Confinement(), report, **seconds)


class Meddled(FakeWatcher):
    """Has something happen just before a directory is watched, once, or fails then."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile: Callable[[], None] | None = meanwhile

    async def watch(self, directories: Sequence[str]) -> list[WatchRefused | None]:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return await super().watch(directories)


def meddled(tmp_path: Path, meanwhile: Callable[[], None]) -> FileTrackers:
    fake, tracked = Meddled(meanwhile), TrackedFiles()
    fake.mkdir(str(tmp_path))
    return make_trackers(tracked, fake, PollingWatcher(SystemClock(), tracked.polled_names, Lookups(SystemClock())))
