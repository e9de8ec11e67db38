"""Records of a transcript: tolerant decoding of JSON lines, and the parts that all formats share.

A reader yields at least one event for every complete line, so that no part of a transcript is lost: a line that is not
a JSON object becomes an ``OpaqueEvent`` of kind ``damaged``, and an unknown record one of its own kind.
"""

import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import IO, Any, Final, NamedTuple

import msgspec

from ctxd.media_types import UNKNOWN_MEDIA
from ctxd_protocol.event_types import Attachment, Event, OpaqueEvent, Usage
from ctxd_protocol.limits import SAFE_INTEGER_MAX

Record = Mapping[str, Any]

LINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum bytes of a line: images in base64 make lines of tens of MiB."""

WHOLE_LINE_BYTES_MAX: Final = 6 * 1024 * 1024
"""Maximum bytes of a line of a source that is read and kept whole, so that memory stays bounded."""

DAMAGED: Final = "damaged"
"""Kind of the opaque event for a line that is not a JSON object."""

PART: Final = "ctxd-part"
"""Type of a record with a part, in ``text`` or ``latin1``, of a line that is too long for one delta or not UTF-8."""

_LONG_NUMBER: Final = b"0" * 16
"""As many digits as the shortest integer that a double may not hold exactly, as zeros."""

_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_LEVELS_MAX: Final = 256
"""Levels of nesting that an event keeps. The encoders of events accept more, but not all that the decoders accept."""

_BRACKETS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]++|[\]}]++', re.S)
"""Runs of brackets of one direction; a string, because of the brackets in it."""

_BRACKETS_MAX: Final = 1_000_000
_PASSED_BYTES_MAX: Final = 64 * 1024 * 1024
_PARENTHESES: Final = bytes.maketrans(b"[]{}", b"()()")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))

_DATA_URL: Final = re.compile(r"data:(?P<type>[^;,]*)(?:;[^,]*)?;base64,(?P<data>.*)", re.S)


class Line(NamedTuple):
    """One complete line: its number from 1, and its record; if it is not a JSON object, None and its text."""

    number: int
    record: Record | None
    text: str = ""


class Entry(NamedTuple):
    """One event, and the number of the line or row that it comes from."""

    line: int
    event: Event


def lines(file: IO[bytes]) -> Iterator[Line]:
    """Yield the complete lines of ``file``, without blank lines and a byte order mark.

    A last line without a line feed is yielded only if it is valid: a harness may still be writing it. Memory: one line.
    Raises: ValueError for a line of more than ``LINE_BYTES_MAX``.
    """
    for number, raw in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX + 1), b""), 1):
        if len(raw) > LINE_BYTES_MAX:
            raise ValueError(f"line {number} has more than {LINE_BYTES_MAX >> 20} MiB")
        if number == 1:
            raw = raw.removeprefix(BOM_UTF8)
        if not raw.strip():
            continue
        try:
            record = decoded(raw)
        except ValueError:
            record = None
        if isinstance(record, dict):
            yield Line(number, record)
        elif raw.endswith(b"\n"):
            yield Line(number, None, raw.decode("utf-8", "replace").rstrip("\n"))


def joined_parts(found: Iterable[Line]) -> Iterator[Line]:
    """Yield lines, with lines that were stored in parts joined; parts that do not form a JSON object stay separate."""
    held: list[Line] = []
    size = 0
    for line in found:
        record = line.record or {}
        if record.get("type") != PART or record.get("number") != len(held) + 1 or size > LINE_BYTES_MAX:
            yield from held
            held, size = [], 0
        if record.get("type") != PART or record.get("number") != len(held) + 1:
            yield line
            continue
        held.append(line)
        size += len(as_text(record.get("text"))) + len(as_text(record.get("latin1")))
        if record.get("last"):
            whole = _whole(held)
            yield from held if whole is None else [Line(line.number, whole)]
            held, size = [], 0
    yield from held


def _whole(parts: Iterable[Line]) -> Record | None:
    pieces = [part.record or {} for part in parts]
    try:
        found = decoded(
            b"".join(
                as_text(piece["latin1"]).encode("latin-1") if "latin1" in piece else as_text(piece.get("text")).encode()
                for piece in pieces
            )
        )
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def decoded(raw: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Decode JSON from a harness to values that a session accepts.

    Invalid UTF-8 and lone surrogates become U+FFFD; integers that a double cannot hold exactly and non-finite numbers
    become text. Raises: ValueError if ``raw`` is not JSON or nested too deeply.
    """
    try:
        value = msgspec.json.decode(raw)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            value = json.loads(raw.decode("utf-8-sig", "replace"), parse_constant=str)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        return _accepted(value)
    return _accepted(value) if _LONG_NUMBER in raw.translate(_DIGITS_AS_ZEROS) else value


