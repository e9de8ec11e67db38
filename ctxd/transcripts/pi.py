"""pi: session files (JSONL, versions 1 to 3), and the headless output of ``--mode json``.

A session file is a tree of entries; the current leaf is the last entry of the file, whatever its type.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ctxd.transcripts.record_decoding import (
    Entry,
    Line,
    Record,
    as_text,
    attachment_of,
    damaged,
    milliseconds,
    number_of,
    opaque,
    record_of,
    rest,
    usage_of,
)
from ctxd_protocol import event_types as typed

_ENTRY: Final = ("type", "id", "parentId", "timestamp", "message")

EDIT: Final = "context_edit"
"""Type of an entry that removes an earlier entry from the window, or replaces its content there."""

Edits = Mapping[str, Record | None]
"""Members to replace in an entry, by its id; None removes it from the window."""

_NO_EDITS: Final[Edits] = {}
_EDITABLE: Final = ("user", "assistant", "toolResult", "custom")


def read_session(found: Iterable[Line], edits: Edits = _NO_EDITS) -> Iterator[Entry]:
    """Yield the events of a session file, in file order; ``parent`` is an event's parent in the tree. With ``edits``,
    those of a chain, the events have the content that the model sees."""
    for line in found:
        if line.record is None:
            yield damaged(line)
            continue
        record: Record | None = line.record
        if edits and (id := as_text(line.record.get("id"))) in edits:
            record = _edited(line.record, edits[id])
        if record is not None:
            yield from (Entry(line.number, event) for event in _entry_events(record))


def edits_of(found: Iterable[Line]) -> dict[str, Record | None]:
    """Return the newest edit of each edited entry in one chain."""
    edits: dict[str, Record | None] = {}
    for line in found:
        match line.record:
            case {"type": "context_edit", "targetId": str(target), "replacement": None}:
                edits[target] = None
            case {"type": "context_edit", "targetId": str(target), "replacement": {"content": str() | list() as text}}:
                edits[target] = {"content": text}
    return edits


def changes_window(event: typed.Event) -> bool:
    """Return True for an event that is not a message of the conversation, but is in the model's window or edits it."""
    return isinstance(event, typed.SystemEvent) or (isinstance(event, typed.OpaqueEvent) and event.kind == EDIT)


def _edited(record: Record, edit: Record | None) -> Record | None:
    """Return an entry with ``edit`` applied; None if the edit removes it. Settings and labels are not edited."""
    match record:
        case {"type": "message", "message": {"role": str(role)} as message}:
            if edit is None:
                return None
            return {**record, "message": {**message, **edit}} if role in _EDITABLE else record
        case {"type": "custom_message"}:
            return None if edit is None else {**record, **edit}
        case {"type": "branch_summary"} if edit is None:
            return None
        case _:
            return record


def read_stream(found: Iterable[Line]) -> Iterator[Entry]:
    """Yield the events of headless output. Only ``message_end`` holds whole messages; other records repeat them."""
    for line in found:
        if line.record is None:
            yield damaged(line)
            continue
        match line.record.get("type"):
            case "message_end":
                events = _message_events(record_of(line.record.get("message")), {"message": f"line {line.number}"})
            case "auto_compaction_end" | "compaction_end" if isinstance(line.record.get("result"), dict):
                events = [_compaction(record_of(line.record["result"]), {})]
            case kind:
                events = [opaque(as_text(kind) or "untyped", line.record)]
        yield from (Entry(line.number, event) for event in events)


def _entry_events(record: Record) -> list[typed.Event]:
    id = as_text(record.get("id")) or None
    place: dict[str, Any] = {
        "id": id,
        "parent": as_text(record.get("parentId")) or None,
        "at": milliseconds(record.get("timestamp")),
    }
    match record.get("type"):
        case "message" if record_of(record.get("message")).get("excludeFromContext") is True:
            return [opaque("message", record, **place)]  # A command by the user that is hidden from the model.
        case "message":
            common = {**place, "message": id} if id else place
            return _message_events(record_of(record.get("message")), common, rest(record, *_ENTRY))
        case "compaction":
            return [_compaction(record, place)]
        case "branch_summary" | "custom_message" as kind:
            text, _ = _content(record.get("summary", record.get("content")))
            return [typed.SystemEvent(text=text, kind=kind, meta=rest(record, *_ENTRY, "summary", "content"), **place)]
        case "usage":
            return [opaque("usage", record, **place, usage=_usage(record))]
        case kind:
            return [opaque(as_text(kind) or "untyped", record, **place)]


