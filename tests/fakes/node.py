"""An XTDB node in memory, with the faults that a test asks for. It passes the suite that a real one passes."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.messages import (
    Behind,
    Delete,
    Doc,
    Evict,
    HistoryRow,
    Match,
    NodeStatus,
    Op,
    PutDoc,
    Refused,
    Unknown,
    Unreachable,
    encode_transaction,
)
from ctxd.objects.document import LATEST, AsOf, Page
from tests.fakes.backend import MemoryBackend

ORDERED_BYTES_MAX = 224
"""Bytes of the longest ids that a node orders, and so lists."""


class MemoryNode:
    """See ``Node``. ``log`` holds what was submitted; ``down``, ``refuses`` and the others are for a test to set."""

    def __init__(self) -> None:
        self.down = False
        self.ingester_failed = False
        self.refuses: Callable[[Op], bool] = lambda op: False
        self.lose_reply = 0
        """So many submissions from now on are done, and their answer is lost."""
        self.abort = 0
        """So many submissions from now on are aborted for no reason."""
        self.hold: anyio.Event | None = None
        """While set and not fired, nothing is indexed."""
        self.answers = True
        """Whether reads are answered."""
        self.wipe()

    def wipe(self) -> None:
        """Forget everything."""
        self._versions = MemoryBackend()
        self._committed: list[bool] = []
        self.log: list[list[Op]] = []

    def copy(self) -> "MemoryNode":
        """Another node with the same transactions."""
        other = MemoryNode()
        for ops in self.log:
            other._take(ops)
        return other

    def become(self, other: "MemoryNode") -> None:
        """Hold what ``other`` does, and nothing else."""
        self._versions, self._committed, self.log = other._versions, list(other._committed), list(other.log)

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator["Connection"]:
        """A connection, as ``Connect`` makes one."""
        connection = Connection(self)
        try:
            yield connection
        finally:
            connection.closed = True

    def _require(self) -> None:
        if self.down:
            raise Unreachable("nobody listens")

    async def status(self) -> NodeStatus:
        self._require()
        return NodeStatus(
            version="1", revision=None, index_version=22, kv_store="memory", keys=0, bytes=0,
            ingester_failed=self.ingester_failed,
        )  # fmt: skip

    async def submit(self, ops: Sequence[Op]) -> int:
        self._require()
        encode_transaction(ops)
        for op in ops:
            if self.refuses(op):
                raise Refused("invalid tx-op", op=op)
        tx_id = self._take(ops)
        if self.lose_reply:
            self.lose_reply -= 1
            raise Unknown("the reply was lost")
        return tx_id

    def _take(self, ops: Sequence[Op]) -> int:
        tx_id = len(self.log)
        self.log.append(list(ops))
        done = all(self._matches(op, tx_id) for op in ops if isinstance(op, Match)) and not self.abort
        self.abort = max(0, self.abort - 1)
        if done:
            for op in ops:
                self._do(op, tx_id)
        self._committed.append(done)
        return tx_id

    def _matches(self, op: Match, tx_id: int) -> bool:
        found = self._versions.as_of([op.id], AsOf(valid_time=op.valid_time))
        return (json.loads(found[0].body or b"") if found else None) == op.doc

    def _do(self, op: Op, tx_id: int) -> None:
        if isinstance(op, PutDoc):
            body = json.dumps(op.doc).encode()
            self._versions.append([Version(op.doc["xt/id"], op.valid_time, tx_id, tx_id, body)])
        elif isinstance(op, Delete):
            self._versions.append([Version(op.id, op.valid_time, tx_id, tx_id, None)])
        elif isinstance(op, Evict):
            self._versions._rows.pop(op.id, None)

    async def committed(self, tx_id: int, *, timeout_s: float) -> bool:
        self._require()
        if self.hold is not None:
            with anyio.move_on_after(timeout_s):
                await self.hold.wait()
        if tx_id >= len(self._committed):
            raise Unknown("not indexed")
        return self._committed[tx_id]

    async def sync(self, timeout_s: float) -> None:
        self._require()

    def _reads(self, tx_id: int | None) -> int:
        self._require()
        if not self.answers:
            raise Unknown("no answer")
        if tx_id is not None and tx_id >= len(self.log):
            raise Behind("out of sync")
        return LATEST if tx_id is None else tx_id

    async def entity(self, id: str, *, valid_time: int, tx_id: int | None = None) -> Doc | None:
        return (await self.entities([id], valid_time=valid_time, tx_id=tx_id)).get(id)

    async def entities(self, ids: Iterable[str], *, valid_time: int, tx_id: int | None = None) -> dict[str, Doc]:
        tx = self._reads(tx_id)
        found = self._versions.as_of(list(dict.fromkeys(ids)), AsOf(valid_time=valid_time, tx=tx))
        return {one.id: json.loads(one.body or b"") for one in found}

    async def history(
        self,
        id: str,
        *,
        valid_time: int = LATEST,
        tx_id: int | None = None,
    ) -> list[HistoryRow]:
        tx = self._reads(tx_id)
        rows = self._versions.history(id, AsOf(valid_time=valid_time, tx=tx), corrections=True)
        return [
            HistoryRow(row.tx, row.tx_time, row.valid_time, row.body is not None,
                       json.loads(row.body) if row.body is not None else None)
            for row in rows
        ]  # fmt: skip

    async def ids(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        writer: str | None = None,
        session: str | None = None,
        valid_time: int,
        tx_id: int | None = None,
    ) -> list[str]:
        tx = self._reads(tx_id)
        rows = self._versions.scan(prefix, AsOf(valid_time=valid_time, tx=tx), Page(after=after))
        asked = {"writer": writer, "session": session}
        given = {key: value for key, value in asked.items() if value is not None}
        rows = [row for row in rows if len(row.id.encode()) <= ORDERED_BYTES_MAX]
        wanted = [row.id for row in rows if given.items() <= json.loads(row.body or b"").items()]
        return wanted[:limit]


class Connection:
    """A node until it is closed."""

    def __init__(self, node: MemoryNode) -> None:
        self._node = node
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        if self.closed:
            raise Unreachable("the connection is closed")
        return getattr(self._node, name)
