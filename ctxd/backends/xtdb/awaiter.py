"""Waiting for a node to have indexed a transaction: one request in flight, whoever many wait."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

LAP_S: Final = 2.0
"""The longest that one request waits on the node, in seconds: then the others' wishes are looked at again."""


class Awaiter:
    """Wakes everybody who waits for a transaction at or below what the node says it has completed.

    There is no task: whoever finds no request in flight makes one, for the highest transaction that anybody waits for.
    """

    def __init__(self, ask: Callable[[int, float], Awaitable[int | None]]) -> None:
        """``ask(tx_id, timeout_s)`` answers the latest completed transaction, at the latest after ``timeout_s``."""
        self._ask = ask
        self._wanted: Counter[int] = Counter()
        self._turn: anyio.Event | None = None
        self.completed = -1

    def note(self, tx_id: int) -> None:
        """The node has completed ``tx_id``."""
        self.completed = max(self.completed, tx_id)

    def forget(self) -> None:
        """The node may be another one, or may have lost something: nothing is known to be completed."""
        self.completed = -1

    async def reach(self, tx_id: int, *, timeout_s: float) -> bool:
        """Whether the node has completed ``tx_id`` within ``timeout_s``.

        Raises: what ``ask`` raises, to the one that asked; the others ask again. Cancel: safe.
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