def _accepted(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return ``value`` with values that a session accepts; its lists and objects are changed in place. Not recursive:
    the decoders accept more levels than the stack has room for."""
    whole = [value]
    waiting: list[Any] = [whole]
    while waiting:
        found = waiting.pop()
        is_object = isinstance(found, dict)
        if is_object and not all(map(str.isascii, found)):
            items = [(_SURROGATE.sub("\ufffd", name), item) for name, item in found.items()]
            found.clear()
            found.update(items)
        for place, item in found.items() if is_object else enumerate(found):
            kind = type(item)
            if kind is list or kind is dict:
                waiting.append(item)
            elif not _is_accepted(kind, item):
                found[place] = _SURROGATE.sub("\ufffd", str(item))
    return whole[0]


def _is_accepted(kind: type, value: Any) -> bool:  # noqa: ANN401 - any JSON value but a list or an object
    if kind is str:
        return bool(value.isascii() or _SURROGATE.search(value) is None)
    if kind is int:
        return bool(-SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX)
    return bool(kind is not float or isfinite(value))


def flattened(raw: bytes, levels: int = _LEVELS_MAX) -> bytes:
    """Return the JSON ``raw`` with the JSON text of each list or object below ``levels`` levels in its place.

    Raises: ValueError if that takes too long, because of more than a million brackets.
    """
    if not _may_be_deeper(raw, levels):
        return raw
    parts: list[bytes] = []
    depth = kept = begin = 0
    for number, found in enumerate(_BRACKETS.finditer(raw)):
        start, before = found.start(), depth
        if number > _BRACKETS_MAX:
            raise ValueError("nested too deeply")
        if raw[start] in b"[{":
            depth += found.end() - start
            if before <= levels < depth:
                begin = start + levels - before
        elif raw[start] in b"]}":
            depth -= found.end() - start
            if before > levels >= depth:
                end = start + before - levels
                parts += raw[kept:begin], msgspec.json.encode(raw[begin:end].decode("utf-8", "replace"))
                kept = end
    return b"".join((*parts, raw[kept:]))


def _may_be_deeper(raw: bytes, levels: int) -> bool:
    """Return True if the JSON ``raw`` has more than ``levels`` levels, or if it would take long to know."""
    if raw.count(b"[") + raw.count(b"{") <= levels:
        return False
    outside = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    left = b"".join(outside).translate(_PARENTHESES, _NO_BRACKETS)
    passed = 0
    for _ in range(levels):  # Each pass removes the innermost level.
        size = len(left)
        left = left.replace(b"()", b"")
        passed += size
        if len(left) in (0, size) or passed > _PASSED_BYTES_MAX:
            break
    return len(left) not in (0, size)


def damaged(line: Line) -> Entry:
    """Return the event of a line that is not a JSON object."""
    return Entry(line.number, OpaqueEvent(kind=DAMAGED, data=line.text))


def opaque(kind: str, record: Record, **fields: Any) -> OpaqueEvent:  # noqa: ANN401 - fields of the event
    """Return the event of a record that no other kind of event describes."""
    return OpaqueEvent(kind=kind, data=dict(record), **fields)


def rest(record: Record, *used: str) -> dict[str, Any] | None:
    """Return the members of ``record`` except ``used``, those that have fields in an event; None if nothing is left."""
    left = dict(record)
    for name in used:
        left.pop(name, None)
    return left or None


def milliseconds(value: object) -> int | None:
    """Return a time in ms since 1970, from such a number or from ISO 8601 text (UTC if it has no offset); None for
    other values, and for numbers that a double cannot hold exactly."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return round(value) if abs(value) <= SAFE_INTEGER_MAX else None
    return None


def as_text(value: object) -> str:
    """Return ``value`` if it is text, else the empty string."""
    return value if isinstance(value, str) else ""


def id_of(record: Record) -> str | None:
    """Return the id of a record at its source, None if it has none."""
    if "msg" in record:
        return None  # The first headless format of codex has the number of a request in all lines of a turn.
    for name in ("uuid", "id", "row"):
        if isinstance(found := record.get(name), str) and found:
            return found
    return as_text(record_of(record.get("info")).get("id")) or None


def parent_of(record: Record) -> str:
    """Return the id of the parent of a record in a tree, empty if it has none."""
    return as_text(record.get("parentUuid")) or as_text(record.get("parentId"))


def number_of(value: object) -> int | None:
    """Return ``value`` if it is an integer, but not a boolean; else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def record_of(value: object) -> Record:
    """Return ``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def records_of(value: object) -> list[Record]:
    """Return the objects in a list; an empty list for other values."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def args_object(args: object) -> dict[str, Any]:
    """Return the arguments of a tool call as an object; any other value, if there is one, as its member ``input``."""
    return args if isinstance(args, dict) else {} if args is None else {"input": args}


def usage_of(found: object, *, input: str, output: str, cache_read: str, cache_write: str = "") -> Usage | None:
    """Return the token counts in ``found``, under the names that a format uses; None if it has neither input nor
    output."""
    counts = record_of(found)
    sent, received = number_of(counts.get(input)), number_of(counts.get(output))
    if sent is None and received is None:
        return None
    read, written = number_of(counts.get(cache_read)), number_of(counts.get(cache_write))
    return Usage(
        input=max(0, sent or 0),
        output=max(0, received or 0),
        cache_read=max(0, read or 0),
        cache_write=max(0, written or 0),
    )


def attachment_of(media_type: str, source: object, name: str | None = None) -> Attachment:
    """Return an attachment from base64 text, a data URL, or an address outside the transcript."""
    text = as_text(source)
    if found := _DATA_URL.fullmatch(text):
        media_type, text = found["type"] or media_type, found["data"]
    elif "://" in text[:64]:
        return Attachment(media_type=media_type, name=name, url=text)
    try:
        return Attachment(media_type=media_type, name=name, data=b64decode(text, validate=True))
    except (Base64Error, ValueError):
        return Attachment(media_type=media_type, name=name, url=text)


def resource_of(block: object) -> Attachment | None:
    """Return the bytes in a resource of an MCP server; None for a block of another form."""
    match block:
        case {"type": "resource", "resource": {"blob": str(data)} as resource}:
            named = as_text(resource.get("mimeType")) or UNKNOWN_MEDIA
            return attachment_of(named, data, as_text(resource.get("uri")) or None)
        case _:
            return None


def total_usage(entries: Iterable[Entry]) -> Usage:
    """Return the tokens billed for all responses. Events of one provider message share its usage, so only the last one
    of each message counts. Memory: one entry for each message.
    """
    by_message: dict[str | int, Usage] = {}
    for entry in entries:
        usage = getattr(entry.event, "usage", None)
        if usage is not None:
            by_message[entry.event.message or entry.line] = usage
    return Usage(
        input=sum(each.input for each in by_message.values()),
        output=sum(each.output for each in by_message.values()),
        cache_read=sum(each.cache_read for each in by_message.values()),
        cache_write=sum(each.cache_write for each in by_message.values()),
    )
