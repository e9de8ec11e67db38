"""Differences of serialised values, as spans of bytes that two versions share. Pure.

The delta of a value that grows at its end, such as a list of messages, has only the added bytes. The head of a
MessagePack array or map contains its length and changes each time, so it is kept apart from the body.
"""

from typing import Final, NamedTuple

import msgspec

_BLOCK: Final = 64 * 1024

_MSGPACK: Final = "msgpack"
"""The name of this encoding in LangGraph's serialisers."""


class Value(NamedTuple):
    """A serialised value: the name of its encoding, and its bytes as a head of up to five bytes and a body."""

    kind: str
    head: bytes
    body: bytes

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return len(self.head) + len(self.body)

    @property
    def typed(self) -> tuple[str, bytes]:
        """The value in the form of a serialiser's input."""
        return self.kind, self.head + self.body


Values = dict[str, Value]
"""The values of a state by channel."""


class ValueDelta(msgspec.Struct, frozen=True, array_like=True):
    """A value whose body is the first ``kept_start`` and the last ``kept_end`` bytes of the previous body, with
    ``added`` between them."""

    channel: str
    kind: str
    head: bytes
    kept_start: int
    kept_end: int
    added: bytes


def split(kind: str, data: bytes) -> Value:
    """The value that was serialised to ``data``, split into head and body."""
    size = _head_size(data) if kind == _MSGPACK and data else 0
    return Value(kind, data[:size], data[size:])


def difference(channel: str, old: Value | None, new: Value) -> ValueDelta:
    """The delta from ``old`` to ``new``. Cost: linear in both."""
    if old is None or old.kind != new.kind:
        return ValueDelta(channel, new.kind, new.head, 0, 0, new.body)
    start = _common_start(old.body, new.body)
    end = _common_end(old.body, new.body, min(len(old.body), len(new.body)) - start)
    return ValueDelta(channel, new.kind, new.head, start, end, new.body[start : len(new.body) - end])


class _LiveValue:
    """A value that can be modified in place."""

    __slots__ = ("body", "head", "kind")

    def __init__(self, kind: str, head: bytes, body: bytearray) -> None:
        self.kind = kind
        self.head = head
        self.body = body


class _UndoneChange(NamedTuple):
    """The undoing of a change: restore ``before``, if given; otherwise delete the channel, if ``start`` is negative, or
    replace ``added`` bytes at ``start`` by ``removed``."""

    channel: str
    before: _LiveValue | None
    kind: str
    head: bytes
    start: int
    added: int
    removed: bytes


class ValueWalk:
    """A state that moves forward by deltas, and back: the cost of a step depends on its changes, not on the values."""

    def __init__(self) -> None:
        self._places: dict[str, _LiveValue] = {}
        self._steps: list[list[_UndoneChange]] = []

    def forward(self, deltas: list[ValueDelta], gone: list[str]) -> None:
        """Apply the deltas of one step, and remove the channels that are ``gone``. Raises: ValueError for a delta that
        does not fit the state."""
        undo = [self._apply(delta) for delta in deltas]
        for channel in gone:
            place = self._places.pop(channel, None)
            if place is not None:
                undo.append(_UndoneChange(channel, place, "", b"", 0, 0, b""))
        self._steps.append(undo)

    def back(self) -> None:
        """Undo the last step."""
        for each in reversed(self._steps.pop()):
            if each.before is not None:
                self._places[each.channel] = each.before
            elif each.start < 0:
                del self._places[each.channel]
            else:
                place = self._places[each.channel]
                place.kind, place.head = each.kind, each.head
                place.body[each.start : each.start + each.added] = each.removed

    def typed(self) -> dict[str, tuple[str, bytes]]:
        """The values in the form of a serialiser's input."""
        return {name: (place.kind, b"".join((place.head, place.body))) for name, place in self._places.items()}

    def values(self) -> Values:
        """A copy of the state."""
        return {name: Value(place.kind, place.head, bytes(place.body)) for name, place in self._places.items()}

    def _apply(self, delta: ValueDelta) -> _UndoneChange:
        place = self._places.get(delta.channel)
        kept = delta.kept_start + delta.kept_end
        if place is None or not kept:
            self._places[delta.channel] = _LiveValue(delta.kind, delta.head, bytearray(delta.added))
            if kept:
                raise ValueError(f"the delta of channel {delta.channel!r} is of another state")
            return _UndoneChange(delta.channel, place, "", b"", -1, 0, b"")
        if kept > len(place.body):
            raise ValueError(f"the delta of channel {delta.channel!r} is of another state")
        end = len(place.body) - delta.kept_end
        removed = bytes(place.body[delta.kept_start : end])
        undo = _UndoneChange(delta.channel, None, place.kind, place.head, delta.kept_start, len(delta.added), removed)
        place.kind, place.head = delta.kind, delta.head
        place.body[delta.kept_start : end] = delta.added
        return undo


def _head_size(data: bytes) -> int:
    """Bytes of the head of a MessagePack array or map; 0 for any other value."""
    first = data[0]
    if 0x80 <= first <= 0x9F:
        return 1
    return {0xDC: 3, 0xDE: 3, 0xDD: 5, 0xDF: 5}.get(first, 0)


def _common_start(one: bytes, other: bytes) -> int:
    most = min(len(one), len(other))
    if other.startswith(one) or one.startswith(other):
        return most
    start = 0
    while one[start : start + _BLOCK] == other[start : start + _BLOCK]:
        start += _BLOCK
    low, high = start, min(start + _BLOCK, most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_end(one: bytes, other: bytes, most: int) -> int:
    """Number of bytes, ``most`` at most, of the common end of both."""
    if not most:
        return 0
    ends = one[len(one) - most :], other[len(other) - most :]
    if ends[0] == ends[1]:
        return most
    low = 0
    while low + _BLOCK <= most and _slice(ends[0], low, low + _BLOCK) == _slice(ends[1], low, low + _BLOCK):
        low += _BLOCK
    high = min(low + _BLOCK, most)
    while low < high:
        middle = (low + high + 1) // 2
        if _slice(ends[0], low, middle) == _slice(ends[1], low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _slice(data: bytes, start: int, end: int) -> bytes:
    """The bytes of ``data`` between two distances from its end."""
    return data[len(data) - end : len(data) - start]
