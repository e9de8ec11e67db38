"""codex: rollout files (JSONL).

A rollout records each text twice: as a ``response_item``, which the model sees, and as an ``event_msg`` for the user
interface. The items are the conversation; the messages only repeat it, except for the token counts. A rollout without
an item of type ``message``, as other tools write and convert them, has its conversation in the messages alone.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final

import msgspec

from ctxd.transcripts.record_decoding import (
    WHOLE_LINE_BYTES_MAX,
    Entry,
    Line,
    Record,
    as_text,
    attachment_of,
    damaged,
    decoded,
    milliseconds,
    opaque,
    record_of,
    records_of,
    resource_of,
    rest,
    usage_of,
)
from ctxd_protocol import event_types as typed

_TAGS: Final = (
    "environment_context|permissions instructions|user_instructions|recommended_plugins|turn_aborted|"
    "send_user_message_question_reply|user_action|skill|user_shell_command|subagent_notification|INSTRUCTIONS|"
    "hook_prompt|codex_internal_context|goal_context|extension_context|agent_message_board_notification"
)
_WRAPPER: Final = re.compile(rf"\s*(?:<({_TAGS})\b|<(external_)[\w.-]+[ >]|# (AGENTS\.md instructions))", re.I | re.A)
_CLOSED: Final = re.compile(rf"</(?:{_TAGS}|external_[\w.-]+)>\Z", re.I | re.A)
"""Start and end of a user message that the harness wrote; it recognises its own messages by both, in any case. Texts
about mentioned files end with the user's own request."""

_KINDS: Final = {each.lower(): each for each in (*_TAGS.split("|"), "AGENTS.md instructions")}
EXTERNAL: Final = "external_context"
"""Kind of a text of a client, whose tag has the key that the client chose."""

_WARNING: Final = re.compile(
    r"\s*Warning: (?:The maximum number of unified exec processes you can keep open is|"
    r"Your account was flagged for potentially high-risk cyber activity|"
    r"apply_patch was requested via .*Use the apply_patch tool instead of exec_command\.\s*\Z)",
    re.S,
)
"""Warnings for the model that versions before 2026 wrote as user messages."""

_DIRECTORY: Final = re.compile(
    r"\s*<environment_context>(?:\s*Current working directory:([^\n]*)|.*?<cwd>([^<]*)</cwd>)", re.S
)

_PASSTHROUGH: Final = "internal_chat_message_metadata_passthrough"
_NOT_TYPED: Final = frozenset({"harness", "skills", "agents_md", "tool", "developer_instructions"})
"""Sources of parts of a user message that are not input of the user. That of a command of the user's shell is input,
though codex counts it as its own message: tags decide about all others."""

UNNAMED: Final = "context"
"""Kind of a text that codex wrote, by its source, in a form that is not known."""

_MEDIA_TAG: Final = re.compile(
    r"<(?:image|(?:local_)?audio)(?: name=(?P<name>\[[^\]]*\])(?: path=\"(?P<path>.*)\")?)?>", re.S
)
_MEDIA_END: Final = re.compile(r"</(?:image|(?:local_)?audio)>")
"""Texts that codex writes before and after an image of the user."""

_IDE_CONTEXT: Final = re.compile(
    r"\s*# (?:Context from my IDE setup|Files mentioned by the user):.*?^## My request(?: for Codex)?:\s*", re.S | re.M
)
FILE_ID: Final = "file_id:"
"""Start of the address of a file that the provider holds."""

_EXIT_CODE: Final = re.compile(
    r"(?:Command: .*?\n)?(?:Chunk ID: \w*\n)?Wall time: [\d.]+ seconds\nProcess exited with code (-?\d+)\n|"
    r"Exit code: (-?\d+)\nWall time: |"
    r'\{"output":.*"metadata":\{"exit_code":(-?\d+),"duration_seconds":[\d.]+\}\}\Z',
    re.S,
)
"""Exit code of a command in the output for the model, in the form of each version. The quotation marks of an output in
JSON are escaped."""

_RESOURCE: Final = '{"type":"resource",'
"""Start of a resource of an MCP server in the output of a tool."""

