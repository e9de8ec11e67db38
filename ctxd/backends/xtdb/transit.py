"""The subset of Transit that ctxd exchanges with XTDB nodes.

Writing is JSON with two differences: text that starts with ``~``, ``^`` or a backtick gets a ``~`` in front, and
integers beyond JSON's numbers are text. It goes through msgspec and one substitution over the bytes; only a value with
such an integer, or with a nil, which may stand for a non-finite float, is walked.

Reading covers everything that a node sends, with the cache of repeated keys, and is strict: unknown input is
``NotTransit``, never a guess.
"""

import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from itertools import product
from math import inf, isfinite, nan
from typing import Any, Final

import msgspec

from ctxd.formatting import count
from ctxd_protocol.limits import SAFE_INTEGER_MAX


class NotTransit(ValueError):
    """Bytes that are not transit, or that no XTDB node sends."""


class Keyword(str):
    """A Clojure keyword, without its colon: equal to the text that it is spelled with."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Name after the namespace."""
        return self.rpartition("/")[2] or str(self)


_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_json: Final = msgspec.json.Encoder().encode
_parse: Final = msgspec.json.Decoder(strict=True).decode

_SIGNED: Final = re.compile(rb'"[~^`]')
"""A quote followed by one of the signs, where a text that has to be escaped may start."""

_STARTS: Final = re.compile(rb'"(?<!\\")(?=[~^`])')
"""The start of such a text. Inside a text, a quote has a backslash before it; one that ends it is followed by
punctuation."""

_LONG: Final = tuple(re.compile(before + rb"-?[0-9]{16}") for before in (rb"\A", rb"\[", rb",", rb":"))
"""Integers that may be beyond 2^53: four patterns, since one that starts with a plain character is much faster."""