def _compaction(record: Record, place: dict[str, Any]) -> typed.CompactionEvent:
    return typed.CompactionEvent(
        summary=as_text(record.get("summary")),
        kept_from=as_text(record.get("firstKeptEntryId")) or None,
        tokens_before=number_of(record.get("tokensBefore")),
        meta=rest(record, *_ENTRY, "summary", "tokensBefore"),
        **place,
    )


def _message_events(message: Record, place: dict[str, Any], beside: dict[str, Any] | None = None) -> list[typed.Event]:
    place = {**place, "at": place.get("at") or milliseconds(message.get("timestamp"))}
    text, attachments = _content(message.get("content"))
    meta = {**(beside or {}), **(rest(message, "role", "content", "timestamp") or {})} or None
    match message.get("role"):
        case "user":
            return [typed.PromptEvent(text=text, attachments=attachments, meta=meta, **place)]
        case "assistant":
            return _response(message, place, beside)
        case "toolResult":
            return [
                typed.ToolResultEvent(
                    call=as_text(message.get("toolCallId")) or None,
                    text=text,
                    attachments=attachments,
                    is_error=bool(message.get("isError")),
                    meta=meta,
                    **place,
                )
            ]
        case "system":
            sections = record_of(message.get("sections"))
            whole = "\n\n".join(filter(None, [text, *(as_text(section) for section in sections.values())]))
            return [typed.SystemEvent(text=whole, kind="system", meta=meta, **place)]
        case "bashExecution":
            return [typed.SystemEvent(text=as_text(message.get("output")), kind="bashExecution", meta=meta, **place)]
        case "hookMessage" | "custom":  # In version 2, and in files converted from it; later an entry of its own.
            return [typed.SystemEvent(text=text, kind="custom_message", meta=meta, **place)]
        case kind:
            whole = text or as_text(message.get("summary"))
            return [typed.SystemEvent(text=whole, kind=as_text(kind) or None, meta=meta, **place)]


def _response(message: Record, place: dict[str, Any], beside: dict[str, Any] | None) -> list[typed.Event]:
    billed: dict[str, Any] = {
        "model": as_text(message.get("model")) or None,
        "usage": _usage(message),
    }
    stop = as_text(message.get("stopReason")) or None
    meta = {**(beside or {}), **(rest(message, "role", "content", "timestamp", "model", "stopReason") or {})} or None
    content = message.get("content")
    blocks: list[Any] = content if isinstance(content, list) else [{"type": "text", "text": as_text(content)}]
    if not blocks:
        # A response without content: usually an error, which its metadata describes.
        return [typed.ResponseEvent(stop_reason=stop, meta=meta, **billed, **place)]
    events: list[typed.Event] = []
    for block in blocks:
        common = {**place, "meta": meta} if not events else place
        match block:
            case {"type": "text"}:
                events.append(
                    typed.ResponseEvent(text=as_text(block.get("text")), stop_reason=stop, **billed, **common)
                )
            case {"type": "thinking"}:
                signature = as_text(block.get("thinkingSignature")) or None
                thought = as_text(block.get("thinking"))
                events.append(typed.ThinkingEvent(text=thought, signature=signature, **billed, **common))
            case {"type": "toolCall", "id": str(call), "name": str(tool)}:
                args = block.get("arguments")
                events.append(typed.ToolCallEvent(call=call, tool=tool, args=args, **billed, **common))
            case _:
                kind = as_text(record_of(block).get("type")) or "untyped"
                events.append(typed.OpaqueEvent(kind=kind, data=block, **common))
    return events


def _usage(record: Record) -> typed.Usage | None:
    return usage_of(
        record.get("usage"), input="input", output="output", cache_read="cacheRead", cache_write="cacheWrite"
    )


def _content(content: object) -> tuple[str, tuple[typed.Attachment, ...]]:
    if isinstance(content, str):
        return content, ()
    texts, attachments = [], []
    for block in content if isinstance(content, list) else ():
        match block:
            case {"type": "text"}:
                texts.append(as_text(block.get("text")))
            case {"type": "image"}:
                media_type = as_text(block.get("mimeType")) or "image/*"
                attachments.append(attachment_of(media_type, block.get("data")))
            case _:
                pass
    return "\n".join(texts), tuple(attachments)
