"""Handlers of ``session.*`` with several hosts on one log: ``resume`` acquires the session, ``pause`` waits until it is
released, ``create`` and ``fork`` refuse ids of other hosts, ``list`` includes their sessions, and ``owner`` returns a
session's owner.

The handlers of a single host are unchanged.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import Answer, AsyncHandler
from ctxd.sessions.live_session import Accepted, WriteRequest
from ctxd.sessions.session_listing import SessionLists
from ctxd_protocol.methods import session_list
from ctxd_protocol.methods import sessions as wire
from ctxd_protocol.methods.declaration import Nothing, SessionParams

if TYPE_CHECKING:
    # Loads an HTTP client, which only hosts with a node need.
    from ctxd.sharing.session_ownership import SessionOwnership

_RESUME: Final = "session.resume"
_PAUSE: Final = "session.pause"
_CREATE: Final = "session.create"
_FORK: Final = "session.fork"
_LIST: Final = "session.list"


def handlers(
    family: Mapping[str, AsyncHandler], hosts: "SessionOwnership | None", lists: SessionLists
) -> dict[str, AsyncHandler]:
    """Return ``family``, the methods of sessions on this host, extended by those of several; ``hosts`` ``None``: there
    is one host."""
    shared = _SharedCalls(family, hosts, lists)
    table: dict[str, AsyncHandler] = {
        **family,
        "session.owner": shared.owner,
        "session.hosts": shared.hosts,
        _LIST: shared.list,
    }
    if hosts is None:
        return table
    return table | {_RESUME: shared.resume, _PAUSE: shared.pause, _CREATE: shared.create, _FORK: shared.fork}


class _SharedCalls:
    def __init__(
        self, family: Mapping[str, AsyncHandler], hosts: "SessionOwnership | None", lists: SessionLists
    ) -> None:
        self._family = family
        self._lists = lists
        self._hosts = hosts

    @property
    def _others(self) -> "SessionOwnership":
        if self._hosts is None:
            hint = "Set store.shared on every host whose node is on the same log."
            raise CtxdError("unsupported", "this daemon shares its sessions with no other host", hint=hint)
        return self._hosts

    async def owner(self, _: Caller, params: SessionParams) -> wire.SessionOwnerResult:
        return await self._others.owner(params.session)

    async def hosts(self, _: Caller, __: Nothing) -> wire.SessionHostsResult:
        return wire.SessionHostsResult(hosts=await self._others.hosts())

    async def resume(self, caller: Caller, params: wire.SessionWriteParams, call: WriteRequest) -> Answer:
        async with self._others.acquire(params.session, caller.principal):
            return await self._family[_RESUME](caller, params, call)

    async def pause(self, caller: Caller, params: wire.SessionPauseParams, call: WriteRequest) -> Answer:
        answer = await self._family[_PAUSE](caller, params, call)
        if params.wait:
            if isinstance(answer, Accepted) and answer.pending is not None:
                await answer.pending.wait()
            await self._others.release(params.session)
        return answer

    async def create(self, caller: Caller, params: wire.SessionCreateParams, call: WriteRequest) -> Answer:
        if params.session is not None:
            await self._others.require_unknown(params.session)
        return await self._family[_CREATE](caller, params, call)

    async def fork(self, caller: Caller, params: wire.SessionForkParams, call: WriteRequest) -> Answer:
        await self._others.require_own(params.session)
        if params.fork is not None:
            await self._others.require_unknown(params.fork)
        return await self._family[_FORK](caller, params, call)

    async def list(self, caller: Caller, params: session_list.SessionListParams) -> Answer:
        if not params.elsewhere:
            return await self._family[_LIST](caller, params)
        if params.file is not None:
            hint = "Call the daemon of each host, or omit file."
            raise CtxdError("invalid_params", "elsewhere excludes file: other hosts know their own files", hint=hint)
        others, filters = self._others, await self._lists.filters(params)
        rows = [row for row in await others.elsewhere() if filters.passes(row)]
        rows = [row for row in rows if params.cursor is None or row.session > params.cursor]
        page = tuple(rows[: params.limit])
        more = page[-1].session if len(rows) > len(page) else None
        return session_list.SessionListResult(sessions=page, next_cursor=more)
