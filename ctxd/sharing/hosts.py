"""Sessions of several hosts on one log: taken over from another one, taken up again here, and told apart when lost.

Owns who may do so, and the order of the steps. The promise: whoever is told that a session is here may write to it, or
learns from the first refusal where it is and which branch keeps what came too late; nothing that was acknowledged is
lost.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio.abc import TaskStatus

from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.projection import fences, owners
from ctxd.projection.owners import Owner
from ctxd.projection.ownership_guard import Ownership
from ctxd.sessions.moved_sessions import owned_elsewhere
from ctxd.sessions.registry import Sessions, no_session, summary_of
from ctxd.sessions.segments import read_head
from ctxd.sessions.session import SessionLock
from ctxd.sharing.heartbeat import Tell
from ctxd.sharing.ownership_loss import OwnershipLoss
from ctxd.sharing.session_import import SessionSource, import_session, read_destination, read_history
from ctxd.sharing.shared_log import SharedLog, shared_log
from ctxd_protocol.ids import session_object_id
from ctxd_protocol.methods.sessions import SessionOwnerResult
from ctxd_protocol.sessions import SessionSummary

STEPS_MAX: Final = 5
"""Attempts to claim a session of which another host changed the owner meanwhile."""

UNKNOWN_S: Final = 1.0
"""Seconds that making a session waits for the node to say that no other host has one of this id."""

TIDY_S: Final = 1.0
"""Seconds between two looks for sessions that have no owner, or are to be given up."""


class Hosts:
    """The several hosts, as one of them sees them. ``start``, then ``run`` while anything else is called."""

    def __init__(
        self, sessions: Sessions, log: SharedLog, ownership: Ownership, loss: OwnershipLoss, clock: Clock, *,
        projected: Callable[[], int], tell: Tell,
    ) -> None:  # fmt: skip
        """``projected``: the newest journal row that the node is known to have."""
        self._sessions = sessions
        self._store = sessions.store
        self._log = log
        self._ownership = ownership
        self._loss = loss
        self._clock = clock
        self._projected = projected
        self._tell = tell
        self._acquiring: dict[str, SessionLock] = {}

    @property
    def _writer(self) -> str:
        return self._store.writer

    async def start(self) -> None:
        """Know what was fenced, and let the projection begin. Raises: CtxdError corrupt, store_failed."""
        self._ownership.open(await self._store.scan(fences.PREFIX), self._loss.settle)
        for session in self._ownership.fences.sessions:
            await self._loss.bar_again(session)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the lease and watch the others' until cancelled; started once the rest may be called."""
        async with anyio.create_task_group() as group:
            await group.start(self._log.run)
            group.start_soon(self._tidy)
            task_status.started()

    # --- take a session up, or over ---

    @asynccontextmanager
    async def acquire(self, session: str, principal: str) -> AsyncIterator[None]:
        """Have ``session`` here, whole and this host's, inside: it is about to be resumed.

        Raises: CtxdError session_not_found, session_owned_elsewhere, store_unavailable, session_closed, corrupt and
        those of the store. Cancel: safe; what is taken in by then is taken in again by the next attempt.
        """
        lock = self._acquiring.setdefault(session, SessionLock())
        try:
            async with lock:
                with self._ownership.holding(session):
                    if not self._is_active(session):
                        await self._acquire(session, principal)
                    yield
        finally:
            if lock.free:
                self._acquiring.pop(session, None)

    def _is_active(self, session: str) -> bool:
        """Whether ``session`` is here and was not given up."""
        state = self._sessions.catalog.state(session)
        return state == "active" and session not in self._sessions.moved_sessions

    def _is_whole(self, session: str) -> bool:
        """Whether all of ``session`` is here, as it was when it was here last."""
        return session in self._sessions.catalog and session not in self._sessions.moved_sessions

    async def _acquire(self, session: str, principal: str) -> None:
        for attempt in range(STEPS_MAX):
            try:
                owner = await self._take(session, level=attempt > 0)
            except CtxdError as error:
                if error.code == "store_unavailable" and self._is_unprojected(session):
                    return
                raise
            if owner is not None:
                if owner.source is not None:
                    await self._take_in(session, owner.source, principal)
                return
        raise owned_elsewhere(session, "another", retry_after_ms=1_000, hint="It changes hands; try again.")

    def _is_unprojected(self, session: str) -> bool:
        """Whether the pause of ``session`` surely has not got to the node: then nobody can have claimed it."""
        owner = self._ownership.believed(session)
        return owner is not None and self._is_whole(session) and owners.standing(owner, self._writer) == "mine"

    async def _take(self, session: str, *, level: bool) -> Owner | None:
        """One attempt to make ``session`` this host's. ``level``: the node is first waited for, to have all that the
        others did. Returns: the owner then; null if it changed meanwhile, or may have.

        Raises: CtxdError session_not_found, session_owned_elsewhere, session_closed, store_unavailable.
        """
        owner = await (self._log.newest_owner(session) if level else self._log.owner(session))
        if owner is None:
            if self._is_whole(session):
                return owners.first(self._writer)
            if not level:
                return None
            raise no_session(session)
        match owners.standing(owner, self._writer):
            case "mine" if owner.source is not None or self._is_whole(session):
                believed = self._ownership.believed(session)
                # A batch that gives it up may be under way: wait for its outcome by looking again.
                if believed is not None and believed.token == owner.token and believed.released:
                    await self._clock.sleep(0.05)
                    return None
                return owner
            case "resting" if self._is_whole(session):
                after = owners.resumed(owner)
            case _:
                claim = await self._claim(session, owner, certain=level)
                if claim is None:
                    return None
                after = claim
        if not await self._log.step(session, owner, after):
            return None
        self._ownership.learn(session, after)
        self._tell("sharing.claimed", {"session": session, "token": after.token, "from": owner.writer})
        return after

    async def _claim(self, session: str, owner: Owner, *, certain: bool) -> Owner | None:
        """``owner`` once this host has claimed ``session``; null if it may not, but whose it is is not ``certain``.

        Raises: CtxdError session_owned_elsewhere, session_closed, store_unavailable.
        """
        left_s = await self._left_s(owner)
        if not owners.may_claim(owner, self._writer, expired=left_s <= 0):
            if not certain:
                return None
            wait = max(1, int(left_s * 1000))
            raise owned_elsewhere(session, self._log.host(owner.writer), retry_after_ms=wait)
        await self._loss.told_apart(session)
        await self._require_open(session)
        after = owners.claimed(owner, self._writer)
        return owners.adopted(after) if after.source == self._writer and self._is_whole(session) else after

    async def _left_s(self, owner: Owner) -> float:
        """Seconds until ``owner`` counts as dead; 0 for this host, which asks."""
        if owner.writer == self._writer:
            return 0.0
        return await self._log.left_s_for_certain(owner.writer)

    async def _require_open(self, session: str) -> None:
        stored = (await self._log.heads((session,))).get(session)
        if stored is not None and read_head(stored).settings.state == "closed":
            raise CtxdError("session_closed", f"session {session} is closed", outcome="not_applied")

    async def _take_in(self, session: str, source: str, principal: str) -> None:
        """Write ``session`` here as it is at the node. Raises: CtxdError."""
        began = self._clock.monotonic()
        origin: SessionSource = await self._log.origin(session, source)
        past = await read_history(origin, session)
        if past is None:
            raise CtxdError("corrupt", f"session {session} has an owner, but is not at the node", outcome="not_applied")
        here = await read_destination(
            self._store,
            past,
            session,
            ordinal=self._sessions.next_ordinal(),
            filesystem="" if source == self._writer else self._log.filesystem(source),
            taken_up=True,
        )
        read_ms = int((self._clock.monotonic() - began) * 1000)
        self._sessions.unload(session)
        pending = await import_session(self._store, origin, past, here, kind="session.adopt", principal=principal)
        await pending.wait()
        self._sessions.unload(session)
        self._sessions.moved_sessions.pop(session, None)
        took_ms = int((self._clock.monotonic() - began) * 1000)
        figures = {"segments": len(past.segments), "objects": len(past.objects), "read_ms": read_ms, "took_ms": took_ms}
        self._tell("sharing.taken_in", {"session": session, "from": self._log.host(source), **figures})

    async def require_unknown(self, session: str) -> None:
        """Raises: CtxdError session_exists if another host is known to have ``session``. A node that does not answer
        at once says nothing: should there be one, what is made here is kept as a branch. Cancel: safe."""
        if session in self._sessions.catalog:
            return
        owner: Owner | None = None
        with anyio.move_on_after(UNKNOWN_S), suppress(CtxdError):
            owner = await self._log.owner(session)
        if owner is not None and owners.standing(owner, self._writer) == "elsewhere":
            raise CtxdError(
                "session_exists",
                f"session {session} exists on host {self._log.host(owner.writer)}",
                hint="Choose another id, or take it over with session.resume.",
                outcome="not_applied",
            )

    # --- keep in order ---

    async def _tidy(self) -> None:
        """Give sessions that were here before there were several hosts an owner, and give up those set aside."""
        while True:
            await self._clock.sleep(TIDY_S)
            try:
                await self._tidy_once()
            except CtxdError as error:
                # The lease says so already, if the node is away.
                if error.code != "store_unavailable":
                    self._tell("sharing.not_tidied", {"reason": error.message})
                await self._clock.sleep(TIDY_S)

    async def _tidy_once(self) -> None:
        states = {
            session: state
            for session, state in self._sessions.catalog.states().items()
            if session not in self._sessions.moved_sessions and not self._ownership.is_held(session)
        }
        unsure = [session for session in states if self._is_untidy(session, states[session])]
        for session in unsure:
            head = (await self._store.heads((session_object_id(session),)))[session_object_id(session)]
            if head is None or head.tx > self._projected():
                continue
            owner = await self._log.owner(session)
            if owner is not None and owners.standing(owner, self._writer) != "mine":
                self._ownership.learn(session, owner)
                continue
            after = owners.first(self._writer) if owner is None else owner
            after = owners.released(after) if states[session] != "active" and not after.source else after
            if after == owner or await self._log.step(session, owner, after):
                self._ownership.learn(session, after)

    def _is_untidy(self, session: str, state: str) -> bool:
        owner = self._ownership.believed(session)
        if owner is None:
            return True
        return state != "active" and owners.standing(owner, self._writer) == "mine" and not owner.source

    # --- tell ---

    async def owner(self, session: str) -> SessionOwnerResult:
        """Whose ``session`` is. Raises: CtxdError session_not_found, store_unavailable. Cancel: safe."""
        moved = self._sessions.moved_sessions.get(session)
        owner = await self._log.owner(session)
        if owner is None and session not in self._sessions.catalog:
            raise no_session(session)
        if owner is not None and owner.writer != self._writer:
            await self._log.meet(owner.writer)
        here = owner is None or owner.writer == self._writer
        writer = self._writer if owner is None else owner.writer
        return SessionOwnerResult(
            session=session,
            host=self._log.host(writer),
            here=here,
            released=owner is not None and owner.released,
            branch=None if moved is None else moved.branch,
            lease_left_ms=None if here else max(0, int(self._log.left_s(writer) * 1000)),
        )

    async def elsewhere(self) -> list[SessionSummary]:
        """The sessions that other hosts wrote last, by id. Raises: CtxdError store_unavailable. Cancel: safe."""
        others = {s: owner for s, owner in (await self._log.owners()).items() if owner.writer != self._writer}
        for writer in {owner.writer for owner in others.values()}:
            await self._log.meet(writer)
        heads = await self._log.heads(others)
        return [
            summary_of(session, read_head(heads[session]), heads[session].valid_time, host=self._log.host(owner.writer))
            for session, owner in others.items()
            if session in heads
        ]


def hosts_at(
    url: str, sessions: Sessions, ownership: Ownership, clock: Clock, *, host: str, lease_s: float, filesystem: str,
    projected: Callable[[], int], tell: Tell,
) -> Hosts:  # fmt: skip
    """The hosts that meet in the log behind the node at ``url``; the others call this one ``host``, and may take over
    after ``lease_s`` of its silence. ``filesystem`` is the id of its own filesystem; for the rest see ``Hosts``."""
    store = sessions.store
    log = shared_log(
        url, clock, writer=store.writer, host=host, filesystem=filesystem, incarnation=store.incarnation,
        lease_s=lease_s, tell=tell,
    )  # fmt: skip
    loss = OwnershipLoss(sessions, log, ownership, clock, projected=projected, tell=tell)
    return Hosts(sessions, log, ownership, loss, clock, projected=projected, tell=tell)