_ITEM: Final = re.compile(rb'"type"\s*:\s*"response_item"')
_MESSAGE: Final = re.compile(rb'"type"\s*:\s*"message"')
_MESSAGE_EVENT: Final = re.compile(rb'"type"\s*:\s*"(?:user|agent)_message"')
"""Members of records; in a text, their quotation marks are escaped."""

_MEMBER_BYTES_MAX: Final = 64

HISTORY: Final = "replacement_history"
"""Member of compactions: the items that replace the conversation."""

_ITEM_FIELDS: Final = ("type", "id", "call_id", "name", "arguments", "input", "output", "role", "content")
BARE_ITEMS: Final = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "web_search_call",
    }
)
"""Types of lines that are items themselves, in rollouts before September 2025."""


def read_rollout(found: Iterable[Line]) -> Iterator[Entry]:
    """Yield the events of a rollout file, in file order. Tokens are on the opaque events ``token_count``
    and ``token_usage_record``."""
    yield from _read(found, _Rollout())


def read_events(found: Iterable[Line]) -> Iterator[Entry]:
    """Yield the events of a rollout file whose conversation is in its ``event_msg`` records, in file order."""
    yield from _read(found, _EventRollout())


def records_in(document: object) -> list[Record]:
    """Return the records of a rollout that is one JSON document, as versions before June 2025 wrote it: its session,
    then its items; nothing for another document."""
    match document:
        case {"session": dict(session), "items": list(items)}:
            return [session, *records_of(items)]
        case _:
            return []


def directory_in(records: Iterable[Record]) -> str:
    """Return the working directory in the first environment context among ``records``; empty without one. Versions
    before September 2025 record it nowhere else."""
    for record in records:
        item = record_of(record.get("payload")) or record
        text, _ = content_of(item.get("content"))
        if item.get("role") == "user" and (found := _DIRECTORY.match(text)):
            return (found[1] or found[2] or "").strip()
    return ""


def conversation_in_events(file: IO[bytes]) -> int | None:
    """Return the byte at which the conversation of a rollout begins if it is in the ``event_msg`` records; None for
    another rollout. Reads up to the first item of type ``message``, which is one of the first lines of a rollout that
    codex writes. A line that is too long to be kept whole is searched in pieces. Memory: a few times
    ``WHOLE_LINE_BYTES_MAX``."""
    begin: int | None = None
    size, end = 0, b""
    has_message = is_item = False
    while piece := file.readline(WHOLE_LINE_BYTES_MAX):
        text = end + piece
        if begin is None and (found := _MESSAGE_EVENT.search(text)):
            begin = size - len(end) + found.start()
        has_message = has_message or _MESSAGE.search(text) is not None
        is_item = is_item or _ITEM.search(text) is not None
        size += len(piece)
        if len(piece) == WHOLE_LINE_BYTES_MAX and not piece.endswith(b"\n"):
            end = text[-_MEMBER_BYTES_MAX:]
            continue
        if has_message and _is_message_item(b"" if end else piece, is_item):
            return None
        end, has_message, is_item = b"", False, False
    return None if has_message and is_item else begin


def _is_message_item(line: bytes, is_item: bool) -> bool:
    """Return True if a line is an item of type ``message``; ``is_item`` if it is no record, or too long to be read."""
    try:
        record = record_of(decoded(line))
    except ValueError:
        return is_item
    item = record_of(record.get("payload")) if record.get("type") == "response_item" else record
    return item.get("type") == "message"


def _read(found: Iterable[Line], reader: "_Rollout") -> Iterator[Entry]:
    for line in found:
        if line.record is None:
            yield damaged(line)
        else:
            yield from (Entry(line.number, event) for event in reader.events(line.record))


