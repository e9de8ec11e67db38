"""Watcher by watchfiles, where inotify is not used.

The notifier takes its directories at its start, so it is restarted when they change. It drops events silently, and
stops at a name that is not UTF-8. So every watched directory is also polled at long intervals, and a notifier that
stopped is restarted and reported as an overflow.
"""

import errno
import os
from collections.abc import Sequence
from typing import Final

import anyio
from anyio.abc import TaskStatus
from watchfiles import Change, awatch

from ctxd.clock import Clock
from ctxd.sources.confinement import Confinement
from ctxd.sources.hang_safe_lookups import Lookups, inside
from ctxd.trackers.polling_watcher import PollingWatcher
from ctxd.trackers.watch_modes import Identity, identity_at, moved_among, refusal, timeout_refusal
from ctxd.trackers.watcher_interface import (
    Changed,
    Deliver,
    Event,
    NamesOf,
    Overflowed,
    WatcherKind,
    WatchLost,
    WatchRefused,
)

LOOK_S: Final = 5.0
"""Seconds between two polls of all watched directories, and so the delay of a change that the notifier dropped."""

DEBOUNCE_MS: Final = 50
"""Maximum milliseconds for which the notifier gathers events."""

STEP_MS: Final = 5
"""Milliseconds without a change after which it delivers the events."""

RESTART_S: Final = 1.0
"""Seconds before a notifier that stopped is restarted: the cause may still be there."""


class NativeWatcher:
    """See ``Watcher``. ``names_of``: see ``PollingWatcher``."""

    kind: WatcherKind = "native"

    def __init__(
        self, clock: Clock, names_of: NamesOf, lookups: Lookups, confinement: Confinement, *, look_s: float = LOOK_S
    ) -> None:
        self._clock = clock
        self._confinement = confinement
        self._lookups = lookups
        self._polling = PollingWatcher(clock, names_of, lookups, interval_s=look_s)
        self._identities: dict[str, Identity] = {}
        self._restart = anyio.Event()

    async def run(self, deliver: Deliver, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """See ``Watcher.run``."""

        def take(events: Sequence[Event]) -> None:
            for event in events:
                if isinstance(event, WatchLost):
                    self._identities.pop(event.directory, None)
            deliver(events)

        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._polling.run, take)
                tasks.start_soon(self._notify, deliver)
                task_status.started()
                try:
                    await anyio.sleep_forever()
                finally:
                    # Cancellation does not reach the notifier's thread; this event does.
                    self._restart.set()
        finally:
            self._identities.clear()

    async def _notify(self, deliver: Deliver) -> None:
        """Deliver the notifier's events, restarting it whenever the set of directories changes."""
        while True:
            restart, stopped = anyio.Event(), False
            self._restart = restart
            if not self._identities:
                await restart.wait()
                continue
            try:
                async for changes in awatch(
                    *self._identities, watch_filter=None, debounce=DEBOUNCE_MS, step=STEP_MS, stop_event=restart,
                    recursive=False, ignore_permission_denied=True,
                ):  # fmt: skip
                    deliver(self._events(changes))
            except* (OSError, RuntimeError):
                stopped = True
            if stopped:
                await self._clock.sleep(RESTART_S)
                deliver([Overflowed()])

    def _events(self, changes: set[tuple[Change, str]]) -> list[Event]:
        events: list[Event] = []
        for change, path in sorted(changes, key=lambda each: each[0] != Change.deleted):
            directory, name = os.path.split(path)
            if change == Change.deleted and self._identities.pop(path, None) is not None:
                events.append(WatchLost(path, "it was deleted or moved"))
            if directory in self._identities:
                events.append(Changed(directory, name, "gone" if change == Change.deleted else "written"))
        return events

    async def watch(self, directories: Sequence[str]) -> list[WatchRefused | None]:
        """See ``Watcher.watch``. Until the notifier has restarted, polling finds the changes."""
        paths = [inside(directory) for directory in directories]
        found = await self._lookups.each(paths, self._admit, lambda path: timeout_refusal())
        admitted = {each: one for each, one in zip(directories, found, strict=True) if isinstance(one, tuple)}
        if admitted.items() - self._identities.items():
            self._identities |= admitted
            self._restart.set()
        await self._polling.watch(list(admitted))
        return [one if isinstance(one, WatchRefused) else None for one in found]

    async def unwatch(self, directories: Sequence[str]) -> None:
        """See ``Watcher.unwatch``. The notifier drops them at its next restart."""
        await self._polling.unwatch(directories)
        for directory in directories:
            self._identities.pop(directory, None)

    async def verify(self) -> dict[str, str]:
        """See ``Watcher.verify``."""
        moved = await moved_among(self._lookups, list(self._identities.items()))
        return {directory: why for directory, why in moved.items() if directory in self._identities}

    @property
    def watches(self) -> int:
        """See ``Watcher.watches``. On systems that watch whole trees, it is the number that would be needed."""
        return len(set(self._identities.values()))

    def _admit(self, path: str) -> WatchRefused | Identity:
        directory = os.path.dirname(path)
        try:
            directory.encode()
        except UnicodeEncodeError:
            return WatchRefused("unsupported", "its name is not UTF-8")
        found = identity_at(directory)
        if found is None:
            return refusal(FileNotFoundError(errno.ENOENT, "no directory", directory))
        if not os.access(directory, os.R_OK):
            return refusal(PermissionError(errno.EACCES, "not readable", directory))
        if self._confinement.leads_out(directory, os.path.realpath(directory)):
            return WatchRefused("escapes", "a symlink leads out of the mount")
        return found
