"""Trackers that run over real files, what they hand on, and watchers that are meddled with."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.trackers.events import Refused
from ctxd.trackers.polling import PollingWatcher
from ctxd.trackers.tracked import Tracked
from ctxd.trackers.tracker import FileTrackers, Followed
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


def followed(paths: Mapping[str, str]) -> dict[str, Followed]:
    """Files of which nobody knows when they were read."""
    return {key: Followed(path) for key, path in paths.items()}


async def following(trackers: FileTrackers, handed: Handed, *, session: str = "s") -> None:
    """Have all files of ``handed`` followed, and looked at for the first time."""
    trackers.lease(session, followed(handed.paths))
    await trackers.settled()
    await handed.until(lambda: all(handed.of(key) for key, path in handed.paths.items() if os.path.exists(path)))
    handed.seen.clear()


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
