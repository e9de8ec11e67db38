"""``claude-code-v1``: complete lines of a session file of Claude Code, written so that Claude Code can resume them.

``ctxd.transcripts.claude_code`` reads them. Ids that an event lacks are derived from its place and its text, so that
equal conversations become equal files.
"""

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID, uuid5

import msgspec

from ctxd.formats.losses import Losses, event_kind, event_text
from ctxd.transcripts.claude_code import BOUNDARY, INJECTED, read_session, wrapper_of
from ctxd.transcripts.record_decoding import Line, args_object, decoded, records_of, rest
from ctxd.transcripts.record_decoding import as_text as text_or_nothing
from ctxd_protocol import event_types as typed

NAME: Final = "claude-code-v1"

Record = dict[str, Any]

_InResponse = typed.ResponseEvent | typed.ThinkingEvent | typed.ToolCallEvent | typed.ToolResultEvent

_NAMES: Final = UUID("6f0b7b1e-8a1c-5d7e-9a53-3c1f0a4f7d21")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SessionWriter:
    """Conversion of events to records of one session file: each sub-agent has its own chain.

    ``add_line`` takes lines of a session that need no conversion, and links them to the records before.
    """

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._written = 0
        self._session = ""
        self._at = 0
        self._last: dict[str | None, str] = {}
        self._ids: set[str] = set()
        self._responses: dict[str | None, tuple[str, str]] = {}

    def add(self, event: typed.Event) -> Iterator[bytes]:
        """Yield the lines of one event."""
        if event.at is not None:
            self._at = event.at
        records = [self._placed(event, record) for record in self._records(event)]
        if not records:
            self._losses.drop(event)
            return
        kept = [entry.event for entry in read_session(Line(1, decoded(line)) for line in records)]
        # What the content of the record has is not lost, though other members are beside it when it is read.
        other = rest(event.meta or {}, *_in_content(event))
        self._losses.compare(msgspec.structs.replace(event, meta=other), kept[-1])
        yield from (line + b"\n" for line in records)

    def add_line(self, line: bytes) -> bytes:
        """Return ``line``; if it is a root, with the last record as its parent."""
        try:
            record = decoded(line)
        except ValueError:
            return line
        if not isinstance(record, dict) or "uuid" not in record:
            return line
        agent = text_or_nothing(record.get("agentId")) or None
        previous = self._last.get(agent)
        id = text_or_nothing(record["uuid"])
        self._last[agent] = id
        self._ids.add(id)
        self._session = self._session or text_or_nothing(record.get("sessionId"))
        self._written += 1
        if record.get("parentUuid") is not None or previous is None or record.get("subtype") == BOUNDARY:
            return line
        return msgspec.json.encode({**record, "parentUuid": previous}) + b"\n"

    def _placed(self, event: typed.Event, record: Record) -> bytes:
        """Return the encoded ``record`` with the members that every record has."""
        if isinstance(event, typed.OpaqueEvent):
            return msgspec.json.encode(record)
        self._written += 1
        name = f"{self._written}:{event_kind(event)}:{event_text(event)}"
        id = event.id if _is_uuid(event.id) and event.id not in self._ids else str(uuid5(_NAMES, name))
        assert id is not None
        self._session = self._session or str(uuid5(_NAMES, f"session:{id}"))
        parent = self._last.get(event.sidechain)
        is_boundary = record.get("subtype") == BOUNDARY
        self._last[event.sidechain] = id
        self._ids.add(id)
        at = datetime.fromtimestamp(self._at / 1000, UTC) if 0 <= self._at < 1 << 47 else _EPOCH
        placed = {
            "uuid": id,
            "parentUuid": None if is_boundary else parent,
            **({"logicalParentUuid": parent} if is_boundary and parent else {}),
            "sessionId": self._session,
            "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "isSidechain": event.sidechain is not None,
            **({"agentId": event.sidechain} if event.sidechain is not None else {}),
        }
        return msgspec.json.encode({**_beside(event), **record, **placed})

    def _records(self, event: typed.Event) -> list[Record]:
        match event:
            case typed.PromptEvent():
                return [self._user([*_text(event.text), *map(_attachment, event.attachments)], event.sidechain)]
            case typed.ToolResultEvent() if (server := _server_result(event)) is not None:
                return [self._assistant(event, server)]
            case typed.ToolResultEvent():
                content = [*_text(event.text), *map(_attachment, event.attachments)]
                block = {"type": "tool_result", "tool_use_id": event.call or "", "content": _joined(content)}
                return [self._user([block | ({"is_error": True} if event.is_error else {})], event.sidechain)]
            case typed.SystemEvent(meta={"attachment": {"type": "queued_command"} as queued}):
                # Its own record: Claude Code names the sender to its model, which a message of the user would hide.
                content = [*_text(event.text), *map(dict, records_of((event.meta or {}).get("content")))]
                return [{"type": "attachment", "attachment": {**queued, "prompt": _joined(content)}}]
            case typed.SystemEvent():
                beside_text = records_of((event.meta or {}).get("content"))
                if not event.text and not beside_text:
                    return [{"type": "system", "subtype": event.kind or "system", "content": ""}]
                other = {"promptSource": "system"} if event.kind == INJECTED else {"isMeta": True}
                beside: Record = {} if _is_known_by_its_text(event) else other
                content = [*_text(event.text), *map(dict, beside_text)]
                return [{**self._user(content, event.sidechain), **beside}]
            case typed.CompactionEvent():
                return self._compaction(event)
            case typed.OpaqueEvent(kind=kind, data=dict(record)) if record.get("type") == kind:
                return [record]
            case typed.OpaqueEvent():
                return []
            case _:
                blocks = _blocks(event)
                return [self._assistant(event, block) for block in blocks]

    def _user(self, content: list[Record], agent: str | None) -> Record:
        self._responses.pop(agent, None)
        return {"type": "user", "message": {"role": "user", "content": _joined(content)}}

    def _assistant(self, event: _InResponse, block: Record) -> Record:
        # Blocks of one response share an id: the harness sends them to the model as one message.
        begun, model = self._responses.get(event.sidechain, (f"msg_{uuid5(_NAMES, str(self._written)).hex}", ""))
        response = event.message or begun
        model = getattr(event, "model", None) or (model if response == begun else "") or "<synthetic>"
        self._responses[event.sidechain] = (response, model)
        message: Record = {
            "id": response, "type": "message", "role": "assistant", "model": model,
            "content": [block], "stop_reason": getattr(event, "stop_reason", None),
        }  # fmt: skip
        if (usage := getattr(event, "usage", None)) is not None:
            message["usage"] = _usage(usage)
        return {"type": "assistant", "message": message}

    def _compaction(self, event: typed.CompactionEvent) -> list[Record]:
        metadata = {"trigger": "auto", "preTokens": event.tokens_before or 0}
        boundary = {
            "type": "system", "subtype": BOUNDARY, "content": "Conversation compacted",
            "compactMetadata": metadata,
        }  # fmt: skip
        if not event.summary.strip():
            return [boundary]
        return [boundary, {**self._user(_text(event.summary), event.sidechain), "isCompactSummary": True}]


