"""Streaming of journal rows to a node, from a fence until the first failure.

One task submits batches, at most a few ahead of the confirmed one. Each matches the cursor that the one before puts, so
none takes effect out of order or twice. Another task awaits their commits. Any uncertainty ends the stream; the next
one starts at the cursor.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from typing import Final

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ctxd.backends.xtdb.documents import EVICTIONS_ID, FIXED_VALID_TIME, put_after
from ctxd.backends.xtdb.messages import Doc, Match, Op, Refused, XtdbFailure
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.failpoints import ARMED, hit
from ctxd.projection.node_connection import Node
from ctxd.projection.ownership_checks import Guarded, Ownership, OwnershipLost
from ctxd.projection.progress import QUARANTINED_MAX, Cursor, Sent, advance, move_cursor
from ctxd.projection.projected_rows import PORTION_ROWS, KnownTexts, ProjectedRow, Rows
from ctxd.projection.purge_at_node import steps
from ctxd.worker_threads import Lane

OUTSTANDING_MAX: Final = 4
"""Maximum unconfirmed transactions, by which the node's index may be behind its log."""

COMMIT_S: Final = 30.0
"""Seconds within which a node has to index a submitted transaction."""


class Bounds(msgspec.Struct, frozen=True):
    """Maximum size of one transaction."""

    rows: int
    versions: int
    bytes: int


def take(pieces: Sequence[ProjectedRow], bounds: Bounds) -> int:
    """Number of ``pieces`` in the next batch: as many as ``bounds`` allow, and at least one.

    A row that cannot be projected, or records a purge, is a batch of its own. A transaction can have several versions
    of an entity, but of two at the same valid time only the later is kept, so those need two transactions.
    """
    taken: set[tuple[str, int]] = set()
    versions = size = 0
    for count, piece in enumerate(pieces[: bounds.rows]):
        versions += len(piece.versions)
        size += piece.size
        mine = [(version.id, version.valid_time) for version in piece.versions]
        if count and (piece.alone or versions > bounds.versions or size > bounds.bytes or not taken.isdisjoint(mine)):
            return count
        if piece.alone:
            return 1
        taken.update(mine)
    return min(len(pieces), bounds.rows)


def transaction(before: Cursor | None, after: Cursor, puts: Sequence[Op], writer: str) -> list[Op]:
    """``puts`` with the cursor's move from ``before`` to ``after``, so that all are applied or none."""
    match, put = move_cursor(before, after, writer)
    return [match, *puts, put]


VERSIONS_MIN: Final = 32
VERSIONS_MAX: Final = 1_000
"""Maximum versions per transaction. Larger ones are not indexed faster."""

ROWS_MAX: Final = 1_000
BYTES_MAX: Final = 2 * 1024 * 1024
"""Maximum rows and bytes of any transaction, of which both ends have several copies in memory."""

BUSY_S: Final = 0.3
"""Seconds that a transaction may keep a node busy: above, transactions shrink; below half, they grow."""

LINGER_MIN_S: Final = 0.005
LINGER_MAX_S: Final = 0.05
"""Maximum seconds that a row waits for others while the projection is up to date."""


class Pace(msgspec.Struct, frozen=True):
    """Size and duration of batches: at most ``versions`` per transaction; ``busy_s``: its smoothed duration."""

    versions: int = 250
    busy_s: float = 0.02


def linger_s(pace: Pace) -> float:
    """Seconds that rows may wait for others: as long as a transaction takes, within limits."""
    return min(LINGER_MAX_S, max(LINGER_MIN_S, pace.busy_s))