class TokenCounts:
    """The tokens of each count, from totals. ``is_whole``: the first count is that of all tokens so far."""

    def __init__(self, *, is_whole: bool) -> None:
        self.is_whole = is_whole
        self._total: typed.Usage | None = None
        self._responses = set[str]()
        self._last: typed.Usage | None = None  # Counted before the first total, which includes it.

    def billed(self, payload: Record) -> typed.Usage | None:
        """Return the tokens since the last count. Counts are totals; a lower total starts a new count. If the beginning
        is missing, the first count is that of the last request."""
        info = record_of(payload.get("info"))
        return self.since(usage_in(info.get("total_token_usage")), usage_in(info.get("last_token_usage")))

    def recorded(self, payload: Record) -> typed.Usage | None:
        """Return the tokens of one response; None if they were counted before. The next total includes them: some
        versions write both, others only one of them."""
        usage, response = usage_in(payload.get("usage")), as_text(payload.get("response_id"))
        if usage is None or response in self._responses:
            return None
        self._responses.add(response)
        if self._total is None and not self.is_whole:
            self._last = usage
            return usage
        before = self._total or typed.Usage()
        self._total = typed.Usage(
            input=before.input + usage.input,
            output=before.output + usage.output,
            cache_read=before.cache_read + usage.cache_read,
        )
        return usage

    def since(self, total: typed.Usage | None, last: typed.Usage | None = None) -> typed.Usage | None:
        """Return the tokens of ``total`` that were not counted before; see ``billed``."""
        if total is None:
            return None
        before, self._total = self._total, total
        if before is None and not self.is_whole and last is not None:
            return None if last == self._last else last
        before = before or typed.Usage()
        if total.input + total.cache_read < before.input + before.cache_read or total.output < before.output:
            before = typed.Usage()
        return typed.Usage(
            input=max(0, total.input - before.input),
            output=total.output - before.output,
            cache_read=max(0, total.cache_read - before.cache_read),
        )


class _Rollout:
    def __init__(self) -> None:
        self._model: str | None = None
        self._counts = TokenCounts(is_whole=False)

    def events(self, record: Record) -> list[typed.Event]:
        at, payload = milliseconds(record.get("timestamp")), record_of(record.get("payload"))
        match record.get("type"):
            case "response_item":
                return [self._item(payload, at)]
            case "session_meta":
                self._counts.is_whole = True
                instructions = record_of(payload.get("base_instructions")).get("text", payload.get("instructions"))
                meta = rest(payload, "base_instructions", "instructions")
                return [typed.SystemEvent(text=as_text(instructions), kind="session_meta", at=at, meta=meta)]
            case "turn_context":
                self._model = as_text(payload.get("model")) or self._model
                return [typed.OpaqueEvent(kind="turn_context", data=payload, at=at)]
            case "compacted":
                return [
                    typed.CompactionEvent(summary=as_text(payload.get("message")), at=at, meta=rest(payload, "message"))
                ]
            case "event_msg":
                return [self._message(payload, at)]
            case "token_usage_record" as kind:
                return [opaque(kind, record, at=at, usage=self._counts.recorded(payload))]
            case str(kind) if kind in BARE_ITEMS:
                return [self._item(record, at)]
            case kind:
                return [opaque(as_text(kind) or "untyped", record, at=at)]

    def _message(self, payload: Record, at: int | None) -> typed.Event:
        kind = as_text(payload.get("type"))
        if kind in ("error", "stream_error") and (text := as_text(payload.get("message"))):
            return typed.SystemEvent(text=text, kind="error", at=at, meta=rest(payload, "message"))
        usage = self._counts.billed(payload) if kind == "token_count" else None
        return typed.OpaqueEvent(kind=f"event_msg.{kind}", data=dict(payload), usage=usage, at=at)

    def _item(self, item: Record, at: int | None) -> typed.Event:
        common: dict[str, Any] = {"id": as_text(item.get("id")) or None, "at": at, "meta": rest(item, *_ITEM_FIELDS)}
        call = as_text(item.get("call_id")) or as_text(item.get("id"))
        match item.get("type"):
            case "message":
                return self._message_item(item, common)
            case "reasoning":
                return self._thinking(item, common)
            case "function_call":
                args = _arguments(item.get("arguments"))
                tool = as_text(item.get("name"))
                return typed.ToolCallEvent(call=call, tool=tool, args=args, model=self._model, **common)
            case "custom_tool_call":
                tool = as_text(item.get("name"))
                return typed.ToolCallEvent(call=call, tool=tool, args=item.get("input"), model=self._model, **common)
            case "local_shell_call" | "web_search_call" | "tool_search_call" | "image_generation_call" as kind:
                common["meta"] = rest(item, "type", "id", "call_id", "action", "arguments")
                args = item.get("action", item.get("arguments"))
                tool = kind.removesuffix("_call")
                return typed.ToolCallEvent(call=call, tool=tool, args=args, model=self._model, **common)
            case str(kind) if kind.endswith("_output"):
                return _output(item, call, common)
            case kind:
                return typed.OpaqueEvent(kind=as_text(kind) or "untyped", data=dict(item), id=common["id"], at=at)

    def _message_item(self, item: Record, common: dict[str, Any]) -> typed.Event:
        text, attachments = content_of(item.get("content"))
        match item.get("role"):
            case "user":
                if (kind := _context_kind(item, text)) is not None and not attachments:
                    return typed.SystemEvent(text=text, kind=kind, **common)
                return typed.PromptEvent(text=text, attachments=attachments, **common)
            case "assistant":
                return typed.ResponseEvent(text=text, attachments=attachments, model=self._model, **common)
            case role:
                return typed.SystemEvent(text=text, kind=as_text(role) or None, **common)

    def _thinking(self, item: Record, common: dict[str, Any]) -> typed.ThinkingEvent:
        common["meta"] = rest(item, "type", "id", "summary", "content", "encrypted_content")
        parts = [*records_of(item.get("summary")), *records_of(item.get("content"))]
        text = "\n\n".join(as_text(part.get("text")) for part in parts)
        encrypted = as_text(item.get("encrypted_content")) or None
        return typed.ThinkingEvent(text=text, encrypted=encrypted, model=self._model, **common)


