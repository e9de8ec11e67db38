"""The projection of a store to an XTDB node: attached to the store, and retried until the daemon stops.

Writes wait only for the check for room in the backlog. Each attempt reads the cursor at the node and fences it, so that
late transactions of an earlier attempt or another daemon find a different cursor and do nothing. Then rows stream until
something fails or is uncertain. Only a journal that does not match the node ends the attempts.
"""

import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskStatus

from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, NEWEST_VALID_TIME, cursor_id
from ctxd.backends.xtdb.messages import Refused, Unknown, Unreachable, XtdbFailure
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.formatting import count
from ctxd.observe.logs import LogEvent
from ctxd.projection.node_connection import Connect, Node, connect
from ctxd.projection.node_transactions import ROWS_MAX, Aborted, HighWaterMark, Pace, Stopped, Stream
from ctxd.projection.ownership_checks import FENCES, Fences, Ownership, OwnershipLost
from ctxd.projection.progress import (
    THROTTLE_AT,
    Cursor,
    Halt,
    Progress,
    Room,
    Sent,
    Throttle,
    Watermark,
    check_cursor,
    cursor_from_doc,
    fence,
    fullness,
    has_moved,
    level,
    load_watermark,
    move_cursor,
    refusal,
    save_watermark,
)
from ctxd.projection.projected_rows import Rows
from ctxd.projection.read_routing import NodeReads
from ctxd.store.version_reads import AsOfReads, EmbeddedReads
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import DurableWrites
from ctxd.worker_threads import Lane, NoThread, in_thread
from ctxd_protocol.status_types import ProjectionStatus, StoreStatus

FENCES_MAX: Final = 10
"""Attempts to fence the cursor before a retry: each failure means that a late transaction was applied."""

FENCE_S: Final = 30.0
DOUBTS_MAX: Final = 4
"""Aborts of a single-row batch, with the cursor unmoved, before the row is quarantined."""

BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 5.0
"""Maximum seconds between two attempts; the delay doubles after each attempt that did not start streaming."""

RECHECK_S: Final = 10.0
"""Seconds between attempts on a node that holds another journal's rows, or whose index has failed."""


class Failed(Exception):
    """The node reports that its index has failed."""


RECORD_S: Final = 1.0
"""Seconds between two saves of the watermark file."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Address of the node, and limits of the backlog."""

    url: str
    room: Room = Room()


