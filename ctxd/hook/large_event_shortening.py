"""Cutting of events that are too large for a call: long texts, lists and objects keep their beginning, with a notice of
how much was left out. Separate: only a large event needs the module ``json``."""

import gc
import json
from _json import encode_basestring  # type: ignore[import-not-found,unused-ignore]

_SHARES = 8
"""Parts into which the remaining room is divided, at most: a value gets one, so that later values get some as well."""

_WHOLE = 256
"""Bytes up to which a value is never cut: the notice would be as long."""

_DEPTH_MAX = 100

_VALUES_MAX = 2_000_000
"""Maximum number of values that are parsed, in about a second. The time limit cannot interrupt the parser."""

_WHY = "the event is too large"
LEFT_OUT = "[left out by ctx-hook]"
"""Name of the member with the notice in an object."""


def cut(raw: bytes, room: int) -> bytes:
    """The event ``raw``, a JSON object, cut to about ``room`` bytes. The time for parsing grows with the input, but the
    time for cutting with ``room`` alone: values that are left out are not visited. Raises: OverflowError for too many
    values; ValueError, RecursionError."""
    if _values(raw) > _VALUES_MAX:
        raise OverflowError("the event has too many values")
    gc.disable()  # It would traverse the millions of new values again and again.
    event = json.loads(raw.decode("utf-8", "replace"))
    if isinstance(event, dict):
        # Short members, such as ids and names, come first.
        event = dict(sorted(event.items(), key=lambda member: _is_long(member[1])))
    short, _ = _short(event, room, 0)
    return json.dumps(short, ensure_ascii=False).encode("utf-8", "replace")


def _values(raw: bytes) -> int:
    """The approximate number of values in ``raw``, without parsing it."""
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = plain.count(b'"') // 2
    if texts > 2 * _VALUES_MAX:  # With the names of members.
        return texts
    outside = b"".join(plain.split(b'"')[::2])
    return outside.count(b",") + outside.count(b"[") + outside.count(b"{")


def _is_long(value: object) -> bool:
    return isinstance(value, list | dict) or (isinstance(value, str) and len(value) > _WHOLE)


def _short(value: object, room: int, depth: int) -> tuple[object, int]:
    """``value`` cut to about ``room`` bytes, and its size in bytes."""
    room = max(room, _WHOLE)
    if isinstance(value, str):
        return _short_text(value, room)
    if isinstance(value, list | dict):
        if depth > _DEPTH_MAX:
            return LEFT_OUT, len(LEFT_OUT) + 2
        return _short_list(value, room, depth) if isinstance(value, list) else _short_object(value, room, depth)
    return value, 6 if value is None or isinstance(value, bool) else len(repr(value)) + 1


def _bytes(text: str) -> int:
    """The size of ``text`` in JSON, in bytes."""
    quoted = encode_basestring(text)
    return len(quoted) if quoted.isascii() else len(quoted.encode("utf-8", "replace"))


def _short_text(text: str, room: int) -> tuple[str, int]:
    piece = text[: room - 2]  # It is quoted.
    while (size := _bytes(piece)) > room:
        piece = piece[: len(piece) // 2]
    if len(piece) == len(text):
        return text, size
    notice = f"\n[{len(text) - len(piece):,} characters were cut by ctx-hook: {_WHY}]"
    return piece + notice, size + len(notice)


def _short_list(items: list[object], room: int, depth: int) -> tuple[list[object], int]:
    kept: list[object] = []
    used = 2
    for number, item in enumerate(items):
        left = len(items) - number
        if used >= room:
            kept.append(f"[{left:,} items were left out by ctx-hook: {_WHY}]")
            break
        short, size = _short(item, (room - used) // min(left, _SHARES), depth + 1)
        kept.append(short)
        used += size + 2
    return kept, used


def _short_object(members: dict[str, object], room: int, depth: int) -> tuple[dict[str, object], int]:
    kept: dict[str, object] = {}
    used = 2
    for number, (name, value) in enumerate(members.items()):
        left = len(members) - number
        if used >= room:
            kept[LEFT_OUT] = f"{left:,} members: {_WHY}"
            break
        short, size = _short(value, (room - used) // min(left, _SHARES), depth + 1)
        kept[name] = short
        used += size + _bytes(name) + 4
    return kept, used
