"""Claude Code: session files (JSONL) and the headless output of ``--output-format stream-json``.

Both hold messages of the Anthropic API. One API message is split over several lines with equal ``message.id``, each
with the usage of the whole message. The format is internal to the harness and changes often.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

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

BEFORE_PROMPTS: Final = (
    "ide_opened_file", "ide_closed_file", "ide_selection", "ide_diagnostics", "terminal", "browser",
    "browser_instruction", "fork-boilerplate",
)  # fmt: skip
"""Kinds of notices before a prompt: what a person has open or selected in an editor, and the rules for a sub-agent that
Claude Code has forked."""

_TAG: Final = re.compile(
    r"\s*<(command-name|command-message|command-args|command-contents|local-command-stdout|local-command-stderr|"
    r"local-command-caveat|bash-input|bash-stdout|bash-stderr|task-notification|teammate-message|system-reminder|"
    r"user-prompt-submit-hook|user-memory-input|agent-message|cross-session-message|mcp-resource-update|"
    r"mcp-polling-update|tick|post-tool-use-hook|" + "|".join(BEFORE_PROMPTS) + r")\b[^>]*>"
)
"""Opening tag of a part of a user record that the harness wrote."""

_BEFORE_PROMPT: Final = re.compile(rf"\s*(<({'|'.join(BEFORE_PROMPTS)})\b[^>]*>.*?</\2>)\s*(?:Your directive: )?", re.S)
"""Such a notice, and the heading of the prompt after it."""

HEADING: Final = re.compile(
    r"(?:\[SYSTEM NOTIFICATION - NOT USER INPUT\]\n[^<]*|"
    r"(?:Another Claude session|A peer session) sent a message(?: while you were working)?:\n)(?=<)"
)
"""Text before such a tag that names the source of the part to the model."""

_REPEATED: Final = frozenset({"system-reminder", "user-prompt-submit-hook"})
"""Tags that cannot occur in their own text. The text of the other tags may be arbitrary output."""

TEAMMATE: Final = "teammate-message"
"""Kind of the notice with a message of another agent of the team."""

_FROM_SESSIONS: Final = ("agent-message", "cross-session-message")

INJECTED: Final = "injected"
"""Kind of the notice with a message that the harness sent in a person's place, such as one of a plugin."""

ASKED_BY_OTHERS: Final = (TEAMMATE, *_FROM_SESSIONS, INJECTED)
"""Kinds of notices that the model answers as it answers a prompt."""

_EXPLAINED: Final = frozenset({"task-notification", TEAMMATE, *_FROM_SESSIONS})
"""Tags that an explanation for the model may follow."""

_TYPED: Final = frozenset({"command-name", "command-message", "bash-input"})
"""Kinds of notices that a person typed."""

CONTINUED: Final = "This session is being continued from a previous conversation"
"""Start of the summary that follows a compaction."""

BOUNDARY: Final = "compact_boundary"
"""Subtype of the record before the summary of a compaction, and kind of its event."""

RETRACTED: Final = "retractedMessageUuids"
"""Member of a record that takes earlier messages back: Claude Code no longer sends them to the model."""

_COMPARED_CHARS: Final = 24
"""Characters by which ids are compared there: records that Claude Code splits differ in the rest."""

_QUEUED: Final = "queued_command"
"""Type of the attachment with a message that arrived while the model worked. If such a message was sent after the turn
instead, it has a record of its own and no attachment."""

_PLAIN: Final = "text/plain"
_NAME_CHARS_MAX: Final = 200
_INTERRUPTED: Final = "[Request interrupted by user"
_ENVELOPE: Final = ("type", "uuid", "parentUuid", "timestamp", "message", "agentId", "isSidechain")
_MESSAGE: Final = ("id", "role", "type", "model", "content", "usage", "stop_reason")


def wrapper_of(text: str) -> str | None:
    """Return the kind of a user text that the harness wrote, from its first tag; None for a text that a person may have
    written, such as one that continues after the tags."""
    kind: str | None = None
    heading = HEADING.match(text)
    place, end = heading.end() if heading else 0, len(text.rstrip())
    while place < end:
        if (opened := _TAG.match(text, place)) is None:
            return kind if kind in _EXPLAINED else None
        kind = kind or opened[1]
        closing = f"</{opened[1]}>"
        find = text.find if opened[1] in _REPEATED else text.rfind
        if (found := find(closing, opened.end())) < 0:
            return None
        place = found + len(closing)
    return kind


