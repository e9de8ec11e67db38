"""Headless output of Claude Code (``--output-format stream-json``) to events, line by line.

Two shapes exist: the real program nests the blocks of a provider's message, Bureau's wrapper has one flat event a line.
A line of unknown meaning is kept verbatim, as an opaque event of kind ``output``.
"""

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Final

import msgspec

from ctxd.formats.events_v1 import event_of
from ctxd.transcripts.claude_code import CONTINUED, read_session
from ctxd.transcripts.record_decoding import Line, Record, as_text, decoded, flattened, record_of, records_of, rest
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    OpaqueEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)

_PARTIAL: Final = "stream_event"
"""Type of a partial message, which a later line repeats in full."""

_COMPACTED: Final = "compact_boundary"
_MICRODOLLARS: Final = 1_000_000
_METRIC: Final = ("type", "subtype", "uuid", "usage", "total_cost_usd", "cost_usd", "num_turns")

_FLAT: Final = (
    "type", "subtype", "text", "content", "thinking", "signature", "tool_use_id", "id", "name", "input", "is_error",
)  # fmt: skip


class StreamParser:
    """Parser of one agent's output.

    ``partial``: number of lines that were left out because a later one repeats them. ``native``: the harness's id of
    the session, empty until a line has one. Memory: the start of a compaction.
    """

    def __init__(self) -> None:
        self.partial = 0
        self.native = ""
        self._compaction: CompactionEvent | None = None

    def events(self, line: bytes, at: int) -> list[Event]:
        """Return the events of one line. ``at``: their time in ms since 1970, unless the line has its own.

        A compaction is held until the next line, which may have its summary.
        """
        if not line.strip():
            return []
        found = [each if each.at is not None else msgspec.structs.replace(each, at=at) for each in self._read(line)]
        if found and isinstance(found[0], CompactionEvent) and not found[0].summary:
            held, self._compaction = self._compaction, found[0]
            return [held] if held is not None else []
        if self._compaction is None or not found:
            return found
        held, self._compaction = self._compaction, None
        summary = _summary(found[0])
        if summary is None:
            return [held, *found]
        return [msgspec.structs.replace(held, summary=summary), *found[1:]]

    def end(self) -> list[Event]:
        """Return the compaction that is still held, if any."""
        held, self._compaction = self._compaction, None
        return [held] if held is not None else []

    def _read(self, line: bytes) -> list[Event]:
        raw = line.rstrip(b"\r\n")
        try:
            record = decoded(flattened(raw))
        except ValueError:
            return [_output(raw)]
        if not isinstance(record, dict):
            return [_output(raw)]
        self.native = self.native or as_text(record.get("session_id"))
        if record.get("type") == _PARTIAL:
            self.partial += 1
            return []
        reader = _READERS.get(as_text(record.get("type")))
        found = reader(record) if reader is not None else []
        return found or [_output(raw)]


def _summary(event: Event) -> str | None:
    """Return the summary of a compaction, if this event has it."""
    if isinstance(event, CompactionEvent):
        return event.summary
    text = as_text(getattr(event, "text", None))
    is_injected = isinstance(event, SystemEvent) and event.kind == "meta"
    return text if text and (is_injected or text.startswith(CONTINUED)) else None


def _output(raw: bytes) -> Event:
    return event_of({"type": "output", "timestamp": None, "output": {"raw": raw}})


def _nested(record: Record) -> list[Event]:
    """Return the events of a provider's message. Unknown blocks are kept in their events."""
    found = [entry.event for entry in read_session([Line(1, dict(record))])]
    is_unread = len(found) == 1 and isinstance(found[0], OpaqueEvent) and found[0].data == record
    return [] if is_unread else found


