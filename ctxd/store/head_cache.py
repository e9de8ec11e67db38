"""LRU caches of newest versions and of texts, and the loader of heads that are not cached.

Everything runs on the loop, except that the loader reads on a thread: requests of one loop iteration share a read.
"""

import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import anyio
import msgspec

from ctxd import limits
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.objects.document import Content, Stored
from ctxd.objects.generated_ids import UNCACHED_PREFIXES
from ctxd.store import journal
from ctxd.store.bloom_filter import BloomFilter
from ctxd.store.idempotency import Operation
from ctxd.store.version_reads import KEY_INDEXES, Reader, read_errors, run_read
from ctxd.store.write_types import NOT_CACHED, NotCached, StoredWrite
from ctxd.worker_threads import Lane, NoThread
from ctxd_protocol.object_types import Receipt

LARGE_HEAD_BYTES: Final = 4096
"""Arguments of a tool call that have more bytes than this count as large."""

LARGE_HEADS_BYTES: Final = 32 * 1024 * 1024
"""Limit on the bytes of large arguments in the cache, which otherwise only counts heads."""


class Heads:
    """LRU cache of the newest accepted versions of entities; None for an entity known not to exist.

    Keeps at most ``limit`` heads, and at most ``large_limit`` bytes of large ones, dropping the oldest of those first.
    ``lacks`` returns True for an entity that was certainly never written.
    """

    def __init__(self, limit: int, lacks: Callable[[str], bool], large_limit: int = LARGE_HEADS_BYTES) -> None:
        self._limit = limit
        self._lacks = lacks
        self._large_limit = large_limit
        self._large: dict[str, int] = {}
        self._large_bytes = 0
        self.durable = 0
        """Sequence up to which heads are in the database; newer ones are only in this cache."""
        self.trim_due = False
        """True if ``trim`` has more to do once later writes are durable."""
        self._trimmed = 0
        self._heads: OrderedDict[str, Stored | None] = OrderedDict()
        self._deleted: dict[str, int] = {}
        # For entities whose head is not cached: the newest write at a past valid time.
        self._backdated: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def peek(self, id: str) -> Stored | None | NotCached:
        """The newest accepted version of ``id`` without waiting; ``NOT_CACHED`` if that takes a read."""
        if id not in self._heads:
            return None if self._lacks(id) else NOT_CACHED
        self._heads.move_to_end(id)
        return self._heads[id]

    def known(self, ids: Iterable[str]) -> dict[str, Stored | None]:
        """The cached heads among ``ids``."""
        heads, used = self._heads, self._heads.move_to_end
        found: dict[str, Stored | None] = {}
        for id in ids:
            if id in heads:
                found[id] = heads[id]
                used(id)
        return found

    def put(self, id: str, head: Stored | None, size: int = LARGE_HEAD_BYTES + 1) -> None:
        """Cache ``head``; count its bytes if it is large. Of clients' values, only tool arguments can be.

        ``size``: that of its encoded document if the caller knows it; saves encoding the arguments of a small one.
        """
        if id in self._heads:
            self._heads.move_to_end(id)
        self._heads[id] = head
        if id in self._large:
            self._large_bytes -= self._large.pop(id)
        arguments = None if head is None or size <= LARGE_HEAD_BYTES else head.document.payload.get("args")
        if arguments and (size := len(msgspec.json.encode(arguments))) > LARGE_HEAD_BYTES:
            self._large[id] = size
            self._large_bytes += size
        if len(self._heads) > self._limit or self._large_bytes > self._large_limit:
            self.trim()

    def backdate(self, id: str, head: Stored) -> bool:
        """Cache ``head``, written at a past valid time, if it is the newest version of ``id`` by valid time.

        If the newest version is not cached, it is read from the database once this write is durable, see ``unsettled``.
        Returns: False if a newer version is known.
        """
        known = self._heads.get(id)
        if known is None:
            self.forget((id,))
            self._backdated[id] = head.tx
            self.trim_due = True
        elif known.valid_time <= head.valid_time:
            self.put(id, head)
        else:
            return False
        return True

    def unsettled(self, ids: Iterable[str]) -> list[str]:
        """Those of ``ids`` whose heads can be read only once all accepted writes are durable."""
        backdated, durable = self._backdated, self.durable
        return [id for id in ids if id.startswith(UNCACHED_PREFIXES) or (id in backdated and backdated[id] > durable)]

    def delete(self, ids: Iterable[str], seq: int) -> None:
        """Record that write ``seq`` deleted ``ids``, at least until it is durable."""
        self.trim_due = True
        for id in ids:
            self._deleted[id] = seq
            self.put(id, None)

    def trim(self) -> None:
        """Drop the least recently used heads over the limit, but none above ``durable``."""
        if self._trimmed != self.durable:
            # Not at each put into a full cache: that would walk all heads that are not durable yet.
            self._trimmed = self.durable
            self._deleted = {id: seq for id, seq in self._deleted.items() if seq > self.durable}
            self._backdated = {id: seq for id, seq in self._backdated.items() if seq > self.durable}
        self.trim_due = bool(self._deleted or self._backdated)
        while len(self._heads) > self._limit:
            id, head = next(iter(self._heads.items()))
            if (self._deleted.get(id, 0) if head is None else head.tx) > self.durable:
                self.trim_due = True
                return
            self.forget((id,))
        while self._large_bytes > self._large_limit:
            id = next(iter(self._large))
            head = self._heads[id]
            if head is not None and head.tx > self.durable:
                self.trim_due = True
                return
            self.forget((id,))

    def forget(self, ids: Iterable[str]) -> None:
        """Drop ``ids``."""
        for id in ids:
            self._heads.pop(id, None)
            self._deleted.pop(id, None)
            self._large_bytes -= self._large.pop(id, 0)