def without_notices(text: str) -> tuple[list[typed.SystemEvent], str]:
    """Return the notices at the start of a user text, and the text after them."""
    notices: list[typed.SystemEvent] = []
    place = 0
    while (found := _BEFORE_PROMPT.match(text, place)) is not None:
        notices.append(typed.SystemEvent(text=found[1], kind=found[2]))
        place = found.end()
    return notices, text[place:]


def is_typed(event: typed.Event) -> bool:
    """Return True for a prompt or a command that a person typed to begin a turn."""
    if isinstance(event, typed.PromptEvent):
        return record_of(record_of(event.meta).get("attachment")).get("type") != _QUEUED
    return isinstance(event, typed.SystemEvent) and event.kind in _TYPED


class Segment(NamedTuple):
    """The messages of a chain from ``head`` to ``tail``, both by id."""

    head: str
    tail: str


def is_rewind(record: Record) -> bool:
    """Return True for a record after which the conversation continues from the message ``leafUuid``, or from its start
    if that is None. Other records of this type only name the newest message: Claude Code 2.1.330 ignores them."""
    return record.get("type") == "last-prompt" and record.get("explicit") is True and "leafUuid" in record


def relocated_to(record: Record) -> str:
    """Return the directory to which Claude Code moved the session with this record; empty for other records."""
    return as_text(record.get("relocatedCwd")) if record.get("type") == "relocated" else ""


def forked_after(record: Record) -> str:
    """Return the id of the caller's message after which the sub-agent with this record begins, as a fork; empty for
    other records."""
    return as_text(record.get("parentLastUuid")) if record.get("type") == "fork-context-ref" else ""


def compaction_metadata(record: Record) -> Record:
    """Return the metadata of a compaction from its boundary; empty for other records."""
    return record_of(record.get("compactMetadata") or record.get("compact_metadata"))


def keeps_beginning(record: Record) -> bool:
    """Return True for the boundary of a compaction that keeps the beginning of the conversation. Its summary, of the
    rest, follows the kept messages, and the model gets it as a message of the user."""
    metadata = compaction_metadata(record)
    for name in ("preservedMessages", "preserved_messages", "preservedSegment", "preserved_segment"):
        if kept := record_of(metadata.get(name)):
            anchor = kept.get("anchorUuid") or kept.get("anchor_uuid")
            return anchor is not None and anchor == record.get("uuid")
    return False


def preserved(metadata: Record) -> Segment | tuple[str, ...]:
    """Return the ids of the messages that a compaction keeps in the window, from its metadata."""
    ids = record_of(metadata.get("preservedMessages") or metadata.get("preserved_messages")).get("uuids")
    if isinstance(ids, list):
        return tuple(id for id in ids if isinstance(id, str))
    match metadata.get("preservedSegment") or metadata.get("preserved_segment"):
        case {"headUuid": str(head), "tailUuid": str(tail)} | {"head_uuid": str(head), "tail_uuid": str(tail)}:
            return Segment(head, tail)
        case _:
            return ()


def retracted_in(found: Iterable[Line]) -> frozenset[str]:
    """Return the ids, each cut to ``_COMPARED_CHARS``, of the messages that Claude Code took back in one chain, such as
    a refused reply."""
    ids: set[str] = set()
    for line in found:
        record = line.record or {}
        if record.get("type") in ("user", "assistant") or record.get("subtype") == "model_refusal_fallback":
            stated = record.get(RETRACTED)
            for id in stated if isinstance(stated, list) else ():
                ids.add(as_text(id)[:_COMPARED_CHARS])
    return frozenset(ids)


def read_session(found: Iterable[Line], retracted: Collection[str] = ()) -> Iterator[Entry]:
    """Yield the events of a session file or of headless output, in order. A file holds a tree: ``parent`` is an event's
    parent. Partial messages are opaque, as the whole message follows. Events of messages in ``retracted``, see
    ``retracted_in``, are left out."""
    reader = _Reader()
    for line in found:
        if line.record is None:
            yield damaged(line)
        elif (
            retracted
            and line.record.get("type") != "system"
            and as_text(line.record.get("uuid"))[:_COMPARED_CHARS] in retracted
        ):
            continue
        else:
            yield from (Entry(line.number, event) for event in reader.events(line.record))


