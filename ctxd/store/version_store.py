"""The version store: the interface for all writes and reads of versions.

A write is accepted at once: it gets its sequence and valid time, and its heads are visible. It becomes durable with the
transaction that it shares with its neighbours. While one transaction runs, writes for the next one gather, so no write
waits for others to arrive, and they share a flush. If a transaction fails, every write accepted after it fails too, and
leaves no trace. Reads of anything but a head wait until earlier writes are durable or have failed.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import msgspec
from anyio.abc import TaskStatus

from ctxd import limits
from ctxd.clock import Clock, ValidTimes
from ctxd.errors import CtxdError, StateDirError
from ctxd.objects.document import ALL, NOW, AsOf, Content, HistoryPage, IdPage, Stored
from ctxd.objects.generated_ids import UNCACHED_PREFIXES
from ctxd.sqlite_file import Connection, DiskFailed, DiskFull, FileDamaged, SqlFailed
from ctxd.store import state_directory
from ctxd.store.bloom_filter import BloomFilter
from ctxd.store.file_erasures import Erasures
from ctxd.store.group_commit import CommitQueue
from ctxd.store.head_cache import HeadLoader, Heads, Texts, fill_bloom
from ctxd.store.health import Health
from ctxd.store.idempotency import Operation, Resend, made_already, replay_of
from ctxd.store.journal import Row
from ctxd.store.journal_followers import Follower, JournalGrowth
from ctxd.store.journal_writer import Durations, JournalWriter
from ctxd.store.large_content import LargeContent
from ctxd.store.purge import is_unfinished, residue
from ctxd.store.scrub import Scrub
from ctxd.store.version_reads import AsOfReads, EmbeddedReads, QueryRows, Reader, all_stored, run_read
from ctxd.store.write_types import (
    Change,
    DurableWrites,
    EncodedWrite,
    Listeners,
    NotCached,
    Pending,
    Purged,
    QueuedWrite,
    Replay,
    StoredWrite,
    StoreFailed,
    Write,
)
from ctxd.worker_threads import Lane, in_thread
from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.status_types import StoreStatus

T = TypeVar("T")

_EXIT_IO: Final = 74
DAMAGE_MAX: Final = 100
"""Maximum number of damage reports in the status."""


class VersionStore:
    """Versions of entities in a state directory. ``run`` must be running while anything else is called."""

    def __init__(self, root: Path | None, clock: Clock) -> None:
        """``root`` is the state directory; ``None`` creates a temporary one that is removed at the end."""
        self._bloom = BloomFilter()
        self.is_new_operation: Callable[[Operation], bool] = self._bloom.lacks
        """True if an operation is certainly new. False may be a false positive."""
        self._heads = Heads(limits.HEADS_CACHED_MAX, self._bloom.lacks)
        self.peek = self._heads.peek
        """See ``Heads.peek``."""
        self._texts = Texts(limits.CONTENT_CACHE_BYTES)
        self._loader = HeadLoader(self._heads)
        self._reading = Lane("store.read")
        self._purges = 0
        self._root, self.root = root, root or Path()
        self._clock = clock
        self._attached: list[Callable[..., Coroutine[Any, Any, None]]] = []
        self._admissions: list[Callable[[], None]] = []
        self._listeners = Listeners()
        self._health = Health(self._listeners.health)
        self._commits = CommitQueue(
            self._health, self._note_durable, self._note_lost, self._listeners.fault, self._wake_followers
        )
        self.is_purging, self._settle = self._commits.is_purging, self._commits.settle
        self._times = ValidTimes()
        self._under_way: dict[Operation, QueuedWrite] = {}
        # Operations that became durable recently; older ones are in the journal.
        self._ended: OrderedDict[Operation, None] = OrderedDict()
        self.next_seq = 1
        """Sequence of the write that is accepted next."""
        self._damage: dict[str, None] = {}
        self._growth = JournalGrowth()
        self._scrub = Scrub(clock, self._note_damage)
        self._large = large = LargeContent(self._health, self._commits.fail, self._listeners.fault)
        self.keep, self.keep_content, self.hold_artifact = large.keep, large.keep_content, large.hold_artifact
        self.put_artifact, self.get_artifact = large.put_artifact, large.get_artifact
        self.read_artifacts, self.repack_artifacts = large.read_artifacts, large.repack_artifacts
        self._erasures = Erasures()
        self.on_purge = self._erasures.add
        """See ``Erasures.add``."""
        self._durable: Receipt | None = None
        self.incarnation = 0
        self.journal_id = self.writer = ""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Lock the state directory and commit submitted writes until cancelled; calls ``started`` when ready.

        Raises: StateDirError before it has started. StoreFailed after a disk failure: end the process with code 74.
        Cancel: queued writes fail as ``draining``; call ``drain`` before.
        """
        directory = await in_thread(state_directory.hold, self._root)
        self.root, self.directory = directory.root, directory
        try:
            await self._serve(directory, task_status)
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(directory.close)

    async def _serve(self, directory: state_directory.StateDir, task_status: TaskStatus[None]) -> None:
        artifacts = self._large.open(directory.artifacts)
        try:
            journal_writer = await in_thread(JournalWriter, directory, artifacts, self._clock)
            damage = await in_thread(journal_writer.begin)
        except (FileDamaged, SqlFailed, DiskFailed, DiskFull, OSError) as error:
            raise StateDirError(f"{directory.database} cannot be opened: {error}", exit_code=_EXIT_IO) from error
        self._journal_writer = journal_writer
        self._begin(damage)
        self._reader = Reader(directory.database, artifacts)
        self._embedded = EmbeddedReads(self._reader, self._reading)
        self._as_of_reads: AsOfReads = self._embedded
        loader = Reader(directory.database, artifacts)
        sifter, scrubber = (Reader(directory.database, artifacts, reads_once=True) for _ in range(2))
        failure: Exception | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._loader.run, loader)
                group.start_soon(fill_bloom, self._bloom, sifter, self._note_broken_index, self._clock)
                if not damage:
                    group.start_soon(self._scrub_all, scrubber, directory)
                    group.start_soon(self._large.collect, self._read, self._reader.referenced)
                for part in self._attached:
                    await group.start(partial(part, self))
                task_status.started()
                failure = await self._commits.run(journal_writer)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(failure, loader, sifter, scrubber)
        raise StoreFailed(str(failure)) from failure

    def _begin(self, damage: str) -> None:
        written, head = self._journal_writer, self._journal_writer.head
        self.incarnation, self.journal_id, self.writer = written.incarnation, written.journal_id, written.writer
        self.next_seq = head.seq + 1
        self._times = ValidTimes(written.head_vt)
        self._heads.durable = head.seq
        if head.seq:
            self._durable = Receipt(head.seq, head.chain.hex(), written.head_vt)
            self._wake_followers()
        for complaint in written.complaints:
            self._note_damage(complaint)
        if damage:
            self._health.lose(damage)
        elif (shortage := written.shortage) is not None:
            self._health.fill(f"there was no room at the start: {shortage}", shortage.hint)

    async def _scrub_all(self, reader: Reader, directory: state_directory.StateDir) -> None:
        try:
            follower = await self.follow("scrub")
        except CtxdError as error:
            if error.code == "disk_full":
                self._listeners.fault(error)
            else:
                self._note_damage(error.message)
            return
        await self._scrub.run(follower, reader, directory)

    def _note_damage(self, message: str) -> None:
        """Report damage in the status, and once to ``on_fault``."""
        if message not in self._damage and len(self._damage) < DAMAGE_MAX:
            self._damage[message] = None
            self._listeners.fault(CtxdError("corrupt", message))

    def _note_broken_index(self, message: str) -> None:
        """Refuse writes: an operation or entity not found by its id would be written a second time."""
        self._note_damage(message)
        self._health.lose(message)

    async def _end(self, failure: Exception | None, *readers: Reader) -> None:
        self._health.close()
        await self._reading.run(self._reader.close)
        for reader in readers:
            await in_thread(reader.close)
        await in_thread(self._close_journal_writer, failure)

    def _close_journal_writer(self, failure: Exception | None) -> None:
        # Data that does not fit into the database stays in its write-ahead log, where the next start finds it.
        with suppress(DiskFull, DiskFailed):
            self._journal_writer.close(tidy=failure is None and not self._health.lost)

    async def drain(self) -> None:
        """Refuse further writes, and return once every accepted one is durable or has failed. Cancel: safe."""
        self._health.drain()
        await self._commits.settle()

    def _note_durable(self, batch: Sequence[QueuedWrite]) -> None:
        for entry in batch:
            write = entry.encoded.write
            if write.op_id is not None:
                self._under_way.pop((write.principal, write.op_id), None)
            if entry.encoded.failure is not None:
                self._listeners.fault(entry.encoded.failure)
            elif write.op_id is not None:
                self._ended[write.principal, write.op_id] = None
                if len(self._ended) > limits.OPS_CACHED_MAX:
                    self._ended.popitem(last=False)
            if write.purge is not None and write.purge.done is not None:
                self._forget(write.purge.done)
            for artifact in entry.encoded.artifacts:
                artifact.used = True
        self._durable = batch[-1].pending.receipt
        self._heads.durable = batch[-1].pending.seq
        if self._heads.trim_due:
            self._heads.trim()
        self._listeners.durable([(entry.encoded.write, entry.pending) for entry in batch])

    def _wake_followers(self) -> None:
        self._growth.note(0 if self._durable is None else self._durable.seq)

    def _forget(self, purged: Purged) -> None:
        """Drop purged texts and heads from the caches, except heads accepted since."""
        self._purges += 1
        self._texts.remove(ref.hex() for ref in purged.texts)
        durable = self._journal_writer.head.seq
        heads = self._heads.known(purged.ids)
        self._heads.forget(id for id, head in heads.items() if head is not None and head.tx <= durable)
        self._loader.note_written(purged.ids)

    def _note_lost(self, entries: Sequence[QueuedWrite]) -> None:
        writes = [entry.encoded.write for entry in entries]
        for entry, write in zip(entries, writes, strict=True):
            self._heads.forget(entry.encoded.ids)
            if write.op_id is not None:
                self._under_way.pop((write.principal, write.op_id), None)
        self.next_seq = entries[0].pending.seq
        sessions = frozenset(write.session for write in writes if write.session is not None)
        self._listeners.lost(sessions)

    def submit(self, write: Write) -> Pending:
        """Accept ``write``: its heads are visible at once; the ``Pending`` delivers its receipt.

        Raises: CtxdError ``invalid_params`` for a valid time that is not past; ``disk_full``, ``data_loss``,
        ``store_backlog_full``, ``rate_limited``, ``store_failed``, ``draining``; ``cancelled`` if its ``op_id`` was
        submitted before, see ``replay``. AssertionError for large content that ``keep`` was not called for.
        """
        if not self._health.writable:
            self._health.require_writable()
        if self._commits.queued_bytes >= limits.QUEUE_BYTES_MAX or len(self._commits.queue) >= limits.QUEUE_WRITES_MAX:
            raise CtxdError("store_backlog_full", "too many writes wait", retry_after_ms=100, outcome="not_applied")
        for admit in self._admissions:
            admit()
        key = None if write.op_id is None else (write.principal, write.op_id)
        if key in self._under_way or key in self._ended:
            raise made_already()
        wall = self.require_past(write.valid_times.values()) if write.valid_times else self._clock.wall_ms()
        encoded = EncodedWrite(write)
        vt = self._times.next(wall, write.floor_vt, encoded.ids)
        pending = Pending(self.next_seq, vt, encoded.size)
        self.next_seq += 1
        entry = QueuedWrite(encoded, pending, wall)
        self._bloom.add(encoded.ids if key is None else (*encoded.ids, key))
        if key is not None:
            self._under_way[key] = entry
        self._show(entry)
        self._commits.put(entry)
        return pending

    def require_past(self, valid_times: Iterable[int]) -> int:
        """Return the current time, in ms. Raises: CtxdError ``invalid_params`` if one of ``valid_times`` is not before
        it, or is before 1970."""
        now = self._clock.wall_ms()
        for valid_time in valid_times:
            if not 0 <= valid_time < now:
                message = f"valid_time {valid_time} is not in the past: it is {now} ms since 1970 here"
                hint = "Omit valid_time for the present."
                raise CtxdError("invalid_params", message, hint=hint, outcome="not_applied")
        return now

    def _show(self, entry: QueuedWrite) -> None:
        """Make the heads of the cached entities and the texts of ``entry`` visible."""
        encoded, seq, vt = entry.encoded, entry.pending.seq, entry.pending.vt
        # Deletions are last in ``encoded.puts`` and have no document.
        for document, put in zip(encoded.write.puts, encoded.puts, strict=False):
            if document.id.startswith(UNCACHED_PREFIXES):
                continue
            ref = None
            if put.content is not None:
                ref = put.content.hex()
                if document.content is not None and put.valid_time is None:  # History is seldom read at once.
                    self._texts.put(ref, document.content)
                document = msgspec.structs.replace(document, content=None, artifact=None)
            valid_time = vt if put.valid_time is None else put.valid_time
            head = Stored(document=document, content_ref=ref, valid_time=valid_time, tx=seq, tx_time=entry.tx_time)
            if put.valid_time is None:
                self._heads.put(document.id, head, len(put.document))
            elif not self._heads.backdate(document.id, head):
                entry.pending.behind += (document.id,)
        if encoded.write.deletes:
            # Do not cache the deletion of an uncached entity: it would hide a later write under the same id.
            deleted = [id for id in encoded.write.deletes if not id.startswith(UNCACHED_PREFIXES)]
            self._heads.delete(deleted, seq)
        if self._loader.loading:
            self._loader.note_written(encoded.ids)

    async def purge_residue(self) -> tuple[str, ...]:
        """Wait up to a few seconds for the removal of purged content.

        Returns: the files, relative to the state directory, that may still hold some of it; empty once there are none.
        Never raises: a durable purge must not return an error. Cancel: safe; the removal continues.
        """
        with anyio.move_on_after(limits.PURGE_WAIT_S):
            await self._commits.purges_finished()
            await self._erasures.finished()
            return ()
        try:
            return (*await self._read(lambda: residue(self._reader.connection, self.directory)), *self._erasures.left)
        except CtxdError:
            return ("state.db", "state.db-wal")

    async def check_alive(self) -> None:
        """Return once accepted writes are durable or have failed, and a read of the database has ended. Raises: as
        ``get``. Cancel: safe."""
        await self._read(lambda: is_unfinished(self._reader.connection))

    async def replay(self, key: Operation, call: Resend, *, heads: Iterable[str] = ()) -> Replay | None:
        """Return the stored result of the write under ``key``, or None; also load ``heads``, for ``peek``.

        Raises: CtxdError ``idempotency_mismatch`` if ``call`` is another one; ``corrupt``. Cancel: safe.
        """
        found: QueuedWrite | StoredWrite | None = self._under_way.get(key)
        while found is None:
            self._health.require_readable()
            missing = [id for id in heads if isinstance(self.peek(id), NotCached)]
            is_new_operation = self.is_new_operation(key)
            if missing or not is_new_operation:
                batch = await self._loader.find(missing, None if is_new_operation else key)
                # The write may have been submitted, and may even have ended, while the journal was read.
                found = batch.operations.get(key) or self._under_way.get(key)
            if found is None and key not in self._ended:
                return None
        return replay_of(key, call, found)

    def on_lost(self, callback: Callable[[frozenset[str]], None]) -> None:
        """Register a callback for sessions that lost accepted writes, called before the writes' callers resume."""
        self._listeners.on_lost.append(callback)

    def on_durable(self, callback: Callable[[DurableWrites], None], *, types: Collection[str] | None = None) -> None:
        """Register a callback for durable writes, in order, in groups of part of a commit; with ``types``, only for
        groups with a write that puts an entity of such a type, or purges."""
        self._listeners.on_durable.append((callback, types))

    def attach(self, part: Callable[..., Coroutine[Any, Any, None]]) -> None:
        """Run ``part(store, task_status=…)`` while the store is open: it starts before ``run`` reports ``started``, and
        ends before the store closes its files. Call this before ``run``."""
        self._attached.append(part)

    def on_submit(self, admit: Callable[[], None]) -> None:
        """Call ``admit`` before each write is accepted. It refuses the write by raising a CtxdError."""
        self._admissions.append(admit)

    def serve_as_of_reads_from(self, reads: AsOfReads) -> None:
        """Use ``reads`` for queries and reads as of a time; it may use ``embedded``."""
        self._as_of_reads = reads

    @property
    def embedded(self) -> EmbeddedReads:
        """The embedded tables, for reads as of a time."""
        return self._embedded

    def note_fault(self, fault: Exception) -> None:
        """Report ``fault``, an exception after which an attached part continues, to the ``on_fault`` listeners."""
        self._listeners.fault(fault)

    def on_health(self, callback: Callable[[ErrorCode | None], None]) -> None:
        """Call ``callback`` with an error code when writes start to be refused, with None when they resume."""
        self._listeners.on_health.append(callback)

    def on_fault(self, callback: Callable[[Exception], None]) -> None:
        """Register a callback for exceptions after which the store continues, of other callbacks and of writes."""
        self._listeners.on_fault.append(callback)

    def head(self) -> Receipt | None:
        """Return the receipt of the newest durable write; None before the first."""
        return self._durable

    def check_receipt(self, receipt: Receipt) -> None:
        """Check a receipt that a client has kept against the journal.

        If the journal is behind the receipt, or has a different row in its place (found a moment later), all further
        writes are refused: call this only for clients that may stop the daemon.
        """
        durable = 0 if self._durable is None else self._durable.seq
        if receipt.seq > durable:
            self._health.lose(f"the journal ends at row {durable}, but a client holds a receipt for row {receipt.seq}")
        else:
            self._loader.compare(receipt, self._health.lose)

    @property
    def commit_durations(self) -> Durations:
        """Flush times of the transactions since the start."""
        return self._journal_writer.durations

    def status(self) -> StoreStatus:
        """The figures of ``daemon.status``."""
        lead = self._times.lead_ms(self._clock.wall_ms())
        late = f"valid times are {lead} ms ahead of the host's clock" if lead > limits.VALID_TIME_LEAD_MS else ""
        return StoreStatus(
            state=self._health.state,
            reason=self._health.reason or next(iter(self._damage), late),
            head_seq=0 if self._durable is None else self._durable.seq,
            head_chain="" if self._durable is None else self._durable.chain,
            pending_writes=self._commits.waiting,
            commits=self._journal_writer.commits,
            rows=self._journal_writer.head.seq,
            flush_ms_p50=self._journal_writer.flush_ms(50),
            flush_ms_p99=self._journal_writer.flush_ms(99),
            damage=tuple(self._damage),
            scrubbed_seq=self._scrub.seq,
            scrubbed_ms=self._scrub.finished_ms,
        )

    # --- reads ---

    async def wait_for_writes(self) -> None:
        """Return once every write accepted so far is durable or has failed.

        Raises: CtxdError ``store_failed``, ``draining``. Cancel: safe.
        """
        self._health.require_readable()
        await self._settle()
        self._health.require_readable()

    async def _read(self, function: Callable[[], T]) -> T:
        """Call ``function`` on the reader's thread, once every write accepted so far is durable or has failed."""
        await self.wait_for_writes()
        return await self._reading.run(run_read, function)

    async def heads(self, ids: Iterable[str]) -> dict[str, Stored | None]:
        """The newest accepted versions of ``ids``, in their order, without content; None for ids without an entity.
        Does not suspend if all are cached. Raises and cancel: as ``get``."""
        self._health.require_readable()
        return await self._loader.newest(dict.fromkeys(ids), self._bloom.lacks, self._settle)

    async def newest(self, id: str) -> Stored | None:
        """The newest accepted version of ``id``. Does not suspend if it is cached. Raises and cancel: as ``get``."""
        head = self.peek(id)
        return (await self.heads((id,)))[id] if isinstance(head, NotCached) else head

    async def get(self, id: str, at: AsOf = NOW, *, content: bool = False) -> Stored | None:
        """Return the version of ``id`` as of ``at``; None if it has no version.

        Raises: CtxdError ``corrupt``, ``store_failed``. Cancel: safe.
        """
        return (await self.bulk((id,), at, content=content)).get(id)

    async def bulk(self, ids: Sequence[str], at: AsOf = NOW, *, content: bool = False) -> dict[str, Stored]:
        """The versions of ``ids`` as of ``at``, in order; ids without a version are left out. Otherwise as ``get``."""

        async def read() -> list[Stored]:
            if not at.is_past:
                return [head for head in (await self.heads(ids)).values() if head is not None]
            await self.wait_for_writes()
            by_id = {stored.document.id: stored for stored in all_stored(await self._as_of_reads.as_of(ids, at))}
            return [by_id[id] for id in dict.fromkeys(ids) if id in by_id]

        found = await (self._with_content(read) if content else read())
        return {stored.document.id: stored for stored in found}

    async def _with_content(self, read: Callable[[], Awaitable[list[Stored]]]) -> list[Stored]:
        """The versions that ``read`` returns, with their content. If a purge intervenes, they are read again."""
        while True:
            purges = self._purges
            found = await read()
            try:
                texts = await self.contents(stored.content_ref for stored in found if stored.content_ref is not None)
                break
            except CtxdError as error:
                if error.code != "purged":
                    raise
                # A durable purge is noted a moment later.
                await self.wait_for_writes()
                if purges == self._purges:
                    raise
        replace = msgspec.structs.replace
        return [
            stored
            if stored.content_ref is None
            else replace(stored, document=replace(stored.document, content=texts[stored.content_ref]))
            for stored in found
        ]

    async def history(
        self, id: str, at: AsOf = NOW, page: HistoryPage = ALL, *, corrections: bool = False, content: bool = False
    ) -> list[Stored]:
        """``page`` of the versions of ``id`` up to ``at`` by ``(valid_time, tx)``.

        With ``corrections``, also versions that a later write replaced at the same valid time. Otherwise as ``get``.
        """

        async def read() -> list[Stored]:
            await self.wait_for_writes()
            return all_stored(await self._as_of_reads.history(id, at, page, corrections=corrections))

        return await (self._with_content(read) if content else read())

    async def scan(self, prefix: str, at: AsOf = NOW, page: IdPage = ALL, *, size: int | None = None) -> list[Stored]:
        """``page`` of the versions as of ``at`` of every entity with ``prefix``, by id, up to the one with which the
        documents reach ``size`` bytes. Otherwise as ``get``."""
        await self.wait_for_writes()
        # Never from a node: XTDB orders ids only up to 224 bytes, so a range of ids may lack longer ones.
        return all_stored(await self._embedded.scan(prefix, at, page, size=size))

    async def query(
        self, query: str, arguments: Sequence[Any] = (), at: AsOf = NOW, *, limit: int, timeout_s: float
    ) -> QueryRows:
        """The first ``limit`` rows of a Datalog query over the store's documents, as of ``at``.

        Raises: CtxdError ``unsupported`` without an XTDB node, ``invalid_params``, ``timeout``, ``store_unavailable``.
        Cancel: safe; the node ends the query by itself.
        """
        await self.wait_for_writes()
        return await self._as_of_reads.query(query, arguments, at, limit=limit, timeout_s=timeout_s)

    async def contents(self, refs: Iterable[str], *, keep: bool = True) -> dict[str, Content]:
        """Contents by ``content_ref``; ``keep``: cache them for later reads.

        Raises: CtxdError ``corrupt`` if a text is missing or does not match its hash; ``purged`` if it was purged after
        its version was read; ``store_failed``. Cancel: safe.
        """
        wanted = list(dict.fromkeys(refs))
        texts = {ref: text for ref in wanted if (text := self._texts.get(ref)) is not None}
        if missing := [ref for ref in wanted if ref not in texts]:
            purges = self._purges
            found = await self._read(lambda: self._reader.contents(missing))
            # A text purged meanwhile must not be cached again.
            if keep and purges == self._purges:
                for ref, text in found.items():
                    self._texts.put(ref, text)
            texts |= found
        return {ref: texts[ref] for ref in wanted}

    async def read_index(self, query: Callable[[Connection], T]) -> T:
        """The result of ``query``, which reads an index, or calls ``purge``. Raises and cancel: as ``get``."""
        return await self._read(lambda: query(self._reader.connection))

    @property
    def newest_valid_time(self) -> int:
        """The valid time of the newest accepted write, in ms since 1970; no later write has a smaller one."""
        return self._times.newest

    async def knowing(self, object_id: str) -> list[str]:
        """The ids of the sessions that have ``object_id`` in their index, in order. Raises and cancel: as ``get``."""
        return await self._read(lambda: self._reader.knowing(object_id))

    async def referring(self, ref: str) -> list[str]:
        """The ids of the entities that have a version with the content ``ref``. Raises and cancel: as ``get``."""
        return await self._read(partial(self._reader.referring, ref))

    async def signatures(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The newest stat signatures of ``ids``; those without one are left out. Raises and cancel: as ``get``."""
        return await self._read(lambda: self._reader.signatures(ids))

    async def follow(self, name: str) -> Follower:
        """Return the journal follower ``name``, positioned after its last mark; a new one starts at the first row.
        Raises and cancel: as ``get``."""
        after = await self._reading.run(run_read, lambda: self._reader.follower_mark(name))
        return Follower(name, after, self._rows_after, self._growth.wait_beyond, self._keep_mark)

    async def _rows_after(self, after: int, limit: int) -> list[Row]:
        self._health.require_readable()
        return await self._reading.run(run_read, lambda: self._reader.rows_after(after, limit))

    def _keep_mark(self, name: str, seq: int) -> None:
        self._journal_writer.marks[name] = seq

    async def changes(self, *, after: int, limit: int) -> list[Change]:
        """At most ``limit`` journal rows after sequence ``after``, in order. Raises and cancel: as ``get``."""
        return await self._read(lambda: self._reader.changes(after, limit))

    @property
    def cached(self) -> int:
        """Number of heads in memory."""
        return len(self._heads)
