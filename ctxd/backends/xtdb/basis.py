"""Which of a node's transactions shows a journal up to a given row: journal sequences on one side, the node's own
transaction ids, which never leave the backend, on the other.

The cursor of the projection says at every transaction how far the journal was. It is searched by bisection; what was
found is remembered as a hint and asked again before it is used, so a node that was replaced never answers for another.
"""

from bisect import bisect_right
from typing import Final

import msgspec

from ctxd.backends.xtdb import form
from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.errors import Unknown

NOTHING: Final = -1
"""A transaction id below every transaction."""

_HINTS_MAX: Final = 50_000
"""Transactions remembered, at some hundred bytes each."""

_TRIES: Final = 3


class Basis(msgspec.Struct, frozen=True):
    """``lower`` shows rows up to at most the one asked for; ``NOTHING`` if no transaction does, null for the newest.

    ``upper``, where it is not null, is the next transaction: it shows that row, and later ones.
    """

    lower: int | None
    upper: int | None = None


NEWEST: Final = Basis(None)


class Bases:
    """The bases of the journal of ``writer`` at the node behind ``client``."""

    def __init__(self, client: XtdbClient, writer: str) -> None:
        self._client = client
        self._cursor = form.cursor_id(writer)
        self._tx_ids: list[int] = []
        self._seqs: list[int] = []

    def note(self, tx_id: int, seq: int) -> None:
        """The node's transaction ``tx_id`` moved the cursor to row ``seq``."""
        place = bisect_right(self._tx_ids, tx_id)
        if place and self._tx_ids[place - 1] == tx_id:
            self._seqs[place - 1] = seq
            return
        if len(self._tx_ids) >= _HINTS_MAX:
            self.forget()
            place = 0
        self._tx_ids.insert(place, tx_id)
        self._seqs.insert(place, seq)

    def forget(self) -> None:
        """The node may be another one: nothing is known of its transactions."""
        self._tx_ids.clear()
        self._seqs.clear()

    async def seq_at(self, tx_id: int) -> int:
        """The row that the cursor had come to at transaction ``tx_id``; 0 before there was a cursor.

        Raises: what the client does. Cancel: safe.
        """
        doc = await self._client.entity(self._cursor, valid_time=form.NEWEST_VALID_TIME, tx_id=tx_id)
        try:
            return 0 if doc is None else form.seq_in(doc)
        except ValueError as error:
            raise Unknown(f"the cursor at the node is none of ctxd's: {error}") from error

    async def find(self, seq: int) -> Basis:
        """The basis that shows the journal up to row ``seq``.

        Raises: what the client does. Cancel: safe.
        """
        for _ in range(_TRIES):
            found = await self._find(seq)
            if found is not None:
                return found
            self.forget()
        raise Unknown("the node's transactions do not keep the order of the journal")

    async def _find(self, seq: int) -> Basis | None:
        """As ``find``; null if what was remembered does not hold."""
        low, low_seq, high = NOTHING, 0, self._hint_above(seq)
        if high is None:
            high = await self._client.latest_completed()
            if high is None:
                return Basis(NOTHING)
            reached = await self._probe(high)
            if reached <= seq:
                return Basis(high)
        elif await self._probe(high) <= seq:
            return None
        below = self._hint_below(seq)
        if below is not None:
            low, low_seq = below, await self._probe(below)
            if low >= high or low_seq > seq:
                return None
        while high - low > 1 and low_seq != seq:
            middle = (low + high) // 2
            reached = await self._probe(middle)
            if reached <= seq:
                low, low_seq = middle, reached
            else:
                high = middle
        return Basis(low, None if low_seq == seq else high)

    async def _probe(self, tx_id: int) -> int:
        seq = await self.seq_at(tx_id)
        self.note(tx_id, seq)
        return seq

    def _hint_below(self, seq: int) -> int | None:
        """The greatest transaction remembered to show at most ``seq``."""
        place = bisect_right(self._seqs, seq)
        return self._tx_ids[place - 1] if place else None

    def _hint_above(self, seq: int) -> int | None:
        """The least transaction remembered to show more than ``seq``."""
        place = bisect_right(self._seqs, seq)
        return self._tx_ids[place] if place < len(self._tx_ids) else None