class Texts:
    """Texts by their BLAKE3 in hex, in at most ``limit`` bytes of memory. The least recently used go first.

    Counts memory, not characters: one character outside Latin-1 makes every character take two or four bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._texts: OrderedDict[str, tuple[Content, int]] = OrderedDict()

    def get(self, ref: str) -> Content | None:
        """The content; None if it is not cached."""
        kept = self._texts.get(ref)
        if kept is None:
            return None
        self._texts.move_to_end(ref)
        return kept[0]

    def remove(self, refs: Iterable[str]) -> None:
        """Drop ``refs``."""
        for ref in refs:
            kept = self._texts.pop(ref, None)
            self._size -= kept[1] if kept is not None else 0

    def put(self, ref: str, text: Content) -> None:
        """Cache ``text``, unless it is so large that it would evict much of the rest."""
        size = sys.getsizeof(text)
        if ref in self._texts or size > self._limit // 8:
            return
        # Store the size: a string grows when it is first encoded, because it caches its UTF-8 form.
        self._texts[ref] = (text, size)
        self._size += size
        while self._size > self._limit:
            self._size -= self._texts.popitem(last=False)[1][1]


class Batch:
    """Ids and operations to look up in one read, and the results."""

    def __init__(self) -> None:
        # In order of request, which is mostly the order of writing, so that each page is read once.
        self.ids: dict[str, None] = {}
        self.written: set[str] = set()
        self.logged: set[str] = set()
        self.keys: set[Operation] = set()
        self.heads: dict[str, Stored | None] = {}
        self.sizes: dict[str, int] = {}
        self.operations: dict[Operation, StoredWrite] = {}
        self.claims: list[tuple[Receipt, Callable[[str], None]]] = []
        self.refuted: list[tuple[str, Callable[[str], None]]] = []
        self.error: CtxdError | None = None
        self.done = anyio.Event()

    def read(self, reader: Reader) -> None:
        """Look everything up; blocks."""
        try:
            with read_errors():
                self.heads, self.sizes = reader.heads(self.ids, LARGE_HEAD_BYTES)
                self.operations = reader.operations(self.keys)
                for receipt, refute in self.claims:
                    chain = journal.chain_at(reader.connection, receipt.seq)
                    if chain is None or chain.hex() != receipt.chain:
                        message = f"row {receipt.seq} is not the one that a client holds a receipt for"
                        self.refuted.append((message, refute))
        except CtxdError as error:
            self.error = error


class HeadLoader:
    """Reads one batch after the other; each holds the requests that arrived during the previous one."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._next = Batch()
        self._wake = anyio.Event()
        self._reading: Batch | None = None
        self.loading = False
        """True while heads are being read, or about to be: ``note_written`` has to be called."""

    def note_written(self, ids: Iterable[str]) -> None:
        """Record that newer heads of ``ids`` were accepted: those being read are no longer the newest."""
        for batch in (self._next, self._reading):
            if batch is not None and batch.ids:
                batch.written.update(id for id in ids if id in batch.ids)

    def compare(self, receipt: Receipt, refute: Callable[[str], None]) -> None:
        """Schedule a check of ``receipt``: call ``refute`` if the journal does not hold its row."""
        self._next.claims.append((receipt, refute))
        self._wake.set()

    async def find(
        self, ids: Iterable[str], key: Operation | None = None, *, unsettled: Sequence[str] | None = None
    ) -> Batch:
        """Read the heads of ``ids`` and the write under ``key``. Afterwards the heads are cached if there is room.
        ``unsettled``: the result of ``Heads.unsettled(ids)``, if the caller has just called it.

        Raises: CtxdError ``corrupt`` or ``store_failed``. Cancel: safe.
        """
        batch = self._next
        wanted = dict.fromkeys(ids)
        batch.ids.update(wanted)
        batch.logged.update(self._heads.unsettled(wanted) if unsettled is None else unsettled)
        self.loading = self.loading or bool(batch.ids)
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
        """The newest accepted heads of ``ids``, in their order; None for an entity that does not exist or that
        ``lacks`` rules out.

        ``settle`` returns once accepted writes are durable or lost. Raises, cancel: as ``find``.
        """
        readings: list[dict[str, Stored | None]] = []
        while True:
            # Writes accepted or lost during a read show in the cache, which overrides the result of the read.
            heads = self._heads.known(ids)
            if len(heads) == len(ids):
                return heads
            # The results may exceed the capacity of the cache.
            for found in readings:
                heads = {id: found[id] for id in ids if id in found} | heads
            missing = [id for id in ids if id not in heads]
            if all(map(lacks, missing)):
                return {id: heads.get(id) for id in ids}
            if unsettled := self._heads.unsettled(missing):
                await settle()
                # A head accepted meanwhile may not be durable: an older one, read now, would be taken for the newest.
                known = self._heads.known(missing)
                missing = [id for id in missing if id not in known]
                unsettled = self._heads.unsettled(missing)
            readings.append((await self.find(missing, unsettled=unsettled)).heads)

    async def run(self, reader: Reader) -> None:
        """Serve ``find`` until cancelled; calls that are waiting then fail as ``draining``."""
        lane = Lane("heads")
        try:
            while True:
                await self._wake.wait()
                self._wake = anyio.Event()
                batch, self._next = self._next, Batch()
                self._reading = batch
                try:
                    await lane.run(batch.read, reader)
                except NoThread as error:
                    batch.error = error
                self._reading = None
                self.loading = bool(self._next.ids)
                self._answer(batch)
        finally:
            for batch in filter(None, (self._reading, self._next)):
                batch.error = CtxdError("draining", "the daemon is stopping", retry_after_ms=1_000)
                batch.done.set()

    def _answer(self, batch: Batch) -> None:
        for id in batch.written:
            batch.heads.pop(id, None)
        kept = batch.heads
        if batch.logged:
            kept = {id: head for id, head in kept.items() if id not in batch.logged}
        for id, head in kept.items():
            self._heads.put(id, head, batch.sizes.get(id, 0))
        for message, refute in batch.refuted:
            refute(message)
        batch.done.set()


