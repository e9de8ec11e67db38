"""Counts of the parts of a conversation that another format cannot hold."""

from collections import Counter
from typing import Any, Final, NamedTuple

import msgspec

from ctxd_protocol.event_types import CompactionEvent, Event, OpaqueEvent

_PLACE: Final = frozenset({"text", "summary"})
"""Fields that hold an event's text, under either name."""


_MESSAGES: Final = frozenset(
    {
        "prompt",
        "response",
        "thinking",
        "tool_call",
        "tool_result",
        "compaction",
        "agent_message",
        "inter_agent_communication",
    }
)
"""Kinds of events with content for a model."""

_CONTENT: Final = frozenset({"text", "summary", "args", "tool", "attachments", "is_error", "encrypted"})
"""Fields of such events that are content."""

_SIDECHAIN: Final = "sidechain "


class Loss(NamedTuple):
    """A part that was left out, and how many times.

    ``part``: for example ``metric`` (whole events of a kind), ``tool_call.meta`` (a field of events), or ``system as
    prompt`` (events that became another kind).
    """

    part: str
    times: int


class Losses:
    """Counts of the omissions of a translation."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def found(self) -> tuple[Loss, ...]:
        """Return all losses, sorted by part."""
        return tuple(Loss(part, times) for part, times in sorted(self._counts.items()))

    def add(self, part: str, times: int = 1) -> None:
        """Count a part that is not an event."""
        self._counts[part] += times

    def drop(self, event: Event) -> None:
        """Count an event that was left out."""
        self._counts[f"{_SIDECHAIN}{event_kind(event)}" if event.sidechain is not None else event_kind(event)] += 1

    def compare(self, event: Event, kept: Event) -> None:
        """Count each field of ``event`` that is missing or different in ``kept``, the same event read back."""
        kind = event_kind(event)
        if type(event) is not type(kept):
            self._counts[f"{kind} as {event_kind(kept)}"] += 1
        for field in event.__struct_fields__:
            value = getattr(event, field)
            if value and value != (event_text(kept) if field in _PLACE else getattr(kept, field, None)):
                self._counts[f"{kind}.{field}"] += 1


def content_loss(part: str) -> str:
    """Return the name of a part of the conversation as a person reads it; empty for a record of the harness itself."""
    kind = part.removeprefix(_SIDECHAIN)
    of_agent = " of a sub-agent" if kind != part else ""
    if " " in kind:
        return "" if " as " in kind else part
    kind, _, field = kind.partition(".")
    if kind not in _MESSAGES or (field and field not in _CONTENT):
        return ""
    named = "mark of a failed call" if field == "is_error" else kind.replace("_", " ")
    return f"{named}{of_agent}" if not field or field == "is_error" else f"{field} of a {named}{of_agent}"


def event_kind(event: Event) -> str:
    """Return the kind of an event; for an opaque event, the name that its source uses."""
    if isinstance(event, OpaqueEvent):
        return event.kind or "opaque"
    return str(event.__struct_config__.tag)


def event_text(event: Event) -> str:
    """Return the text of an event; empty for opaque events and tool calls."""
    if isinstance(event, CompactionEvent):
        return event.summary
    return str(getattr(event, "text", ""))


def args_text(args: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return the arguments of a tool call as text: text unchanged, other values as JSON; empty for None."""
    if args is None:
        return ""
    return args if isinstance(args, str) else msgspec.json.encode(args).decode()