class _EventRollout(_Rollout):
    """A rollout whose conversation is in its ``event_msg`` records. If it is continued with items, each message of a
    pair counts once: the first one."""

    def __init__(self) -> None:
        super().__init__()
        self._items, self._messages = Counter[int](), Counter[int]()

    def _message(self, payload: Record, at: int | None) -> typed.Event:
        common: dict[str, Any] = {"id": None, "at": at, "meta": rest(payload, "type", "message", "text", "images")}
        match payload.get("type"):
            case "user_message":
                found: Record = {"role": "user", "content": _content(payload)}
            case "agent_message":
                found = {"role": "assistant", "content": payload.get("message")}
            case "agent_reasoning":
                return self._thinking({"summary": [{"text": payload.get("text")}]}, common)
            case _:
                return super()._message(payload, at)
        event = super()._message_item(found, common)
        return super()._message(payload, at) if _is_second(event, self._items, self._messages) else event

    def _message_item(self, item: Record, common: dict[str, Any]) -> typed.Event:
        event = super()._message_item(item, common)
        if not _is_second(event, self._messages, self._items):
            return event
        return typed.OpaqueEvent(kind="message", data=dict(item), id=common["id"], at=common["at"])


def _content(payload: Record) -> list[Record]:
    """Return the text and the images of a ``user_message`` as the content of an item."""
    images = payload.get("images")
    sources = [image for image in images if isinstance(image, str)] if isinstance(images, list) else []
    return [{"text": payload.get("message")}, *({"image_url": source} for source in sources)]


def _is_second(event: typed.Event, others: Counter[int], own: Counter[int]) -> bool:
    """Return True if ``others`` has the same text, which is removed from it; else add it to ``own``."""
    if not isinstance(event, typed.PromptEvent | typed.ResponseEvent):
        return False
    key = hash((type(event), event.text))
    if others[key]:
        others[key] -= 1
        return True
    own[key] += 1
    return False


def context_kind(text: str) -> str | None:
    """Return the kind of a user message that the harness wrote, by its text; None for another text."""
    if (wrapper := _WRAPPER.match(text)) and _CLOSED.search(text.rstrip()):
        return EXTERNAL if wrapper[2] else _KINDS[(wrapper[1] or wrapper[3]).lower()]
    return "warning" if _WARNING.match(text) else None


