"""``events-v1``: a CBOR array of Bureau's events, byte for byte.

An item holds its type, whole seconds, and one payload; JSON inside it is a byte string. Other fields of a typed event
are in the item's member ``ctxd``, which other readers ignore; so every event survives encoding and decoding. Unknown
members and types survive too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from ctxd.formats.cbor_array import UnreadableDelta, encoded, items, joined
from ctxd.formats.losses import event_text
from ctxd.transcripts.record_decoding import decoded
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)

Item = dict[str, Any]

NAME: Final = "events-v1"

_PART: Final = "ctxd_part"
_WORD_MAX: Final = 4096
"""Words up to this many bytes are not split between two parts."""

_EXTENSION: Final = "ctxd"
_COMPACTED: Final = "compact_boundary"
_SOURCE: Final = "user"
_VERBATIM: Final = frozenset({"metric", "error"})
"""Types whose payload is the data of an opaque event."""


def event_of(item: object) -> Event:
    """Return the event of one item. ``item_of`` is the exact inverse.

    An item of an unknown type, or with members of unexpected types, is an opaque event of kind ``events-v1``.
    """
    if not isinstance(item, dict):
        return OpaqueEvent(kind=NAME, data=item)
    extension = item.get(_EXTENSION)
    plain = {key: value for key, value in item.items() if key != _EXTENSION} if isinstance(extension, dict) else item
    event = _read(plain)
    if not isinstance(extension, dict) or event is None:
        return event or OpaqueEvent(kind=NAME, data=item)
    members = {**_members(event), **extension}
    try:
        extended: Event = msgspec.convert({name: each for name, each in members.items() if each is not None}, Event)
    except msgspec.ValidationError:
        return OpaqueEvent(kind=NAME, data=item)
    return extended


def item_of(event: Event) -> Any:  # noqa: ANN401 - an unread item may be any value
    """Return the item of one event."""
    if isinstance(event, OpaqueEvent) and event.kind == NAME:
        return event.data
    try:
        return _whole_item(event)
    except (TypeError, ValueError, OverflowError):
        return _whole_item(_plain(event))


def _whole_item(event: Event) -> Item:
    """Return the item of an event, with the member ``ctxd`` if necessary. Raises: TypeError, ValueError, OverflowError
    for values that JSON cannot express."""
    item = _written(event)
    kept = _read(item)
    if kept == event:
        return item
    mine, theirs = _members(event), {} if kept is None else _members(kept)
    gone = dict.fromkeys(theirs.keys() - mine.keys())
    differing = {name: value for name, value in mine.items() if name not in theirs or theirs[name] != value}
    return {**item, _EXTENSION: {**gone, **differing}}


def encoded_items(event: Event, bytes_max: int) -> list[bytes]:
    """Return an event as encoded items of about ``bytes_max`` bytes at most: one, or parts that ``events`` joins."""
    item = encoded(item_of(event))
    if len(item) <= bytes_max:
        return [item]
    return _split(item, bytes_max, None if event.at is None else event.at // 1000)


def _split(item: bytes, bytes_max: int, at: object) -> list[bytes]:
    """Split an encoded item into encoded parts of about ``bytes_max`` bytes, with the time ``at`` in seconds."""
    parts, start = [], 0
    while start < len(item):
        end = start + bytes_max
        if end < len(item):
            # Parts are scanned separately, so words, which may be secrets, are not split.
            end = max(item.rfind(b" ", end - _WORD_MAX, end), item.rfind(b"\n", end - _WORD_MAX, end), start) + 1
            end = end if end > start + 1 else start + bytes_max
        parts.append(item[start:end])
        start = end
    return [
        encoded({"type": "output", "timestamp": at, "output": {"raw": part}, _PART: [number, len(parts)]})
        for number, part in enumerate(parts, 1)
    ]


Split = Callable[[bytes], list[bytes]]


def whole_items(found: Iterable[Any]) -> Iterator[tuple[Any, Split]]:
    """Yield items, with the parts of one item joined, each with a function that splits its encoding again."""
    for run in _runs(found):
        if isinstance(run[-1], dict) and run[-1].get(_PART) == [len(run), len(run)]:
            raws = [part["output"]["raw"] for part in run]
            try:
                (item,) = items(joined([b"".join(raws)]))
            except UnreadableDelta:
                pass
            else:
                yield item, partial(_split, bytes_max=max(map(len, raws)), at=run[0].get("timestamp"))
                continue
        for item in run:
            yield item, lambda whole: [whole]


def _runs(found: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield each item in a list of its own, and consecutive parts, beginning with the first, in one list."""
    held: list[Any] = []
    for item in found:
        match item:
            case {"output": {"raw": bytes()}, "ctxd_part": [int(number), int(parts)]} if number == len(held) + 1:
                held.append(item)
                if number == parts:
                    yield held
                    held = []
            case _:
                if held:
                    yield held
                held = []
                yield [item]
    if held:
        yield held


