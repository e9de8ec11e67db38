"""Watching by what the system has, through watchfiles: for systems without inotify.

Its notifiers take their directories at the start, so directories are kept in groups of growing size, and adding one
costs the logarithm of their number. They lose events in silence and stop at a name that is no UTF-8; so every watched
directory is also looked at now and then, and a notifier that stopped is replaced and told as an overflow.
"""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus
from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

from ctxd.clock import Clock
from ctxd.sources.lookups import Lookups, inside
from ctxd.trackers.events import Changed, Event, Lost, Overflowed, Refused
from ctxd.trackers.looking import looking, moved_among
from ctxd.trackers.places import Identity, identity_at, never, refusal, unanswered
from ctxd.trackers.polling import PollingWatcher
from ctxd.trackers.port import Deliver, Escapes, NamesOf, WatcherKind

LOOK_S: Final = 5.0
"""Seconds between two looks at all that is watched: how late a change may be that the notifier lost."""

QUIET_MS: Final = 5
"""Milliseconds without a change after which a notifier hands over what it has."""

TOGETHER_MS: Final = 50
"""Milliseconds after which it does so at the latest."""

TIMEOUT_MS: Final = 1_000
"""Milliseconds after which a waiting thread looks whether it should end."""

REPLACE_S: Final = 1.0
"""Seconds before a notifier that stopped is replaced: whoever made it stop can do so again."""

_DELETED: Final = 3

T = TypeVar("T")


class _Group:
    """One notifier and the directories it was made for; those given up since are passed over."""

    def __init__(self, directories: Sequence[str]) -> None:
        self.directories = dict.fromkeys(directories)
        self.notify = RustNotify(list(directories), False, False, 0, False, True)
        self.ended = threading.Event()

    def close(self) -> None:
        self.ended.set()
        self.notify.close()


