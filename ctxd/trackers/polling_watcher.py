"""Watcher by polling, for directories that the system cannot watch.

Polls only the names of interest, with one stat each; on filesystems where a stat shows nothing, it compares the start
of the content. The interval grows with the cost of a round, so that polling takes at most a twentieth of a core.
"""

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

import anyio
from anyio.abc import TaskStatus

from ctxd.clock import Clock
from ctxd.sources.hang_safe_lookups import Lookups, inside
from ctxd.trackers.watch_modes import Filesystems, Identity, identity_at, refusal, timeout_refusal
from ctxd.trackers.watcher_interface import Changed, Deliver, Event, NamesOf, WatcherKind, WatchLost, WatchRefused

INTERVAL_S: Final = 1.0
"""Seconds between two rounds, and so the delay with which a change may be noticed."""

COST_SHARE: Final = 0.05
"""Share of one core that rounds may take; above it the interval grows."""

HELD_BYTES: Final = 65_536
"""Bytes compared of a file whose times show nothing; tracked files in /proc are hardly ever longer."""

Signature = tuple[int | bytes, ...]
"""Result of a stat, and a hash of the content where a stat shows nothing; empty if there is no file."""


class _Seen:
    """State of a directory in the last round."""

    __slots__ = ("identity", "signatures")

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.signatures: dict[str, Signature] = {}


class PollingWatcher:
    """See ``Watcher``. ``names_of`` returns the entries to poll; a new one is reported as touched once."""

    kind: WatcherKind = "polling"

    def __init__(
        self,
        clock: Clock,
        names_of: NamesOf,
        lookups: Lookups,
        *,
        interval_s: float = INTERVAL_S,
        filesystems: Filesystems | None = None,
    ) -> None:
        self._clock = clock
        self._names_of = names_of
        self._interval_s = interval_s
        self._seen: dict[str, _Seen] = {}
        self._some = anyio.Event()
        self._filesystems = filesystems or Filesystems(lookups)
        self._lookups = lookups

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

    async def watch(self, directories: Sequence[str]) -> list[WatchRefused | None]:
        """See ``Watcher.watch``."""
        looks = await self._look(directories)
        self._seen |= {directory: look for directory, look in looks.items() if isinstance(look, _Seen)}
        if self._seen:
            self._some.set()
        return [look if isinstance(look, WatchRefused) else None for look in map(looks.__getitem__, directories)]

    async def unwatch(self, directories: Sequence[str]) -> None:
        """See ``Watcher.unwatch``."""
        for directory in directories:
            self._seen.pop(directory, None)

    async def verify(self) -> dict[str, str]:
        """See ``Watcher.verify``. Does nothing: each round reports directories that were replaced."""
        return {}

    @property
    def watches(self) -> int:
        """See ``Watcher.watches``."""
        return 0

    async def _round(self) -> list[Event]:
        known = dict(self._seen)
        looks = await self._look(list(known))
        events: list[Event] = []
        for directory, now in looks.items():
            before = self._seen.get(directory)
            if before is None or before is not known[directory]:
                continue
            if not isinstance(now, _Seen) or now.identity != before.identity:
                del self._seen[directory]
                events.append(
                    WatchLost(directory, "it is another directory now" if isinstance(now, _Seen) else now.why)
                )
                continue
            events += _differences(directory, before.signatures, now.signatures)
            self._seen[directory] = now
        return events

    async def _look(self, directories: Sequence[str]) -> dict[str, _Seen | WatchRefused]:
        names = {inside(directory): tuple(self._names_of(directory)) for directory in directories}

        def look(path: str) -> _Seen | WatchRefused:
            return self._first_look(os.path.dirname(path), names[path])

        found = await self._lookups.each(list(names), look, lambda path: timeout_refusal())
        return dict(zip(dict.fromkeys(directories), found, strict=True))

    def _first_look(self, directory: str, names: Sequence[str]) -> _Seen | WatchRefused:
        identity = identity_at(directory)
        if identity is None:
            return refusal(FileNotFoundError(errno.ENOENT, "no directory", directory))
        if refused := self._filesystems.polling_refused(identity[0]):
            return refused
        seen = _Seen(identity)
        for name in names:
            seen.signatures[name] = self._signature(f"{directory}/{name}")
        return seen

    def _signature(self, path: str) -> Signature:
        """The signature of the entry at ``path``, not of a symlink's target, which is polled in its own directory."""
        try:
            found = os.lstat(path)
            is_silent = stat.S_ISREG(found.st_mode) and self._filesystems.silent(found.st_dev) is not None
            held = self._held(path) if is_silent else b""
        except (OSError, ValueError):
            return ()
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, held)

    def _held(self, path: str) -> bytes:
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except PermissionError:
            return b""
        held = blake2b(digest_size=16)
        try:
            left = HELD_BYTES
            while left > 0 and (chunk := os.read(file, left)):
                held.update(chunk)
                left -= len(chunk)
        finally:
            os.close(file)
        return held.digest()


def _differences(directory: str, before: Mapping[str, Signature], now: Mapping[str, Signature]) -> list[Event]:
    events: list[Event] = []
    for name, signature in now.items():
        if name not in before:
            events.append(Changed(directory, name, "touched"))
        elif signature != before[name]:
            events.append(Changed(directory, name, "written" if signature else "gone"))
    return events
