"""Routing of as-of reads: to the node where its cursor covers them, to the embedded tables otherwise.

The embedded tables have every version, so they serve histories, and all doubtful reads: if the node lacks a row,
returns a version of another journal or of a row later than requested, has an unexpected cursor, fails, or takes too
long.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import anyio
import msgspec

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, NEWEST_VALID_TIME, cursor_id, from_doc
from ctxd.backends.xtdb.messages import Doc, Refused, XtdbFailure, offload
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.objects.document import ALL, NOW, AsOf, HistoryPage
from ctxd.projection.node_connection import Node
from ctxd.projection.node_transactions import HighWaterMark
from ctxd.projection.ownership_checks import Fences
from ctxd.projection.progress import Cursor, Progress, cursor_from_doc, cursor_valid_time
from ctxd.projection.purge_at_node import purged_mark
from ctxd.projection.query_bounds import bounded, to_json_types
from ctxd.store.version_reads import EmbeddedReads, QueryRows
from ctxd.worker_threads import Lane

READ_S: Final = 2.0
"""Seconds after which a read at the node falls back to the embedded tables."""

AVOIDED_S: Final = 5.0
"""Seconds without reads at a node after one failed."""

_IDS_MAX: Final = 1_000
"""Maximum entities per request."""

_INLINE_MAX: Final = 50
"""Documents decoded on the loop, in a few hundred microseconds; more are decoded on a thread."""


class _Doubt(Exception):
    """The node's result may differ from that of the embedded tables."""


class _Basis(msgspec.Struct, frozen=True):
    """Basis of one read: the node, its transaction, the cursor that this put, and both times of the read."""

    node: Node
    tx_id: int
    cursor: Cursor
    valid_time: int
    tx: int


