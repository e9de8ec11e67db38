"""A projection as the store holds it: opened beside the journal, fed by its commits, asked before each write.

Nothing of it stands between a write and its acknowledgement but one question, whether there is room to wait in.
"""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync

from ctxd.artifacts.store import ArtifactStore
from ctxd.clock import Clock
from ctxd.projection.node import Connect, connect
from ctxd.projection.node_reads import NodeReads
from ctxd.projection.ownership_guard import Ownership
from ctxd.projection.progress import Progress
from ctxd.projection.projector import RECHECK_S, Projector, Tell
from ctxd.projection.record import Record, load, save
from ctxd.projection.rows import Rows
from ctxd.projection.spill import THROTTLE_AT, Room, Throttle, fullness, level, refusal
from ctxd.projection.stream import Tide
from ctxd.store.reads import AsOfReads, EmbeddedReads
from ctxd.store.store import Landed, VersionStore
from ctxd_protocol.status import ProjectionStatus, StoreStatus

RECORD_S: Final = 1.0
"""Seconds between two saves of how far it came."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where to project, and how much may wait for it."""

    url: str
    room: Room = Room()


class Projection:
    """The projection of one journal to ``target``. ``open``, then ``run`` while it is used, then ``close``."""

    def __init__(self, target: Target, clock: Clock, *, tell: Tell, connect: Connect = connect) -> None:
        """``tell`` is told what happens, for the log."""
        self._target = target
        self._clock = clock
        self._tell = tell
        self._connect = connect
        self._tide = Tide()
        self._throttle = Throttle()
        self._run = secrets.token_hex(8)
        self._refusing = False
        self._ownership: Ownership | None = None

    def share(self, ownership: Ownership) -> None:
        """Project only what is this host's, as ``ownership`` knows. Called before ``open``."""
        self._ownership = ownership

    @property
    def seq(self) -> int:
        """The newest row that the node is known to have."""
        return self._progress.seq

    def open(self, database: Path, artifacts: ArtifactStore, record: Path) -> None:
        """Begin with the journal in ``database``; what is remembered is kept at ``record``. Blocks."""
        self._rows = Rows(database, artifacts)
        if self._ownership is None:
            self._ownership = Ownership.of_one(self._rows.fences())
        self._record = record
        known = load(record)
        head = self._rows.head()
        # What was there before anything was projected waits for nothing that a write could be refused for.
        reached = head if known.reached is None else min(known.reached, head)
        self._progress = Progress(known.cursor, known.reasons)
        self._progress.purged = self._rows.newest_purge()
        self._tide.rise(head)
        each = self._rows.bytes_each(reached)
        self._progress.waiting.begin(reached, head, each, self._clock.monotonic())
        self._keep()

    def close(self) -> None:
        """Let go of the journal. Blocks."""
        self._keep()
        self._rows.close()

    async def serve(self, store: VersionStore, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Project what ``store`` commits, and answer its reads of the past, until cancelled: a part to attach to it.

        Raises: CtxdError ``corrupt``, ``store_failed`` before it has started.
        """
        directory = store.directory
        await run_sync(self.open, directory.database, ArtifactStore(directory.artifacts), directory.projection)
        try:
            store.read_past_from(self.past(store.embedded))
            store.on_submit(self.admit)
            store.on_durable(self._land)
            task_status.started()
            await self.run(store.note_fault)
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(self.close)

    async def run(self, fault: Callable[[Exception], None]) -> None:
        """Project until cancelled. ``fault`` is told what should not have happened; it goes on all the same."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._remember)
            while True:
                projector = Projector(
                    self._target.url,
                    self._rows,
                    self._tide,
                    self._clock,
                    self._progress,
                    run=self._run,
                    connect=self._connect,
                    tell=self._tell,
                    ownership=self._ownership,
                )
                try:
                    await projector.run()
                except Exception as error:  # noqa: BLE001 - the journal must go on, whatever is wrong here
                    fault(error)
                    self._progress.node = None
                    self._progress.state, self._progress.reason = "failed", f"the projection broke off: {error!r}"
                    await self._clock.sleep(RECHECK_S)

    async def _remember(self) -> None:
        limiter = anyio.CapacityLimiter(1)
        kept = -1
        while True:
            await self._clock.sleep(RECORD_S)
            if kept != self._progress.changes:
                kept = self._progress.changes
                await run_sync(self._keep, limiter=limiter)

    def _keep(self) -> None:
        progress = self._progress
        reasons = {seq: reason for seq, reason in progress.reasons.items() if seq in progress.quarantined}
        record = Record(progress.cursor, progress.waiting.reached, reasons)
        try:
            save(self._record, record)
        except OSError as error:
            # A full disk is the journal's to complain about; this can be missing.
            self._tell("projection.record_not_kept", {"reason": str(error)})

    # --- what the store asks ---

    def past(self, model: EmbeddedReads) -> AsOfReads:
        """Who answers reads that name a time, with ``model`` for what the node lacks."""
        assert self._ownership is not None, "opened before it is asked"
        fences = self._ownership.fences
        return NodeReads(model, self._progress, self._tide, self._clock, self._rows.writer, fences)

    def _land(self, landed: Landed) -> None:
        for write, pending in landed:
            if write.purge is not None and write.purge.done is not None:
                self._progress.purged = pending.seq
        seq = landed[-1][1].seq
        self._progress.waiting.add(seq, sum(pending.size for _, pending in landed), self._clock.monotonic())
        self._tide.rise(seq)

    def admit(self) -> None:
        """Raises: CtxdError ``store_backlog_full`` or ``rate_limited`` if a write would have no room to wait in."""
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
        """The figures of ``daemon.status``."""
        progress, now = self._progress, self._clock.monotonic()
        full = fullness(self._target.room, progress.waiting.rows, progress.waiting.bytes)
        lag = max(0, self._tide.head - progress.seq)
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
            reasons.append(f"{full:.0%} of what may wait for the node does")
        if progress.quarantined:
            some: list[Any] = list(progress.quarantined[:3])
            told = ", ".join(f"{seq} ({progress.reasons.get(seq, 'for a reason not kept')})" for seq in some)
            reasons.append(f"{len(progress.quarantined)} rows are left out: {told}")
        return "; ".join(reasons)
