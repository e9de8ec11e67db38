"""Least-recently-used caches of newest versions and of texts. Both bounded, both on the loop only."""

import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from ctxd.objects.document import Stored
from ctxd.store.writes import NOT_CACHED, NotCached


class Heads:
    """The newest accepted version of entities; None for an entity known not to exist. Least recently used go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._durable = 0
        self._heads: OrderedDict[str, Stored | None] = OrderedDict()
        self._deleted: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def get(self, id: str) -> Stored | None | NotCached:
        """The head of ``id``, or ``NOT_CACHED`` if it is not kept here."""
        head = self._heads.get(id, NOT_CACHED)
        if not isinstance(head, NotCached):
            self._heads.move_to_end(id)
        return head

    def known(self, ids: Iterable[str]) -> dict[str, Stored | None]:
        """The heads of those of ``ids`` that are kept here."""
        heads, used = self._heads, self._heads.move_to_end
        found: dict[str, Stored | None] = {}
        for id in ids:
            if id in heads:
                found[id] = heads[id]
                used(id)
        return found

    def put(self, id: str, head: Stored | None) -> None:
        """Keep ``head``."""
        if id in self._heads:
            self._heads.move_to_end(id)
        self._heads[id] = head
        if len(self._heads) > self._limit:
            self.trim(self._durable)

    def delete(self, ids: Iterable[str], seq: int) -> None:
        """Keep that write ``seq`` deleted ``ids``, at least until that is durable."""
        for id in ids:
            self._deleted[id] = seq
            self.put(id, None)

    def add(self, heads: Mapping[str, Stored | None]) -> None:
        """Keep ``heads``, which were not kept here before."""
        self._heads.update(heads)
        if len(self._heads) > self._limit:
            self.trim(self._durable)

    def trim(self, durable: int) -> None:
        """Drop the longest unused over the limit, but none above ``durable``: only this cache knows those."""
        self._durable = durable
        if self._deleted:
            self._deleted = {id: seq for id, seq in self._deleted.items() if seq > durable}
        while len(self._heads) > self._limit:
            id, head = next(iter(self._heads.items()))
            if (self._deleted.get(id, 0) if head is None else head.tx) > durable:
                return
            del self._heads[id]

    def forget(self, ids: Iterable[str]) -> None:
        """Drop ``ids``."""
        for id in ids:
            self._heads.pop(id, None)
            self._deleted.pop(id, None)


class Texts:
    """Text by its BLAKE3 in hex, at most ``limit`` bytes of memory of it. Least recently used goes first.

    What a text takes as it is put is counted: one character that is not Latin makes each of it take two bytes or four.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._texts: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def get(self, ref: str) -> str | None:
        """The text, None if it is not kept here."""
        kept = self._texts.get(ref)
        if kept is None:
            return None
        self._texts.move_to_end(ref)
        return kept[0]

    def remove(self, refs: Iterable[str]) -> None:
        """Let go of ``refs``."""
        for ref in refs:
            kept = self._texts.pop(ref, None)
            self._size -= kept[1] if kept is not None else 0

    def put(self, ref: str, text: str) -> None:
        """Keep ``text``, unless it would push out most of the rest."""
        size = sys.getsizeof(text)
        if ref in self._texts or size > self._limit // 8:
            return
        # The size is kept: a text grows when it is first encoded, which it remembers.
        self._texts[ref] = (text, size)
        self._size += size
        while self._size > self._limit:
            self._size -= self._texts.popitem(last=False)[1][1]
