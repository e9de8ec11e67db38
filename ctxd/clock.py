"""Clocks: the host's, and the hybrid clock of valid times.

``SystemClock`` is the only reader of the host's clocks. All other parts receive a ``Clock``, so that tests can pass
their own.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

import anyio

_SCHEDULED: Final = Path("/proc/self/schedstat")
"""Nanoseconds for which the main thread has run, and has waited for a processor."""


class Clock(Protocol):
    """Wall time, monotonic time, processor time and sleep."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 in UTC by the host's clock, which may jump either way."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""

    def processor_demand_s(self) -> float:
        """Seconds of processor time that all threads of this process have used, plus the seconds for which its main
        thread has waited for a processor."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``. Cancel: safe."""


class SystemClock:
    """The host's clocks."""

    def wall_ms(self) -> int:
        """See ``Clock.wall_ms``."""
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """See ``Clock.monotonic``."""

    def processor_demand_s(self) -> float:
        """See ``Clock.processor_demand_s``. The wait is 0 on a kernel without scheduler statistics."""
        try:
            waited_ns = int(_SCHEDULED.read_bytes().split()[1])
        except (OSError, LookupError):
            waited_ns = 0
        return time.process_time() + waited_ns / 1e9

    async def sleep(self, seconds: float) -> None:
        """See ``Clock.sleep``."""
        await anyio.sleep(seconds)


class ValidTimes:
    """Valid times in ms since 1970: never decreasing over all writes, and at least 1 ms apart for each entity.

    A hybrid of the host's clock and a counter that never goes back. Pure: its only persistent state is the journal,
    from whose newest row it starts.
    """

    def __init__(self, newest: int = 0) -> None:
        """``newest`` is the valid time of the newest existing row; every returned time is above it."""
        self._newest = newest
        # Entities written at the newest time. None: unknown, as after a start, so it might be any.
        self._written: set[str] | None = None

    @property
    def newest(self) -> int:
        """The newest time returned so far."""
        return self._newest

    def next(self, wall_ms: int, floor: int, ids: Iterable[str]) -> int:
        """The valid time of a write of ``ids`` at ``wall_ms``: at least ``floor``."""
        ids = tuple(ids)
        time = max(self._newest, wall_ms, floor)
        if time == self._newest and (self._written is None or not self._written.isdisjoint(ids)):
            time += 1
        if time > self._newest or self._written is None:
            self._newest, self._written = time, set(ids)
        else:
            self._written.update(ids)
        return time

    def lead_ms(self, wall_ms: int) -> int:
        """Milliseconds by which the newest time is ahead of the host's clock; negative if it is behind."""
        return self._newest - wall_ms
