"""``toolcall.record``: a tool call and its output become an object, active at once (spec 1 §5.7).

The busiest method of all: one object, one segment, one write, and no wait but for the disk.
"""

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Document
from ctxd.objects.identity import is_reserved
from ctxd.objects.next_version import toolcall
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import Handler
from ctxd.sessions import changes
from ctxd.sessions.calls import again, call_of, kept_result
from ctxd.sessions.live import LiveSession
from ctxd.sessions.registry import Sessions
from ctxd.store.answers import Missing
from ctxd.store.writes import Accepted
from ctxd_protocol.ids import chat_id, toolcall_alias
from ctxd_protocol.methods import ToolcallRecordParams, ToolcallRecordResult


def handlers(sessions: Sessions) -> dict[str, Handler]:
    """The methods of this family by name."""
    store = sessions.store

    async def record(caller: Caller, params: ToolcallRecordParams) -> Accepted:
        call = call_of("toolcall.record", caller.principal, params)
        live = await sessions.live(params.session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call, heads=(params.id,))
            if replay is not None:
                return again(replay, ToolcallRecordResult)
            id = await _object_id(sessions, live, params.id)
            document = _document(live, id, params)
            if id in live.state.index:
                head = (await store.heads((id,)))[id]
                if head is None or head.document.content_hash != document.content_hash:
                    raise _conflict(id)
                return Accepted(
                    live.barrier,
                    lambda _: ToolcallRecordResult(object=id, outcome="unchanged", collapsed=(), receipt=None),
                )
            delta = changes.call(live.state, id, live.settings.collapse)
            result = ToolcallRecordResult(object=id, outcome="created", collapsed=delta.collapsed, receipt=None)
            pending = live.commit(call, delta, puts=(document,), result=kept_result(call, result))
            return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))

    return {"toolcall.record": record}


async def _object_id(sessions: Sessions, live: LiveSession, harness_id: str) -> str:
    """The id under which the session keeps the tool call: the harness's own, or an alias if that is not free.

    What it looked up is still so when it returns: nothing awaits in between.
    """
    index = live.state.index
    if not is_reserved(harness_id):
        if harness_id in index:
            return harness_id
        while isinstance(head := sessions.store.peek(harness_id), Missing):
            await sessions.store.heads((harness_id,))
        if head is None and toolcall_alias(live.session, harness_id) not in index:
            return harness_id
    alias = toolcall_alias(live.session, harness_id)
    if alias not in index:
        while isinstance(head := sessions.store.peek(alias), Missing):
            await sessions.store.heads((alias,))
        if head is not None:
            raise _conflict(alias)
    return alias


def _document(live: LiveSession, id: str, params: ToolcallRecordParams) -> Document:
    refs = params.file_refs
    if refs:
        refs = tuple(changes.resolve(live.state, live.session, ref) for ref in refs)
    try:
        return toolcall(
            id,
            tool=params.tool,
            args=params.args,
            content=params.content,
            chat_ref=chat_id(live.session),
            status=params.status,
            args_display=params.args_display,
            file_refs=refs,
        )
    except ValueError as error:
        raise CtxdError("invalid_params", f"args: {error}", outcome="not_applied") from error


def _conflict(id: str) -> CtxdError:
    return CtxdError(
        "toolcall_conflict",
        f"tool call {id} was recorded with another payload",
        hint="A tool call is recorded once: give each its own id.",
        outcome="not_applied",
    )
