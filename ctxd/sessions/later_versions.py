"""Versions of many objects after a journal sequence, in the order of the journal.

Only versions that were the newest by valid time when they were written, see ``select_visible_versions``. Cost: one
short read for each changed object, and then proportional to the versions that the caller takes; so are those in memory.
"""

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple

from ctxd.objects.document import AsOf, Page, Stored
from ctxd.store.version_store import VersionStore

FIRST_READ: Final = 2
"""Versions of an object in the first read: enough for one version and its successor."""

READ_MAX: Final = 100
"""Versions of an object in one read; each read has up to four times as many as the one before."""


class Later(NamedTuple):
    """A version and its successor, the next version of the same object; None for the newest."""

    stored: Stored
    successor: Stored | None


async def later_versions(store: VersionStore, floors: Mapping[str, int], upto: int) -> AsyncGenerator[Later, None]:
    """Yield the versions of each object in (its floor, ``upto``], sorted by sequence. ``upto``: a durable row, which no
    floor exceeds.

    Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    heads = await store.heads(floors)
    by_floor: dict[int, list[str]] = {}
    for id, head in heads.items():
        if head is not None and head.tx > floors[id]:
            by_floor.setdefault(floors[id], []).append(id)
    waiting: list[tuple[int, str, _Versions]] = []
    for floor, ids in by_floor.items():
        before = await store.bulk(ids, AsOf(await _valid_time(store, floor), floor))
        for id in ids:
            base = before.get(id)
            versions = _Versions(store, id, None if base is None else (base.valid_time, base.tx), upto)
            if (first := await versions.peek()) is not None:
                waiting.append((first.tx, id, versions))
    heapify(waiting)
    while waiting:
        _, id, versions = waiting[0]
        later = await versions.take()
        if later.successor is None:
            heappop(waiting)
        else:
            heapreplace(waiting, (later.successor.tx, id, versions))
        yield later


async def _valid_time(store: VersionStore, seq: int) -> int:
    """A valid time that no version up to row ``seq`` exceeds: valid times of rows never decrease. With it, a read as of
    ``seq`` skips the versions after it."""
    (row,) = await store.changes(after=max(0, seq - 1), limit=1)
    return row.vt


class _Versions:
    """The versions of one object up to row ``upto``, in order. ``after``: valid time and sequence of the newest one
    that is left out, None for none."""

    def __init__(self, store: VersionStore, id: str, after: tuple[int, int] | None, upto: int) -> None:
        self._store = store
        self._id = id
        self._after = after
        self._upto = upto
        self._read: deque[Stored] = deque()
        self._limit = FIRST_READ
        self._is_complete = False

    async def peek(self) -> Stored | None:
        await self._fill(1)
        return self._read[0] if self._read else None

    async def take(self) -> Later:
        """The version of ``peek``, which is not None."""
        await self._fill(2)
        return Later(self._read.popleft(), self._read[0] if self._read else None)

    async def _fill(self, count: int) -> None:
        """Read until there are ``count`` versions, or no more.

        Versions after the base by valid time were also written after it; those of them that were the newest have the
        same order by valid time and by sequence.
        """
        while len(self._read) < count and not self._is_complete:
            page = Page(after=self._after, limit=self._limit)
            found = await self._store.history(self._id, AsOf(tx=self._upto), page, corrections=True)
            self._is_complete = len(found) < self._limit
            self._limit = min(4 * self._limit, READ_MAX)
            for stored in found:
                self._after = (stored.valid_time, stored.tx)
                if not stored.is_backdated or await self._was_newest(stored):
                    self._read.append(stored)

    async def _was_newest(self, stored: Stored) -> bool:
        """True if ``stored``, which has a past valid time, was the newest version when it was written."""
        at = AsOf(stored.tx_time, stored.tx - 1)
        before = (await self._store.bulk((self._id,), at)).get(self._id)
        return before is None or before.valid_time <= stored.valid_time
