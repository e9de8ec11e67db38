"""The only reader of a clock. Every other part is handed one, so that tests can hand in their own."""

import time
from typing import Protocol

import anyio


class Clock(Protocol):
    """Wall time, monotonic time and sleep."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 in UTC, as the host believes; may jump either way."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``. Cancel: safe."""


class SystemClock:
    """The host's clocks."""

    def wall_ms(self) -> int:
        """See ``Clock.wall_ms``."""
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """See ``Clock.monotonic``."""

    async def sleep(self, seconds: float) -> None:
        """See ``Clock.sleep``."""
        await anyio.sleep(seconds)
