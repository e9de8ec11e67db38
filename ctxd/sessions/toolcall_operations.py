"""Operation that records a tool call and its output."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from ctxd.errors import CtxdError, purged
from ctxd.objects.document import Document, Stored, renamed, toolcall
from ctxd.objects.generated_ids import is_reserved
from ctxd.objects.version_state import is_purged
from ctxd.secrets.redaction import Capture
from ctxd.sessions.auto_collapse import overdue
from ctxd.sessions.id_resolution import resolve
from ctxd.sessions.live_session import Accepted, LiveSession, Transaction
from ctxd.sessions.operation_admission import OperationGroup, admitted
from ctxd.sessions.secret_redaction import INLINE_CHARS_MAX, events_captured, off_loop, toolcall_captured
from ctxd.sessions.session_state import SessionState
from ctxd.sessions.stored_session import AppendChat, CollapseCalls, RecordCalls, SessionDelta
from ctxd.store.write_types import NotCached
from ctxd_protocol.event_types import Event, ToolCallEvent, ToolResultEvent
from ctxd_protocol.ids import toolcall_alias
from ctxd_protocol.methods import toolcalls as toolcall_methods
from ctxd_protocol.methods.toolcalls import ToolcallRecordParams
from ctxd_protocol.secret_types import Secrets
from ctxd_protocol.session_types import Collapse

_encode: Final = msgspec.json.Encoder().encode


class ToolcallOperations(OperationGroup):
    """Writes of tool calls."""

    @admitted("toolcall.record", toolcall_methods.ToolcallRecordResult, heads=lambda params: (params.id,))
    async def record(self, tx: Transaction, params: toolcall_methods.ToolcallRecordParams) -> Accepted:
        """Record a tool call and its output; it is active at once (spec 1 §5.7). A repeat is ``unchanged``. The same
        write appends its events to the chat. ``admitted`` calls this, with the session's lock held.

        Raises: CtxdError toolcall_conflict, purged, invalid_params.
        """
        live = tx.live
        events = () if params.chat == "none" else _events(params)
        capture = Capture(tx.guard, live.settings.secrets)
        size = len(params.content) + len(_encode((params.args, params.args_display, params.file_refs)))
        if size <= INLINE_CHARS_MAX and not tx.is_confined:
            params = toolcall_captured(capture, params)
        else:
            params = await off_loop(size, partial(toolcall_captured, capture, params), sandbox=tx.sandbox)
        found = capture.secrets
        if events and found is not None and found.found:
            events = await events_captured(tx.guard, live.settings.secrets, events, sandbox=tx.sandbox)
        make = partial(toolcall_document, live.state, live.session, params, found, chat_ref=live.chat_ref)
        early = None
        if size > INLINE_CHARS_MAX:
            early = await self._kept(tx, params.id, size, make)
        id, head = await self._place(live, params.id, tx.is_confined)
        if id not in live.state.index:
            if head is not None:
                raise _conflict(params.id)
            document = make(id) if early is None else renamed(early, id)
            delta = call_delta(live.state, id, live.settings.collapse, events)
            result = toolcall_methods.ToolcallRecordResult(
                object=id,
                outcome="created",
                collapsed=tuple([id for each in delta if isinstance(each, CollapseCalls) for id in each.objects]),
                unresolved=tuple(document.payload.get("unresolved_refs", ())),
                receipt=None,
            )
            return tx.submit(result, delta, puts=(document,), valid_time=params.valid_time)
        if head is not None and is_purged(head.document):
            raise purged(id)
        # References that were unresolved then count as unresolved in this comparison, whatever the index holds now.
        known = () if head is None else tuple(head.document.payload.get("unresolved_refs", ()))
        again_made = await off_loop(size, partial(make, id, unresolved=known))
        if head is None or head.document.content_hash != again_made.content_hash:
            raise _conflict(params.id)
        return tx.unchanged(
            toolcall_methods.ToolcallRecordResult(
                object=id, outcome="unchanged", collapsed=(), unresolved=known, receipt=None
            )
        )

    async def _kept(self, tx: Transaction, own_id: str, size: int, make: Callable[[str], Document]) -> Document:
        """Return the document that ``make`` builds, with its large output durable.

        Raises: CtxdError purged before anything is stored: purged text must not reach the disk, not even briefly.
        """
        id, head = await self._place(tx.live, own_id, tx.is_confined)
        if id in tx.live.state.index and head is not None and is_purged(head.document):
            raise purged(id)
        return await self.store.keep(await off_loop(size, partial(make, own_id)))

    async def _place(self, live: LiveSession, own_id: str, confined: bool) -> tuple[str, Stored | None]:
        """Return the id for the tool call in this session, and its newest version; neither changes before the
        next await. Raises: CtxdError corrupt, store_failed.

        The id is the harness's own, or an alias if that is taken or reserved. A confined actor gets an alias unless the
        session already has the id: otherwise it could find out which ids other sessions use.
        """
        index, alias = live.state.index, toolcall_alias(live.session, own_id)
        may_be_own = not is_reserved(own_id) and (not confined or own_id in index)
        while True:
            id: str = alias
            head = self.store.peek(own_id) if may_be_own else None
            if may_be_own and (isinstance(head, NotCached) or own_id in index or (head is None and alias not in index)):
                id = own_id
            else:
                head = self.store.peek(alias)
            if not isinstance(head, NotCached):
                return id, head
            await self.store.heads((id,))


def _events(params: toolcall_methods.ToolcallRecordParams) -> tuple[Event, ...]:
    """Return the events that describe the call in the chat; the result has no object yet, see ``call_delta``."""
    result = ToolResultEvent(call=params.id, is_error=params.status != "ok")
    if params.chat == "result":
        return (result,)
    return (ToolCallEvent(call=params.id, tool=params.tool, args=params.args), result)


def _conflict(id: str) -> CtxdError:
    return CtxdError(
        "toolcall_conflict",
        f"tool call {id} was recorded with another payload",
        hint="A tool call is recorded once: give each its own id.",
        outcome="not_applied",
    )


def call_delta(state: SessionState, id: str, collapse: Collapse, events: Sequence[Event] = ()) -> SessionDelta:
    """Return the change that records the tool call ``id``, which is new to the session: it becomes active, and older
    calls may leave the window.

    ``events`` describe the call and are appended to the chat, results with ``id`` as their object.
    """
    assert id not in state.index, "a tool call comes in once"
    fallen = overdue(state, collapse, turn=state.turn, arriving=id)
    delta: SessionDelta = (RecordCalls((id,)), CollapseCalls(fallen)) if fallen else (RecordCalls((id,)),)
    if not events:
        return delta
    replace = msgspec.structs.replace
    named = [replace(event, object=id) if isinstance(event, ToolResultEvent) else event for event in events]
    return (*delta, AppendChat(tuple(named)))


def toolcall_document(
    state: SessionState,
    session: str,
    params: ToolcallRecordParams,
    secrets: Secrets | None,
    id: str,
    *,
    chat_ref: str,
    unresolved: tuple[str, ...] = (),
) -> Document:
    """Build the document of the tool call ``id`` of ``session``, whose chat is ``chat_ref``. References in
    ``unresolved`` are not looked up in the index.

    Raises: CtxdError invalid_params for arguments without a canonical encoding.
    """
    refs = params.file_refs
    unknown: tuple[str, ...] = ()
    if refs:
        absent = frozenset(unresolved)
        found = {ref: None if ref in absent else _reference(state, session, ref) for ref in refs}
        refs = tuple(object for object in found.values() if object is not None)
        unknown = tuple(ref for ref, object in found.items() if object is None)
    try:
        return toolcall(
            id,
            tool=params.tool,
            args=params.args,
            content=params.content,
            chat_ref=chat_ref,
            status=params.status,
            args_display=params.args_display,
            file_refs=refs,
            unresolved_refs=unknown,
            secrets=secrets,
        )
    except ValueError as error:
        raise CtxdError("invalid_params", f"args: {error}", outcome="not_applied") from error


def _reference(state: SessionState, session: str, text: str) -> str | None:
    """Return the id of the indexed file that ``text`` names; None if it names none or several."""
    try:
        return resolve(state, session, text, "file")
    except CtxdError:
        return None
