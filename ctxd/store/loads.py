"""Lookups of heads and operation ids, gathered: what one tick asks for is read in one go on a thread."""

from collections.abc import Callable, Iterable

import anyio
from anyio.to_thread import run_sync

from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.store import journal
from ctxd.store.cache import Heads
from ctxd.store.journal import Body
from ctxd.store.operations import Operation
from ctxd.store.reads import Reader, answering
from ctxd_protocol.objects import Receipt


class Batch:
    """What was asked for between two readings, and what was found."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.keys: set[Operation] = set()
        self.heads: dict[str, Stored | None] = {}
        self.operations: dict[Operation, tuple[Body, Receipt]] = {}
        self.claims: list[tuple[Receipt, Callable[[str], None]]] = []
        self.refuted: list[tuple[str, Callable[[str], None]]] = []
        self.error: CtxdError | None = None
        self.done = anyio.Event()

    def read(self, reader: Reader) -> None:
        """Find everything; blocks."""
        try:
            with answering():
                self.heads = reader.heads(self.ids)
                self.operations = reader.operations(self.keys)
                for receipt, refute in self.claims:
                    chain = journal.chain_at(reader.connection, receipt.seq)
                    if chain is None or chain.hex() != receipt.chain:
                        message = f"row {receipt.seq} is not the one that a client holds a receipt for"
                        self.refuted.append((message, refute))
        except CtxdError as error:
            self.error = error


class Loads:
    """Reads batch after batch, each as large as what came in during the one before."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._next = Batch()
        self._wake = anyio.Event()
        self._reading: Batch | None = None
        self._written: set[str] = set()

    def note_written(self, ids: Iterable[str]) -> None:
        """Say that newer heads of ``ids`` were accepted, so that one being read is not taken for the newest."""
        if self._reading is not None:
            self._written.update(ids)

    def compare(self, receipt: Receipt, refute: Callable[[str], None]) -> None:
        """Have ``refute`` called, soon, if the journal does not hold the row of ``receipt``."""
        self._next.claims.append((receipt, refute))
        self._wake.set()

    async def find(self, ids: Iterable[str], key: Operation | None = None) -> Batch:
        """Read the heads of ``ids`` and the write under ``key``. The heads are in the cache afterwards.

        Raises: CtxdError ``corrupt`` or ``store_failed``. Cancel: safe.
        """
        batch = self._next
        batch.ids.update(ids)
        if key is not None:
            batch.keys.add(key)
        self._wake.set()
        await batch.done.wait()
        if batch.error is not None:
            raise CtxdError(batch.error.code, batch.error.message, hint=batch.error.hint)
        return batch

    async def run(self, reader: Reader) -> None:
        """Serve ``find`` until cancelled."""
        limiter = anyio.CapacityLimiter(1)
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            batch, self._next = self._next, Batch()
            self._reading = batch
            await run_sync(batch.read, reader, limiter=limiter)
            self._reading = None
            for id, head in batch.heads.items():
                if id not in self._written:
                    self._heads.put(id, head)
            self._written.clear()
            for message, refute in batch.refuted:
                refute(message)
            batch.done.set()
