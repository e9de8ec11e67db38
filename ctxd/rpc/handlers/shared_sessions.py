"""Handlers of the ``session.*`` that concern other hosts too, if several share one log: ``create`` and ``fork`` refuse
ids of other hosts, ``resume`` acquires the session, ``pause`` waits until it is released, ``list`` includes their
sessions, and ``owner`` returns a session's owner.

On a single host they only call the operation of the same name.
"""

from typing import TYPE_CHECKING

from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import Answer
from ctxd.sessions.live_session import Accepted, WriteRequest
from ctxd.sessions.operation_admission import Operation
from ctxd.sessions.operation_table import Operations
from ctxd.sessions.session_listing import SessionLists
from ctxd_protocol.methods import session_list
from ctxd_protocol.methods import sessions as wire
from ctxd_protocol.methods.declaration import Nothing, SessionParams

if TYPE_CHECKING:
    # Loads an HTTP client, which only hosts with a node need.
    from ctxd.sharing.session_ownership import SessionOwnership


class SharedSessionCalls:
    """Handlers of ``session.*`` that may concern other hosts. ``start`` creates a session, from a context too.

    ``hosts`` None: there is one host.
    """

    def __init__(
        self, operations: Operations, start: Operation, hosts: "SessionOwnership | None", lists: SessionLists
    ) -> None:
        self._lifecycle = operations.lifecycle
        self._forks = operations.forks
        self._start = start
        self._lists = lists
        self._hosts = hosts

    def _require_hosts(self) -> "SessionOwnership":
        if self._hosts is None:
            hint = "Set store.shared on every host whose node is on the same log."
            raise CtxdError("unsupported", "this daemon shares its sessions with no other host", hint=hint)
        return self._hosts

    async def session_owner(self, _: Caller, params: SessionParams) -> wire.SessionOwnerResult:
        return await self._require_hosts().owner(params.session)

    async def session_hosts(self, _: Caller, __: Nothing) -> wire.SessionHostsResult:
        return wire.SessionHostsResult(hosts=await self._require_hosts().hosts())

    async def session_create(self, caller: Caller, params: wire.SessionCreateParams, call: WriteRequest) -> Answer:
        if self._hosts is not None and params.session is not None:
            await self._hosts.require_unknown(params.session)
        return await self._start(caller, params, call)

    async def session_fork(self, caller: Caller, params: wire.SessionForkParams, call: WriteRequest) -> Answer:
        if self._hosts is not None:
            await self._hosts.require_own(params.session)
            if params.fork is not None:
                await self._hosts.require_unknown(params.fork)
        return await self._forks.fork(caller, params, call)

    async def session_resume(self, caller: Caller, params: wire.SessionWriteParams, call: WriteRequest) -> Answer:
        if self._hosts is None:
            return await self._lifecycle.resume(caller, params, call)
        async with self._hosts.acquire(params.session, caller.principal):
            return await self._lifecycle.resume(caller, params, call)

    async def session_pause(self, caller: Caller, params: wire.SessionPauseParams, call: WriteRequest) -> Accepted:
        accepted = await self._lifecycle.pause(caller, params, call)
        if self._hosts is not None and params.wait:
            if accepted.pending is not None:
                await accepted.pending.wait()
            await self._hosts.release(params.session)
        return accepted

    async def session_list(self, _: Caller, params: session_list.SessionListParams) -> Answer:
        if not params.elsewhere:
            return await self._lists.page(params)
        if params.file is not None:
            hint = "Call the daemon of each host, or omit file."
            raise CtxdError("invalid_params", "elsewhere excludes file: other hosts know their own files", hint=hint)
        hosts, filters = self._require_hosts(), await self._lists.filters(params)
        rows = [row for row in await hosts.elsewhere() if filters.passes(row)]
        rows = [row for row in rows if params.cursor is None or row.session > params.cursor]
        page = tuple(rows[: params.limit])
        more = page[-1].session if len(rows) > len(page) else None
        return session_list.SessionListResult(sessions=page, next_cursor=more)