def encode(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """``value`` as transit: made of dict with text keys, list, tuple, str, int, float, bool and None.

    Raises: TypeError, ValueError or OverflowError for values without a JSON form: a non-finite float, a lone surrogate,
    nesting that exhausts the stack.
    """
    return encode_all((value,))[0]


def encode_all(values: Collection[Any]) -> list[bytes]:
    """Encode each of ``values`` as ``encode`` does; faster together if all are plain JSON."""
    try:
        try:
            spelled = [_json(value) for value in values]
        except OverflowError:
            return [_json(_spelled(value)) for value in values]
        data = b",".join(spelled)
        # msgspec writes the same for a float that is not finite.
        if b"null" in data or any(pattern.search(data) for pattern in _LONG):
            return [_json(_spelled(value)) for value in values]
    except RecursionError as error:
        raise ValueError("nested too deeply to be encoded") from error
    return [_STARTS.sub(b'"~', one) for one in spelled] if _SIGNED.search(data) else spelled


def _spelled(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return f"~{value}" if value[:1] in ("~", "^", "`") and value else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX:
            return value
        return f"~i{value}" if _INT64_MIN <= value <= _INT64_MAX else f"~n{value}"
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{value} is no JSON number")
        return value
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key is not text")
        return {_spelled(key): _spelled(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def encode_date(milliseconds: int) -> bytes:
    """A moment, in ms since 1970, as transit."""
    return b'"~m%d"' % milliseconds


# --- reading ---

_MARKED: Final = frozenset(("~", "^", "`"))
_DIGITS: Final = [chr(code) for code in range(48, 48 + 44)]
_CODES: Final = [*_DIGITS, *map("".join, product(_DIGITS[1:], _DIGITS))]
_PLACES: Final = {f"^{code}": place for place, code in enumerate(_CODES)}
"""The cache index of each cache code."""

_CACHE_SIZE: Final = len(_PLACES)

_CACHED_LENGTH_MIN: Final = 4
_CACHED_VALUES: Final = ("~:", "~$", "~#")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Tag(str):
    __slots__ = ()


def milliseconds(text: str) -> int:
    """The moment ``text`` names in ISO 8601, in ms since 1970. Raises: ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} names no time zone")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _moment(value: Any) -> int:  # noqa: ANN401
    if type(value) is not int and type(value) is not str:
        raise ValueError(f"{value!r} is not a time")
    return int(value)


def _boolean(text: str) -> bool:
    return {"t": True, "f": False}[text]


def _nothing(text: str) -> None:
    if text:
        raise ValueError("null has no text")


_SCALARS: Final[dict[str, Callable[[str], Any]]] = {
    ":": Keyword,
    "$": str,
    "#": _Tag,
    "~": "~{}".format,
    "^": "^{}".format,
    "`": "`{}".format,
    "i": int,
    "n": int,
    "m": int,
    "t": milliseconds,
    "d": float,
    "f": float,
    "u": str,
    "r": str,
    "b": str,
    "c": str,
    "?": _boolean,
    "_": _nothing,
    "z": {"NaN": nan, "INF": inf, "-INF": -inf}.__getitem__,
}
"""Decoders of texts that start with ``~``, by the sign after it. Moments become ms since 1970; UUIDs, URIs and similar,
which ctxd never writes, stay text."""

_TAGS: Final[dict[str, Callable[[Any], Any]]] = {
    "'": lambda quoted: quoted,
    "set": list,
    "list": list,
    "cmap": lambda flat: dict(zip(flat[::2], flat[1::2], strict=True)),
    "m": _moment,
    "t": milliseconds,
    "u": str,
    "r": str,
    "xtdb/oid": str,
    "xtdb/entity-ref": lambda reference: reference,
    "xtdb/base64": str,
}
"""Decoders of tagged values, by tag."""


def decode(data: bytes) -> Any:  # noqa: ANN401 - any value in transit
    """Decode the single value in ``data``: keywords as ``Keyword``, dates as ms since 1970, sets and lists as lists.

    Raises: NotTransit.
    """
    try:
        return _Decoding().value(_parse(data))
    except NotTransit:
        raise
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise NotTransit(f"not transit: {error}") from error


class _Decoding:
    """The state of decoding one message: its cache of repeated keys.

    Values are checked inline where possible: a bulk read has very many, and most need no decoding.
    """

    def __init__(self) -> None:
        self._cache: list[Any] = []

    def value(self, read: Any) -> Any:  # noqa: ANN401
        kind = type(read)
        if kind is str:
            return self._text(read) if read[:1] in _MARKED else read
        if kind is list:
            return self._array(read)
        if kind is dict:
            # Keep these statements separate: the key has to be decoded before the value, because both use the cache.
            made: dict[Any, Any] = {}
            for key, item in read.items():
                name = self._key(key)
                made[name] = self.value(item)
            return made
        return read

    def _array(self, read: list[Any]) -> Any:  # noqa: ANN401
        if not read:
            return read
        first = read[0]
        if first == "^ ":
            return self._map(read)
        if type(first) is str and first[:1] in _MARKED:
            head = self._text(first)
            if type(head) is _Tag:
                return self._tagged(head, read)
            return [head, *[self.value(item) for item in read[1:]]]
        return [self.value(item) for item in read]

    def _map(self, read: list[Any]) -> dict[Any, Any]:
        cache, places = self._cache, _PLACES
        made: dict[Any, Any] = {}
        rest = iter(read)
        next(rest)
        for key, item in zip(rest, rest, strict=True):
            if key in places:
                key = cache[places[key]]
            else:
                key = self._key(key)
            kind = type(item)
            if kind is str:
                made[key] = self._text(item) if item[:1] in _MARKED else item
            elif kind is list:
                made[key] = self._array(item)
            else:
                made[key] = item if kind is not dict else self.value(item)
        if len(made) != len(read) // 2:
            raise NotTransit("a map has a key twice")
        return made

    def _tagged(self, tag: _Tag, read: list[Any]) -> Any:  # noqa: ANN401
        if len(read) != 2:
            raise NotTransit(f"{tag} tags {count(len(read) - 1, 'value')}")
        make = _TAGS.get(str(tag))
        if make is None:
            raise NotTransit(f"the tag {tag} is unknown")
        return make(self.value(read[1]))

    def _key(self, read: Any) -> Any:  # noqa: ANN401
        if type(read) is not str:
            return self.value(read)
        if read[:1] in _MARKED:
            return self._text(read, key=True)
        if len(read) >= _CACHED_LENGTH_MIN:
            self._remember(read)
        return read

    def _text(self, read: str, *, key: bool = False) -> Any:  # noqa: ANN401
        if read in _PLACES:
            return self._cache[_PLACES[read]]
        if read[0] != "~" or len(read) == 1:
            raise NotTransit(f"a text starts with {read[:3]!r}")
        make = _SCALARS.get(read[1])
        if make is None:
            raise NotTransit(f"values of the kind {read[1]} are unknown")
        made = make(read[2:])
        if len(read) >= _CACHED_LENGTH_MIN and (key or read.startswith(_CACHED_VALUES)):
            self._remember(made)
        return made

    def _remember(self, value: Any) -> None:  # noqa: ANN401
        if len(self._cache) == _CACHE_SIZE:
            self._cache.clear()
        self._cache.append(value)
