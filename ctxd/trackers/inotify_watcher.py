"""Watcher by inotify: one watch per directory, and every possible loss of events is reported.

A directory is opened first and watched through its descriptor, so it cannot be swapped in between. Paths that lead to
the same directory share its watch.
"""

import os
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus
from asyncinotify import Inotify, Mask, Watch

from ctxd.sources.confinement import Confinement
from ctxd.sources.hang_safe_lookups import Lookups, inside
from ctxd.trackers.tracked_files import Hint
from ctxd.trackers.watch_modes import Filesystems, Identity, moved_among, refusal, timeout_refusal
from ctxd.trackers.watcher_interface import Changed, Deliver, Event, Overflowed, WatcherKind, WatchLost, WatchRefused
from ctxd.worker_threads import Lane, LoopHandle

EVENTS_MAX: Final = 500
"""Events read before other tasks get a turn: about 5 ms."""

_GONE: Final = int(Mask.MOVED_FROM | Mask.DELETE)
_WHOLE: Final = int(Mask.MOVED_TO | Mask.CLOSE_WRITE)
_PARTIAL: Final = int(Mask.MODIFY | Mask.CREATE | Mask.ATTRIB)
_OVERFLOW: Final = int(Mask.Q_OVERFLOW)
_IGNORED: Final = int(Mask.IGNORED)
_MOVED: Final = int(Mask.MOVE_SELF)
_UNMOUNTED: Final = int(Mask.UNMOUNT)
_DIRECTORY: Final = int(Mask.ISDIR)
_MASK: Final = Mask(
    _GONE | _WHOLE | _PARTIAL | _MOVED | int(Mask.DELETE_SELF) | int(Mask.ONLYDIR) | int(Mask.EXCL_UNLINK)
)


class _Kept:
    """One kernel watch, and the paths that lead to its directory."""

    __slots__ = ("directories", "identity", "watch")

    def __init__(self, watch: Watch, identity: Identity) -> None:
        self.watch = watch
        self.identity = identity
        self.directories: dict[str, None] = {}


