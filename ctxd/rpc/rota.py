"""The connections of one sandbox as one taker of turns: how many it opens gains it nothing.

Owns the order of turns among them. Knows no call.
"""

from collections import deque
from typing import Protocol

from ctxd.rpc.turns import Taker


class Order(Protocol):
    """Who gives turns."""

    def want(self, taker: Taker) -> None:
        """Give ``taker`` a turn after those that wait already."""


class Rota:
    """Passes each turn that it is given by ``order`` to the next of its own takers that have work."""

    __slots__ = ("_order", "_queued", "_waiting")

    def __init__(self, order: Order) -> None:
        self._order = order
        self._waiting: deque[Taker] = deque()
        self._queued = False

    def want(self, taker: Taker) -> None:
        """Give ``taker`` a turn after those that wait already. Not to be called while it waits for one or has it."""
        self._waiting.append(taker)
        if not self._queued:
            self._queued = True
            self._order.want(self)

    def beside_writers(self) -> bool:
        """As ``turns.Taker``: whether others wait for writes of theirs, for whom the next taker is another."""
        return bool(self._waiting) and self._waiting[0].beside_writers()

    def take_turn(self, calls: int) -> bool:
        """As ``turns.Taker``: let the next taker begin at most ``calls`` calls."""
        taker = self._waiting.popleft()
        if taker.take_turn(calls):
            self._waiting.append(taker)
        self._queued = bool(self._waiting)
        return self._queued
