"""Reads that name a time, answered by the node for what it has, and by the read model for the rest.

The node is asked as of the transaction that is known to hold the cursor, and shows that cursor in the same answer: a
node that lost something cannot answer for it. What is newer than the cursor comes from the read model, which answers
alone whenever the node does not, or not in time: it holds every version, so nobody can tell but by the clock.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

import anyio
import msgspec

from ctxd.backends.port import LATEST, Version
from ctxd.backends.xtdb.answers import Held
from ctxd.backends.xtdb.apart import apart
from ctxd.backends.xtdb.errors import XtdbFailure
from ctxd.backends.xtdb.form import NEWEST_VALID_TIME, cursor_id, from_doc
from ctxd.clock import Clock
from ctxd.projection import cursor as cursors
from ctxd.projection.cursor import Cursor
from ctxd.projection.fences import Fences
from ctxd.projection.node import Node
from ctxd.projection.progress import Progress
from ctxd.projection.stream import Tide
from ctxd.store.past import ReadModel

ANSWER_S: Final = 2.0
"""Seconds that the node has to answer a read; then the read model does."""

AVOIDED_S: Final = 5.0
"""Seconds that a node is not asked after it failed to answer."""

_IDS_ASKED: Final = 1_000
_CONVERTED_HERE: Final = 50
"""Documents that become versions on the loop: some hundred microseconds."""

T = TypeVar("T")


class _Basis(msgspec.Struct, frozen=True):
    """What reads of one call rely on: the node, its transaction, and the cursor that this put."""

    node: Node
    tx_id: int
    cursor: Cursor


class _Doubtful(Exception):
    """The node's answer cannot be used."""


