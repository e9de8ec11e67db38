"""What was written here to a session that went on elsewhere: told apart, fenced, and kept as a session of its own.

It is found out by the projection, whose batch with such a row does not take place. The promise: no acknowledged write
of a lost session is lost with it, also if the session comes back before that was found out.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio

from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.objects.identity import assemblies_prefix
from ctxd.projection import fences
from ctxd.projection.fences import Fence
from ctxd.projection.owners import Owner
from ctxd.projection.ownership_guard import Lost, Ownership
from ctxd.sessions.moved_sessions import MovedSession, owned_elsewhere
from ctxd.sessions.registry import Sessions
from ctxd.sharing.heartbeat import Tell
from ctxd.sharing.session_import import LocalSession, import_session, read_destination, read_history
from ctxd.sharing.shared_log import SharedLog
from ctxd.store.writes import Write
from ctxd_protocol.ids import session_object_id, system_prompt_id

SETTLE_S: Final = 1.0
"""Seconds until a fence that could not be written is tried again."""

TOLD_APART_S: Final = 5.0
"""Seconds that taking a session back waits for what was written here to get to the node, or to be told apart."""

_LOOK_S: Final = 0.05
_SESSION_CHARS: Final = 96
"""Characters of a session's id that its branch's id begins with: what is added must fit an id."""


class OwnershipLoss:
    """The sessions of this host that others have claimed."""

    def __init__(
        self, sessions: Sessions, log: SharedLog, ownership: Ownership, clock: Clock, *,
        projected: Callable[[], int], tell: Tell,
    ) -> None:  # fmt: skip
        """``projected``: the newest journal row that the node is known to have."""
        self._sessions = sessions
        self._store = sessions.store
        self._log = log
        self._ownership = ownership
        self._clock = clock
        self._projected = projected
        self._tell = tell

    async def bar_again(self, session: str) -> None:
        """Refuse writes to ``session`` if its last fence was not followed by its return."""
        newest = self._ownership.fences.newest(session)
        head = (await self._store.heads((str(session_object_id(session)),)))[str(session_object_id(session))]
        if newest is not None and head is not None and head.tx < newest[1]:
            self._sessions.moved_sessions[session] = MovedSession(newest[0].host, newest[0].branch)

    async def told_apart(self, session: str) -> None:
        """Return once nothing of ``session`` was written here that another host, which claimed it, may not have had.

        Raises: CtxdError session_owned_elsewhere if that takes long: the node does not keep up. Cancel: safe.
        """
        with anyio.move_on_after(TOLD_APART_S):
            while (newest := await self._newest(session)) > self._projected() and newest > self._fenced(session):
                await self._clock.sleep(_LOOK_S)
            return
        hint = "What was written to it here is still on its way to the node; try again."
        raise owned_elsewhere(session, "another", retry_after_ms=1_000, hint=hint)

    async def _newest(self, session: str) -> int:
        """The newest journal row with anything of ``session``."""
        found = (await self._store.heads((str(session_object_id(session)), str(system_prompt_id(session))))).values()
        assemblies = await self._store.scan_newest(assemblies_prefix(session), before_id=None, limit=1)
        return max((stored.tx for stored in (*found, *assemblies) if stored is not None), default=0)

    def _fenced(self, session: str) -> int:
        """The journal row of the last fence of ``session``; 0 if there is none."""
        newest = self._ownership.fences.newest(session)
        return 0 if newest is None else newest[1]

    async def settle(self, lost: Lost) -> None:
        """Fence every session in ``lost``, and keep what is written of it here as a branch."""
        for session, owner in lost.sessions.items():
            try:
                await self._fence(session, owner, lost.first)
            except CtxdError as error:
                self._tell("sharing.fence_not_written", {"session": session, "reason": error.message})
                await self._clock.sleep(SETTLE_S)
                return

    async def _fence(self, session: str, owner: Owner, first: int) -> None:
        with suppress(CtxdError):
            await self._log.meet(owner.writer)
        host = self._log.host(owner.writer)
        branch = self._branch_id(session, owner) if session in self._sessions.catalog else None
        self._sessions.moved_sessions[session] = MovedSession(host, branch)
        self._sessions.unload(session)
        await self._store.settled()
        if branch is not None:
            await self._keep_branch(session, branch)
        fence = Fence(session=session, first=first, branch=branch, host=host, token=owner.token)
        receipt = await self._store.submit(
            Write(kind="session.fence", principal="daemon", puts=(fences.document_of(fence),))
        ).wait()
        self._ownership.fences.add(fence, receipt.seq)
        self._tell("sharing.lost", {"session": session, "to": host, "branch": branch})

    async def _keep_branch(self, session: str, branch: str) -> None:
        if branch in self._sessions.catalog:
            return
        origin = LocalSession(self._store)
        past = await read_history(origin, session)
        if past is None:
            return
        here = await read_destination(self._store, past, branch, ordinal=self._sessions.next_ordinal())
        pending = await import_session(self._store, origin, past, here, kind="session.branch", principal="daemon")
        await pending.wait()

    def _branch_id(self, session: str, owner: Owner) -> str:
        return f"{session[:_SESSION_CHARS]}@{self._store.writer[:8]}.{owner.token}"