def events(found: Iterable[Any]) -> Iterator[Event]:
    """Yield the events of items. Parts that do not form a whole item are yielded as separate events."""
    for item, _ in whole_items(found):
        yield event_of(item)


def _plain(event: Event) -> Event:
    """Return ``event`` with values that JSON cannot express, such as sets, as encoded CBOR."""
    held = {name: getattr(event, name, None) for name in ("args", "data", "meta")}
    odd = {name: {"cbor": encoded(value)} for name, value in held.items() if not _is_plain(value)}
    return msgspec.structs.replace(event, **odd)


def _is_plain(value: object) -> bool:
    try:
        msgspec.to_builtins(value, builtin_types=(bytes,))
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _members(event: Event) -> dict[str, Any]:
    found = msgspec.to_builtins(event, builtin_types=(bytes,))
    assert isinstance(found, dict)
    return found


# --- items to events ---


def _read(item: Item) -> Event | None:
    """Return the event of an item; None if encoding it again would not give the same item."""
    kind = item.get("type")
    payload = item.get(kind) if isinstance(kind, str) else None
    if not isinstance(kind, str) or not isinstance(payload, dict) or kind not in _READERS:
        return None
    try:
        event = _READERS[kind](payload)
        seconds = item.get("timestamp")
        if type(seconds) is int:
            event = msgspec.structs.replace(event, at=seconds * 1000)
        return _with_rest(event, item, kind)
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def _with_rest(event: Event, item: Item, kind: str) -> Event | None:
    """Add to ``meta`` the members that have no field. None if the result would not encode to ``item``."""
    plain = _written(event)
    if plain == item:
        return event
    payload, found = plain[kind], item[kind]
    beside = {name: value for name, value in item.items() if name != kind and plain.get(name, ...) != value}
    within = {name: value for name, value in found.items() if payload.get(name, ...) != value}
    meta = {**(event.meta or {}), NAME: {"event": beside, "payload": within}}
    event = msgspec.structs.replace(event, meta=meta)
    return event if _written(event) == item else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def _json(raw: object) -> Any:  # noqa: ANN401 - any JSON value
    """Decode JSON in a byte string; return other text as a string, and other bytes unchanged."""
    if not isinstance(raw, bytes):
        raise TypeError("not a byte string")
    try:
        return decoded(raw)
    except ValueError:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw


def _raw(value: object) -> bytes:
    match value:
        case bytes():
            return value
        case str():
            return value.encode()
        case _:
            return msgspec.json.encode(value)


def _prompt(payload: Mapping[str, Any]) -> Event:
    source = _text(payload["source"]) if "source" in payload else None
    return PromptEvent(text=_text(payload["content"]), meta=None if source == _SOURCE else {"source": source})