def adapted(pace: Pace, busy_s: float, versions: int, *, full: bool) -> Pace:
    """Pace after a transaction of ``versions`` kept the node busy for ``busy_s``, counted from its submission or from
    the commit of the one before, whichever was later. A transaction that was not ``full`` does not change the size: the
    node may have been paused."""
    smooth = 0.7 * pace.busy_s + 0.3 * busy_s
    size = pace.versions
    if full and busy_s > BUSY_S:
        size = max(VERSIONS_MIN, min(size, versions) // 2)
    elif 2 * versions > size and busy_s < BUSY_S / 2:
        size = min(VERSIONS_MAX, size + size // 2)
    return Pace(size, smooth)


class Aborted(Exception):
    """The node aborted a submitted transaction: it found a cursor other than ``expected``, or one of the ``matched``
    entities with another document.

    ``rows``: those of the batch.
    """

    def __init__(self, expected: Cursor, rows: int, matched: Mapping[str, Doc | None]) -> None:
        super().__init__("a transaction was aborted")
        self.expected = expected
        self.rows = rows
        self.matched = matched


class Stopped(Exception):
    """Nothing more can be projected until an operator acts. ``final``: not in this run of the daemon."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final


class HighWaterMark:
    """Highest durable sequence of the journal, awaitable."""

    def __init__(self) -> None:
        self.seq = 0
        self._risen = anyio.Event()

    def rise(self, seq: int) -> None:
        """Record that the journal is durable up to ``seq``."""
        self.seq = seq
        if not self._risen.is_set():
            self._risen.set()

    async def beyond(self, seq: int) -> None:
        """Return once there is a row after ``seq``. Cancel: safe."""
        while self.seq <= seq:
            self._risen = anyio.Event()
            await self._risen.wait()


class Stream:
    """One run of batches from ``start``, the node's cursor. ``run`` once."""

    def __init__(
        self,
        node: Node,
        rows: Rows,
        high_water: HighWaterMark,
        clock: Clock,
        start: Cursor,
        confirmed: Callable[[Sent], None],
        *,
        pace: Pace,
        rows_max: int = ROWS_MAX,
        condemned: int = 0,
        ownership: Ownership | None = None,
    ) -> None:
        """``confirmed`` receives committed batches, of several at once only the last. A ``rows_max`` below the default
        searches for a row that the node refuses: one batch at a time, until past those rows. The row ``condemned`` is
        left out. ``ownership`` selects the sessions to project, ``None`` all of the journal's."""
        self._node = node
        self._rows = rows
        self._high_water = high_water
        self._clock = clock
        self._tip = start
        self._confirmed = confirmed
        self._texts = KnownTexts()
        self._evictions: Match | None = None
        self._buffer: list[ProjectedRow] = []
        self._rows_max = rows_max
        self._suspect = 0 if rows_max == ROWS_MAX else start.seq + 2 * rows_max
        self._slots = anyio.Semaphore(1 if self._suspect else OUTSTANDING_MAX, max_value=OUTSTANDING_MAX)
        self._held_back = OUTSTANDING_MAX - self._slots.value
        self._refused_once = 0
        self._read_again = 0
        self._condemned = condemned
        self._ownership = ownership
        self._thread = Lane("projection")
        self._idle_at = 0.0
        self.pace = pace

    async def run(self) -> None:
        """Project until something fails.

        Raises: XtdbFailure, Aborted, Stopped, OwnershipLost. Cancel: safe; the next fence determines the outcome of
        submitted batches.
        """
        trouble: list[Exception] = []
        sent, received = anyio.create_memory_object_stream[Sent](OUTSTANDING_MAX)
        async with sent, received, anyio.create_task_group() as group:

            async def watched(part: Callable[[], Awaitable[None]]) -> None:
                try:
                    await part()
                except (XtdbFailure, Aborted, Stopped, OwnershipLost) as error:
                    trouble.append(error)
                    group.cancel_scope.cancel()

            group.start_soon(watched, lambda: self._send(sent))
            group.start_soon(watched, lambda: self._confirm(received))
        if trouble:
            raise trouble[0]

    # --- submit ---

    async def _send(self, sent: MemoryObjectSendStream[Sent]) -> None:
        while True:
            await self._gather()
            if self._buffer[:1] and self._buffer[0].purged:
                self._evictions = None
                await self._purge(sent)
                continue
            await self._slots.acquire()
            allowed = Bounds(self._rows_max, self.pace.versions, BYTES_MAX)
            done = await self._submit(self._buffer[: take(self._buffer, allowed)], allowed)
            if done is None:
                self._slots.release()
                continue
            del self._buffer[: done.rows]
            self._tip = done.after
            await sent.send(done)
            self._pass_suspect()

    async def _gather(self) -> None:
        """Fill the buffer: return once it holds rows to send."""
        last = self._buffer[-1].seq if self._buffer else self._tip.seq
        if self._buffer and (len(self._buffer) > PORTION_ROWS // 2 or self._high_water.seq <= last):
            return
        if not self._buffer:
            await self._high_water.beyond(last)
            if self._high_water.seq - last < self.pace.versions:
                # The stream is up to date: a short wait joins many rows into one transaction.
                await self._clock.sleep(linger_s(self.pace))
        try:
            self._buffer += await self._thread.run(self._rows.pieces, last)
        except CtxdError as error:
            raise Stopped(f"the journal cannot be read: {error.message}") from error

    async def _purge(self, sent: MemoryObjectSendStream[Sent]) -> None:
        """Perform a purge at the node, once everything before it is committed: step by step, because an entity that is
        evicted and put again in one transaction may be lost."""
        slots = OUTSTANDING_MAX - self._held_back
        for _ in range(slots):
            await self._slots.acquire()
        self._texts.forget()
        piece, done = self._buffer[0], None
        fences = None if self._ownership is None else self._ownership.fences
        is_shared = self._ownership is not None and self._ownership.is_shared
        held = self._ownership.holding(piece.session) if self._ownership and piece.session else nullcontext()
        try:
            # No host may adopt the session while a part of it is missing.
            with held:
                async with aclosing(
                    steps(self._node, self._rows, self._tip, piece, fences, is_shared=is_shared)
                ) as each:
                    async for step in each:
                        guarded = await self._guarded([piece])
                        tx_id, at = await self._append(step.after, [*guarded.ops, *step.ops])
                        matched = _matched(guarded)
                        done = Sent(self._tip, step.after, tx_id, at, 1, 0, matched=matched)
                        if not await self._node.committed(tx_id, timeout_s=COMMIT_S):
                            raise Aborted(self._tip, ROWS_MAX, matched)
                        self._tip = step.after
        except (CtxdError, ValueError) as error:
            raise Stopped(f"the purge in row {piece.seq} cannot be carried over: {error}") from error
        assert done is not None, "a purge has a last step"
        del self._buffer[0]
        for _ in range(slots - 1):
            self._slots.release()
        await sent.send(done)
        self._pass_suspect()

    async def _submit(self, batch: list[ProjectedRow], allowed: Bounds) -> Sent | None:
        """Submit ``batch``, within ``allowed``, or the rest of it if a row has to be left out. Returns: ``None`` to
        retry with fewer rows."""
        first, last = batch[0], batch[-1]
        if first.seq == self._condemned:
            return await self._leave_out(first, "the node aborts its transaction without a reason")
        after = advance(self._tip, last.seq, last.chain)
        versions = sum(len(piece.versions) for piece in batch)
        guarded = await self._guarded(batch)
        evictions, put = await self._newest_evictions()
        guarded.ops.append(evictions)
        try:
            ops, refs = await self._thread.run(self._rows.operations, guarded.pieces, self._texts, put)
            tx_id, at = await self._append(after, [*guarded.ops, *ops])
        except (CtxdError, Refused, ValueError) as error:
            if self._ownership is not None:
                self._ownership.undo(guarded)
            return await self._not_sent(batch, error)
        self._texts.add(refs)
        size = sum(piece.size for piece in batch)
        full = 2 * versions > allowed.versions or 2 * size > allowed.bytes
        return Sent(self._tip, after, tx_id, at, len(batch), versions, full=full, matched=_matched(guarded))

    async def _not_sent(self, batch: list[ProjectedRow], error: Exception) -> Sent | None:
        """Retry ``batch``, which could not be submitted because of ``error``, or a part of it. Returns: as
        ``_submit``."""
        seq = batch[0].seq
        if isinstance(error, CtxdError):
            if error.code in ("store_failed", "disk_full"):
                raise Stopped(f"the journal cannot be read: {error.message}") from error
            if self._read_again != seq:
                # A purge may have erased the text since the row was read, which changed the row.
                self._read_again = seq
                self._buffer.clear()
                return None
            return await self._isolate(batch, error.message)
        if isinstance(error, Refused) and len(batch) == 1 and self._refused_once != seq:
            # A refusal may be accidental: send the batch again before a row is left out for good.
            self._refused_once = seq
            return None
        return await self._isolate(batch, str(error))

    async def _guarded(self, batch: list[ProjectedRow]) -> Guarded:
        if self._ownership is None:
            return Guarded(batch, [])
        try:
            return await self._ownership.guard(self._node, batch)
        except ValueError as error:
            raise Stopped(f"an owner at the node has an unsupported format: {error}") from error

    async def _newest_evictions(self) -> tuple[Match, str]:
        """The match for the newest eviction of any journal, and its name. After another eviction, a text that was at
        the node may be missing, and is put as a different document."""
        if self._evictions is None:
            found = await self._node.entities([EVICTIONS_ID], valid_time=FIXED_VALID_TIME)
            self._evictions = Match(EVICTIONS_ID, found.get(EVICTIONS_ID), FIXED_VALID_TIME)
        try:
            return self._evictions, put_after(self._evictions.doc)
        except ValueError as error:
            raise Stopped(f"the evictions at the node have an unsupported format: {error}") from error

    async def _append(self, after: Cursor, ops: Sequence[Op]) -> tuple[int, float]:
        if ARMED:
            hit("project.submit")
        at = self._clock.monotonic()
        tx_id = await self._node.submit(transaction(self._tip, after, ops, self._rows.writer))
        if ARMED:
            hit("project.sent")
        return tx_id, at

    async def _isolate(self, batch: list[ProjectedRow], reason: str) -> Sent | None:
        """Bisect for the row in ``batch`` that cannot be put; leave it out once it is alone."""
        if len(batch) > 1:
            self._rows_max, self._suspect = len(batch) // 2, max(self._suspect, batch[-1].seq)
            return None
        return await self._leave_out(batch[0], reason)

    async def _leave_out(self, piece: ProjectedRow, reason: str) -> Sent:
        """Move the cursor past ``piece`` and list the row as quarantined.

        Raises: Stopped if the node refuses that as well, or too many rows are listed; XtdbFailure.
        """
        if len(self._tip.quarantined) >= QUARANTINED_MAX:
            raise Stopped(f"{QUARANTINED_MAX} rows are quarantined already; the next would be {piece.seq}: {reason}")
        after = advance(self._tip, piece.seq, piece.chain, leaving_out=True)
        try:
            tx_id, at = await self._append(after, ())
        except Refused as error:
            raise Stopped(f"the node takes nothing, not even an empty transaction: {error}") from error
        return Sent(self._tip, after, tx_id, at, 1, 0, reason)

    def _pass_suspect(self) -> None:
        if self._rows_max < ROWS_MAX and self._tip.seq >= self._suspect:
            self._rows_max = ROWS_MAX
            for _ in range(self._held_back):
                self._slots.release()
            self._held_back = 0

    # --- learn ---

    async def _confirm(self, received: MemoryObjectReceiveStream[Sent]) -> None:
        while True:
            batches = [await received.receive()]
            with suppress(anyio.WouldBlock):
                while True:
                    batches.append(received.receive_nowait())
            # Each is applied only after those before it, so the last one confirms all.
            for one in batches if any(each.left_out for each in batches) else batches[-1:]:
                if not await self._node.committed(one.tx_id, timeout_s=COMMIT_S):
                    raise Aborted(one.before, one.rows, one.matched)
                if ARMED:
                    hit("project.committed")
                self._confirmed(one)
            self._adapt_pace(batches)
            for _ in batches:
                self._slots.release()

    def _adapt_pace(self, batches: Sequence[Sent]) -> None:
        """Adapt the pace to ``batches``, which the node has committed one after the other."""
        now = self._clock.monotonic()
        busy_s = now - max(batches[0].at, self._idle_at)
        self._idle_at = now
        largest = max(batches, key=lambda batch: batch.versions)
        # The node indexes batches one by one, so each took a share of the time.
        share = largest.versions / max(1, sum(batch.versions for batch in batches))
        self.pace = adapted(self.pace, busy_s * share, largest.versions, full=largest.full)


def _matched(guarded: Guarded) -> dict[str, Doc | None]:
    return {op.id: op.doc for op in guarded.ops if isinstance(op, Match)}