class _Reader:
    def __init__(self) -> None:
        self._tokens_before: int | None = None
        self._kept_from: str | None = None
        self._outputs: dict[str, int] = {}  # Of each message of a headless run so far.
        self._is_forked = False  # The next records may repeat the response that forked the sub-agent.

    def events(self, record: Record) -> list[typed.Event]:
        if forked_after(record):
            self._is_forked = True
        match record.get("type"):
            case "assistant" if self._is_forked and record.get("parentUuid") is None:
                # The caller's records have the usage.
                return [_without_usage(event) for event in _response(record)]
            case "assistant":
                self._note_output(record)
                return _response(record)
            case "result" if "session_id" in record:
                return [opaque("result", record, **_place(record), usage=self._output_left(record))]
            case "user":
                return self._user(record)
            case "system":
                return [self._system(record)]
            case "attachment" if record_of(record.get("attachment")).get("type") == _QUEUED:
                return self._queued(record)
            case kind if isinstance(kind, str):
                return [opaque(kind, record, **_place(record))]
            case _:
                return [opaque("untyped", record)]

    def _note_output(self, record: Record) -> None:
        message = record_of(record.get("message"))
        output = number_of(record_of(message.get("usage")).get("output_tokens"))
        if "session_id" in record and output is not None:
            self._outputs[as_text(message.get("id"))] = output

    def _output_left(self, record: Record) -> typed.Usage | None:
        """Return the tokens of a run that its messages lack: headless output has each message as it begins."""
        total = number_of(record_of(record.get("usage")).get("output_tokens"))
        left = (total or 0) - sum(self._outputs.values())
        self._outputs.clear()
        return typed.Usage(output=left) if left > 0 else None

    def _user(self, record: Record) -> list[typed.Event]:
        events = self._parts(record, record_of(record.get("message")).get("content"), rest(record, *_ENVELOPE))
        return events or [opaque("user", record, **_place(record))]

    def _queued(self, record: Record) -> list[typed.Event]:
        """Read a message that arrived while the model worked, from a person or from the harness."""
        attachment = record_of(record.get("attachment"))
        origin = as_text(record_of(attachment.get("origin")).get("kind"))
        is_persons = origin in ("", "human") and attachment.get("commandMode") != "task-notification"
        # A message from the session of a coordinator is background for the model, even if a person typed it there.
        is_meta = bool(attachment.get("isMeta") or attachment.get("forwardedIntent")) or not is_persons
        meta = {**(rest(record, *_ENVELOPE) or {}), "attachment": rest(attachment, "prompt")}
        events = self._parts({**record, "isMeta": is_meta}, attachment.get("prompt"), meta)
        return events or [opaque("attachment", record, **_place(record))]

    def _parts(self, record: Record, content: object, meta: dict[str, Any] | None) -> list[typed.Event]:
        """Read the content of a message to the model: tool results, and one text with its attachments."""
        place = _place(record)
        if isinstance(content, str):
            return self._text(record, content, (), place, meta)
        events: list[typed.Event] = []
        texts: list[str] = []
        attachments: list[typed.Attachment] = []
        for block in content if isinstance(content, list) else ():
            match block:
                case {"type": "tool_result"}:
                    events.append(_result(block, place, meta if not events else None))
                case {"type": "text"}:
                    texts.append(as_text(block.get("text")))
                case {"type": "image" | "document"}:
                    attachments += attachments_of(block)
                case str():
                    texts.append(block)
                case _:
                    events.append(typed.OpaqueEvent(kind=_kind(block), data=block, **place))
        if texts or attachments:
            beside = meta if not events else None
            if attachments and (record.get("isMeta") or record.get("isSynthetic")):
                # A notice has no field for the images and documents that the harness gives the model with it.
                files = [block for block in records_of(content) if block.get("type") in ("image", "document")]
                beside = {**(beside or {}), "content": files}
            events += self._text(record, "\n".join(texts), tuple(attachments), place, beside)
        return events

    def _text(
        self,
        record: Record,
        text: str,
        attachments: tuple[typed.Attachment, ...],
        place: dict[str, Any],
        meta: dict[str, Any] | None,
    ) -> list[typed.Event]:
        # Headless output has no mark for the summary of a compaction.
        is_summary = record.get("isSynthetic") and "session_id" in record and text.startswith(CONTINUED)
        if record.get("isCompactSummary") or is_summary:
            before, self._tokens_before = self._tokens_before, None
            kept, self._kept_from = self._kept_from, None
            return [typed.CompactionEvent(summary=text, kept_from=kept, tokens_before=before, meta=meta, **place)]
        kind = _kind_of_notice(record, text)
        if kind is not None and not (kind in BEFORE_PROMPTS and attachments):
            return [typed.SystemEvent(text=text, kind=kind, meta=meta, **place)]
        notices, own = without_notices(text)
        prompt = typed.PromptEvent(text=own, attachments=attachments, meta=meta, **place)
        return [*(msgspec.structs.replace(each, **place) for each in notices), prompt]

    def _system(self, record: Record) -> typed.Event:
        kind, place = as_text(record.get("subtype")) or "system", _place(record)
        meta = rest(record, *_ENVELOPE, "content", "subtype")
        if kind != BOUNDARY:
            return typed.SystemEvent(text=as_text(record.get("content")), kind=kind, meta=meta, **place)
        found = compaction_metadata(record)
        tokens = found.get("preTokens", found.get("pre_tokens"))
        self._tokens_before, self._kept_from = number_of(tokens), next(iter(preserved(found)), None)
        if "uuid" in record and "sessionId" in record:
            # In a session file the summary is the next user record.
            return typed.SystemEvent(text=as_text(record.get("content")), kind=kind, meta=meta, **place)
        return typed.CompactionEvent(tokens_before=self._tokens_before, meta=meta, **place)


