"""The rest between two steps of indexing, so that indexing uses processor time that the daemon would not use.

Separate so that it can be tested with a clock and a load of its own.
"""

from typing import Final

import anyio

from ctxd.clock import Clock

IDLE_SHARE: Final = 0.8
"""Maximum share of one processor that indexing takes if the daemon has no other work."""

BUSY_SHARE: Final = 0.05
"""The share if other work uses a whole processor."""

SLICE_S: Final = 0.1
"""Seconds of a rest after which the use of the processor is measured again."""


class IndexingPace:
    """Rests between steps, which are longer the more processor time the rest of the daemon uses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scope = anyio.CancelScope()
        # Kept between rests: a step is short, and so would be the time in which the use is measured first.
        self._share = IDLE_SHARE

    async def rest(self, worked: float) -> None:
        """Sleep after a step of ``worked`` seconds, until the step is within its share or ``interrupt`` is called.
        Cancel: safe."""
        clock, rested = self._clock, 0.0
        with anyio.CancelScope() as self._scope:
            while (left := worked * (1 / self._share - 1) - rested) > 0:
                began, used, seconds = clock.monotonic(), clock.processor_demand_s(), min(left, SLICE_S)
                await clock.sleep(seconds)
                # The demand: beside other processes, the daemon uses less than it needs.
                others = (clock.processor_demand_s() - used) / max(seconds, clock.monotonic() - began)
                # Squared: near the limit of a processor, indexing soon delays the calls of others.
                self._share = max(BUSY_SHARE, IDLE_SHARE * max(0.0, 1 - others) ** 2)
                rested += seconds

    def interrupt(self) -> None:
        """End the current rest, if there is one."""
        self._scope.cancel()