class NativeWatcher:
    """See ``Watcher``. ``names_of``: see ``PollingWatcher``."""

    kind: WatcherKind = "native"

    def __init__(
        self,
        clock: Clock,
        names_of: NamesOf,
        *,
        escapes: Escapes = never,
        look_s: float = LOOK_S,
        lookups: Lookups | None = None,
    ) -> None:
        self._clock = clock
        self._escapes = escapes
        self._looking = PollingWatcher(clock, names_of, interval_s=look_s, lookups=lookups)
        self._lookups = lookups or looking(clock)
        self._groups: list[_Group] = []
        self._identities: dict[str, Identity] = {}
        self._limiter = anyio.CapacityLimiter(1)
        self._waiting = anyio.CapacityLimiter(64)
        self._tasks: TaskGroup | None = None
        self._deliver: Deliver = _nowhere

    async def run(self, deliver: Deliver, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """See ``Watcher.run``."""
        self._deliver = deliver
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await tasks.start(self._looking.run, deliver)
                task_status.started()
        finally:
            self._tasks = None
            for group in self._groups:
                group.close()
            self._groups.clear()
            self._identities.clear()

    async def watch(self, directories: Sequence[str]) -> list[Refused | None]:
        """See ``Watcher.watch``."""
        paths = [inside(directory) for directory in directories]
        answers = await self._lookups.each(paths, self._admitted, lambda path: unanswered())
        fresh: list[str] = []
        for directory, answer in zip(directories, answers, strict=True):
            if isinstance(answer, tuple) and self._identities.get(directory) != answer:
                fresh.append(directory)
                self._identities[directory] = answer
        refused = await self._add(fresh)
        for directory in refused:
            self._identities.pop(directory, None)
        told = [
            refused.get(directory) if isinstance(answer, tuple) else answer
            for directory, answer in zip(directories, answers, strict=True)
        ]
        await self._looking.watch([each for each, refusal in zip(directories, told, strict=True) if refusal is None])
        return told

    async def unwatch(self, directories: Sequence[str]) -> None:
        """See ``Watcher.unwatch``. The system's watches are given up once half of a notifier's are not needed."""
        await self._looking.unwatch(directories)
        for directory in directories:
            self._identities.pop(directory, None)
        for group in list(self._groups):
            left = [directory for directory in group.directories if directory in self._identities]
            if not left or len(left) * 2 < len(group.directories):
                self._drop(group)
                await self._add(left)

    async def verify(self) -> dict[str, str]:
        """See ``Watcher.verify``."""
        moved = await moved_among(self._lookups, list(self._identities.items()))
        return {directory: why for directory, why in moved.items() if directory in self._identities}

    @property
    def watches(self) -> int:
        """See ``Watcher.watches``. Where the system watches trees, it is what would be needed."""
        return len(set(self._identities.values()))

    def _admitted(self, path: str) -> Refused | Identity:
        directory = os.path.dirname(path)
        try:
            directory.encode()
        except UnicodeEncodeError:
            return Refused("unsupported", "its name is not UTF-8")
        found = identity_at(directory)
        if found is None:
            return refusal(FileNotFoundError(errno.ENOENT, "no directory", directory))
        if not os.access(directory, os.R_OK):
            return refusal(PermissionError(errno.EACCES, "not readable", directory))
        if self._escapes(directory, os.path.realpath(directory)):
            return Refused("escapes", "a symlink leads out of the mount")
        return found

    async def _add(self, directories: Sequence[str]) -> dict[str, Refused]:
        """Watch ``directories`` by a new group, which takes in those before it that are no larger."""
        if not directories:
            return {}
        wanted = dict.fromkeys(directories)
        merged: list[_Group] = []
        for group in reversed(self._groups):
            if len(group.directories) > len(wanted):
                break
            wanted |= dict.fromkeys(each for each in group.directories if each in self._identities)
            merged.append(group)
        refused: dict[str, Refused] = {}
        made: _Group | None = await self._in_thread(lambda: _made(list(wanted), refused))
        for old in merged:
            self._drop(old)
        if made is not None:
            self._groups.append(made)
            assert self._tasks is not None, "it runs"
            self._tasks.start_soon(self._follow, made)
        return refused

    def _drop(self, group: _Group) -> None:
        if group in self._groups:
            self._groups.remove(group)
        group.close()

    async def _follow(self, group: _Group) -> None:
        while group in self._groups:
            try:
                found = await anyio.to_thread.run_sync(
                    group.notify.watch, TOGETHER_MS, QUIET_MS, TIMEOUT_MS, group.ended, abandon_on_cancel=True,
                    limiter=self._waiting,
                )  # fmt: skip
            except (WatchfilesRustInternalError, RuntimeError):
                if group in self._groups:
                    await self._replace(group)
                return
            if isinstance(found, set):
                self._deliver(self._told(found))

    async def _replace(self, group: _Group) -> None:
        await self._clock.sleep(REPLACE_S)
        if group in self._groups:
            self._drop(group)
            await self._add([each for each in group.directories if each in self._identities])
            self._deliver([Overflowed()])

    def _told(self, found: set[tuple[int, str]]) -> list[Event]:
        events: list[Event] = []
        for change, path in sorted(found, key=lambda each: each[0] != _DELETED):
            directory, name = os.path.split(path)
            if path in self._identities and change == _DELETED:
                del self._identities[path]
                events.append(Lost(path, "it was deleted or moved"))
            if directory in self._identities:
                events.append(Changed(directory, name, "gone" if change == _DELETED else "written"))
        return events

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


def _made(directories: list[str], refused: dict[str, Refused]) -> _Group | None:
    """A group over ``directories``, without those that are ``refused``; null if none is left."""
    while directories:
        try:
            return _Group(directories)
        except OSError as error:
            left = []
            for directory in directories:
                try:
                    _Group([directory]).close()
                    left.append(directory)
                except OSError as own:
                    refused[directory] = refusal(own)
            if len(left) == len(directories):
                refused |= dict.fromkeys(directories, refusal(error))
                return None
            directories = left
    return None


def _nowhere(events: Sequence[Event]) -> None:
    """Take nothing: it does not run yet."""
