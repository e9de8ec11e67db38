"""``toolcall.record``: a tool call and its output become an object, active at once (spec 1 §5.7).

The busiest method of all: one object, one segment, one write, and no wait but for the disk.
"""

import msgspec

from ctxd.errors import CtxdError, purged
from ctxd.objects.document import Document, Stored
from ctxd.objects.identity import is_reserved
from ctxd.objects.kinds import is_purged
from ctxd.objects.next_version import toolcall
from ctxd.rpc.dispatch import Handler
from ctxd.rpc.identity import Caller
from ctxd.sessions import transitions
from ctxd.sessions.redaction import Cleared, cleared, off_loop
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session import Accepted, LiveSession, WriteRequest, again, kept_result
from ctxd.store.answers import Missing
from ctxd_protocol.ids import chat_id, toolcall_alias
from ctxd_protocol.methods.files import ToolcallRecordParams, ToolcallRecordResult


def handlers(sessions: Sessions) -> dict[str, Handler]:
    """The methods of this family by name."""
    return {"toolcall.record": _Recorder(sessions).record}


class _Recorder:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store

    async def record(self, caller: Caller, params: ToolcallRecordParams, call: WriteRequest) -> Accepted:
        alone = caller.capability != "host"
        live = await self._sessions.live(params.session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call, heads=(params.id,))
            if replay is not None:
                return again(replay, ToolcallRecordResult)
            capture = self._sessions.guard.capture(live.settings.secrets)
            kept = await off_loop(len(params.content), lambda: cleared(capture, params))
            while isinstance((place := self._place(live, params.id, alone=alone))[1], Missing):
                await self._store.heads(place[:1])
            id, head = place
            if id not in live.state.index:
                if head is not None:
                    raise _conflict(id)
                return _create(live, call, id, kept)
            head = (await self._store.heads((id,)))[id]
            if head is not None and is_purged(head.document):
                raise purged(id)
            # A reference that was unresolved then still is for this comparison, whatever the index holds now.
            known = () if head is None else tuple(head.document.payload.get("unresolved_refs", ()))
            again_made = _document(live, id, kept, unresolved=known)
            if head is None or head.document.content_hash != again_made.content_hash:
                raise _conflict(id)
            unchanged = ToolcallRecordResult(
                object=id, outcome="unchanged", collapsed=(), unresolved=known, receipt=None
            )
            return Accepted(live.barrier, lambda _: unchanged)

    def _place(self, live: LiveSession, harness_id: str, *, alone: bool) -> tuple[str, Stored | None | Missing]:
        """The id under which the session keeps the tool call, the harness's own or an alias if that is not free, and
        what is there. ``MISSING``: this must be looked up first.

        ``alone``: an alias unless the session has the id already: whether it is free would tell of other sessions.
        """
        index = live.state.index
        if not is_reserved(harness_id) and (not alone or harness_id in index):
            head = self._store.peek(harness_id)
            if isinstance(head, Missing) or harness_id in index:
                return harness_id, head
            if head is None and toolcall_alias(live.session, harness_id) not in index:
                return harness_id, None
        alias = toolcall_alias(live.session, harness_id)
        return alias, self._store.peek(alias)


def _create(live: LiveSession, call: WriteRequest, id: str, kept: Cleared) -> Accepted:
    document = _document(live, id, kept)
    delta = transitions.call(live.state, id, live.settings.collapse)
    result = ToolcallRecordResult(
        object=id,
        outcome="created",
        collapsed=delta.collapsed,
        unresolved=tuple(document.payload.get("unresolved_refs", ())),
        receipt=None,
    )
    pending = live.commit(call, delta, puts=(document,), result=kept_result(call, result))
    return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))


def _document(live: LiveSession, id: str, kept: Cleared, *, unresolved: tuple[str, ...] = ()) -> Document:
    """Build the tool call's document. References in ``unresolved`` are not looked up in the index."""
    params = kept.params
    refs = params.file_refs
    unknown: tuple[str, ...] = ()
    if refs:
        found = {ref: None if ref in unresolved else _reference(live, ref) for ref in refs}
        refs = tuple(id for id in found.values() if id is not None)
        unknown = tuple(ref for ref, id in found.items() if id is None)
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
            unresolved_refs=unknown,
            secrets=kept.secrets,
        )
    except ValueError as error:
        raise CtxdError("invalid_params", f"args: {error}", outcome="not_applied") from error


def _reference(live: LiveSession, text: str) -> str | None:
    """The id of the indexed object that ``text`` names; `None` if it names none or several."""
    try:
        return transitions.resolve(live.state, live.session, text)
    except CtxdError:
        return None


def _conflict(id: str) -> CtxdError:
    return CtxdError(
        "toolcall_conflict",
        f"tool call {id} was recorded with another payload",
        hint="A tool call is recorded once: give each its own id.",
        outcome="not_applied",
    )
