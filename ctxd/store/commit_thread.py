"""The one thread on which the database is written: it makes one call after another, and waits for the next.

A thread of its own, not one for each call: handing a call over, and hearing of its end, each take one turn of the loop
then, and a loop that is kept busy by others has long turns.
"""

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import anyio
from anyio.to_thread import run_sync

from ctxd.workers import Loop

Work = Callable[[], Any]
Told = Callable[[Any, BaseException | None], None]


class CommitThread:
    """``told`` hears on the loop what each call returned or raised, before the next one is made. It does not raise."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._given: SimpleQueue[Work | None] = SimpleQueue()

    def give(self, work: Work) -> None:
        """Have ``work`` called. Only while nothing is called, and nothing else was given."""
        self._given.put(work)

    def take_back(self) -> bool:
        """Have what was given not be called. Returns: whether that was possible: it was not begun."""
        with suppress(Empty):
            return self._given.get_nowait() is not None
        return False

    def stop(self) -> None:
        """Have ``run`` return once nothing is called."""
        self._given.put(None)

    async def run(self) -> None:
        """Make calls until ``stop``. Cancel: has no effect; call ``stop``."""
        with anyio.CancelScope(shield=True):
            await run_sync(self._work, Loop(), limiter=anyio.CapacityLimiter(1))

    def _work(self, loop: Loop) -> None:
        while (work := self._given.get()) is not None:
            try:
                result, raised = work(), None
            except BaseException as error:  # noqa: BLE001 - whoever is told raises it
                result, raised = None, error
            loop.soon(self._told, result, raised)
            del work, result, raised