def _call(payload: Mapping[str, Any]) -> Event:
    args = _json(payload["input"]) if "input" in payload else None
    meta = {"server_tool": True} if payload.get("server_tool") is True else None
    return ToolCallEvent(call=_text(payload.get("id", "")), tool=_text(payload["name"]), args=args, meta=meta)


def _result(payload: Mapping[str, Any]) -> Event:
    text, call = _text(payload.get("output", "")), _text(payload.get("id", ""))
    return ToolResultEvent(call=call or None, text=text, is_error=payload.get("is_error") is True)


def _system(payload: Mapping[str, Any]) -> Event:
    subtype, text = _text(payload["subtype"]), _text(payload.get("message", ""))
    found = _json(payload["metadata"]) if "metadata" in payload else None
    meta = found if isinstance(found, dict) else None
    if subtype != _COMPACTED:
        return SystemEvent(text=text, kind=subtype or None, meta=meta)
    tokens = (meta or {}).get("pre_tokens")
    return CompactionEvent(summary=text, tokens_before=tokens if type(tokens) is int else None, meta=meta)


def _thinking(payload: Mapping[str, Any]) -> Event:
    return ThinkingEvent(text=_text(payload["content"]), signature=_text(payload.get("signature", "")) or None)


_READERS: Final[dict[str, Callable[[Mapping[str, Any]], Event]]] = {
    "prompt": _prompt,
    "response": lambda payload: ResponseEvent(text=_text(payload["content"])),
    "thinking": _thinking,
    "tool_call": _call,
    "tool_result": _result,
    "system": _system,
    "metric": lambda payload: OpaqueEvent(kind="metric", data=dict(payload)),
    "error": lambda payload: OpaqueEvent(kind="error", data=dict(payload)),
    "output": lambda payload: OpaqueEvent(kind="output", data=_json(payload["raw"])),
}


# --- events to items ---


def _written(event: Event) -> Item:
    """Return the item of an event without the member ``ctxd``, so without fields that the format lacks."""
    kind, payload = _payload(event)
    at = None if event.at is None else event.at // 1000
    item: Item = {"type": kind, "timestamp": at, kind: payload}
    rest = (event.meta or {}).get(NAME)
    match rest:
        case {"event": dict(beside), "payload": dict(within)}:
            return {**item, **beside, kind: {**payload, **within}}
        case _:
            return item


def _payload(event: Event) -> tuple[str, Item]:
    match event:
        case PromptEvent():
            source = (event.meta or {}).get("source", _SOURCE)
            given = {} if source is None else {"source": source if isinstance(source, str) else _SOURCE}
            return "prompt", {**given, "content": event.text}
        case ResponseEvent():
            return "response", {"content": event.text}
        case ThinkingEvent():
            return "thinking", {"content": event.text, **_given(signature=event.signature)}
        case ToolCallEvent():
            args = None if event.args is None else _raw(event.args)
            server = (event.meta or {}).get("server_tool") is True
            return "tool_call", {**_given(id=event.call), "name": event.tool, **_given(input=args, server_tool=server)}
        case ToolResultEvent():
            return "tool_result", _given(id=event.call, output=event.text, is_error=event.is_error)
        case SystemEvent() | CompactionEvent():
            return "system", _notice(event)
        case OpaqueEvent(kind=str(kind), data=dict(data)) if kind in _VERBATIM:
            return kind, data
        case OpaqueEvent():
            return "output", {"raw": _raw(event.data)}


def _notice(event: SystemEvent | CompactionEvent) -> Item:
    meta = {name: value for name, value in (event.meta or {}).items() if name != NAME}
    if isinstance(event, SystemEvent):
        subtype = event.kind or ""
    else:
        subtype = _COMPACTED
        if event.tokens_before is not None:
            meta.setdefault("pre_tokens", event.tokens_before)
    return {"subtype": subtype, **_given(message=event_text(event), metadata=_raw(meta) if meta else None)}


def _given(**members: object) -> Item:
    return {name: value for name, value in members.items() if value}
