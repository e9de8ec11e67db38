"""Purge of one tool call from the transcript lines in imported commits, which name it by the harness's own id. Pure.

Beside the call and its output, harnesses write copies of the output, such as the request that contained it.
"""

import re
from collections.abc import Iterable, Iterator, Set
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from ctxd.objects.document import Content, decode_content, encode_content
from ctxd.sessions.event_erasure import ErasedContent
from ctxd.transcripts.hook_events import native_call_id
from ctxd.transcripts.record_decoding import PART
from ctxd_protocol.session_types import PURGED_TEXT

_IDS: Final = ("tool_use_id", "toolCallId", "callID", "call_id", "id")
"""Members of a block that identify its call, in the formats of all harnesses."""

_KEPT: Final = frozenset({*_IDS, "type", "role", "name", "tool", "toolName", "status", "messageID", "sessionID"})
"""Members of such a block that describe it, and stay if they are texts."""

_COPY: Final = "toolUseResult"
"""Member of a record of Claude Code with another form of the output in it."""

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


_PART_MARK: Final = f'"type":"{PART}"'.encode()
_TEXTS: Final = ("text", "latin1")
_SAMPLE_CHARS: Final = 64


class _Named(NamedTuple):
    """The calls by their native ids, and the forms in which lines name them: also in JSON inside of a text."""

    calls: Set[str]
    quoted: tuple[bytes, ...]
    escaped: tuple[bytes, ...]
    inner: re.Pattern[str]

    def is_in(self, data: bytes) -> bool:
        """True if ``data`` may name a call."""
        return any(each in data for each in (*self.quoted, *self.escaped))


def own_id(call: str) -> str:
    """Return the id by which its session recorded the tool call ``call``, which may be an alias: see
    ``toolcall_alias``."""
    return call.split(":", 2)[-1].rstrip("~") if call.startswith("toolcall:") else call


def native_id(call: str) -> str:
    """Return the harness's own id of the tool call ``call``."""
    return native_call_id(own_id(call))


def without_calls(content: Content, calls: Set[str], gone: ErasedContent) -> Content:
    """Return lines of JSON, ``content``, without the arguments and outputs of ``calls``, native ids, and without
    ``gone`` in the lines that name one of them; itself if it names none."""
    data = encode_content(content)
    names = [_encode(call)[1:-1] for call in calls]
    each = "|".join(re.escape(name.decode()) for name in names)
    inner = re.compile(rf'''"(?:{"|".join(_IDS)})\\*"\s*:\s*\\*"(?:{each})\\*"''')
    # In JSON inside of a text, backslashes precede the quotes.
    named = _Named(calls, tuple(b'"%b"' % name for name in names), tuple(b'"%b\\' % name for name in names), inner)
    if not named.is_in(data) and _PART_MARK not in data:
        return content
    left: list[bytes] = []
    for is_part, run in groupby(data.split(b"\n"), lambda line: line.startswith(b"{" + _PART_MARK)):
        lines = list(run)
        left += _parts(lines, named, gone) if is_part else _lines(lines, named, gone)
    made = b"\n".join(left)
    return content if made == data else decode_content(made)


def _lines(lines: Iterable[bytes], named: _Named, gone: ErasedContent) -> Iterator[bytes]:
    for line in lines:
        yield _line(line, named, gone) if named.is_in(line) else line


def _parts(lines: list[bytes], named: _Named, gone: ErasedContent) -> Iterator[bytes]:
    """Yield parts of long lines, all of them without text if one names a call. A part whose line began in another
    commit loses its text if its middle is in a purged text."""
    try:
        records = [_decode(line) for line in lines]
    except (msgspec.DecodeError, RecursionError):
        # A client wrote what only begins like a part.
        yield from _lines(lines, named, gone)
        return
    texts = [next((record[name] for name in _TEXTS if isinstance(record.get(name), str)), "") for record in records]
    goes = any(named.inner.search(text) for text in texts)
    for line, record, text in zip(lines, records, texts, strict=True):
        sample = text[len(text) // 2 :][:_SAMPLE_CHARS]
        if not (goes or (len(sample) == _SAMPLE_CHARS and any(sample in each for each in gone.in_lines))):
            yield line
            continue
        yield _encode({name: PURGED_TEXT if name in _TEXTS else value for name, value in record.items()})


def _line(line: bytes, named: _Named, gone: ErasedContent) -> bytes:
    try:
        record = _decode(line)
    except (msgspec.DecodeError, RecursionError):
        # A part of a long line, or a damaged one: what of it belongs to the call is not known.
        return _encode(PURGED_TEXT)
    left = _without(record, named, gone)
    if left == record and not any(each in line for each in named.quoted):
        # It names a call only in a text.
        return line
    if isinstance(left, dict) and _COPY in left:
        left[_COPY] = PURGED_TEXT
    return _encode(left)


def _without(value: Any, named: _Named, gone: ErasedContent) -> Any:  # noqa: ANN401 - any JSON value
    match value:
        case str():
            return PURGED_TEXT if gone.quotes(value) or named.inner.search(value) else value
        case list():
            return [_without(each, named, gone) for each in value]
        case dict() if any(isinstance(value.get(name), str) and value[name] in named.calls for name in _IDS):
            return {name: _described(name, each) for name, each in value.items()}
        case dict():
            return {name: _without(each, named, gone) for name, each in value.items()}
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