def _is_known_by_its_text(event: typed.SystemEvent) -> bool:
    """Return True for a notice that Claude Code writes as a user text and recognises by its text, such as a command."""
    if event.kind == "interrupted":
        return event.text.startswith("[Request interrupted by user")
    return event.kind is not None and wrapper_of(event.text) == event.kind


def _beside(event: typed.Event) -> Record:
    """Return the recorded members without a field in ``event``; from sessions of this format, members of records."""
    return {
        name: value for name, value in (event.meta or {}).items() if name not in ("message", "content", "server_tool")
    }


def _text(text: str) -> list[Record]:
    return [{"type": "text", "text": text}] if text else []


def _joined(content: list[Record]) -> str | list[Record]:
    """Return a single text block as a string, as the harness writes it; other content unchanged."""
    match content:
        case []:
            return ""
        case [{"type": "text", "text": str(text)}]:
            return text
        case _:
            return content


def _blocks(event: typed.ResponseEvent | typed.ThinkingEvent | typed.ToolCallEvent) -> list[Record]:
    match event:
        case typed.ResponseEvent():
            return [*_text(event.text), *map(_attachment, event.attachments)]
        case typed.ThinkingEvent(signature=str(signature)):
            return [{"type": "thinking", "thinking": event.text, "signature": signature}]
        case typed.ThinkingEvent(encrypted=str(data)):
            return [{"type": "redacted_thinking", "data": data}]
        case typed.ThinkingEvent():
            # The provider refuses unsigned reasoning.
            return []
        case typed.ToolCallEvent():
            kind = "server_tool_use" if (event.meta or {}).get("server_tool") is True else "tool_use"
            return [{"type": kind, "id": event.call, "name": event.tool, "input": args_object(event.args)}]


def _in_content(event: typed.Event) -> tuple[str, ...]:
    """Return the members of ``meta`` that the record of ``event`` has, in its content or beside it."""
    match event:
        case typed.ToolResultEvent() if _server_result(event) is not None:
            return ("server_tool", "content")
        case typed.ToolCallEvent():
            return ("server_tool",)
        case typed.SystemEvent():
            return ("content", "origin", "promptSource")
        case _:
            return ()


def _server_result(event: typed.ToolResultEvent) -> Record | None:
    """Return the block of a result that the provider added to its response, as it was read; None for other results."""
    meta = event.meta or {}
    kind, items = meta.get("server_tool"), records_of(meta.get("content"))
    if kind == "web_search_tool_result" and not any("error_code" in item for item in items):
        return {"type": kind, "tool_use_id": event.call or "", "content": items}
    if isinstance(kind, str) and len(items) == 1:
        return {"type": kind, "tool_use_id": event.call or "", "content": items[0]}
    return None


def _attachment(found: typed.Attachment) -> Record:
    if found.data is None and found.url is None and found.artifact is None:
        return {"type": "text", "text": found.name or found.media_type}
    if found.data is not None and found.media_type == "text/plain":
        # The provider does not accept text in base64.
        source = {"type": "text", "media_type": found.media_type, "data": found.data.decode("utf-8", "replace")}
    elif found.data is not None:
        data = b64encode(found.data).decode()
        source = {"type": "base64", "media_type": found.media_type, "data": data}
    else:
        source = {"type": "url", "media_type": found.media_type, "url": found.url or f"artifact:{found.artifact}"}
    block = {"type": "image" if found.media_type.startswith("image/") else "document", "source": source}
    return block | ({"title": found.name} if found.name else {})


def _usage(usage: typed.Usage) -> Record:
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
    }


def _is_uuid(id: str | None) -> bool:
    try:
        return id is not None and str(UUID(id)) == id
    except ValueError:
        return False
