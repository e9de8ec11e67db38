"""``pi-v1``: complete lines of a session file of pi, version 3, written so that pi can resume them.

``ctxd.transcripts.pi`` reads them. Events that were read from a session file become lines that give the same events.
"""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ctxd.formats.codex_v1 import timestamp
from ctxd.formats.losses import Losses
from ctxd.transcripts.record_decoding import DAMAGED, args_object
from ctxd_protocol import event_types as typed

NAME: Final = "pi-v1"

Record = dict[str, Any]
_Part = typed.ResponseEvent | typed.ThinkingEvent | typed.ToolCallEvent | typed.OpaqueEvent

_ENTRIES: Final = {"branch_summary": "summary", "custom_message": "content"}
"""Kinds of notices that have their own entry type, with the member for their text."""

_SPENT: Final = ("input", "output", "cacheRead", "cacheWrite")


class TreeWriter:
    """Conversion of events to entries of one session file, a tree. The parts of one response are one entry, so a
    response is written when the next event arrives; ``end`` writes the last one."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._answer: list[_Part] = []
        self._tools: dict[str | None, str] = {}
        self._last: str | None = None
        self._entries = 0

    def add(self, event: typed.Event) -> Iterator[bytes]:
        """Add one event, and yield the lines that it completes."""
        if event.sidechain is not None:
            self._losses.drop(event)
            return
        if self._goes_on(event):
            self._answer.append(event)  # type: ignore[arg-type]
            return
        yield from self.end()
        match event:
            case typed.ResponseEvent() | typed.ThinkingEvent() | typed.ToolCallEvent():
                self._answer.append(event)
            case typed.OpaqueEvent(kind=kind, data=str(line)) if kind == DAMAGED:
                yield line.encode() + b"\n"
            case typed.OpaqueEvent(kind=kind, data=dict(data)) if data.get("type", "untyped") == kind:
                if kind != "session":
                    self._last = data.get("id", self._last)
                yield msgspec.json.encode(data) + b"\n"
            case typed.OpaqueEvent():
                self._losses.drop(event)
            case _:
                yield self._entry(event, self._content(event))

    def end(self) -> Iterator[bytes]:
        """Yield the response that is not written yet, if any."""
        if self._answer:
            first, parts = self._answer[0], self._answer
            self._answer = []
            yield self._entry(first, {"type": "message", "message": self._answered(first, parts)})

    def _goes_on(self, event: typed.Event) -> bool:
        """Return True if ``event`` is a further part of the current response."""
        if not self._answer or event.message != self._answer[0].message or event.meta is not None:
            return False
        if isinstance(event, typed.OpaqueEvent):
            return event.message is not None and isinstance(event.data, dict) and "parentId" not in event.data
        return isinstance(event, typed.ResponseEvent | typed.ThinkingEvent | typed.ToolCallEvent)

    def _entry(self, event: typed.Event, content: Record) -> bytes:
        self._entries += 1
        id = event.id or f"{self._entries:08x}"
        parent = self._last if event.id is None else event.parent
        self._last = id
        at = {} if event.at is None else {"timestamp": timestamp(event.at)}
        if "message" in content and event.at is not None:
            content["message"] = {**content["message"], "timestamp": event.at}
        if content["type"] == "compaction" and event.id is None:
            content.setdefault("firstKeptEntryId", id)  # Its own id: nothing before it is kept.
        return msgspec.json.encode({"type": content["type"], "id": id, "parentId": parent, **at, **content}) + b"\n"

    def _answered(self, first: _Part, parts: list[_Part]) -> Record:
        meta = first.meta or {}
        texts = [part for part in parts if isinstance(part, typed.ResponseEvent)]
        calls = [part for part in parts if isinstance(part, typed.ToolCallEvent)]
        self._tools |= {call.call: call.tool for call in calls}
        stop = next((part.stop_reason for part in texts if part.stop_reason), "toolUse" if calls else "stop")
        message: Record = {"role": "assistant", "content": [], "stopReason": stop}
        if not isinstance(first, typed.OpaqueEvent):
            message["model"] = first.model or meta.get("model", "unknown")
            if first.usage is not None and "usage" not in meta:
                message["usage"] = _usage(first.usage)
        if len(parts) > 1 or not (texts and not texts[0].text and not texts[0].attachments):
            message["content"] = [block for part in parts for block in _blocks(part)]
        return {**message, **meta}

    def _content(
        self, event: typed.PromptEvent | typed.ToolResultEvent | typed.SystemEvent | typed.CompactionEvent
    ) -> Record:
        meta = event.meta or {}
        match event:
            case typed.CompactionEvent():
                before = {} if event.tokens_before is None else {"tokensBefore": event.tokens_before}
                kept = {} if event.kept_from is None else {"firstKeptEntryId": event.kept_from}
                return {"type": "compaction", "summary": event.summary, **before, **kept, **meta}
            case typed.PromptEvent():
                content = _contents(event.text, event.attachments) if event.attachments else event.text
                return {"type": "message", "message": {"role": "user", "content": content, **meta}}
            case typed.ToolResultEvent():
                named = {"toolCallId": event.call or "", "toolName": self._tools.get(event.call, "unknown")}
                result = {"role": "toolResult", **named, "isError": event.is_error}
                content = _contents(event.text, event.attachments)
                return {"type": "message", "message": {**result, "content": content, **meta}}
            case typed.SystemEvent(kind=str(kind)) if kind in _ENTRIES:
                shown = {"customType": "ctxd", "display": True} if kind == "custom_message" and not meta else {}
                return {"type": kind, _ENTRIES[kind]: event.text, **shown, **meta}
            case typed.SystemEvent():
                return {"type": "message", "message": {"role": event.kind or "system", **_notice(event), **meta}}


def _notice(event: typed.SystemEvent) -> Record:
    """Return the member with the text of a message of another role; empty if its other members have the text."""
    meta = event.meta or {}
    if event.kind == "bashExecution":
        return {"output": event.text}
    if isinstance(sections := meta.get("sections"), dict):
        below = "\n\n".join(text for text in sections.values() if isinstance(text, str) and text)
        return {"content": event.text.removesuffix(below).removesuffix("\n\n")}
    return {} if meta.get("summary") == event.text else {"content": event.text}


def _blocks(part: _Part) -> list[Record]:
    match part:
        case typed.ResponseEvent():
            return [{"type": "text", "text": part.text}, *map(_image, part.attachments)]
        case typed.ThinkingEvent():
            signature = {} if part.signature is None else {"thinkingSignature": part.signature}
            return [{"type": "thinking", "thinking": part.text, **signature}]
        case typed.ToolCallEvent():
            return [{"type": "toolCall", "id": part.call, "name": part.tool, "arguments": args_object(part.args)}]
        case typed.OpaqueEvent():
            return [part.data] if isinstance(part.data, dict) else []


def _contents(text: str, attachments: tuple[typed.Attachment, ...]) -> list[Record]:
    return [*([{"type": "text", "text": text}] if text or not attachments else []), *map(_image, attachments)]


def _image(found: typed.Attachment) -> Record:
    if found.data is None:
        return {"type": "text", "text": found.name or found.url or f"artifact:{found.artifact}"}
    return {"type": "image", "data": b64encode(found.data).decode(), "mimeType": found.media_type}


def _usage(usage: typed.Usage) -> Record:
    found = dict(zip(_SPENT, (usage.input, usage.output, usage.cache_read, usage.cache_write), strict=True))
    cost = dict.fromkeys((*_SPENT, "total"), 0)
    return {**found, "totalTokens": sum(found.values()), "cost": cost}
