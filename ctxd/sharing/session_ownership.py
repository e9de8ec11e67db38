"""Several hosts on one log: acquires, releases and lists sessions for one of them.

Decides whether a host may acquire a session, and in which order. Promise: a host that has resumed a session may write
to it, or the first refusal names the host that owns it and the branch with the late writes; no acknowledged write is
lost, and no state older than this journal is imported over it.

A claim is written to the journal before it takes place, as a fence without rows. A claim that is interrupted, by a
cancelled call, an unavailable node or the end of the daemon, is therefore known afterwards: the session takes no writes
here, and ``run`` completes the import and pauses the session, so that any host may resume it.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, Literal

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskStatus

from ctxd.backends.xtdb.client import XtdbClient
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.formatting import count
from ctxd.observe.logs import LogEvent
from ctxd.projection import owner_record
from ctxd.projection.owner_record import Owner
from ctxd.projection.ownership_checks import FENCES, Ownership
from ctxd.sessions.live_session import SessionLock
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_catalog import no_session, summary_of
from ctxd.sessions.session_loading import batched
from ctxd.sessions.sessions_elsewhere import owned_elsewhere
from ctxd.sessions.stored_session import read_head
from ctxd.sharing.heartbeat import Heartbeat
from ctxd.sharing.ownership_loss import OwnershipLoss
from ctxd.sharing.session_import import (
    SessionSource,
    apply_remote_purges,
    import_session,
    read_destination,
    read_history,
)
from ctxd.sharing.shared_log import SESSIONS_PER_REQUEST, SharedLog
from ctxd.store.write_types import DurableWrites
from ctxd_protocol.methods.sessions import SessionOwnerResult
from ctxd_protocol.session_types import SessionStatus, SessionSummary, SharingHost

ACQUIRE_S: Final = 60.0
"""Seconds for which a call waits until this host owns a session and has imported it. ``run`` completes a longer
import."""

RELEASE_S: Final = 20.0
"""Seconds for which a pause waits for the node: less than a client's deadline."""

_LOOK_S: Final = 0.05
"""Poll interval in seconds while an owner changes."""

UNKNOWN_S: Final = 1.0
"""Seconds for which creating a session waits for the node, which knows the ids of other hosts."""

COMPLETE_RETRY_S: Final = 5.0
"""Seconds until the next attempt at a claim that could not be completed."""

COMPLETED_AT_ONCE: Final = 4
"""Claims that are completed concurrently in the background, so that a slow one does not delay the others."""

CLAIM_LATE_S: Final = 60.0
"""Seconds after which a claim that is not in the log did not take place: its request timed out long before."""

CHECKED_IN_A_ROW: Final = 1_000
"""Sessions that are checked before other tasks get a turn: a few milliseconds."""

TIDY_S: Final = 1.0
"""Seconds between two checks for sessions without an owner, and for sessions to release."""


class _Claim(msgspec.Struct, frozen=True):
    """A claim that may have taken place under ``token``, made or found at ``since`` (monotonic seconds)."""

    token: int
    since: float


