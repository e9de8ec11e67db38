"""Purge of one tool call from the transcript lines in imported commits, which name it by the harness's own id. Pure.

Beside the call and its output, harnesses write copies of the output, such as the request that contained it.
"""

from collections.abc import Set
from typing import Any, Final

import msgspec

from ctxd.objects.document import Content, decode_content, encode_content
from ctxd.sessions.event_erasure import ErasedContent
from ctxd_protocol.session_types import PURGED_TEXT

_IDS: Final = ("tool_use_id", "toolCallId", "callID", "call_id", "id")
"""Members of a block that identify its call, in the formats of all harnesses."""

_KEPT: Final = frozenset({*_IDS, "type", "role", "name", "tool", "toolName", "status", "messageID", "sessionID"})
"""Members of such a block that describe it, and stay if they are texts."""

_COPY: Final = "toolUseResult"
"""Member of a record of Claude Code with another form of the output in it."""

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def without_calls(content: Content, calls: Set[str], gone: ErasedContent) -> Content:
    """Return JSON ``content`` without the arguments and outputs of ``calls``, native ids, and without ``gone`` in the
    lines that name one of them; itself if it names none."""
    data = encode_content(content)
    names = [_encode(call) for call in calls]
    if not any(name in data for name in names):
        return content
    lines = [_line(line, calls, gone) if any(name in line for name in names) else line for line in data.split(b"\n")]
    return decode_content(b"\n".join(lines))


def _line(line: bytes, calls: Set[str], gone: ErasedContent) -> bytes:
    try:
        record = _decode(line)
    except (msgspec.DecodeError, RecursionError):
        # A part of a long line, or a damaged one: what of it belongs to the call is not known.
        return _encode(PURGED_TEXT)
    left = _without(record, calls, gone)
    if isinstance(left, dict) and _COPY in left:
        left[_COPY] = PURGED_TEXT
    return _encode(left)


def _without(value: Any, calls: Set[str], gone: ErasedContent) -> Any:  # noqa: ANN401 - any JSON value
    match value:
        case str():
            return PURGED_TEXT if gone.quotes(value) else value
        case list():
            return [_without(each, calls, gone) for each in value]
        case dict() if any(isinstance(value.get(name), str) and value[name] in calls for name in _IDS):
            return {name: _described(name, each) for name, each in value.items()}
        case dict():
            return {name: _without(each, calls, gone) for name, each in value.items()}
        case _:
            return value


def _described(name: str, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return the member ``name`` of a block of the call without content, in a form that the harness accepts."""
    match value:
        case str():
            return value if name in _KEPT else PURGED_TEXT
        case list():
            return [{"type": "text", "text": PURGED_TEXT}] if value else value
        case dict() if name == "state":
            return {inner: _described(inner, each) for inner, each in value.items()}
        case dict():
            return {}
        case _:
            return value