class ProjectedPast:
    """See ``Past``."""

    def __init__(
        self,
        model: ReadModel,
        progress: Progress,
        tide: Tide,
        clock: Clock,
        writer: str,
        fences: Fences | None = None,
    ) -> None:
        """``fences``: what is not projected although it is below the cursor."""
        self._model = model
        self._progress = progress
        self._tide = tide
        self._clock = clock
        self._writer = writer
        self._fences = Fences() if fences is None else fences
        self._cursor_id = cursor_id(writer)
        self._converters = anyio.CapacityLimiter(1)
        self._avoided_until = 0.0
        self.answered = 0
        self.fallen_back = 0

    # --- the port ---

    async def as_of(self, ids: Sequence[str], *, valid_time: int = LATEST, tx: int = LATEST) -> list[Version]:
        """See ``Past.as_of``."""
        wanted = list(dict.fromkeys(ids))

        async def local() -> list[Version]:
            return await self._model.as_of(wanted, valid_time=valid_time, tx=tx)

        async def merged(basis: _Basis, at: int) -> list[Version]:
            found = await self._held(basis, wanted, at, tx)
            if self._tail(basis, tx):
                found = self._merged(basis, found, await local())
            return [found[id] for id in wanted if id in found]

        return await self._answer(valid_time, tx, merged, local)

    async def history(
        self,
        id: str,
        *,
        ascending: bool = True,
        corrections: bool = False,
        valid_time: int = LATEST,
        tx: int = LATEST,
        after: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> list[Version]:
        """See ``Past.history``."""

        async def local() -> list[Version]:
            return await self._model.history(
                id,
                ascending=ascending,
                corrections=corrections,
                valid_time=valid_time,
                tx=tx,
                after=after,
                limit=limit,
            )

        async def merged(basis: _Basis, at: int) -> list[Version]:
            found = await self._rows(basis, id, ascending, at, after)
            found = [version for version in found if version.tx <= tx and _beyond(version, after, ascending)]
            if self._tail(basis, tx):
                found += [version for version in await local() if self._lacking(basis, version)]
            found.sort(key=lambda version: (version.valid_time, version.tx), reverse=not ascending)
            return found[:limit]

        return await self._answer(valid_time, tx, merged, local)

    async def scan(
        self,
        prefix: str,
        *,
        ascending: bool = True,
        after: str | None = None,
        limit: int | None = None,
        valid_time: int = LATEST,
        tx: int = LATEST,
    ) -> list[Version]:
        """See ``Past.scan``."""

        async def local() -> list[Version]:
            return await self._model.scan(
                prefix, ascending=ascending, after=after, limit=limit, valid_time=valid_time, tx=tx
            )

        async def merged(basis: _Basis, at: int) -> list[Version]:
            ids = await basis.node.ids(prefix, after=after, ascending=ascending, valid_time=at, tx_id=basis.tx_id)
            found: dict[str, Version] = {}
            # Others' entities may be among them, so there is no telling how many ids make a page.
            for first in range(0, len(ids), _IDS_ASKED):
                found |= await self._held(basis, ids[first : first + _IDS_ASKED], at, tx)
                if limit is not None and len(found) >= limit:
                    break
            if self._tail(basis, tx):
                found = self._merged(basis, found, await local())
            return [found[id] for id in sorted(found, reverse=not ascending)][:limit]

        return await self._answer(valid_time, tx, merged, local)

    # --- who answers ---

    async def _answer(
        self,
        valid_time: int,
        tx: int,
        merged: Callable[[_Basis, int], Awaitable[list[Version]]],
        local: Callable[[], Awaitable[list[Version]]],
    ) -> list[Version]:
        basis = self._basis()
        if basis is None:
            return await local()
        at = await self._valid_time(valid_time, tx)
        if at < cursors.valid_time(basis.cursor):
            # Before the cursor holds, there is no telling what the node has.
            return await local()
        try:
            with anyio.fail_after(ANSWER_S):
                found = await merged(basis, at)
        except (XtdbFailure, TimeoutError):
            self._avoided_until = self._clock.monotonic() + AVOIDED_S
        except (_Doubtful, ValueError):
            pass
        else:
            self.answered += 1
            return found
        self.fallen_back += 1
        return await local()

    def _basis(self) -> _Basis | None:
        progress = self._progress
        if progress.seq < progress.purged:
            return None
        if progress.node is None or progress.cursor is None or self._clock.monotonic() < self._avoided_until:
            return None
        return _Basis(progress.node, progress.tx_id, progress.cursor)

    async def _valid_time(self, valid_time: int, tx: int) -> int:
        """The valid time that the journal had reached with row ``tx``, if that is before ``valid_time``: rows do not
        go back in it, so that it bounds what the rows up to there say."""
        bound = min(valid_time, NEWEST_VALID_TIME)
        return bound if tx >= self._tide.head else min(bound, await self._model.valid_time(tx))

    def _tail(self, basis: _Basis, tx: int) -> bool:
        """Whether the read model may have something at these times that the node lacks."""
        return bool(basis.cursor.quarantined) or bool(self._fences) or min(tx, self._tide.head) > basis.cursor.seq

    def _lacking(self, basis: _Basis, version: Version) -> bool:
        if version.tx > basis.cursor.seq or version.tx in basis.cursor.quarantined:
            return True
        return self._fences.skips(version.id, version.tx)

    def _merged(self, basis: _Basis, found: dict[str, Version], mine: list[Version]) -> dict[str, Version]:
        """What the node ``found``, with what it lacks from the read model; without what was deleted since."""
        return {
            version.id: version if self._lacking(basis, version) else found.get(version.id, version) for version in mine
        }

    # --- what the node says ---

    async def _held(self, basis: _Basis, ids: Iterable[str], at: int, tx: int) -> dict[str, Version]:
        """The node's versions of ``ids``, and the read model's of those that the node does not tell exactly."""
        wanted = [*ids]
        found: dict[str, Version] = {}
        unsure: list[str] = []
        for first in range(0, len(wanted), _IDS_ASKED):
            asked = [self._cursor_id, *wanted[first : first + _IDS_ASKED]]
            held = await basis.node.held(asked, valid_time=at, tx_id=basis.tx_id)
            self._require_cursor(basis, held.pop(self._cursor_id, None))
            for id, (version, writer) in (await self._versions(held)).items():
                if writer == self._writer and version.tx <= tx:
                    found[id] = version
                else:
                    # Another's, or of the same moment and later in the journal: which one was before, we know.
                    unsure.append(id)
        if unsure:
            mine = await self._model.as_of(unsure, valid_time=at, tx=tx)
            found |= {version.id: version for version in mine}
        return found

    async def _versions(self, held: dict[str, Held]) -> dict[str, tuple[Version, str]]:
        def convert() -> dict[str, tuple[Version, str]]:
            return {id: from_doc(one.doc, one.valid_time) for id, one in held.items()}

        return convert() if len(held) <= _CONVERTED_HERE else await apart(convert, self._converters)

    def _require_cursor(self, basis: _Basis, held: Held | None) -> None:
        if held is None or cursors.from_doc(held.doc) != basis.cursor:
            raise _Doubtful

    async def _rows(
        self, basis: _Basis, id: str, ascending: bool, at: int, after: tuple[int, int] | None
    ) -> list[Version]:
        """The node's versions of ``id``, in no order."""
        first, last = (None, at) if after is None else (after[0], at) if ascending else (None, min(at, after[0]))
        rows = await basis.node.history(
            id,
            ascending=ascending,
            corrections=True,
            valid_time=at,
            tx_id=basis.tx_id,
            first=first,
            last=last,
        )
        held = await basis.node.held([self._cursor_id], valid_time=NEWEST_VALID_TIME, tx_id=basis.tx_id)
        self._require_cursor(basis, held.get(self._cursor_id))
        found: dict[int, Version] = {}
        for row in rows:
            if row.doc is None:
                # A deletion does not say whose it is.
                raise _Doubtful
            version, writer = from_doc(row.doc, row.valid_time)
            if writer == self._writer:
                found[row.valid_time] = version
        return list(found.values())


def _beyond(version: Version, after: tuple[int, int] | None, ascending: bool) -> bool:
    if after is None:
        return True
    place = (version.valid_time, version.tx)
    return place > after if ascending else place < after