class NodeReads:
    """See ``AsOfReads``. ``answered`` counts reads served by the node, ``fallen_back`` those for which it failed."""

    def __init__(
        self,
        embedded: EmbeddedReads,
        progress: Progress,
        high_water: HighWaterMark,
        clock: Clock,
        writer: str,
        fences: Fences,
    ) -> None:
        """``fences``: rows that are not projected although they are before the cursor."""
        self._embedded = embedded
        self._progress = progress
        self._high_water = high_water
        self._clock = clock
        self._writer = writer
        self._fences = fences
        self._decoding = Lane("xtdb.versions")
        self._avoided_until = 0.0
        self.answered = 0
        self.fallen_back = 0

    async def as_of(self, ids: Sequence[str], at: AsOf = NOW) -> list[Version]:
        """See ``AsOfReads.as_of``."""
        wanted = list(dict.fromkeys(ids))
        found = await self._at_node(at, lambda basis: self._versions(basis, wanted))
        return await self._embedded.as_of(wanted, at) if found is None else found

    async def history(
        self, id: str, at: AsOf = NOW, page: HistoryPage = ALL, *, corrections: bool = False
    ) -> list[Version]:
        """See ``AsOfReads.history``."""
        # The embedded tables read a page alone; a node would send the whole history for each page.
        return await self._embedded.history(id, at, page, corrections=corrections)

    async def query(self, query: str, arguments: Sequence[Any], at: AsOf, *, limit: int, timeout_s: float) -> QueryRows:
        """See ``AsOfReads.query``. There is no fallback to the embedded tables."""
        progress = self._progress
        node, cursor, tx_id = progress.node, progress.cursor, progress.tx_id
        if node is None or cursor is None:
            raise _unavailable(f"the XTDB node is not connected: {progress.reason or progress.state}")
        head, tx = self._high_water.seq, at.tx
        if cursor.seq < max(progress.purged, 0 if tx >= head else tx):
            raise _unavailable(f"the XTDB node has row {cursor.seq} of {head}")
        valid_time = min(at.valid_time, NEWEST_VALID_TIME)
        if tx < head:
            row_at = await self._embedded.valid_time(tx)
            if row_at <= valid_time and row_at == await self._embedded.valid_time(tx + 1):
                message = (
                    f"rows {tx} and {tx + 1} have the same valid time, by which rows are distinguished at the node"
                )
                raise CtxdError("invalid_params", message, hint=f"Give tx {tx + 1}.")
            valid_time = min(valid_time, row_at)
            if (last := await self._embedded.wrote_past(valid_time, tx)) != 0:
                message = f"row {last} wrote at a past valid time that the query sees, beyond transaction {tx}"
                raise CtxdError("invalid_params", message, hint=f"Give tx {last} or later, or an earlier valid_time.")
        text = bounded(query, limit=limit + 1, timeout_ms=round(timeout_s * 1_000))
        try:
            with anyio.fail_after(timeout_s):
                rows = await node.query(text, arguments, valid_time=valid_time, tx_id=tx_id, timeout_s=timeout_s)
        except (Refused, ValueError) as error:
            raise CtxdError("invalid_params", f"the node refuses the query: {error}") from error
        except (XtdbFailure, TimeoutError) as error:
            if isinstance(error, TimeoutError) or (error.kind or "").endswith(("timeout", "TimeoutException")):
                hint = "Narrow the query, or give it more time."
                message = f"the query ran for {timeout_s:g} s without an answer"
                raise CtxdError("timeout", message, hint=hint, outcome="not_applied") from error
            raise _unavailable(f"the XTDB node does not respond to the query: {error}") from error
        return QueryRows([to_json_types(row) for row in rows[:limit]], len(rows) <= limit, min(tx, cursor.seq))

    async def _at_node(self, at: AsOf, read: Callable[[_Basis], Awaitable[list[Version]]]) -> list[Version] | None:
        """Result of ``read`` at the node; ``None`` to fall back to the embedded tables."""
        progress, avoided = self._progress, self._clock.monotonic() < self._avoided_until
        node, cursor, tx_id = progress.node, progress.cursor, progress.tx_id
        if node is None or cursor is None or avoided or cursor.quarantined or self._fences:
            return None
        # Until the node has performed a purge, it shows destroyed content.
        if cursor.seq < max(progress.purged, min(at.tx, self._high_water.seq)):
            return None
        valid_time = min(at.valid_time, NEWEST_VALID_TIME)
        if at.tx < self._high_water.seq:
            # Several rows may share one transaction of the node. But valid times of rows never decrease, so a valid
            # time excludes later rows, unless the next row has the same one. A version that a later row backdated
            # contains its row, and raises doubt.
            row_at = await self._embedded.valid_time(at.tx)
            if row_at <= valid_time:
                if row_at == await self._embedded.valid_time(at.tx + 1):
                    return None
                valid_time = row_at
        if valid_time < cursor_valid_time(cursor):
            # The node cannot return its cursor as of then.
            return None
        try:
            with anyio.fail_after(READ_S):
                found = await read(_Basis(node, tx_id, cursor, valid_time, at.tx))
        except (XtdbFailure, TimeoutError):
            self._avoided_until = self._clock.monotonic() + AVOIDED_S
        except (_Doubt, ValueError):
            pass
        else:
            self.answered += 1
            return found
        self.fallen_back += 1
        return None

    async def _versions(self, basis: _Basis, ids: Sequence[str]) -> list[Version]:
        found: list[Version] = []
        for first in range(0, len(ids), _IDS_MAX):
            some = ids[first : first + _IDS_MAX]
            docs = await self._documents(basis, some)
            await self._require_unpurged(basis, [id for id in some if id not in docs])
            found += await self._decoded([docs[id] for id in some if id in docs])
        if any(version.tx > basis.tx for version in found):
            raise _Doubt
        return found

    async def _documents(self, basis: _Basis, ids: Sequence[str]) -> dict[str, Doc]:
        """The documents of ``ids``, from a node that has the cursor of ``basis``."""
        own = cursor_id(self._writer)
        docs = await basis.node.entities([own, *ids], valid_time=basis.valid_time, tx_id=basis.tx_id)
        if cursor_from_doc(docs.pop(own, None)) != basis.cursor:
            raise _Doubt
        return docs

    async def _require_unpurged(self, basis: _Basis, missing: Sequence[str]) -> None:
        """Raise _Doubt if another host purged one of ``missing``: that evicts the versions of all hosts."""
        marks = [purged_mark(id)["xt/id"] for id in missing]
        if marks and await basis.node.entities(marks, valid_time=FIXED_VALID_TIME):
            raise _Doubt

    async def _decoded(self, docs: Sequence[Doc]) -> list[Version]:
        if len(docs) <= _INLINE_MAX:
            return list(map(self._version, docs))
        return await offload(lambda: list(map(self._version, docs)), self._decoding)

    def _version(self, doc: Doc) -> Version:
        version, writer = from_doc(doc)
        if writer != self._writer:
            raise _Doubt
        return version


def _unavailable(message: str) -> CtxdError:
    return CtxdError("store_unavailable", message, retry_after_ms=1_000, outcome="not_applied")
