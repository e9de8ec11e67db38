"""Hashes of objects, and the canonical encoding of JSON values that they are computed from.

The canonical encoding is that of RFC 8785: keys in UTF-16 order, numbers as ECMAScript prints them, no blanks, UTF-8.
Equal values have equal bytes in any program that follows the RFC. A value that JSON parsers would read differently is
refused, never rounded. For values with ASCII keys and without fractions, which are almost all, msgspec's sorted
encoding is already canonical, which only has to be checked. Others take an exact encoder, about ten times slower.

The three hashes of an object (spec 1 §2.2) are SHA-256, as 64 lower-case hex digits: the identity hash identifies the
object, the source hash changes with its source, the content hash with the document. Only the source hash is computed
from other bytes, those of the source.
"""

import base64
import hashlib
import math
from typing import Any, Final

import msgspec

from ctxd_protocol.limits import SAFE_INTEGER_MAX
from ctxd_protocol.object_types import Source

BASE64: Final = "base64"
"""The ``encoding`` of content that is not text."""

_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_encode_text: Final = msgspec.json.Encoder().encode
_ATOMS: Final = frozenset((str, bool, type(None)))


def canonical(value: Any) -> bytes:  # noqa: ANN401 - for any JSON value
    """The canonical encoding of ``value``, in UTF-8.

    ``value`` consists of dict with text keys, list, tuple, str, int, float, bool and None.
    Raises: ValueError for anything else: an integer outside ±(2^53-1), NaN, an infinity, a lone surrogate, a key that
    is not text, nesting that exhausts the stack.
    """
    try:
        if _encodes_canonically(value):
            return _encode_sorted(value)
        parts: list[bytes] = []
        _write(value, parts.append)
    except RecursionError as error:
        raise ValueError("nested too deeply to be encoded") from error
    return b"".join(parts)


def _encodes_canonically(value: Any) -> bool:  # noqa: ANN401
    """Return True if msgspec's sorted encoding of ``value`` is certainly canonical, or fails."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii():
                return False
            if type(item) not in _ATOMS and not _encodes_canonically(item):
                return False
        return True
    if kind is int:
        return bool(-SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX)
    if kind is list or kind is tuple:
        for item in value:
            if type(item) not in _ATOMS and not _encodes_canonically(item):
                return False
        return True
    return False


def _write(value: Any, emit: Any) -> None:  # noqa: ANN401
    if value is None or isinstance(value, bool | str):
        emit(_encode_text(value))
    elif isinstance(value, int):
        if not -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX:
            raise ValueError(f"integer {value} is beyond 2^53-1, which not every JSON reader can hold")
        emit(b"%d" % value)
    elif isinstance(value, float):
        emit(_number(value).encode())
    elif isinstance(value, list | tuple):
        _write_list(value, emit)
    elif isinstance(value, dict):
        _write_dict(value, emit)
    else:
        raise ValueError(f"{type(value).__name__} is no JSON value")


def _write_list(value: Any, emit: Any) -> None:  # noqa: ANN401
    emit(b"[")
    for place, item in enumerate(value):
        if place:
            emit(b",")
        _write(item, emit)
    emit(b"]")


def _write_dict(value: dict[Any, Any], emit: Any) -> None:  # noqa: ANN401
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"key {key!r} is not text")
    emit(b"{")
    for place, key in enumerate(sorted(value, key=_utf16_order)):
        if place:
            emit(b",")
        emit(_encode_text(key))
        emit(b":")
        _write(value[key], emit)
    emit(b"}")


def _utf16_order(key: str) -> bytes:
    return key.encode("utf-16-be")


def _number(value: float) -> str:
    """``value`` as ECMAScript's Number::toString prints it: the shortest digits that read back, then its own layout."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    return sign + _laid_out(digits, point)


def _laid_out(digits: str, point: int) -> str:
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    rest = f".{digits[1:]}" if count > 1 else ""
    return f"{digits[0]}{rest}e{point - 1:+d}"


def identity_hash(type: str, source: Source | None, id: str) -> str:
    """Hash the identity of an object: its type and source, or its type and ``id`` without a source.

    Raises: ValueError if a part has no canonical encoding (a path that is not UTF-8).
    """
    if source is None:
        # This is the canonical encoding of an object with these two fields.
        text = b'{"type":' + _encode_text(type) + b',"xt/id":' + _encode_text(id) + b"}"
        return hashlib.sha256(text).hexdigest()
    return hashlib.sha256(canonical({"source": source_binding(source), "type": type})).hexdigest()


def source_hash(raw: bytes) -> str:
    """Hash the bytes of a source as they are, whatever their encoding."""
    return hashlib.sha256(raw).hexdigest()


def content_hash(payload: dict[str, Any], content: str | bytes | None) -> str:
    """Hash every mutable field of a document, including ``content`` unless it is None, as base64 if that is the
    payload's ``encoding``.

    ``payload`` has no key ``content``. Its ``secrets`` are left out: they depend on the current rules, and equal texts
    must have equal hashes. Raises: ValueError if a field has no canonical encoding.
    """
    if "secrets" in payload:
        payload = {name: field for name, field in payload.items() if name != "secrets"}
    if content is None:
        return hashlib.sha256(canonical(payload)).hexdigest()
    if payload.get("encoding") == BASE64:
        content = base64.b64encode(content if isinstance(content, bytes) else content.encode()).decode()
    return hashlib.sha256(canonical({**payload, "content": content})).hexdigest()


def source_binding(source: Source) -> dict[str, Any]:
    """The members of ``source`` as in the envelope, including its type; the same for every kind."""
    members: dict[str, Any] = msgspec.to_builtins(source)
    return members
