"""Operations on the text of a conversation: append to the chat, replace the system prompt.

Separate from ``ctxd.sessions.chat``, which reads the chat, also for modules that write nothing.
"""

from collections.abc import Sequence

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf, system_prompt
from ctxd.secrets.redaction import Capture
from ctxd.sessions.auto_collapse import overdue
from ctxd.sessions.id_resolution import resolve
from ctxd.sessions.live_session import Accepted, Transaction
from ctxd.sessions.operation_admission import OperationGroup, admitted
from ctxd.sessions.secret_redaction import events_captured, off_loop
from ctxd.sessions.session_state import SessionState
from ctxd.sessions.stored_session import AppendChat, CollapseCalls, SessionDelta
from ctxd_protocol.event_types import Event, PromptEvent, ToolResultEvent, event_of, starts_turn
from ctxd_protocol.ids import system_prompt_id
from ctxd_protocol.methods.chat import SessionAppendParams, SessionAppendResult, SystemPromptParams
from ctxd_protocol.methods.declaration import WriteResult
from ctxd_protocol.session_types import Collapse, Message


class ChatOperations(OperationGroup):
    """Writes of the chat and of the system prompt."""

    @admitted("session.append", SessionAppendResult)
    async def append(self, tx: Transaction, params: SessionAppendParams) -> Accepted:
        """Append messages or events to the chat; each user message or prompt starts a turn."""
        live = tx.live
        events = events_from(params.messages, params.events)
        events = await events_captured(tx.guard, live.settings.secrets, events, sandbox=tx.sandbox)
        delta = append_delta(
            live.state, params.session, events, live.settings.collapse, ancestors=live.lineage.ancestors
        )
        turn = live.state.turn + sum(map(starts_turn, events))
        return tx.submit(SessionAppendResult(turn=turn, receipt=None), delta)

    @admitted("session.set_system_prompt", WriteResult)
    async def set_system_prompt(self, tx: Transaction, params: SystemPromptParams) -> Accepted:
        """Replace the system prompt."""
        live, id = tx.live, system_prompt_id(params.session)
        head = await self.store.get(id, AsOf.given(params.valid_time, None))
        capture = Capture(tx.guard, live.settings.secrets)
        content = await off_loop(len(params.content), lambda: capture.text(params.content), sandbox=tx.sandbox)
        document = await self.store.keep(system_prompt(params.session, content, capture.secrets))
        result = WriteResult(receipt=None)
        if head is not None and head.document.content_hash == document.content_hash:
            return tx.unchanged(result)
        floor_vt = 0 if head is None else head.valid_time + 1
        return tx.submit(result, puts=(document,), floor_vt=floor_vt, valid_time=params.valid_time)


def append_delta(
    state: SessionState, session: str, events: Sequence[Event], collapse: Collapse, *, ancestors: Sequence[str] = ()
) -> SessionDelta:
    """Return the change that appends ``events``; each prompt starts a turn, so older tool calls may leave the window.

    A tool result may name its object in any form that ``resolve`` accepts; it is stored with the object's full id.
    Raises: CtxdError invalid_params for a malformed event, and the errors of ``resolve``.
    """
    appended = AppendChat(tuple(_checked(state, session, ancestors, event) for event in events))
    turn = state.turn + sum(map(starts_turn, events))
    fallen = overdue(state, collapse, turn=turn) if turn != state.turn else ()
    return (appended, CollapseCalls(fallen)) if fallen else (appended,)


def events_from(messages: Sequence[Message], events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the events to append, given as messages or as events. Raises: CtxdError invalid_params for both or
    neither, or for a malformed message."""
    if bool(messages) == bool(events):
        raise CtxdError("invalid_params", "give either messages or events", outcome="not_applied")
    return tuple(events) or tuple(map(_event_from, messages))


def _event_from(message: Message) -> Event:
    if message.role != "toolcall" and message.toolcall is not None:
        raise CtxdError("invalid_params", f"a message with role {message.role!r} must not reference a tool call")
    if message.role == "toolcall" and (message.toolcall is None or message.content):
        raise CtxdError(
            "invalid_params",
            "a message with role 'toolcall' must reference a tool call and have no content",
            hint="Keep the output with toolcall.record, then append a message with its id.",
        )
    if message.role == "user" and not message.content:
        raise CtxdError("invalid_params", "a user message needs content", hint="Put its text in the member content.")
    return event_of(message)


def _checked(state: SessionState, session: str, ancestors: Sequence[str], event: Event) -> Event:
    if isinstance(event, PromptEvent) and not event.text and not event.attachments:
        raise CtxdError("invalid_params", "a prompt needs text or an attachment")
    for each in getattr(event, "attachments", ()):
        if sum(source is not None for source in (each.data, each.artifact, each.url)) > 1:
            raise CtxdError(
                "invalid_params",
                "an attachment has data, an artifact or a url, not several of them",
                hint="Append an attachment for each.",
                outcome="not_applied",
            )
    if not isinstance(event, ToolResultEvent) or event.object is None:
        return event
    if event.text or event.attachments:
        raise CtxdError(
            "invalid_params",
            "a tool result with `object` must not have text or attachments",
            hint="Keep the output with toolcall.record, and append a result with the object alone.",
        )
    id = resolve(state, session, event.object, "toolcall", ancestors=ancestors)
    return event if id == event.object else msgspec.structs.replace(event, object=id)
