"""Transitions of a session: pure functions of its state and a request that return a delta, or refuse.

The delta is ``NOTHING`` if the state is already as requested.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Document, toolcall
from ctxd.objects.generated_ids import INFRASTRUCTURE_PREFIXES, INNER_PREFIXES
from ctxd.objects.kinds import ContentKind
from ctxd.sessions.segments import (
    NOTHING,
    ActivateObjects,
    AppendChat,
    CollapseCalls,
    DeactivateObjects,
    DiscoverObjects,
    HideObjects,
    PinObjects,
    ReadObjects,
    RecordCalls,
    SessionDelta,
    ShowObjects,
    UnpinObjects,
)
from ctxd.sessions.state import SessionState
from ctxd_protocol.event_types import Event, PromptEvent, ToolResultEvent, event_of, starts_turn
from ctxd_protocol.ids import PREFIX_CHARS_MIN, chat_id, toolcall_alias
from ctxd_protocol.methods.toolcalls import ToolcallRecordParams
from ctxd_protocol.secrets import Secrets
from ctxd_protocol.session_types import Collapse, ContextLevel, Message

_NOUNS: Final[dict[ContentKind | None, str]] = {None: "object", "file": "file", "toolcall": "tool call"}


def overdue(state: SessionState, window: Collapse, *, turn: int, arriving: str | None = None) -> tuple[str, ...]:
    """The active tool calls that fall out of the window once ``turn`` is current and ``arriving`` has come in.

    The order is that of activation within each kind: those left over from their turn first, then those chosen.
    """
    oldest = turn - window.turns + 1
    counts = state.calls
    fallen: list[str] = []
    for id, (called, nth) in state.warm.items():
        count = counts[called] + (arriving is not None and called == turn)
        if called < oldest or nth < count - window.per_turn:
            fallen.append(id)
    if arriving is not None and window.per_turn == 0:
        fallen.append(arriving)
    for chosen_turn, ids in state.chosen_calls.items():
        if chosen_turn < oldest:
            fallen.extend(ids)
    return tuple(fallen)


def resolve(state: SessionState, session: str, text: str, kind: ContentKind | None = None) -> str:
    """The id in the index of ``session`` that ``text`` means: an id, else a tool call's own id, else a start of 8
    characters. With ``kind`` only objects of that kind are meant, so that a tool call is found by its own id though a
    file has the same.

    Raises: CtxdError infrastructure_object, not_in_index, ambiguous_id.
    """
    if state.is_a(text, kind):
        return text
    # A harness's own id may look reserved: the session's tool call of that name comes before an infrastructure object.
    alias = toolcall_alias(session, text)
    if state.is_a(alias, kind):
        return alias
    if text.startswith((*INFRASTRUCTURE_PREFIXES, *INNER_PREFIXES)):
        if kind is not None:
            hint = f"Give the id of a {_NOUNS[kind]} from object.list."
            raise CtxdError("not_in_index", f"{text} is infrastructure, not a {_NOUNS[kind]}", hint=hint)
        raise CtxdError(
            "infrastructure_object",
            f"{text} is infrastructure: it has a fixed place in the context",
            hint="Only files and tool calls can be activated, pinned or hidden.",
        )
    near = state.starting_with(text) if len(text) >= PREFIX_CHARS_MIN else []
    found = [id for id in near if state.is_a(id, kind)]
    if not found:
        raise CtxdError(
            "not_in_index",
            f"no {_NOUNS[kind]} id={text} in the index of session {session}",
            hint=f"Give an id from object.list, or at least {PREFIX_CHARS_MIN} characters of one.",
        )
    if len(found) > 1:
        names = ", ".join(found[:3])
        raise CtxdError("ambiguous_id", f"{len(found)} objects begin with {text}", hint=f"Among them: {names}.")
    return found[0]


def read(state: SessionState, id: str) -> SessionDelta:
    """An agent read ``id``: it enters index, pool and active set (spec 1 §5.6)."""
    if id in state.active and id in state.read:
        return NOTHING
    return (ReadObjects((id,)),)


def discover(state: SessionState, ids: Iterable[str]) -> SessionDelta:
    """A tool's output named ``ids``: they enter index and pool (spec 1 §5.6)."""
    fresh = tuple(dict.fromkeys(id for id in ids if id not in state.pool))
    return (DiscoverObjects(fresh),) if fresh else NOTHING


def met(state: SessionState, id: str, cause: Literal["read", "edit", "check"]) -> SessionDelta:
    """The change of the sets for a file that was met by ``cause``."""
    match cause:
        case "read":
            return read(state, id)
        case "edit":
            return discover(state, (id,)) if id in state.read else read(state, id)
        case "check":
            return NOTHING


def call(state: SessionState, id: str, window: Collapse, events: Sequence[Event] = ()) -> SessionDelta:
    """The tool call ``id``, new to the session, came in: it is active, and older ones fall out of the window.

    ``events`` describe it and go to the chat; a result among them names it from then on.
    """
    assert id not in state.index, "a tool call comes in once"
    fallen = overdue(state, window, turn=state.turn, arriving=id)
    delta: SessionDelta = (RecordCalls((id,)), CollapseCalls(fallen)) if fallen else (RecordCalls((id,)),)
    if not events:
        return delta
    replace = msgspec.structs.replace
    named = [replace(event, object=id) if isinstance(event, ToolResultEvent) else event for event in events]
    return (*delta, AppendChat(tuple(named)))


