"""Lookups of heads and operation ids, gathered: what one tick asks for is read in one go on a thread."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.objects.identity import UNCACHED_PREFIXES
from ctxd.store import journal
from ctxd.store.bloom import BloomFilter
from ctxd.store.cache import Heads
from ctxd.store.idempotency import Operation
from ctxd.store.journal import Body
from ctxd.store.reads import KEY_INDEXES, Reader, answered, answering
from ctxd_protocol.objects import Receipt


class Batch:
    """Ids and operations of one reading, and its results."""

    def __init__(self) -> None:
        # In the order of their asking, which is mostly that of their writing: so a page is read once.
        self.ids: dict[str, None] = {}
        self.written: set[str] = set()
        self.logged: set[str] = set()
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


class HeadLoader:
    """Reads batch after batch, each as large as what came in during the one before."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._next = Batch()
        self._wake = anyio.Event()
        self._reading: Batch | None = None

    def note_written(self, ids: Iterable[str]) -> None:
        """Record that newer heads of ``ids`` were accepted: one that is being read is not the newest."""
        for batch in (self._next, self._reading):
            if batch is not None and batch.ids:
                batch.written.update(id for id in ids if id in batch.ids)

    def compare(self, receipt: Receipt, refute: Callable[[str], None]) -> None:
        """Call ``refute`` soon if the journal does not hold the row of ``receipt``."""
        self._next.claims.append((receipt, refute))
        self._wake.set()

    async def find(self, ids: Iterable[str], key: Operation | None = None) -> Batch:
        """Read the heads of ``ids`` and the write under ``key``. The heads are in the cache afterwards, as far as it
        has room.

        Raises: CtxdError ``corrupt`` or ``store_failed``. Cancel: safe.
        """
        batch = self._next
        batch.ids.update(dict.fromkeys(ids))
        if key is not None:
            batch.keys.add(key)
        self._wake.set()
        await batch.done.wait()
        if batch.error is not None:
            raise CtxdError(batch.error.code, batch.error.message, hint=batch.error.hint)
        return batch

    async def newest(
        self, ids: dict[str, None], lacks: Callable[[str], bool], settle: Callable[[], Awaitable[None]]
    ) -> dict[str, Stored | None]:
        """The newest accepted heads of ``ids``, in their order, None for those that ``lacks`` knows or none are of.

        ``settle`` returns once all that was accepted is in the database, or lost. Raises and cancel: as ``find``.
        """
        readings: list[dict[str, Stored | None]] = []
        while True:
            # What was accepted, or lost, during a reading shows here, and overrides what was read.
            heads = self._heads.known(ids)
            if len(heads) == len(ids):
                return heads
            # What was read may be more than the cache holds.
            for found in readings:
                heads = {id: found[id] for id in ids if id in found} | heads
            missing = [id for id in ids if id not in heads]
            if all(map(lacks, missing)):
                return {id: heads.get(id) for id in ids}
            if logged := [id for id in missing if id.startswith(UNCACHED_PREFIXES)]:
                await settle()
                # A head that came in meanwhile may not be durable: what is read now would be taken for the newest.
                known = self._heads.known(missing)
                missing = [id for id in missing if id not in known]
                self._next.logged.update(logged)
            readings.append((await self.find(missing)).heads)

    async def run(self, reader: Reader) -> None:
        """Serve ``find`` until cancelled; calls that wait then are refused as ``draining``."""
        limiter = anyio.CapacityLimiter(1)
        try:
            while True:
                await self._wake.wait()
                self._wake = anyio.Event()
                batch, self._next = self._next, Batch()
                self._reading = batch
                await run_sync(batch.read, reader, limiter=limiter)
                self._reading = None
                self._answer(batch)
        finally:
            for batch in filter(None, (self._reading, self._next)):
                batch.error = CtxdError("draining", "the daemon is going down", retry_after_ms=1_000)
                batch.done.set()

    def _answer(self, batch: Batch) -> None:
        for id in batch.written:
            batch.heads.pop(id, None)
        kept = batch.heads
        if batch.logged:
            kept = {id: head for id, head in kept.items() if id not in batch.logged}
        self._heads.add(kept)
        for message, refute in batch.refuted:
            refute(message)
        batch.done.set()


_KEYS_READ: Final = 5_000
"""Keys of one reading while a sieve is filled: how long the end of the store may wait for it."""


async def fill_bloom(sieve: BloomFilter, reader: Reader, damaged: Callable[[str], None]) -> None:
    """Add every entity and operation of the database to ``sieve``, which is whole then.

    The tables are read, not the indexes by which both are looked up later; these are compared with the tables on the
    way, and ``damaged`` is called with a sentence for one that differs. Cancel: safe.
    """
    limiter = anyio.CapacityLimiter(1)
    stored = BloomFilter()
    try:
        last = await run_sync(answered, reader.last_keys, limiter=limiter)
        for index in KEY_INDEXES:
            sums = []
            for by_index in (False, True):
                walk = reader.keys(index, last, _KEYS_READ, by_index=by_index)
                total = 0
                while keys := await run_sync(answered, lambda walk=walk: next(walk, ()), limiter=limiter):
                    total = (total + sum(map(hash, keys))) % 2**64
                    if not by_index:
                        stored.add(text for text, _ in keys)
                sums.append(total)
            if sums[0] != sums[1]:
                damaged(f"the index of {index.what} does not match its table: stop the daemon, run ctxd verify")
    except CtxdError:
        # Without the filter every lookup reads the database, and fails there with the reason.
        return
    for _ in sieve.take_in(stored):
        await checkpoint()
    sieve.whole = True
