"""``codex-v1``: complete lines of a rollout file of codex, written so that codex can resume them.

``ctxd.transcripts.codex`` reads them. Events that were read from a rollout become lines that give the same events.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ctxd.formats.losses import Losses
from ctxd.transcripts.codex import FILE_ID, is_failed_command
from ctxd.transcripts.record_decoding import DAMAGED
from ctxd_protocol import event_types as typed

NAME: Final = "codex-v1"

Record = dict[str, Any]

_CALLS: Final[dict[str, tuple[str, ...]]] = {
    "local_shell": ("status",),
    "web_search": ("status",),
    "tool_search": ("execution",),
    "image_generation": ("status", "result"),
}
"""Tools whose calls have their own item type, with the members that codex needs besides their arguments."""

_PROVIDERS: Final = frozenset({"web_search", "image_generation"})
"""Tools that the provider runs: only the call is recorded."""

_ROLES: Final = frozenset({"developer", "system"})
_SHOWN: Final = "event_msg."


class RolloutWriter:
    """Conversion of events to lines of one rollout. Events of sub-agents, which have their own rollouts, are lost."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._custom: set[str | None] = set()
        self._searches: set[str | None] = set()

    def add(self, event: typed.Event) -> Iterator[bytes]:
        """Yield the line of one event, if a rollout can hold it."""
        if isinstance(event, typed.OpaqueEvent) and event.kind == DAMAGED and isinstance(event.data, str):
            yield event.data.encode() + b"\n"
            return
        record = None if event.sidechain is not None else self._record(event)
        if record is None:
            self._losses.drop(event)
            return
        at = {} if event.at is None else {"timestamp": timestamp(event.at)}
        yield msgspec.json.encode({**at, **record}) + b"\n"

    def _record(self, event: typed.Event) -> Record | None:
        match event:
            case typed.OpaqueEvent(kind=str(kind), data=dict(data)) if kind.startswith(_SHOWN):
                return {"type": "event_msg", "payload": data}
            case typed.OpaqueEvent(kind="turn_context", data=dict(data)) if "payload" not in data:
                return {"type": "turn_context", "payload": data}
            case typed.OpaqueEvent(kind=kind, data=dict(data)) if "payload" in data and data.get("type") == kind:
                return data
            case typed.OpaqueEvent(kind=kind, data=dict(data)) if data.get("type", "untyped") == kind:
                return {"type": "response_item", "payload": data}
            case typed.OpaqueEvent():
                return None
            case typed.CompactionEvent():
                return {"type": "compacted", "payload": {"message": event.summary, **(event.meta or {})}}
            case typed.SystemEvent(kind="session_meta"):
                instructions = {"base_instructions": {"text": event.text}} if event.text else {}
                return {"type": "session_meta", "payload": {**instructions, **(event.meta or {})}}
            case _:
                id = {} if event.id is None else {"id": event.id}
                return {"type": "response_item", "payload": {**self._item(event), **id, **(event.meta or {})}}

    def _item(
        self,
        event: typed.PromptEvent
        | typed.ResponseEvent
        | typed.ThinkingEvent
        | typed.ToolCallEvent
        | typed.ToolResultEvent
        | typed.SystemEvent,
    ) -> Record:
        match event:
            case typed.PromptEvent():
                return user_message(event.text, event.attachments)
            case typed.ResponseEvent():
                return _message("assistant", "output_text", event.text, event.attachments)
            case typed.SystemEvent():
                role = event.kind if event.kind in _ROLES else "user"
                return _message(role or "user", "input_text", event.text, ())
            case typed.ThinkingEvent():
                summary = [{"type": "summary_text", "text": event.text}] if event.text else []
                hidden = {} if event.encrypted is None else {"encrypted_content": event.encrypted}
                return {"type": "reasoning", "summary": summary, **hidden}
            case typed.ToolCallEvent():
                return self._call(event)
            case typed.ToolResultEvent():
                if event.call in self._searches and "tools" in (event.meta or {}):
                    return {"type": "tool_search_output", "call_id": event.call}
                kind = "custom_tool_call_output" if event.call in self._custom else "function_call_output"
                output: object = event.text
                if event.attachments:
                    output = _content("input_text", event.text, event.attachments)
                if event.is_error and not is_failed_command(event.text):
                    # codex accepts the member ``success`` only in old rollouts, and drops outputs that have it.
                    self._losses.add("tool_result.is_error")
                return {"type": kind, "call_id": event.call or "", "output": output}

    def _call(self, event: typed.ToolCallEvent) -> Record:
        if _is_item(event):
            if event.tool == "tool_search":
                self._searches.add(event.call)
            own = {} if event.call in ("", event.id) else {"call_id": event.call}
            place = "arguments" if event.tool == "tool_search" else "action"
            return {"type": f"{event.tool}_call", **own, **({} if event.args is None else {place: event.args})}
        call: Record = {"name": event.tool, "call_id": event.call}
        if isinstance(event.args, str):
            if "status" not in (event.meta or {}) and not _is_object(event.args):
                # The model wrote function arguments that are not JSON.
                return {"type": "function_call", **call, "arguments": event.args}
            self._custom.add(event.call)
            return {"type": "custom_tool_call", **call, "input": event.args}
        arguments = msgspec.json.encode({} if event.args is None else event.args).decode()
        return {"type": "function_call", **call, "arguments": arguments}