def _assistant(record: Record) -> list[Event]:
    if isinstance(record.get("message"), dict):
        return _nested(record)
    text = as_text(record.get("text")) or as_text(record.get("content"))
    found: Event
    match record.get("subtype"):
        case "text":
            found = ResponseEvent(text=text)
        case "thinking":
            thought = as_text(record.get("thinking")) or text
            found = ThinkingEvent(text=thought, signature=as_text(record.get("signature")) or None)
        case "tool_use" | "server_tool_use" as kind:
            call = as_text(record.get("tool_use_id")) or as_text(record.get("id"))
            meta = {"server_tool": True} if kind == "server_tool_use" else None
            found = ToolCallEvent(call=call, tool=as_text(record.get("name")), args=record.get("input"), meta=meta)
        case _:
            return []
    return [_beside(found, record)]


def _tool(record: Record) -> list[Event]:
    if record.get("subtype") != "result":
        return []
    content = record.get("content")
    texts = [as_text(block.get("text")) for block in records_of(content) if block.get("type") == "text"]
    output = content if isinstance(content, str) else "\n".join(texts)
    call, failed = as_text(record.get("tool_use_id")) or None, record.get("is_error") is True
    unread = [block for block in records_of(content) if block.get("type") != "text"]
    found = ToolResultEvent(call=call, text=output, is_error=failed, meta={"content": unread} if unread else None)
    return [_beside(found, record)]


def _user(record: Record) -> list[Event]:
    if isinstance(record.get("message"), dict):
        return _nested(record)
    content = record.get("content", record.get("message"))
    return _nested({**record, "message": {"role": "user", "content": content}}) if content is not None else []


def _system(record: Record) -> list[Event]:
    if record.get("subtype") == _COMPACTED:
        nested = record_of(record.get("compact_metadata")) or record_of(record.get("compactMetadata"))
        tokens = record.get("pre_tokens", nested.get("pre_tokens", nested.get("preTokens")))
        return [CompactionEvent(tokens_before=tokens if type(tokens) is int else None, meta=dict(record))]
    kind = as_text(record.get("subtype")) or None
    return [SystemEvent(text=as_text(record.get("message")), kind=kind, meta=dict(record))]


def _result(record: Record) -> list[Event]:
    """Return the figures of a session, with the cost also in whole millionths of a dollar."""
    usage = record_of(record.get("usage")) or record
    cost = _number(record, "total_cost_usd") or _number(record, "cost_usd")
    seconds = _number(record, "duration_seconds") or (_number(record, "duration_ms") or 0) / 1000
    figures = {
        "status": as_text(record.get("subtype")),
        "input_tokens": _number(usage, "input_tokens"),
        "output_tokens": _number(usage, "output_tokens"),
        "cache_read_tokens": _number(usage, "cache_read_input_tokens"),
        "cache_write_tokens": _number(usage, "cache_creation_input_tokens"),
        "cost_usd": cost,
        "cost_microdollars": _microdollars(cost) if cost else 0,
        "duration_seconds": seconds,
        "turn_count": _number(record, "num_turns"),
    }
    data = {name: value for name, value in figures.items() if value}
    return [OpaqueEvent(kind="metric", data=data, meta=rest(record, *_METRIC))]


def _number(record: Record, name: str) -> Any:  # noqa: ANN401 - an integer or a float
    value = record.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _microdollars(dollars: float) -> int:
    """Return whole millionths of a dollar. The shortest decimal of the float equals the one in the line."""
    return int((Decimal(repr(dollars)) * _MICRODOLLARS).to_integral_value(ROUND_HALF_EVEN))


def _beside(event: Event, record: Record) -> Event:
    """Add to ``meta`` the members of a flat record that no field of its event holds."""
    meta = {**(event.meta or {}), **(rest(record, *_FLAT) or {})}
    return msgspec.structs.replace(event, meta=meta or None)


_READERS: Final[dict[str, Callable[[Record], list[Event]]]] = {
    "assistant": _assistant,
    "user": _user,
    "tool": _tool,
    "system": _system,
    "result": _result,
}