class SessionOwnership:
    """The hosts on one log, as seen by one of them. ``start`` it first; ``run`` must be running during all other
    calls."""

    def __init__(
        self, url: str, sessions: Sessions, ownership: Ownership, clock: Clock, *, host: str, lease_s: float,
        filesystem: str, projected: Callable[[], int], log_event: LogEvent,
    ) -> None:  # fmt: skip
        """The log is behind the node at ``url``. ``host``: this host's name for the others, which may take over after
        ``lease_s`` seconds without a sign of life. ``filesystem``: the id of its own filesystem; ``projected``: returns
        the newest journal row that the node is known to have."""
        self._sessions = sessions
        self._store = store = sessions.store
        client = XtdbClient(url, clock=clock)
        heartbeat = Heartbeat(
            client, clock, writer=store.writer, host=host, filesystem=filesystem, lease_s=lease_s, projected=projected,
            head=lambda: self._head_seq, is_active=lambda: sessions.has_active, log_event=log_event,
        )  # fmt: skip
        self._log = SharedLog(client, heartbeat)
        self._ownership = ownership
        self._loss = OwnershipLoss(sessions, self._log, ownership, clock, projected=projected, log_event=log_event)
        self._clock = clock
        self._projected = projected
        self._log_event = log_event
        self._acquiring: dict[str, SessionLock] = {}
        self._imported: dict[str, int] = {}
        """The token under which each session was imported in this run of the daemon."""
        self._claimed: dict[str, _Claim] = {}
        """The sessions that this host has claimed, or was about to claim, and has not imported."""
        self._to_tidy: dict[str, int] = {}
        """The sessions to check for an owner and for a release, with the newest journal row that may change either."""
        self._begun = -1
        store.on_durable(self._note_written)
        self._completing: set[str] = set()
        """The claimed sessions that are being completed in the background, or wait there for another attempt."""

    @property
    def _writer(self) -> str:
        return self._store.writer

    @property
    def _head_seq(self) -> int:
        """The newest durable journal row; 0 without one."""
        newest = self._store.head()
        return 0 if newest is None else newest.seq

    async def start(self) -> None:
        """Load the fences, and allow the projection to begin. Raises: CtxdError corrupt, store_failed."""
        self._sessions.shared = True
        self._ownership.open(await self._store.scan(FENCES), self._loss.settle)
        now = self._clock.monotonic()
        for session, token in (await self._loss.refuse_writes_again()).items():
            self._claimed[session] = _Claim(token, now)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Renew the lease and observe the others' until cancelled; started once other calls are possible."""
        async with anyio.create_task_group() as group:
            await group.start(self._log.run)
            group.start_soon(self._tidy)
            group.start_soon(self._complete_claims)
            task_status.started()

    # --- acquire a session ---

    @asynccontextmanager
    async def acquire(self, session: str, principal: str) -> AsyncIterator[None]:
        """Context manager: acquire ownership of ``session`` and complete it in this journal, to resume it inside.

        Raises: CtxdError session_not_found, session_owned_elsewhere (also if it takes longer than ``ACQUIRE_S``),
        store_unavailable, session_closed, corrupt and those of the store. Cancel: safe; ``run`` or the next attempt
        completes an interrupted import.
        """
        async with AsyncExitStack() as stack:
            try:
                with anyio.fail_after(ACQUIRE_S):
                    # The background may be reading the session at this moment.
                    await stack.enter_async_context(self._alone(session))
                    await self._acquire(session, principal, "active")
            except TimeoutError:
                raise self._slow(session) from None
            yield

    @asynccontextmanager
    async def _alone(self, session: str) -> AsyncIterator[None]:
        """Context manager: no other task acquires ``session`` inside, and its batches wait."""
        lock = self._acquiring.setdefault(session, SessionLock())
        try:
            async with lock:
                with self._ownership.holding(session):
                    yield
        finally:
            if lock.free:
                self._acquiring.pop(session, None)

    def _slow(self, session: str) -> CtxdError:
        """Return the error of a call that waited ``ACQUIRE_S`` for ``session``."""
        if session in self._claimed:
            message = f"session {session} is claimed, but its import takes longer than {ACQUIRE_S:g} s"
            hint = "The import continues in the background: call session.resume again to wait for it."
        else:
            message = f"the node did not settle the owner of session {session} within {ACQUIRE_S:g} s"
            hint = "Another host claims it, or its pause is incomplete: check session.owner, then call session.resume."
        return CtxdError("session_owned_elsewhere", message, hint=hint, retry_after_ms=1_000, outcome="not_applied")

    def _is_whole(self, session: str) -> bool:
        """True if the whole ``session`` is here, and other hosts have not claimed it."""
        return session in self._sessions.catalog and session not in self._sessions.moved_sessions

    async def _acquire(self, session: str, principal: str, state: Literal["active", "paused"]) -> None:
        """Acquire ``session``; if it is imported, in ``state``. There is no overall timeout, but every request to the
        node has one."""
        try:
            # Each step is conditional on the owner before it, so a change by another host requires another look.
            while (owner := await self._step(session)) is None:
                await self._clock.sleep(_LOOK_S)
            if owner.source is not None and self._imported.get(session) != owner.token:
                await self._import_claimed(session, owner, principal, state)
        except CtxdError as error:
            if error.code != "store_unavailable" or not self._is_unprojected(session):
                raise

    def _is_unprojected(self, session: str) -> bool:
        """True if ``session`` is here and this host has not released it: it can then continue without the node."""
        owner = self._ownership.believed(session)
        if not self._is_whole(session):
            return False
        if owner is None:
            return self._sessions.catalog.state(session) == "active"
        return owner_record.standing(owner, self._writer) == "mine"

    async def _step(self, session: str) -> Owner | None:
        """Acquire ``session`` by one step from its owner in the log. Returns: the new owner; ``None`` if the owner has,
        or may have, changed meanwhile.

        Raises: CtxdError session_not_found, session_owned_elsewhere, session_closed, store_unavailable.
        """
        # This first request detects an unavailable node sooner than the sync does.
        await self._log.owner(session)
        owner = await self._log.owner(session, newest=True)
        if owner is None:
            if self._is_whole(session):
                return owner_record.first(self._writer)
            raise no_session(session)
        match owner_record.standing(owner, self._writer):
            case "mine" if owner.source is not None:
                return await self._resume_import(session, owner)
            case "mine" if self._is_whole(session):
                believed = self._ownership.believed(session)
                # A batch that releases it may be in flight: the next look shows its outcome.
                if believed is not None and believed.token == owner.token and believed.released:
                    return None
                return owner
            case "resting" if self._is_whole(session):
                after = owner_record.resumed(owner)
            case _:
                after = await self._claim(session, owner)
        if not await self._log.step(session, owner, after):
            return None
        self._ownership.learn(session, after)
        self._log_event("sharing.claimed", {"session": session, "token": after.token, "from": owner.writer})
        return after

    async def _resume_import(self, session: str, owner: Owner) -> Owner | None:
        """Return ``owner`` if ``session``, which it claimed, must be or was imported; ``None`` to look again."""
        if self._imported.get(session) == owner.token or not await self._loss.is_behind(session):
            return owner
        # The import may be complete here, but not yet at the node, with later writes that another import would undo.
        await self._loss.wait_until_projected(session)
        return None

    async def _claim(self, session: str, owner: Owner) -> Owner:
        """Return the owner that claims ``session`` for this host, once all rows written here are settled and the claim
        is in the journal.

        Raises: CtxdError session_owned_elsewhere, session_closed, store_unavailable.
        """
        if owner.writer != self._writer:
            await self._log.learn_lease(owner.writer)
            self._loss.refuse_writes(session, self._log.heartbeat.host(owner.writer))
        left_s = await self._left_s(owner)
        if not owner_record.may_claim(owner, self._writer, expired=left_s <= 0):
            wait = max(1, int(left_s * 1000))
            raise owned_elsewhere(session, self._log.heartbeat.host(owner.writer), retry_after_ms=wait)
        await self._loss.wait_until_projected(session)
        await self._require_open(session)
        after = owner_record.claimed(owner, self._writer)
        known = self._claimed.get(session)
        if known is None or known.token != after.token:
            await self._loss.note_claim(session, self._log.heartbeat.host(owner.writer), after.token)
        self._claimed[session] = _Claim(after.token, self._clock.monotonic())
        return after

    async def _left_s(self, owner: Owner) -> float:
        """Seconds until the lease of ``owner`` expires; 0 for this host."""
        if owner.writer == self._writer:
            return 0.0
        return await self._log.left_s_for_certain(owner.writer)

    async def _require_open(self, session: str) -> None:
        stored = (await self._log.heads((session,))).get(session)
        state = "active" if stored is None else read_head(stored).settings.state
        if state == "closed":
            raise CtxdError("session_closed", f"session {session} is closed", outcome="not_applied")
        if state == "removed":
            hint = "Call session.restore on its host first."
            raise CtxdError("session_removed", f"session {session} is in the trash", hint=hint, outcome="not_applied")

    async def _import_claimed(
        self, session: str, owner: Owner, principal: str, state: Literal["active", "paused"]
    ) -> None:
        """Import ``session``, which ``owner`` claimed, from the node. Raises: CtxdError."""
        source, row = owner.whole, self._head_seq
        began = self._clock.monotonic()
        origin: SessionSource = await self._log.remote_session(session, source)
        past = await read_history(origin, session)
        if past is None:
            raise CtxdError("corrupt", f"session {session} has an owner, but is not at the node", outcome="not_applied")
        await apply_remote_purges(self._store, past, session, self._sessions.guard.keyed_hash, principal)
        here = await read_destination(
            self._store,
            past,
            session,
            self._ownership.fences,
            ordinal=self._sessions.next_ordinal(),
            filesystem="" if source == self._writer else self._log.heartbeat.filesystem(source),
            state=state,
        )
        read_ms = int((self._clock.monotonic() - began) * 1000)
        self._sessions.unload(session)
        pending = await import_session(self._store, origin, past, here, kind="session.adopt", principal=principal)
        receipt = await pending.wait()
        self._imported[session] = owner.token
        self._loss.note_import(session, receipt.seq)
        self._sessions.unload(session)
        self._loss.require_kept(session, row)
        self._sessions.moved_sessions.pop(session, None)
        self._to_tidy[session] = receipt.seq
        self._claimed.pop(session, None)
        took_ms = int((self._clock.monotonic() - began) * 1000)
        figures = {"segments": len(past.segments), "objects": len(past.objects), "read_ms": read_ms, "took_ms": took_ms}
        self._log_event("sharing.imported", {"session": session, "from": self._log.heartbeat.host(source), **figures})

    async def release(self, session: str) -> None:
        """Wait until other hosts may resume ``session``, which was paused here: the whole session is at the node, and
        this host has released it. Return early if it becomes active again.

        Raises: CtxdError session_not_released after ``RELEASE_S``; it is paused nevertheless. Cancel: safe.
        """
        with anyio.move_on_after(RELEASE_S):
            while not await self._is_released(session):
                await self._clock.sleep(_LOOK_S)
            return
        rows = max(0, await self._loss.newest_row(session) - self._projected())
        raise CtxdError(
            "session_not_released",
            f"session {session} is paused, but not released after {RELEASE_S:g} s: the node lacks {count(rows, 'row')}",
            hint="It is released once the node has these rows. Call session.pause again to wait longer.",
            outcome="applied",
        )

    async def _is_released(self, session: str) -> bool:
        if self._sessions.catalog.state(session) == "active" or session in self._sessions.moved_sessions:
            return True
        owner = self._ownership.believed(session)
        if owner is None or await self._loss.is_behind(session):
            return False
        return owner.released or owner_record.standing(owner, self._writer) == "elsewhere"

    async def require_own(self, session: str) -> None:
        """Raises: CtxdError session_owned_elsewhere if another host has ``session``, unless the node takes longer than
        ``UNKNOWN_S`` to respond. Cancel: safe."""
        with anyio.move_on_after(UNKNOWN_S), suppress(CtxdError):
            owner = await self._log.owner(session)
            if owner_record.standing(owner, self._writer) == "elsewhere" and owner is not None:
                self._loss.refuse_writes(session, self._log.heartbeat.host(owner.writer))
        if (moved := self._sessions.moved_sessions.get(session)) is not None:
            raise moved.error(session)

    async def require_unknown(self, session: str) -> None:
        """Raises: CtxdError session_exists if another host has ``session``, unless the node takes longer than
        ``UNKNOWN_S`` to respond: the session created here then becomes a branch. Cancel: safe."""
        if session in self._sessions.catalog:
            return
        owner: Owner | None = None
        with anyio.move_on_after(UNKNOWN_S), suppress(CtxdError):
            owner = await self._log.owner(session)
        moved = self._sessions.moved_sessions.get(session)
        host = None if moved is None else moved.host
        if owner is not None and owner_record.standing(owner, self._writer) == "elsewhere":
            host = self._log.heartbeat.host(owner.writer)
        if host is not None:
            raise CtxdError(
                "session_exists",
                f"session {session} exists on host {host}",
                hint="Choose another id, or take it over with session.resume.",
                outcome="not_applied",
            )

    # --- keep in order ---

    async def _complete_claims(self) -> None:
        """Import every session whose claim was interrupted, as a paused one: no client knows it as active here."""
        slots, reasons = anyio.Semaphore(COMPLETED_AT_ONCE), dict[str, str]()
        wait_s = TIDY_S
        async with anyio.create_task_group() as group:
            while True:
                await self._clock.sleep(wait_s)
                wait_s = TIDY_S
                try:
                    sessions = await self._claims_to_complete()
                except CtxdError:
                    # The heartbeat logs that the node is unavailable.
                    wait_s = COMPLETE_RETRY_S
                    continue
                for session in sessions:
                    self._completing.add(session)
                    group.start_soon(self._complete, session, slots, reasons)

    async def _complete(self, session: str, slots: anyio.Semaphore, reasons: dict[str, str]) -> None:
        """Complete the claim of ``session`` unless a call is doing so. ``reasons``: the last logged failure by
        session."""
        try:
            async with slots:
                if session not in self._claimed or session in self._acquiring:
                    return
                async with self._alone(session):
                    await self._acquire(session, "daemon", "paused")
                    self._log_event("sharing.claim_completed", {"session": session})
        except CtxdError as error:
            if error.code != "store_unavailable" and reasons.get(session) != error.message:
                reasons[session] = error.message
                self._log_event("sharing.claim_not_completed", {"session": session, "reason": error.message})
            # Each attempt at an unreadable session reads the whole session.
            await self._clock.sleep(COMPLETE_RETRY_S)
        finally:
            self._completing.discard(session)

    async def _claims_to_complete(self) -> list[str]:
        """Return the sessions whose claims took place but were not imported. Forget claims that another host has
        superseded, and those that did not take place.

        Raises: CtxdError store_unavailable.
        """
        busy = self._acquiring.keys() | self._completing
        claims = {session: claim for session, claim in self._claimed.items() if session not in busy}
        if not claims:
            return []
        latest = self._clock.monotonic() - CLAIM_LATE_S
        overdue = {session for session, claim in claims.items() if claim.since <= latest}
        owner_of = await self._log.owners(claims, newest=bool(overdue))
        found: list[str] = []
        for session, claim in claims.items():
            if self._claimed.get(session) is not claim or session in self._acquiring:
                # A call resumed the session meanwhile.
                continue
            owner = owner_of.get(session)
            if owner is None or owner.token < claim.token:
                # The claim may still take place, if the node did not respond in time.
                if session in overdue:
                    del self._claimed[session]
                    self._log_event("sharing.claim_ended", {"session": session, "token": claim.token})
            elif owner.writer != self._writer or owner.source is None:
                del self._claimed[session]
            else:
                found.append(session)
        return found

    async def _tidy(self) -> None:
        """Give an owner to sessions without one in the log, and release sessions that are not active."""
        while True:
            await self._clock.sleep(TIDY_S)
            try:
                await self._tidy_once()
            except CtxdError as error:
                # The heartbeat logs that the node is unavailable.
                if error.code != "store_unavailable":
                    self._log_event("sharing.not_tidied", {"reason": error.message})
                await self._clock.sleep(TIDY_S)

    async def _tidy_once(self) -> None:
        states = await self._states_to_tidy()
        for some in batched(states, SESSIONS_PER_REQUEST):
            await self._tidy_some({session: states[session] for session in some})

    async def _tidy_some(self, states: Mapping[str, SessionStatus]) -> None:
        found = await self._log.owners(states)
        for session in states:
            if await self._loss.is_behind(session) or self._ownership.is_held(session):
                continue
            owner = found.get(session)
            if owner is not None and owner_record.standing(owner, self._writer) != "mine":
                self._ownership.learn(session, owner)
                continue
            after = owner_record.first(self._writer) if owner is None else owner
            after = owner_record.released(after) if states[session] != "active" and not after.source else after
            if after == owner or await self._log.step(session, owner, after):
                self._ownership.learn(session, after)

    def _note_written(self, writes: DurableWrites) -> None:
        for write, pending in writes:
            if write.session is not None:
                self._to_tidy[write.session] = pending.seq

    async def _states_to_tidy(self) -> dict[str, SessionStatus]:
        """Return the states of the sessions to check now. Forget those that stay as they are until the next write."""
        catalog, ownership = self._sessions.catalog, self._ownership
        if self._begun != ownership.begun:
            self._begun = ownership.begun
            self._to_tidy = dict.fromkeys(catalog.states(), 0) | self._to_tidy
        states: dict[str, SessionStatus] = {}
        projected = self._projected()
        for number, session in enumerate(list(self._to_tidy), 1):
            if number % CHECKED_IN_A_ROW == 0:
                await anyio.lowlevel.checkpoint()
            state = catalog.state(session)
            if state is None or session in self._sessions.moved_sessions:
                # It is checked again once it was imported.
                del self._to_tidy[session]
            elif ownership.is_held(session):
                continue
            elif self._is_untidy(session, state):
                states[session] = state
            elif self._to_tidy[session] <= projected:
                # A batch on its way could still change the owner.
                del self._to_tidy[session]
        return states

    def _is_untidy(self, session: str, state: str) -> bool:
        owner = self._ownership.believed(session)
        if owner is None:
            return True
        return state != "active" and owner_record.standing(owner, self._writer) == "mine" and not owner.source

    # --- queries ---

    async def owner(self, session: str) -> SessionOwnerResult:
        """Return the owner of ``session``. Raises: CtxdError session_not_found, store_unavailable. Cancel: safe."""
        moved = self._sessions.moved_sessions.get(session)
        owner = await self._log.owner(session)
        if owner is None and session not in self._sessions.catalog:
            raise no_session(session)
        if owner is not None and owner.writer != self._writer:
            await self._log.learn_lease(owner.writer)
        here = owner is None or owner.writer == self._writer
        writer = self._writer if owner is None else owner.writer
        return SessionOwnerResult(
            session=session,
            host=self._log.heartbeat.host(writer),
            here=here,
            released=owner is not None and owner.released,
            branch=None if moved is None else moved.branch,
            lease_left_ms=None if here else max(0, int(self._log.heartbeat.left_s(writer) * 1000)),
        )

    async def hosts(self) -> tuple[SharingHost, ...]:
        """Return all hosts on the log, by name. Raises: CtxdError store_unavailable. Cancel: safe."""
        await self._log.look()
        heartbeat, counts = self._log.heartbeat, Counter[tuple[str, bool]]()
        for owner in (await self._log.owners()).values():
            counts[owner.writer, owner.released] += 1
        writers = {self._writer, *heartbeat.leases, *(writer for writer, _ in counts)}
        found = [
            SharingHost(
                host=heartbeat.host(writer),
                here=writer == self._writer,
                sessions=counts[writer, False],
                released=counts[writer, True],
                lag_rows=heartbeat.lag(writer),
                lease_left_ms=None if writer == self._writer else max(0, int(heartbeat.left_s(writer) * 1000)),
            )
            for writer in writers
        ]
        return tuple(sorted(found, key=lambda each: each.host))

    async def elsewhere(self) -> list[SessionSummary]:
        """The sessions that other hosts own, by id. Raises: CtxdError store_unavailable. Cancel: safe."""
        others = {s: owner for s, owner in (await self._log.owners()).items() if owner.writer != self._writer}
        for writer in {owner.writer for owner in others.values()}:
            await self._log.learn_lease(writer)
        heads = await self._log.heads(others)
        return [
            summary_of(
                session,
                read_head(heads[session]),
                heads[session].valid_time,
                host=self._log.heartbeat.host(owner.writer),
            )
            for session, owner in others.items()
            if session in heads
        ]
