"""Deltas that are one CBOR array: reading items one at a time, and concatenation without decoding them.

Arrays are written in the core deterministic encoding of RFC 8949, so that equal conversations have equal bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple

import cbor2
from cbor2 import CBORTag

_NULL: Final = b"\xf6"
"""The CBOR value that Go writes for a nil slice: read as an empty array."""

_INDEFINITE: Final = 0x9F
_BREAK: Final = 0xFF
_ARRAY: Final = 0x80


class UnreadableDelta(ValueError):
    """The bytes of a delta are not valid in its format."""


def _refused(_value: object, _immutable: bool) -> Any:  # noqa: ANN401 - the signature of cbor2's callbacks
    message = "CBOR references (tags 25, 28, 29 and 256) are refused, because a few bytes could expand without bound"
    raise UnreadableDelta(f"{message}; encode the values without references")


def _as_tag(tag: int) -> Callable[[Any, bool], CBORTag]:
    return lambda value, _: CBORTag(tag, value)


_SEMANTIC: Final = {
    **dict.fromkeys((25, 28, 29, 256), _refused),
    # Dates, fractions, regular expressions, MIME, UUIDs, addresses, sets, complex numbers: kept as plain tagged values.
    **{tag: _as_tag(tag) for tag in (0, 1, 4, 5, 30, 35, 36, 37, 52, 54, 100, 258, 260, 261, 1004, 43000, 55799)},
}
"""Decoders of tagged values, for all tags that cbor2 would decode itself, except big integers."""


class _Head(NamedTuple):
    """Head of an array: its number of items, None for indefinite length, and the offset of the first item."""

    length: int | None
    size: int


def encoded(item: object) -> bytes:
    """Return one item in deterministic CBOR: shortest forms, keys sorted by length and then by bytes."""
    return cbor2.dumps(item, canonical=True)


def array_head(count: int) -> bytes:
    """Return the head of an array of ``count`` items."""
    if count < 24:
        return bytes([_ARRAY | count])
    size = next(power for power in range(4) if count < 1 << (8 << power))
    return bytes([_ARRAY | 24 + size]) + count.to_bytes(1 << size, "big")


def joined(found: Sequence[bytes]) -> bytes:
    """Return the array of encoded items."""
    return array_head(len(found)) + b"".join(found)


def joinable(content: bytes) -> tuple[int, memoryview | bytes]:
    """Return the number of items of an array and their bytes, ready to be embedded in another array.

    Cost: constant, except for an array of indefinite length, which is encoded again. Raises: UnreadableDelta if
    ``content`` does not begin as an array; the items themselves are not checked.
    """
    head = _head(content)
    if head.length is not None:
        return head.length, memoryview(content)[head.size :]
    found = [encoded(item) for item in items(content)]
    return len(found), b"".join(found)


def items(content: bytes, *, unique: bool = False) -> Iterator[Any]:
    """Yield the items of an array, one at a time. With ``unique``, maps with duplicate keys are refused.

    Raises: UnreadableDelta while iterating.
    """
    head = _head(content)
    file = BytesIO(content)
    file.seek(head.size)
    decoder = cbor2.CBORDecoder(file, semantic_decoders=_SEMANTIC, allow_duplicate_keys=not unique)
    found = 0
    try:
        while (found < head.length) if head.length is not None else (content[file.tell()] != _BREAK):
            yield decoder.decode()
            found += 1
    except (cbor2.CBORError, IndexError, RecursionError, UnicodeDecodeError) as error:
        why = error.__cause__ if isinstance(error.__cause__, UnreadableDelta) else error
        raise UnreadableDelta(f"item {found + 1} of the CBOR array cannot be read: {why}") from None
    end = file.tell() + (head.length is None)
    if end != len(content):
        raise UnreadableDelta(f"{len(content) - end} bytes follow the end of the CBOR array")


def _head(content: bytes) -> _Head:
    if content == _NULL:
        return _Head(0, 1)
    first = content[0] if content else -1
    if first == _INDEFINITE:
        return _Head(None, 1)
    small = first - _ARRAY
    if 0 <= small < 24:
        return _Head(small, 1)
    if 24 <= small <= 27 and len(content) > 1 << (small - 24):
        size = 1 + (1 << (small - 24))
        return _Head(int.from_bytes(content[1:size], "big"), size)
    raise UnreadableDelta("it is not a CBOR array")