class InotifyWatcher:
    """See ``Watcher``. Uses one inotify instance, opened with the first watch, because a host has few."""

    kind: WatcherKind = "inotify"

    def __init__(self, lookups: Lookups, confinement: Confinement, *, filesystems: Filesystems | None = None) -> None:
        self._confinement = confinement
        self._filesystems = filesystems or Filesystems(lookups)
        self._inotify: Inotify | None = None
        self._opened = anyio.Event()
        self._kept: dict[int, _Kept] = {}
        self._numbers: dict[str, int] = {}
        self._lookups = lookups
        # Threads add watches, even after their caller has gone; all else about watches is changed on the loop alone.
        self._added: deque[tuple[Inotify, str, _Kept]] = deque()
        self._unwatching = Lane("inotify")

    async def run(self, deliver: Deliver, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """See ``Watcher.run``."""
        task_status.started()
        try:
            await self._opened.wait()
            inotify = self._inotify
            assert inotify is not None, "it is opened"
            more = False
            while True:
                # Events already read from the kernel do not make the descriptor readable.
                await (anyio.lowlevel.checkpoint() if more else anyio.wait_readable(inotify.fd))
                events, more = self._drained(inotify)
                if events:
                    deliver(events)
        finally:
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None
            self._opened = anyio.Event()
            self._kept.clear()
            self._numbers.clear()

    async def watch(self, directories: Sequence[str]) -> list[WatchRefused | None]:
        """See ``Watcher.watch``."""
        if self._inotify is None:
            try:
                self._inotify = Inotify(sync_timeout=0, cache_size=32)
            except OSError as error:
                return [refusal(error)] * len(directories)
            self._opened.set()
        paths = [inside(directory) for directory in directories]
        watch = partial(self._watch, self._inotify, LoopHandle())
        return await self._lookups.each(paths, watch, lambda path: timeout_refusal())

    async def unwatch(self, directories: Sequence[str]) -> None:
        """See ``Watcher.unwatch``."""
        unused = [kept for directory in directories if (kept := self._forget(directory)) is not None]

        def remove() -> None:
            for kept in unused:
                self._remove(kept)

        if unused:
            await self._unwatching.run(remove)

    async def verify(self) -> dict[str, str]:
        """See ``Watcher.verify``."""
        known = [(each, kept.identity) for kept in self._kept.values() for each in kept.directories]
        moved = await moved_among(self._lookups, known)
        return {directory: why for directory, why in moved.items() if directory in self._numbers}

    @property
    def watches(self) -> int:
        """See ``Watcher.watches``."""
        return len(self._kept)

    def _watch(self, inotify: Inotify, loop: LoopHandle, path: str) -> WatchRefused | None:
        """Watch the directory of ``path``. Called in a thread."""
        directory = os.path.dirname(path)
        if self._inotify is not inotify:
            return WatchRefused("unsupported", "the watcher has ended")
        try:
            place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            return refusal(error)
        try:
            if self._confinement.leads_out(directory, os.readlink(f"/proc/self/fd/{place}")):
                return WatchRefused("escapes", "a symlink leads out of the mount")
            found = os.fstat(place)
            if refused := self._filesystems.refused(found.st_dev):
                return refused
            watch = inotify.add_watch(f"/proc/self/fd/{place}", _MASK)
            # While the directory is open, the kernel does not report its deletion: the watch is known before that.
            self._added.append((inotify, directory, _Kept(watch, (found.st_dev, found.st_ino))))
        except OSError as error:
            return refusal(error)
        finally:
            os.close(place)
        loop.soon(self._keep_added)
        return None

    def _keep_added(self) -> None:
        while self._added:
            inotify, directory, made = self._added.popleft()
            if self._inotify is inotify:
                number = made.watch.wd
                if self._numbers.get(directory, number) != number and (unused := self._forget(directory)) is not None:
                    self._remove(unused)
                self._kept.setdefault(number, made).directories[directory] = None
                self._numbers[directory] = number

    def _forget(self, directory: str) -> _Kept | None:
        """Stop reporting ``directory``. Returns: its watch if that has no other directory."""
        number = self._numbers.pop(directory, None)
        kept = None if number is None else self._kept.get(number)
        if kept is None:
            return None
        kept.directories.pop(directory, None)
        return None if kept.directories else self._kept.pop(kept.watch.wd)

    def _remove(self, kept: _Kept) -> None:
        try:
            if self._inotify is not None:
                self._inotify.rm_watch(kept.watch)
        except OSError:
            # The directory is gone, and the kernel has removed the watch.
            return

    def _drained(self, inotify: Inotify) -> tuple[list[Event], bool]:
        """Up to ``EVENTS_MAX`` events, and whether there may be more."""
        events: list[Event] = []
        for _ in range(EVENTS_MAX):
            found = inotify.sync_get()
            if found is None:
                return events, False
            self._keep_added()
            mask = int(found.mask)
            if mask & _OVERFLOW:
                events.append(Overflowed())
            elif (watch := found.watch) is not None and (kept := self._kept.get(watch.wd)) is not None:
                self._convert(events, kept, mask, None if found.name is None else str(found.name))
        return events, True

    def _convert(self, events: list[Event], kept: _Kept, mask: int, name: str | None) -> None:
        if mask & (_IGNORED | _MOVED | _UNMOUNTED):
            reason = "it was unmounted" if mask & _UNMOUNTED else "it was moved" if mask & _MOVED else "it was deleted"
            del self._kept[kept.watch.wd]
            for directory in list(kept.directories):
                if self._numbers.get(directory) == kept.watch.wd:
                    del self._numbers[directory]
                    events.append(WatchLost(directory, reason))
            if mask & _MOVED:
                self._remove(kept)
        elif name is not None:
            hint = _hint(mask)
            events.extend([Changed(directory, name, hint) for directory in kept.directories])


def _hint(mask: int) -> Hint:
    if mask & _DIRECTORY:
        return "directory"
    if mask & _GONE:
        return "gone"
    return "written" if mask & _WHOLE else "touched"
