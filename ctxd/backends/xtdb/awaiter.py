"""Awaiting indexed transactions: one request in flight, however many tasks wait."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

LAP_S: Final = 2.0
"""Longest wait of one request, in seconds; then the wishes of other tasks are read again."""


class Awaiter:
    """Wakes every task that waits for a transaction at or below the newest one that the node has completed.

    No task of its own: a waiting task that finds no request in flight makes one, for the highest transaction waited
    for.
    """

    def __init__(self, ask: Callable[[int, float], Awaitable[int | None]]) -> None:
        """``ask(tx_id, timeout_s)`` returns the latest completed transaction, at the latest after ``timeout_s``."""
        self._ask = ask
        self._wanted: Counter[int] = Counter()
        self._turn: anyio.Event | None = None
        self.completed = -1

    def note(self, tx_id: int) -> None:
        """Note that the node has completed ``tx_id``."""
        self.completed = max(self.completed, tx_id)

    def forget(self) -> None:
        """Assume nothing completed: the node may be another one, or may have lost something."""
        self.completed = -1

    async def reach(self, tx_id: int, *, timeout_s: float) -> bool:
        """Wait until the node has completed ``tx_id``; false if that takes longer than ``timeout_s``.

        Raises: the errors of ``ask``, to the task that made the request; the others request again. Cancel: safe.
        """
        if tx_id <= self.completed:
            return True
        self._wanted[tx_id] += 1
        try:
            with anyio.move_on_after(timeout_s) as scope:
                while tx_id > self.completed:
                    if self._turn is not None:
                        await self._turn.wait()
                    else:
                        await self._lead(min(LAP_S, max(0.0, scope.deadline - anyio.current_time())))
        finally:
            self._wanted[tx_id] -= 1
            if not self._wanted[tx_id]:
                del self._wanted[tx_id]
        return tx_id <= self.completed

    async def _lead(self, lap_s: float) -> None:
        turn = self._turn = anyio.Event()
        try:
            completed = await self._ask(max(self._wanted), lap_s)
            if completed is not None:
                self.note(completed)
        finally:
            self._turn = None
            turn.set()