def _kind_of_notice(record: Record, text: str) -> str | None:
    """Return the kind of the notice in a user record with ``text``; None for a prompt."""
    if record.get("isMeta") or record.get("isSynthetic"):
        return "meta"
    found = wrapper_of(text) or ("interrupted" if text.startswith(_INTERRUPTED) else None)
    return found or (None if _is_persons(record) else INJECTED)


def _is_persons(record: Record) -> bool:
    """Return True for a user record that a person wrote, also in a session without a terminal."""
    origin = record_of(record.get("origin"))
    match as_text(origin.get("kind")):
        case "":
            return record.get("promptSource") != "system"
        case "plugin":
            return origin.get("asUser") is True
        case kind:
            return kind == "human"


def _response(record: Record) -> list[typed.Event]:
    message, place = record_of(record.get("message")), _place(record)
    place["message"] = as_text(message.get("id")) or place["message"]
    beside = rest(record, *_ENVELOPE) or {}
    if unread := rest(message, *_MESSAGE):
        beside["message"] = unread
    billed: dict[str, Any] = {
        "model": as_text(message.get("model")) or None,
        "usage": usage_of(
            message.get("usage"),
            input="input_tokens",
            output="output_tokens",
            cache_read="cache_read_input_tokens",
            cache_write="cache_creation_input_tokens",
        ),
    }
    stop = as_text(message.get("stop_reason")) or None
    content = message.get("content")
    if _is_api_error(record):
        return [_api_error(content, rest(message, "id", "role", "type", "content"), {**place, "meta": beside})]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    events: list[typed.Event] = []
    for block in blocks if isinstance(blocks, list) else ():
        common = {**place, "meta": beside or None} if not events else place
        events.append(_block(block, common, billed, stop))
    return events or [opaque("assistant", record, **place)]


def _without_usage(event: typed.Event) -> typed.Event:
    billed = isinstance(event, typed.ResponseEvent | typed.ThinkingEvent | typed.ToolCallEvent)
    return msgspec.structs.replace(event, usage=None) if billed else event


def _is_api_error(record: Record) -> bool:
    """Return True for an error in place of a response. The harness does not send it to the model, unlike its other
    synthetic responses."""
    if record.get("isApiErrorMessage") is True:
        return True
    return record_of(record.get("message")).get("model") == "<synthetic>" and isinstance(record.get("error"), str)


def _api_error(content: object, message: dict[str, Any] | None, common: dict[str, Any]) -> typed.SystemEvent:
    texts = [content] if isinstance(content, str) else [as_text(block.get("text")) for block in records_of(content)]
    if message is not None:
        common["meta"] = {**common["meta"], "message": message}
    return typed.SystemEvent(text="\n".join(filter(None, texts)), kind="api_error", **common)


def _block(
    block: Any,  # noqa: ANN401 - any JSON value
    common: dict[str, Any],
    billed: dict[str, Any],
    stop: str | None,
) -> typed.Event:
    match block:
        case {"type": "text"}:
            return typed.ResponseEvent(text=as_text(block.get("text")), stop_reason=stop, **billed, **common)
        case {"type": "thinking"}:
            signature = as_text(block.get("signature")) or None
            return typed.ThinkingEvent(text=as_text(block.get("thinking")), signature=signature, **billed, **common)
        case {"type": "redacted_thinking"}:
            return typed.ThinkingEvent(encrypted=as_text(block.get("data")), **billed, **common)
        case {"type": "tool_use" | "server_tool_use" | "mcp_tool_use", "id": str(call), "name": str(tool)}:
            if block["type"] == "server_tool_use":
                common = {**common, "meta": {**(common.get("meta") or {}), "server_tool": True}}
            return typed.ToolCallEvent(call=call, tool=tool, args=block.get("input"), **billed, **common)
        case {"type": str(kind), "tool_use_id": str()} if kind.endswith("tool_result"):
            # Result of a tool that the provider ran.
            return _result(block, {name: value for name, value in common.items() if name != "meta"}, common.get("meta"))
        case {"type": "image" | "document"}:
            return typed.ResponseEvent(attachments=tuple(attachments_of(block)), stop_reason=stop, **billed, **common)
        case _:
            return typed.OpaqueEvent(kind=_kind(block), data=block, **common)