def _context_kind(item: Record, text: str) -> str | None:
    """Return the kind of a user message that the harness wrote; None for one of the user."""
    if (kind := context_kind(text)) is not None:
        return kind
    parts = records_of(record_of(item.get(_PASSTHROUGH)).get("content_item_metadata"))
    sources = [as_text(record_of(part.get("provenance")).get("type")) for part in parts]
    return UNNAMED if sources and _NOT_TYPED.issuperset(sources) else None


def _output(item: Record, call: str, common: dict[str, Any]) -> typed.ToolResultEvent:
    output, failed = item.get("output"), False
    if isinstance(output, dict):
        failed = output.get("success") is False
        output = output.get("content")
    text, attachments = (output, ()) if isinstance(output, str) else content_of(output)
    if output is None and (more := rest(item, "type", "id", "call_id")):
        text = json.dumps(more, ensure_ascii=False)
    failed = failed or is_failed_command(text)
    return typed.ToolResultEvent(call=call or None, text=text, attachments=attachments, is_error=failed, **common)


def is_failed_command(output: str) -> bool:
    """Return True for the output of a command with an exit code other than 0."""
    found = _EXIT_CODE.match(output)
    return found is not None and int(next(filter(None, found.groups()))) != 0


def content_of(content: object) -> tuple[str, tuple[typed.Attachment, ...]]:
    """Return the text and the attachments of an item's content. An image is named by the tags that codex writes as
    texts around it."""
    if isinstance(content, str):
        return content, ()
    parts, texts, attachments = records_of(content), [], []
    files = [_file(part) for part in parts]
    for place, (part, file) in enumerate(zip(parts, files, strict=True)):
        text = as_text(part.get("text"))
        before, after = files[max(0, place - 1)], files[min(place + 1, len(parts) - 1)]
        if file is not None:
            opening = _MEDIA_TAG.fullmatch(as_text(parts[place - 1].get("text"))) if place else None
            name = as_text(part.get("filename")) or (opening["path"] or opening["name"] if opening else None)
            attachments.append(file if name is None else msgspec.structs.replace(file, name=name))
        elif resource := _resource(text):
            attachments.append(resource)
        elif not (after and _MEDIA_TAG.fullmatch(text)) and not (before and _MEDIA_END.fullmatch(text)):
            texts.append(text)
    return "\n".join(texts), tuple(attachments)


def _file(part: Record) -> typed.Attachment | None:
    """Return the image, the sound or the document in a part of an item's content; None for other parts."""
    if source := part.get("image_url") or part.get("file_data"):
        return attachment_of("image/*", source)
    match part:
        case {"audio_url": str(source)}:
            return attachment_of("audio/*", source)
        case {"input_audio": {"data": str(source), "format": str(form)}}:
            return attachment_of(f"audio/{form}", source)
        case {"file_id": str(id)}:
            kind = "image/*" if part.get("type") == "input_image" else "application/octet-stream"
            return typed.Attachment(media_type=kind, url=FILE_ID + id)
        case _ if "image_url" in part or "file_data" in part:
            return attachment_of("image/*", None)
        case _:
            return None


def request_in(text: str) -> str:
    """Return a prompt without what an IDE puts before the user's own request."""
    found = _IDE_CONTEXT.match(text)
    return (text[found.end() :] if found else "") or text


def _resource(text: str) -> typed.Attachment | None:
    """Return the bytes of a resource of an MCP server, which codex gives to the model as JSON; None for other text."""
    if not text.startswith(_RESOURCE):
        return None
    try:
        found = resource_of(decoded(text.encode()))
    except ValueError:
        return None  # codex may have cut it.
    return found if found and found.data else None


def _arguments(text: object) -> Any:  # noqa: ANN401 - any JSON value
    if not isinstance(text, str):
        return text
    try:
        found = decoded(text.encode())
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def usage_in(found: object) -> typed.Usage | None:
    """Return codex's token counts; None if ``found`` has none."""
    usage = usage_of(found, input="input_tokens", output="output_tokens", cache_read="cached_input_tokens")
    if usage is None:
        return None
    # codex counts cached tokens as input too.
    return typed.Usage(input=max(0, usage.input - usage.cache_read), output=usage.output, cache_read=usage.cache_read)