def runs_at_provider(event: typed.Event) -> bool:
    """Return True for a call in codex that the provider ran, so that it has no separate output."""
    return isinstance(event, typed.ToolCallEvent) and event.tool in _PROVIDERS and _is_item(event)


def _is_item(event: typed.ToolCallEvent) -> bool:
    """Return True for a call that codex recorded with its own item type: other harnesses may use the same names."""
    if event.tool not in _CALLS or not all(name in (event.meta or {}) for name in _CALLS[event.tool]):
        return False
    kind = event.args.get("type") if isinstance(event.args, dict) else None
    match event.tool:
        case "local_shell":
            return kind == "exec"
        case "web_search":
            return event.args is None or kind is not None
        case _:
            return True


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def timestamp(at: int) -> str:
    """Return a time in ms since 1970 in the form that harnesses write; 1970 for years that they cannot read."""
    moment = datetime.fromtimestamp(at / 1000 if 0 <= at < 1 << 47 else 0, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def data_url(found: typed.Attachment) -> str:
    """Return the URL of an attachment: its bytes as a data URL, or its address."""
    if found.data is None and found.url is None:
        return f"artifact:{found.artifact}"
    # Damaged base64 was kept unchanged in ``url``.
    text = b64encode(found.data).decode() if found.data is not None else found.url or ""
    return text if "://" in text[:64] else f"data:{found.media_type};base64,{text}"


def user_message(text: str, attachments: tuple[typed.Attachment, ...] = ()) -> Record:
    """Return the item of a user message."""
    return _message("user", "input_text", text, attachments)


def _message(role: str, kind: str, text: str, attachments: tuple[typed.Attachment, ...]) -> Record:
    return {"type": "message", "role": role, "content": _content(kind, text, attachments, named=role == "user")}


def _content(kind: str, text: str, attachments: tuple[typed.Attachment, ...], *, named: bool = False) -> list[Record]:
    media = [part for number, each in enumerate(attachments, 1) for part in _media(number, each, named)]
    return [*([{"type": kind, "text": text}] if text or not media else []), *media]


def _media(number: int, found: typed.Attachment, named: bool) -> list[Record]:
    """Return the parts of an attachment; with ``named``, an image with a name is between the tags of codex for it."""
    if found.url is not None and found.url.startswith(FILE_ID):
        part = {"type": "input_image", "file_id": found.url.removeprefix(FILE_ID)}
    elif found.media_type.startswith("audio/"):
        part = {"type": "input_audio", "audio_url": data_url(found)}
    else:
        part = {"type": "input_image", "image_url": data_url(found)}
    if not named or not found.name:
        return [part]
    name = found.name if found.name.startswith("[") else f'[Image #{number}] path="{found.name}"'
    return [{"type": "input_text", "text": f"<image name={name}>"}, part, {"type": "input_text", "text": "</image>"}]