def append(state: SessionState, session: str, events: Sequence[Event], window: Collapse) -> SessionDelta:
    """``events`` go to the end of the chat; each prompt starts a turn, and older tool calls leave the window.

    A tool result names its object as ``resolve`` takes it and is kept with the object's own id.
    Raises: CtxdError invalid_params for an event that is malformed, and what ``resolve`` raises.
    """
    said = AppendChat(tuple(_kept(state, session, event) for event in events))
    turn = state.turn + sum(map(starts_turn, events))
    fallen = overdue(state, window, turn=turn) if turn != state.turn else ()
    return (said, CollapseCalls(fallen)) if fallen else (said,)


def events_from(messages: Sequence[Message], events: Sequence[Event]) -> tuple[Event, ...]:
    """The events that are to be appended, given as either. Raises: CtxdError invalid_params for both or none, or for a
    message that is malformed."""
    if bool(messages) == bool(events):
        raise CtxdError("invalid_params", "give messages or events, one of them", outcome="not_applied")
    return tuple(events) or tuple(map(_event_from, messages))


def _event_from(message: Message) -> Event:
    if message.role != "toolcall" and message.toolcall is not None:
        raise CtxdError("invalid_params", f"a message of role {message.role} names no tool call")
    if message.role == "toolcall" and (message.toolcall is None or message.content):
        raise CtxdError(
            "invalid_params",
            "a message of role toolcall names its tool call and has no content",
            hint="Keep the output with toolcall.record, then append a message with its id.",
        )
    if message.role == "user" and not message.content:
        raise CtxdError("invalid_params", "a user message needs content", hint="Put its text in the member content.")
    return event_of(message)


def _kept(state: SessionState, session: str, event: Event) -> Event:
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
            "a tool result that names its object has no text and no attachments",
            hint="Keep the output with toolcall.record, and append a result with the object alone.",
        )
    id = resolve(state, session, event.object, "toolcall")
    return event if id == event.object else msgspec.structs.replace(event, object=id)


def activate(state: SessionState, id: str) -> SessionDelta:
    """``id`` is active, by request: a tool call counts as recent from this turn on. One only indexed is shown first."""
    if id in state.active and (state.is_file(id) or state.chosen.get(id) == state.turn):
        return NOTHING
    return (ActivateObjects((id,)),)


def deactivate(state: SessionState, id: str) -> SessionDelta:
    """``id`` is not active any more. Raises: CtxdError not_active."""
    if id not in state.active:
        raise CtxdError("not_active", f"{id} is not active", hint="object.list with level active names what is.")
    return (DeactivateObjects((id,)),)


def pin(state: SessionState, id: str) -> SessionDelta:
    """``id`` is exempt from the window and from budget drops. Raises: CtxdError not_in_pool."""
    if id not in state.pool:
        raise _not_in_pool(id)
    return NOTHING if id in state.pinned else (PinObjects((id,)),)


def unpin(state: SessionState, id: str) -> SessionDelta:
    """``id`` is pinned no more. Raises: CtxdError not_pinned."""
    if id not in state.pinned:
        raise CtxdError("not_pinned", f"{id} is not pinned", hint="session.get names what is.")
    return (UnpinObjects((id,)),)


def pool_add(state: SessionState, id: str) -> SessionDelta:
    """``id`` is shown as metadata."""
    return NOTHING if id in state.pool else (ShowObjects((id,)),)


def pool_remove(state: SessionState, id: str) -> SessionDelta:
    """``id`` is not shown, active or pinned any more; it stays in the index. Raises: CtxdError not_in_pool."""
    if id not in state.pool:
        raise _not_in_pool(id)
    return (HideObjects((id,)),)


def outcome(state: SessionState, id: str, delta: SessionDelta) -> tuple[ContextLevel, bool]:
    """The level of ``id`` and whether it is pinned, once ``delta``, a request for ``id`` alone, is made."""
    level, pinned = state.level(id), id in state.pinned
    for operation in delta:
        match operation:
            case ActivateObjects():
                level = "active"
            case DeactivateObjects() | ShowObjects():
                level = "inactive"
            case HideObjects():
                level, pinned = "indexed", False
            case PinObjects() | UnpinObjects():
                pinned = isinstance(operation, PinObjects)
    return level, pinned


def _not_in_pool(id: str) -> CtxdError:
    return CtxdError("not_in_pool", f"{id} is not in the metadata pool", hint="Add it with session.pool_add first.")


def toolcall_document(
    state: SessionState,
    session: str,
    params: ToolcallRecordParams,
    secrets: Secrets | None,
    id: str,
    *,
    unresolved: tuple[str, ...] = (),
) -> Document:
    """Build the document of the tool call ``id``. References in ``unresolved`` are not looked up in the index.

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
            chat_ref=chat_id(session),
            status=params.status,
            args_display=params.args_display,
            file_refs=refs,
            unresolved_refs=unknown,
            secrets=secrets,
        )
    except ValueError as error:
        raise CtxdError("invalid_params", f"args: {error}", outcome="not_applied") from error


def _reference(state: SessionState, session: str, text: str) -> str | None:
    """The id of the indexed file that ``text`` names; None if it names none or several."""
    try:
        return resolve(state, session, text, "file")
    except CtxdError:
        return None
