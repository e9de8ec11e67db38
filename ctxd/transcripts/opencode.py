"""opencode: databases of both generations, exported sessions, and the output of ``opencode run --format json``.

A call and its result are one part, which opencode rewrites in place. Events have the order of messages and parts.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
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
    records_of,
    rest,
    usage_of,
)
from ctxd_protocol import event_types as typed

SYNTHETIC: Final = "synthetic"
"""Kind of a text that opencode adds to the messages of the user."""

SUBTASK: Final = "subtask"
"""Type of the part with the prompt of a command that a sub-agent runs."""

_PART: Final = ("id", "sessionID", "messageID", "type")


def read_session(found: Iterable[Line]) -> Iterator[Entry]:
    """Yield the events of the records that ``opencode_storage`` reads from a session, with their line numbers.

    A record has the member ``session``: the fixed columns of the session's row; or ``info`` and ``parts``: a message of
    the first generation or of an export; or ``row``, ``type`` and ``data``: a row of the second generation; or
    ``session_state``: the other columns of the session's row.
    """
    for line in found:
        record = line.record
        match record:
            case None:
                events: list[typed.Event] = [damaged(line).event]
            case {"session": dict(row)}:
                events = [opaque("session", row)]
            case {"session_state": dict(row)}:
                events = [opaque("session_state", row)]
            case {"info": dict(info), "parts": list(parts)}:
                events = message_events(info, records_of(parts))
            case {"row": str(), "type": "damaged" as kind, "data": {"damaged": text}}:
                events = [typed.OpaqueEvent(kind=kind, data=text)]
            case {"row": str(id), "type": str(kind), "data": dict(data)}:
                events = row_events(kind, data, id)
            case {"type": str(kind)}:
                events = [opaque(kind, record)]
            case _:
                events = [opaque("untyped", record)]
        yield from (Entry(line.number, event) for event in events)


def read_run(found: Iterable[Line]) -> Iterator[Entry]:
    """Yield the events of headless output."""
    for line in found:
        if line.record is None:
            yield damaged(line)
            continue
        part = record_of(line.record.get("part"))
        place: dict[str, Any] = {
            "at": milliseconds(line.record.get("timestamp")),
            "message": as_text(part.get("messageID")) or None,
        }
        match line.record.get("type"):
            case "error":
                text = error_text(line.record.get("error"))
                events: list[typed.Event] = [
                    typed.SystemEvent(text=text, kind="error", meta=rest(line.record, "type"), **place)
                ]
            case str() if part:
                usage = _usage(part.get("tokens")) if part.get("type") == "step-finish" else None
                events = _part_events(part, {"role": "assistant"}, place, {"model": None, "usage": usage})
            case kind:
                events = [opaque(as_text(kind) or "untyped", line.record, **place)]
        yield from (Entry(line.number, event) for event in events)


def error_text(error: object) -> str:
    """Return the message of an error, else its name; empty for another value."""
    found = record_of(error)
    messages = (record_of(found.get("data")).get("message"), found.get("message"), found.get("name"), found.get("type"))
    return next(filter(None, map(as_text, messages)), "")


def message_events(info: Record, parts: Sequence[Record]) -> list[typed.Event]:
    """Return the events of one message of the first generation: ``info`` is its data, ``parts`` its parts in order."""
    info = message_info(info)
    if "parts" in info:
        parts, info = parts or records_of(info["parts"]), rest(info, "parts") or {}
    id = as_text(info.get("id")) or None
    place: dict[str, Any] = {
        "message": id,
        "parent": as_text(info.get("parentID")) or None,
        "at": milliseconds(record_of(info.get("time")).get("created")),
    }
    billed = {"model": as_text(info.get("modelID")) or None, "usage": _usage(info.get("tokens"))}
    if info.get("summary") is True and _is_finished(info):
        text = "\n".join(as_text(part.get("text")) for part in parts if part.get("type") == "text")
        data = {"info": dict(info), "parts": [dict(part) for part in parts]}
        return [typed.CompactionEvent(summary=text, meta=data, **place)]
    events = [event for part in parts for event in _part_events(part, info, place, billed)]
    # The opaque event holds the members of the message that no part has.
    return [opaque("message", info, **place, usage=billed["usage"]), *events]


def message_info(info: Record) -> Record:
    """Return the data of a message of the first generation as versions since 0.2 have it: 0.1 has it in ``metadata``.
    Versions before 0.3 have its parts in it."""
    metadata = record_of(info.get("metadata"))
    if "parts" not in info or not metadata:
        return info
    named = {name: metadata[name] for name in ("time", "error", "sessionID") if name in metadata}
    return {**info, **record_of(metadata.get("assistant")), **named}


def _invocation(found: Record, info: Record) -> Record:
    """Return the call of a message of version 0.1 as the part that later versions write."""
    call, result = as_text(found.get("toolCallId")), found.get("result")
    known = record_of(record_of(record_of(info.get("metadata")).get("tool")).get(call))
    status = "pending" if found.get("state") != "result" else "error" if known.get("error") else "completed"
    output = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    ended = {} if status == "pending" else {**known, "error" if status == "error" else "output": output}
    state = {**ended, "status": status, "input": found.get("args")}
    return {"type": "tool", "callID": call, "tool": found.get("toolName"), "state": state}


def _is_finished(info: Record) -> bool:
    """Return True for a complete response without an error: others replace nothing."""
    is_over = bool(info.get("finish")) or record_of(info.get("time")).get("completed") is not None
    return is_over and not info.get("error")


def row_events(kind: str, data: Record, id: str) -> list[typed.Event]:
    """Return the events of one row of ``session_message``, the table of the second generation."""
    place: dict[str, Any] = {"message": id, "at": milliseconds(record_of(data.get("time")).get("created"))}
    text = as_text(data.get("text"))
    match kind:
        case "user":
            files = tuple(
                attachment_of(as_text(file.get("mime")), file.get("url") or file.get("uri"), as_text(file.get("name")))
                for file in records_of(data.get("files"))
            )
            return [typed.PromptEvent(text=text, attachments=files, meta=rest(data, "text", "files"), **place)]
        case "assistant":
            model = as_text(record_of(data.get("model")).get("id")) or None
            billed = {"model": model, "usage": _usage(data.get("tokens"))}
            parts = [
                event for item in records_of(data.get("content")) for event in _part_events(item, data, place, billed)
            ]
            return [opaque("message", rest(data, "content") or {}, **place, usage=billed["usage"]), *parts]
        case "compaction" if data.get("status") == "completed":
            # The member ``recent`` holds the messages that stay in the window, as text.
            summary = "\n\n".join(filter(None, (as_text(data.get("summary")), as_text(data.get("recent")))))
            return [typed.CompactionEvent(summary=summary, meta=rest(data, "summary"), **place)]
        case "system" | "synthetic" | "skill":
            return [typed.SystemEvent(text=text, kind=kind, meta=rest(data, "text"), **place)]
        case _:
            return [opaque(kind, data, **place)]


def _part_events(part: Record, info: Record, place: dict[str, Any], billed: dict[str, Any]) -> list[typed.Event]:
    common = {**place, "id": as_text(part.get("id")) or None}
    text, meta = as_text(part.get("text")), rest(part, *_PART, "text")
    match part.get("type"):
        case "text" if part.get("synthetic") or part.get("ignored"):
            return [typed.SystemEvent(text=text, kind=SYNTHETIC, meta=meta, **common)]
        case "text" if info.get("role") == "user":
            return [typed.PromptEvent(text=text, meta=meta, **common)]
        case "text":
            return [typed.ResponseEvent(text=text, meta=meta, **billed, **common)]
        case kind if kind == SUBTASK and (prompt := as_text(part.get("prompt"))):
            meta = rest(part, "id", "sessionID", "messageID", "prompt")
            return [typed.PromptEvent(text=prompt, meta=meta, **common)]
        case "reasoning":
            return [typed.ThinkingEvent(text=text, meta=meta, **billed, **common)]
        case "file":
            mime, name = (
                as_text(part.get("mime")) or as_text(part.get("mediaType")),
                as_text(part.get("filename")) or None,
            )
            file = attachment_of(mime or "application/octet-stream", part.get("url"), name)
            return [typed.PromptEvent(attachments=(file,), meta=rest(part, *_PART, "url"), **common)]
        case "tool":
            return _tool(part, common, billed)
        case "tool-invocation":
            return _tool(_invocation(record_of(part.get("toolInvocation")), info), common, billed)
        case kind:
            usage = billed["usage"] if kind == "step-finish" and not info.get("tokens") else None
            return [typed.OpaqueEvent(kind=as_text(kind) or "untyped", data=dict(part), usage=usage, **common)]


def _tool(part: Record, common: dict[str, Any], billed: dict[str, Any]) -> list[typed.Event]:
    state = record_of(part.get("state"))
    call = as_text(part.get("callID")) or as_text(part.get("id"))
    tool = as_text(part.get("tool")) or as_text(part.get("name"))
    meta = rest(part, *_PART, "callID", "tool", "name", "state")
    events: list[typed.Event] = [
        typed.ToolCallEvent(call=call, tool=tool, args=state.get("input"), meta=meta, **billed, **common)
    ]
    if state.get("status") not in ("completed", "error"):
        return events
    content = records_of(state.get("content"))
    texts = [as_text(item.get("text")) for item in content if item.get("type") == "text"]
    error = state.get("error")
    failure = as_text(error) or as_text(record_of(error).get("message"))
    files = [*records_of(state.get("attachments")), *(item for item in content if item.get("type") == "file")]
    result = typed.ToolResultEvent(
        call=call,
        text=as_text(state.get("output")) or "\n".join(texts) or failure,
        attachments=tuple(
            attachment_of(as_text(file.get("mime")), file.get("url") or file.get("uri"), as_text(file.get("filename")))
            for file in files
        ),
        is_error=state.get("status") == "error",
        meta=rest(state, "input", "output", "content", "attachments"),
        **common,
    )
    return [*events, result]


def _usage(tokens: object) -> typed.Usage | None:
    found, cache = record_of(tokens), record_of(record_of(tokens).get("cache"))
    flat = {**found, "cache_read": cache.get("read"), "cache_write": cache.get("write")}
    usage = usage_of(flat, input="input", output="output", cache_read="cache_read", cache_write="cache_write")
    reasoning = number_of(found.get("reasoning"))
    if usage is None or reasoning is None:
        return usage
    # Reasoning is billed as output, but counted separately.
    return typed.Usage(
        input=usage.input,
        output=usage.output + max(0, reasoning),
        cache_read=usage.cache_read,
        cache_write=usage.cache_write,
    )
