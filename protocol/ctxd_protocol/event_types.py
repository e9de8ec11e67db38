"""Typed events of a conversation: the entries of a session's chat log, and the output of transcript readers.

An event keeps everything its source recorded; members without a field of their own are in ``meta``, and an entry of
another kind is an ``OpaqueEvent``. The chat of spec 1 is a view of the log: see ``message_of``.
"""

from typing import Any, assert_never

import msgspec

from ctxd_protocol.secret_types import Secrets
from ctxd_protocol.session_types import Message


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Tokens that a provider billed for one response. ``input`` excludes tokens read from or written to its cache."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


class Attachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An image or a file within an event: its bytes in ``data``, or a reference to them.

    ``artifact``: an artifact id; ``url``: an address outside the transcript. At most one of the three is given.
    """

    media_type: str
    name: str | None = None
    data: bytes | None = None
    artifact: str | None = None
    url: str | None = None


class ChatEvent(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="event"
):
    """Fields of every kind of event.

    ``id``: the entry's id at its source; ``parent``: the id of the preceding entry, if the source keeps a tree.
    ``message``: the id of the provider's message that contains the event. ``at``: ms since 1970. ``sidechain``: the
    sub-agent's id if the event is not of the main conversation. ``meta``: other members that the source recorded.
    ``secrets``: the secrets that the daemon found in the event; a client's value is ignored.
    """

    id: str | None = None
    parent: str | None = None
    message: str | None = None
    at: int | None = None
    sidechain: str | None = None
    meta: dict[str, Any] | None = None
    secrets: Secrets | None = None


class PromptEvent(ChatEvent, frozen=True, kw_only=True, tag="prompt"):
    """Input of the user. It starts a turn unless it belongs to a sidechain."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()


class ResponseEvent(ChatEvent, frozen=True, kw_only=True, tag="response"):
    """Text of the model. ``usage`` is that of the whole provider message."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    model: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None


class ThinkingEvent(ChatEvent, frozen=True, kw_only=True, tag="thinking"):
    """Reasoning of the model. ``signature``: the provider's, required to send it back. ``encrypted``: reasoning that
    only the provider can read."""

    text: str = ""
    signature: str | None = None
    encrypted: str | None = None
    model: str | None = None
    usage: Usage | None = None


class ToolCallEvent(ChatEvent, frozen=True, kw_only=True, tag="tool_call"):
    """Request of the model to run ``tool``; ``call`` is the id that the result refers to.

    ``args``: the decoded arguments, or their text if it is not JSON.
    """

    call: str
    tool: str
    args: Any = None
    model: str | None = None
    usage: Usage | None = None


class ToolResultEvent(ChatEvent, frozen=True, kw_only=True, tag="tool_result"):
    """Output of a tool call. ``object``: the tool call object with the output; ``text`` is then empty."""

    call: str | None = None
    object: str | None = None
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    is_error: bool = False


class SystemEvent(ChatEvent, frozen=True, kw_only=True, tag="system"):
    """System prompt, instruction or notice that the harness added to the conversation; ``kind`` is its own term."""

    text: str = ""
    kind: str | None = None


class CompactionEvent(ChatEvent, frozen=True, kw_only=True, tag="compaction"):
    """Replacement of the conversation before this event by ``summary``; events from ``kept_from`` (an id) on stay."""

    summary: str = ""
    kept_from: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None


class OpaqueEvent(ChatEvent, frozen=True, kw_only=True, tag="opaque"):
    """Entry of any other kind, kept unchanged in ``data``; ``kind`` is the source's term.

    ``usage``: token counts, if the source records them in a separate entry.
    """

    kind: str | None = None
    data: Any = None
    usage: Usage | None = None


Event = (
    PromptEvent
    | ResponseEvent
    | ThinkingEvent
    | ToolCallEvent
    | ToolResultEvent
    | SystemEvent
    | CompactionEvent
    | OpaqueEvent
)
"""Any event of a conversation."""


def starts_turn(event: Event) -> bool:
    """True for a prompt of the main conversation."""
    return isinstance(event, PromptEvent) and event.sidechain is None


def event_of(message: Message) -> Event:
    """Convert a message of spec 1's chat. ``message_of`` is its exact inverse."""
    match message.role:
        case "user":
            return PromptEvent(text=message.content, meta=message.meta, secrets=message.secrets)
        case "assistant":
            return ResponseEvent(text=message.content, meta=message.meta, secrets=message.secrets)
        case "toolcall":
            return ToolResultEvent(
                object=message.toolcall, text=message.content, meta=message.meta, secrets=message.secrets
            )


def message_of(event: Event) -> Message | None:
    """Convert an event to a message of spec 1's chat. None for events without one: those of sidechains, tool results
    without an object, and every kind but prompts, responses and tool results.

    Model, usage and stop reason of a response are added to ``meta``.
    """
    if event.sidechain is not None:
        return None
    match event:
        case PromptEvent():
            return Message(role="user", content=event.text, meta=event.meta, secrets=event.secrets)
        case ResponseEvent():
            return Message(role="assistant", content=event.text, meta=_meta_of(event), secrets=event.secrets)
        case ToolResultEvent():
            if event.object is None:
                return None
            return Message(
                role="toolcall", content=event.text, toolcall=event.object, meta=event.meta, secrets=event.secrets
            )
        case ThinkingEvent() | ToolCallEvent() | SystemEvent() | CompactionEvent() | OpaqueEvent():
            return None
        case _:
            assert_never(event)


def _meta_of(event: ResponseEvent) -> dict[str, Any] | None:
    fields = {"model": event.model, "stop_reason": event.stop_reason}
    given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if event.usage is not None:
        given["usage"] = msgspec.to_builtins(event.usage)
    return {**given, **(event.meta or {})} if given else event.meta
