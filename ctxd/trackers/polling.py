"""Watching by looking: for directories that the system cannot watch, at intervals.

Looks at the names of interest only, one stat each. The interval grows with what a round costs, so that looking never
takes more than a twentieth of a core.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from ctxd.clock import Clock
from ctxd.trackers.events import Changed, Event, Lost, Refused
from ctxd.trackers.places import Identity, identity_at, refusal
from ctxd.trackers.port import Deliver, NamesOf, WatcherKind

INTERVAL_S: Final = 1.0
"""Seconds between two rounds: how late a change may be noticed."""

COST_SHARE: Final = 0.05
"""Share of one core that rounds may take; beyond that they are further apart."""

T = TypeVar("T")

Signature = tuple[int, ...]
"""What a stat tells of a file; empty for none."""


class _Seen:
    """A directory as the last round saw it."""

    __slots__ = ("identity", "signatures")

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.signatures: dict[str, Signature] = {}


class PollingWatcher:
    """See ``Watcher``. ``names_of``: which entries are looked at; a name that is new there is told as touched once."""

    kind: WatcherKind = "polling"

    def __init__(self, clock: Clock, names_of: NamesOf, *, interval_s: float = INTERVAL_S) -> None:
        self._clock = clock
        self._names_of = names_of
        self._interval_s = interval_s
        self._seen: dict[str, _Seen] = {}
        self._some = anyio.Event()
        self._limiter = anyio.CapacityLimiter(1)

    async def run(self, deliver: Deliver, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """See ``Watcher.run``."""
        task_status.started()
        try:
            await self._rounds(deliver)
        finally:
            self._seen.clear()

    async def _rounds(self, deliver: Deliver) -> None:
        pause_s = self._interval_s
        while True:
            await self._some.wait()
            await self._clock.sleep(pause_s)
            began = self._clock.monotonic()
            if events := await self._round():
                deliver(events)
            pause_s = max(self._interval_s, (self._clock.monotonic() - began) / COST_SHARE)
            if not self._seen:
                self._some = anyio.Event()

    async def watch(self, directories: Sequence[str]) -> list[Refused | None]:
        """See ``Watcher.watch``."""
        names = [(directory, tuple(self._names_of(directory))) for directory in directories]
        found = await self._in_thread(lambda: [_first_look(directory, known) for directory, known in names])
        answers: list[Refused | None] = []
        for (directory, _), seen in zip(names, found, strict=True):
            if isinstance(seen, _Seen):
                self._seen[directory] = seen
                answers.append(None)
            else:
                answers.append(seen)
        if self._seen:
            self._some.set()
        return answers

    async def unwatch(self, directories: Sequence[str]) -> None:
        """See ``Watcher.unwatch``."""
        for directory in directories:
            self._seen.pop(directory, None)

    async def verify(self) -> list[str]:
        """See ``Watcher.verify``. Nothing to do: each round tells of a directory that is another."""
        return []

    @property
    def watches(self) -> int:
        """See ``Watcher.watches``."""
        return 0

    async def _round(self) -> list[Event]:
        asked = {directory: tuple(self._names_of(directory)) for directory in self._seen}
        known = dict(self._seen)
        looks = await self._in_thread(lambda: {each: _first_look(each, asked[each]) for each in known})
        events: list[Event] = []
        for directory, now in looks.items():
            before = self._seen.get(directory)
            if before is None or before is not known[directory]:
                continue
            if not isinstance(now, _Seen) or now.identity != before.identity:
                del self._seen[directory]
                events.append(Lost(directory, "it is another directory now" if isinstance(now, _Seen) else now.why))
                continue
            events += _differences(directory, before.signatures, now.signatures)
            self._seen[directory] = now
        return events

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # Looking changes nothing, so nobody need wait for a mount that hangs.
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)


def _first_look(directory: str, names: Sequence[str]) -> _Seen | Refused:
    identity = identity_at(directory)
    if identity is None:
        return refusal(FileNotFoundError(errno.ENOENT, "no directory", directory))
    seen = _Seen(identity)
    for name in names:
        seen.signatures[name] = _signature(f"{directory}/{name}")
    return seen


def _signature(path: str) -> Signature:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _differences(directory: str, before: Mapping[str, Signature], now: Mapping[str, Signature]) -> list[Event]:
    events: list[Event] = []
    for name, signature in now.items():
        if name not in before:
            events.append(Changed(directory, name, "touched"))
        elif signature != before[name]:
            events.append(Changed(directory, name, "written" if signature else "gone"))
    return events