class Projection:
    """The projection of one journal to ``target``. ``open``, then ``run`` while it is used, then ``close``.

    ``run`` makes attempt after attempt: each connects, fences the cursor, and streams rows until something fails.
    """

    def __init__(self, target: Target, clock: Clock, *, log_event: LogEvent, connect: Connect = connect) -> None:
        """``log_event`` receives events for the log."""
        self._target = target
        self._clock = clock
        self._log_event = log_event
        self._connect = connect
        self._high_water = HighWaterMark()
        self._throttle = Throttle()
        self._run = secrets.token_hex(8)
        self._ownership: Ownership | None = None
        self._pace = Pace()
        self._rows_max = ROWS_MAX
        self._doubted = 0
        self._doubts = 0
        self._backoff_s = BACKOFF_MIN_S
        self._reading = Lane("projection.cursor")

    def share(self, ownership: Ownership) -> None:
        """Project only sessions owned by this host, according to ``ownership``. Call this before ``open``."""
        self._ownership = ownership

    @property
    def seq(self) -> int:
        """Newest row known to be at the node."""
        return self._progress.seq

    def open(self, database: Path, artifacts: ArtifactStore, record: Path) -> None:
        """Open the journal in ``database``; the watermark file is at ``record``. Blocks."""
        self._rows = Rows(database, artifacts)
        if self._ownership is None:
            self._ownership = Ownership.of_one(Fences(self._rows.scan(FENCES)))
        self._record = record
        known = load_watermark(record)
        head = self._rows.head()
        # Rows written before the first projection do not count against the backlog.
        reached = head if known.reached is None else min(known.reached, head)
        self._progress = Progress(known.cursor, known.reasons)
        self._progress.purged = self._rows.newest_purge()
        self._high_water.rise(head)
        each = self._rows.bytes_each(reached)
        self._progress.waiting.begin(reached, head, each, self._clock.monotonic())
        self._keep(self._watermark())

    def close(self) -> None:
        """Close the journal. Blocks."""
        self._keep(self._watermark())
        self._rows.close()

    async def serve(self, store: VersionStore, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Project the commits of ``store``, and serve its as-of reads, until cancelled: pass this to ``store.attach``.

        Raises: CtxdError ``corrupt``, ``store_failed`` before it has started.
        """
        directory = store.directory
        await in_thread(self.open, directory.database, ArtifactStore(directory.artifacts), directory.projection)
        try:
            store.serve_as_of_reads_from(self.as_of_reads(store.embedded))
            store.on_submit(self.admit)
            store.on_durable(self._note_durable)
            task_status.started()
            await self.run(store.note_fault)
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(self.close)

    async def run(self, fault: Callable[[Exception], None]) -> None:
        """Project until cancelled. ``fault`` receives unexpected errors, after which it continues. Cancel: safe, at any
        moment."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._remember)
            while True:
                try:
                    wait_s = await self._attempt()
                except Exception as error:  # noqa: BLE001 - the journal continues even if the projection fails
                    fault(error)
                    reason = f"the projection failed: {type(error).__name__}: {error}"
                    self._progress.state, self._progress.reason = "failed", reason
                    wait_s = RECHECK_S
                self._progress.node = None
                await self._clock.sleep(wait_s)

    async def _attempt(self) -> float:
        """Make one attempt. Returns: the retry delay in seconds."""
        try:
            await self._connect_and_stream()
        except Stopped as stop:
            self._set_state("stopped", stop.reason)
            if stop.final:
                await anyio.sleep_forever()
            return RECHECK_S
        except Failed:
            self._set_state("failed", "the node's ingester has failed: restart the node")
            return min(RECHECK_S, self._next_backoff_s())
        except OwnershipLost as lost:
            assert self._ownership is not None, "OwnershipLost requires ownership checks"
            self._set_state("projecting", str(lost))
            await self._ownership.settle(lost)
            return 0.0
        except Aborted as aborted:
            # The next attempt finds out why; see _suspect.
            self._rows_max = await self._suspect(aborted)
            return BACKOFF_MIN_S
        except Unreachable as error:
            self._set_state("unreachable", str(error))
        except (Unknown, Refused) as error:
            self._set_state("connecting", str(error))
        return self._next_backoff_s()

    def _next_backoff_s(self) -> float:
        now, self._backoff_s = self._backoff_s, min(BACKOFF_MAX_S, 2 * self._backoff_s)
        return now

    def _set_state(self, state: Any, reason: str) -> None:  # noqa: ANN401 - a State
        if (self._progress.state, self._progress.reason) != (state, reason):
            self._log_event(f"projection.{state}", {"reason": reason, "seq": self._progress.seq})
        self._progress.state, self._progress.reason = state, reason

    async def _connect_and_stream(self) -> None:
        async with AsyncExitStack() as stack:
            node = await stack.enter_async_context(self._connect(self._target.url))
            if (await node.status()).ingester_failed:
                raise Failed
            start, tx_id = await self._fence(node)
            self._progress.begin(node, start, tx_id)
            self._backoff_s = BACKOFF_MIN_S
            self._set_state("projecting", "")
            if self._ownership is not None:
                self._ownership.begin(self._rows.writer)
            stream = Stream(
                node,
                self._rows,
                self._high_water,
                self._clock,
                start,
                self._confirm,
                pace=self._pace,
                rows_max=max(1, self._rows_max),
                condemned=start.seq + 1 if self._rows_max == 0 else 0,
                ownership=self._ownership,
            )
            self._rows_max = ROWS_MAX
            try:
                await stream.run()
            finally:
                self._pace = stream.pace
                self._progress.node = None

    async def _fence(self, node: Node) -> tuple[Cursor, int]:
        """Take over: move the cursor to an incarnation of this run. Returns: the cursor, and its transaction."""
        writer = self._rows.writer
        for _ in range(FENCES_MAX):
            found = await self._look(node)
            genesis = await self._chain(0) or ""
            mine = fence(found, self._progress.cursor, run=self._run, genesis=genesis)
            tx_id = await node.submit(move_cursor(found, mine, writer))
            if await node.committed(tx_id, timeout_s=FENCE_S):
                return mine, tx_id
        raise Unknown("the cursor moves each time that it is to be taken over")

    async def _look(self, node: Node) -> Cursor | None:
        """The node's cursor, after checking that the journal continues it. Raises: Stopped."""
        try:
            found = cursor_from_doc(await node.entity(cursor_id(self._rows.writer), valid_time=NEWEST_VALID_TIME))
        except ValueError as error:
            raise Stopped(f"the cursor at the node has an unsupported format: {error}") from error
        known = self._progress.cursor
        chain = None if found is None else await self._chain(found.seq)
        verdict = check_cursor(found, known, run=self._run, chain=chain, head_seq=self._high_water.seq)
        if isinstance(verdict, Halt):
            raise Stopped(verdict.message, final=verdict.final)
        if verdict.lost:
            self._log_event("projection.lost", {"rows": verdict.lost, "from": 0 if found is None else found.seq})
        return found

    async def _chain(self, seq: int) -> str | None:
        try:
            return await self._reading.run(self._rows.chain, seq)
        except CtxdError as error:
            raise Stopped(f"the journal cannot be read: {error.message}") from error

    async def _suspect(self, aborted: Aborted) -> int:
        """Number of rows that the next attempt may send at once after an abort: all if the cursor explains it, half as
        many if not, and 0 to leave out a row that was sent alone."""
        try:
            async with self._connect(self._target.url) as node:
                found = cursor_from_doc(await node.entity(cursor_id(self._rows.writer), valid_time=NEWEST_VALID_TIME))
                others = await node.entities(aborted.matched, valid_time=FIXED_VALID_TIME) if aborted.matched else {}
        except (XtdbFailure, ValueError):
            return ROWS_MAX
        else_owned = any(others.get(id) != doc for id, doc in aborted.matched.items())
        if else_owned or has_moved(found, aborted.expected):
            return ROWS_MAX
        return aborted.rows // 2 if aborted.rows > 1 else self._doubt(aborted.expected.seq + 1)

    def _doubt(self, seq: int) -> int:
        """Number of rows that the next attempt may send at once after row ``seq`` was aborted alone."""
        # A connection that repeats or delays responses looks like this too, but not repeatedly.
        self._doubts = self._doubts + 1 if seq == self._doubted else 1
        self._doubted = seq
        return 0 if self._doubts >= DOUBTS_MAX else 1

    def _confirm(self, sent: Sent) -> None:
        self._progress.confirm(sent, self._clock.monotonic())
        if sent.left_out:
            self._log_event("projection.quarantined", {"seq": sent.after.seq, "reason": sent.left_out})

    async def _remember(self) -> None:
        keeping = Lane("projection.keep")
        kept = -1
        while True:
            await self._clock.sleep(RECORD_S)
            if kept != self._progress.changes:
                changes, record = self._progress.changes, self._watermark()
                # Without a thread, it is kept in the next turn.
                with suppress(NoThread):
                    await keeping.run(self._keep, record)
                    kept = changes

    def _watermark(self) -> Watermark:
        progress = self._progress
        quarantined = frozenset(progress.quarantined)
        reasons = {seq: reason for seq, reason in progress.reasons.items() if seq in quarantined}
        return Watermark(progress.cursor, progress.waiting.reached, reasons)

    def _keep(self, record: Watermark) -> None:
        try:
            save_watermark(self._record, record)
        except OSError as error:
            # The journal reports a full disk; the watermark file is optional.
            self._log_event("projection.record_not_kept", {"reason": str(error)})

    # --- for the store ---

    def as_of_reads(self, embedded: EmbeddedReads) -> AsOfReads:
        """As-of reads over the node, with ``embedded`` for the rest."""
        assert self._ownership is not None, "opened before it is read from"
        fences = self._ownership.fences
        return NodeReads(embedded, self._progress, self._high_water, self._clock, self._rows.writer, fences)

    def _note_durable(self, writes: DurableWrites) -> None:
        for write, pending in writes:
            if write.purge is not None and write.purge.done is not None:
                self._progress.purged = pending.seq
        seq = writes[-1][1].seq
        self._progress.waiting.add(seq, sum(pending.size for _, pending in writes), self._clock.monotonic())
        self._high_water.rise(seq)

    def admit(self) -> None:
        """Refuse a write if the backlog has no room for it. Raises: CtxdError ``store_backlog_full`` or
        ``rate_limited``."""
        waiting = self._progress.waiting
        full = fullness(self._target.room, waiting.rows, waiting.bytes)
        if full < THROTTLE_AT:
            return
        kind = level(full)
        now = self._clock.monotonic()
        wait_s = self._throttle.wait_s(now, self._progress.rate(now))
        if kind == "full" or wait_s > 0:
            raise refusal(kind, full, self._progress.reason, wait_s)

    def status(self) -> ProjectionStatus:
        """Figures of ``daemon.status``."""
        progress, now = self._progress, self._clock.monotonic()
        full = fullness(self._target.room, progress.waiting.rows, progress.waiting.bytes)
        lag = max(0, self._high_water.seq - progress.seq)
        return ProjectionStatus(
            url=self._target.url,
            state=progress.state,
            reason=self._reason(full),
            seq=progress.seq,
            lag_rows=lag,
            lag_s=round(progress.waiting.age_s(now), 3) if lag else 0.0,
            backlog_share=round(full, 4),
            rows_per_s=round(progress.rate(now), 1),
            quarantined=progress.quarantined[:100],
        )

    def reported_in(self, status: StoreStatus) -> StoreStatus:
        """The store's ``status`` with that of its projection."""
        return msgspec.structs.replace(status, backend="xtdb", projection=self.status())

    def _reason(self, full: float) -> str:
        progress = self._progress
        reasons = [progress.reason] if progress.reason else []
        if level(full) != "open":
            reasons.append(f"backlog at {full:.0%}")
        if progress.quarantined:
            some: list[Any] = list(progress.quarantined[:3])
            listed = ", ".join(f"{seq} ({progress.reasons.get(seq, 'for unknown reason')})" for seq in some)
            reasons.append(f"{count(len(progress.quarantined), 'row')} quarantined: {listed}")
        return "; ".join(reasons)
