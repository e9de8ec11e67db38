"""Records of a transcript: tolerant decoding of JSON lines, and the parts that all formats share.

A reader yields at least one event for every complete line, so that nothing of a transcript is lost: a line that is not
a JSON object becomes an ``OpaqueEvent`` of kind ``damaged``, an unknown record one of its own kind.
"""

import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from ctxd_protocol.event_types import Attachment, Event, OpaqueEvent, Usage
from ctxd_protocol.limits import SAFE_INTEGER_MAX

Record = Mapping[str, Any]

LINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the longest line that is read: images in base64 make lines of tens of MiB."""

DAMAGED: Final = "damaged"
"""Kind of the opaque event for a line that is not a JSON object."""

PART: Final = "ctxd-part"
"""Type of the record that holds a part of a line which is too long for one delta: ``text`` or ``latin1``."""

_LONG_NUMBER: Final = b"0" * 16
"""The shortest integer that no double may hold, its digits as zeros."""

_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DATA_URL: Final = re.compile(r"data:(?P<type>[^;,]*)(?:;[^,]*)?;base64,(?P<data>.*)", re.S)


class Line(NamedTuple):
    """One complete line: its number from 1, and its record; None where it is not a JSON object, with its text."""

    number: int
    record: Record | None
    text: str = ""


class Entry(NamedTuple):
    """One event, and the number of the line or row that it comes from."""

    line: int
    event: Event


def lines(file: BinaryIO) -> Iterator[Line]:
    """Yield the complete lines of ``file``, blank ones and a byte order mark left out.

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
    """Yield lines, those that were kept in parts whole again; parts that do not make a JSON object stay as they are."""
    held: list[Line] = []
    size = 0
    for line in found:
        record = line.record or {}
        if record.get("type") != PART or record.get("number") != len(held) + 1:
            yield from held
            held, size = [], 0
        if record.get("type") != PART or size > LINE_BYTES_MAX:
            yield line
            continue
        held.append(line)
        size += len(text_of(record.get("text")))
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
                text_of(piece["latin1"]).encode("latin-1") if "latin1" in piece else text_of(piece.get("text")).encode()
                for piece in pieces
            )
        )
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def decoded(raw: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Decode JSON that a harness wrote, such that a session accepts it.

    Invalid UTF-8 and halves of surrogate pairs become U+FFFD, integers that no double holds and non-finite numbers
    become text. Raises: ValueError if it is not JSON.
    """
    try:
        value = msgspec.json.decode(raw)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            value = json.loads(raw.decode("utf-8", "replace"), parse_constant=str)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        return _accepted(value)
    return _accepted(value) if _LONG_NUMBER in raw.translate(_DIGITS_AS_ZEROS) else value


def _accepted(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case bool() | None:
            return value
        case int() if abs(value) > SAFE_INTEGER_MAX:
            return str(value)
        case float() if not isfinite(value):
            return str(value)
        case list():
            return [_accepted(item) for item in value]
        case dict():
            return {_SURROGATE.sub("\ufffd", key): _accepted(item) for key, item in value.items()}
        case _:
            return value


def damaged(line: Line) -> Entry:
    """Return the event of a line that is not a JSON object."""
    return Entry(line.number, OpaqueEvent(kind=DAMAGED, data=line.text))


def opaque(kind: str, record: Record, **fields: Any) -> OpaqueEvent:  # noqa: ANN401 - fields of the event
    """Return the event of a record that no other event describes."""
    return OpaqueEvent(kind=kind, data=dict(record), **fields)


def rest(record: Record, *used: str) -> dict[str, Any] | None:
    """Return the members of ``record`` without those that an event has fields for; None if nothing is left."""
    return {name: value for name, value in record.items() if name not in used} or None


def milliseconds(value: object) -> int | None:
    """Return a time in ms since 1970: from such a number, or from ISO 8601 (UTC without an offset); None for others,
    and for a number that no double holds."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return round(value) if abs(value) <= SAFE_INTEGER_MAX else None
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return None


def text_of(value: object) -> str:
    """Return ``value`` if it is text, else nothing."""
    return value if isinstance(value, str) else ""


def id_of(record: Record) -> str | None:
    """Return the id of a record at its source, None for one without."""
    for name in ("uuid", "id", "row"):
        if isinstance(found := record.get(name), str) and found:
            return found
    return text_of(record_of(record.get("info")).get("id")) or None


def parent_of(record: Record) -> str:
    """Return the id of the record that one of a tree follows, empty for one without."""
    return text_of(record.get("parentUuid")) or text_of(record.get("parentId"))


def number_of(value: object) -> int | None:
    """Return ``value`` if it is a whole number, which ``true`` is not."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def record_of(value: object) -> Record:
    """Return ``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def records_of(value: object) -> list[Record]:
    """Return the objects of a list; those of anything else are none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def usage_of(found: object, *, input: str, output: str, cache_read: str, cache_write: str = "") -> Usage | None:
    """Return token counts under the names that a format gives them; None where it recorded no count."""
    counts = record_of(found)
    if not any(number_of(counts.get(name)) is not None for name in (input, output)):
        return None

    def count(name: str) -> int:
        return max(0, number_of(counts.get(name)) or 0)

    return Usage(input=count(input), output=count(output), cache_read=count(cache_read), cache_write=count(cache_write))


def attachment_of(media_type: str, source: object, name: str | None = None) -> Attachment:
    """Return an attachment from base64 text, a data URL, or an address outside the transcript."""
    text = text_of(source)
    if found := _DATA_URL.fullmatch(text):
        media_type, text = found["type"] or media_type, found["data"]
    elif "://" in text[:64]:
        return Attachment(media_type=media_type, name=name, url=text)
    try:
        return Attachment(media_type=media_type, name=name, data=b64decode(text, validate=True))
    except (Base64Error, ValueError):
        return Attachment(media_type=media_type, name=name, url=text)


def total_usage(entries: Iterable[Entry]) -> Usage:
    """Return the tokens billed for all responses: events of one provider message share its usage, so that the last
    one of each message counts. Cost: one entry for each message.
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
