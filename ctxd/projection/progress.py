"""How far a projection is: what its status shows, what reads may rely on, what admission is decided by."""

from collections import deque
from typing import Final, Literal

from ctxd.projection.cursor import Cursor
from ctxd.projection.node import Node
from ctxd.projection.spill import Waiting
from ctxd.projection.stream import Sent

State = Literal["connecting", "projecting", "unreachable", "failed", "stopped"]

_RATE_S: Final = 5.0
"""Seconds over which the rate of the drain is taken."""


class Progress:
    """``cursor`` is the newest that is known to be committed, as ``tx_id`` of the node; null before the first fence.

    ``node`` answers reads that rely on it; null while there is none. ``reasons`` says why rows were left out.
    """

    def __init__(self, cursor: Cursor | None, reasons: dict[int, str]) -> None:
        self.state: State = "connecting"
        self.reason = ""
        self.cursor = cursor
        self.tx_id = -1
        self.node: Node | None = None
        self.reasons = dict(reasons)
        self.waiting = Waiting()
        self.purged = 0
        """The last row that purged something: until the node has it, it shows what is no more."""
        self.changes = 0
        self._drained: deque[tuple[float, int]] = deque()

    @property
    def seq(self) -> int:
        """The newest row that the node has."""
        return 0 if self.cursor is None else self.cursor.seq

    @property
    def quarantined(self) -> tuple[int, ...]:
        """The rows that are left out."""
        return () if self.cursor is None else self.cursor.quarantined

    def begin(self, node: Node, cursor: Cursor, tx_id: int) -> None:
        """``node`` has ``cursor`` since its transaction ``tx_id``, and nothing else moves it."""
        self.node, self.cursor, self.tx_id = node, cursor, tx_id
        self.waiting.reach(cursor.seq)
        self._drained.clear()
        self.changes += 1

    def confirm(self, sent: Sent, now: float) -> None:
        """The batch ``sent`` is committed."""
        self.cursor, self.tx_id = sent.after, sent.tx_id
        self.waiting.reach(sent.after.seq)
        self._drained.append((now, sent.after.seq))
        while now - self._drained[0][0] > _RATE_S:
            self._drained.popleft()
        if sent.left_out:
            self.reasons[sent.after.seq] = sent.left_out
        self.changes += 1

    def rate(self, now: float) -> float:
        """Rows a second that the node took lately."""
        if not self._drained or now - self._drained[-1][0] > _RATE_S:
            return 0.0
        first_at, first = self._drained[0]
        span = self._drained[-1][0] - first_at
        return (self._drained[-1][1] - first) / span if span > 0 else 0.0