_KEYS_READ: Final = 5_000
"""Keys per read while the filter is filled, which bounds how long closing the store waits. A store with no more keys
than this is read without delay."""


async def fill_bloom(bloom: BloomFilter, reader: Reader, damaged: Callable[[str], None], clock: Clock) -> None:
    """Add every entity and operation of the database to ``bloom``, then set ``whole``. In a large store this starts
    after a delay, so that the first calls go first.

    Reads the tables, and compares the indexes that later look-ups use with them; ``damaged`` is called with a sentence
    for an index that differs. Cancel: safe.
    """
    lane = Lane("operations")
    try:
        last = await lane.run(run_read, reader.last_keys)
        if max(last) > _KEYS_READ:
            await clock.sleep(limits.BLOOM_DELAY_S)
        for index in KEY_INDEXES:
            sums = []
            for by_index in (False, True):
                walk = reader.keys(index, last, _KEYS_READ, by_index=by_index)
                total = 0
                while keys := await lane.run(run_read, lambda walk=walk: next(walk, ())):
                    total = (total + sum(map(hash, keys))) % 2**64
                    if not by_index:
                        bloom.add(text for text, _ in keys)
                sums.append(total)
            if sums[0] != sums[1]:
                damaged(f"the index of {index.what} does not match its table: stop the daemon, run ctxd verify")
    except CtxdError:
        # Without the filter every lookup reads the database, and fails there with the cause.
        return
    bloom.whole = True