def _result(block: Record, place: dict[str, Any], meta: dict[str, Any] | None) -> typed.ToolResultEvent:
    content = block.get("content")
    texts, attachments, unread = [], [], []
    if isinstance(content, str):
        texts.append(content)
    for item in [content] if isinstance(content, dict) else records_of(content):
        match item.get("type"):
            case "text":
                texts.append(as_text(item.get("text")))
            case "image" | "document":
                attachments += attachments_of(item)
            case _:
                texts += filter(None, _found(item))
                unread.append(item)
    beside = dict(meta or {})
    if unread:
        beside["content"] = unread
    if (kind := block.get("type")) != "tool_result":
        beside["server_tool"] = kind
    return typed.ToolResultEvent(
        call=as_text(block.get("tool_use_id")) or None,
        text="\n".join(texts),
        attachments=tuple(attachments),
        is_error=bool(block.get("is_error")) or any("error_code" in item for item in unread),
        meta=beside or None,
        **place,
    )


def _found(item: Record) -> list[str]:
    """Return the texts of one result of a tool that the provider ran."""
    match item:
        case {"type": "web_search_result"}:
            return [": ".join(filter(None, (as_text(item.get("title")), as_text(item.get("url")))))]
        case {"type": "web_fetch_result"}:
            files = attachments_of(record_of(item.get("content")))
            texts = [(file.data or b"").decode("utf-8", "replace") for file in files if file.media_type == _PLAIN]
            return [as_text(item.get("url")), *texts]
        case {"stdout": str(out)}:
            return [out, as_text(item.get("stderr"))]
        case {"error_code": str(code)}:
            return [code]
        case _:
            return []


def attachments_of(block: Record) -> list[typed.Attachment]:
    """Return the image or the document of a block; for a document that consists of blocks, its text and its images."""
    source, name = record_of(block.get("source")), as_text(block.get("title")) or None
    is_image = block.get("type") == "image"
    media_type = as_text(source.get("media_type")) or ("image/*" if is_image else "application/octet-stream")
    match source.get("type"):
        case "url":
            # Documents with a URL are PDFs.
            named = as_text(source.get("media_type")) or ("image/*" if is_image else "application/pdf")
            return [typed.Attachment(media_type=named, name=name, url=as_text(source.get("url")) or None)]
        case "text":
            return [typed.Attachment(media_type=_PLAIN, name=name, data=as_text(source.get("data")).encode())]
        case "content":
            parts = source.get("content")
            texts = [parts] if isinstance(parts, str) else [as_text(part.get("text")) for part in records_of(parts)]
            text = "\n".join(filter(None, texts)).encode()
            images = [
                each for part in records_of(parts) if part.get("type") == "image" for each in attachments_of(part)
            ]
            return [typed.Attachment(media_type=_PLAIN, name=name, data=text), *images]
        case "file":
            return [typed.Attachment(media_type=media_type, name=name or as_text(source.get("file_id")) or None)]
        case _:
            found = attachment_of(media_type, source.get("data"), name)
            # Removed data may have been replaced by a note.
            note = found.url[:_NAME_CHARS_MAX] if found.url else None
            return [found if found.data else typed.Attachment(media_type=media_type, name=name or note)]


def _place(record: Record) -> dict[str, Any]:
    """Return the fields that every event has. In headless output, the id of a sub-agent is the call that started it."""
    sidechain = as_text(record.get("agentId")) or as_text(record.get("parent_tool_use_id"))
    if record.get("isSidechain") is False:
        # Records of the conversation may name a sub-agent, such as the one whose result they have.
        sidechain = ""
    return {
        "id": as_text(record.get("uuid")) or None,
        "parent": as_text(record.get("parentUuid")) or None,
        "message": None,
        "at": milliseconds(record.get("timestamp")),
        "sidechain": sidechain or ("sidechain" if record.get("isSidechain") else None),
    }


def _kind(block: object) -> str:
    return as_text(record_of(block).get("type")) or "untyped"
