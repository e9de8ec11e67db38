"""Deltas by format: their form, the number of their messages, their secrets, and their concatenation.

Pure. Deltas of formats that are not known are kept as they are, and are not concatenated.
"""

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import cbor2

from ctxd.errors import CtxdError
from ctxd.objects.document import Content, decode_content, encode_content
from ctxd.secrets.guard import Capture

LINES: Final = frozenset({"claude-code-v1"})
"""Formats of JSON lines, concatenated as bytes."""

ARRAYS: Final = frozenset({"events-v1", "bureau-agent-v1"})
"""Formats of one CBOR array, concatenated item by item."""

_ARRAY: Final = 0x80
_NIL: Final = b"\xf6"
_WIDTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}


def _refused(format: str, why: str) -> CtxdError:
    return CtxdError("invalid_params", f"the delta is not {format}: {why}", outcome="not_applied")


def count_messages(format: str, content: Content) -> int:
    """The number of messages of a delta; 0 for formats that are not known.

    Raises: CtxdError ``invalid_params`` if it does not have the form of ``format``.
    """
    if format in LINES:
        return sum(1 for _ in _records(format, content))
    if format in ARRAYS:
        return len(_items(format, content))
    return 0


def captured(capture: Capture, format: str, content: Content) -> Content:
    """``content`` as it is to be kept: the secrets in it flagged or redacted; unchanged if none has to be redacted.

    Raises: CtxdError ``invalid_params`` as ``count_messages``; ``unsupported`` for bytes of a format that is not known
    with a secret in them, which cannot be redacted.
    """
    if format in LINES:
        lines = []
        for line, record in _records(format, content):
            kept = capture.value(record)
            lines.append(line if kept is record else _json(kept))
        return "".join(line + "\n" for line in lines) if capture.redacted else content
    if format in ARRAYS:
        items = _items(format, content)
        kept = [_kept(capture, item) for item in items]
        return decode_content(cbor2.dumps(kept, canonical=True)) if capture.redacted else content
    if isinstance(content, str):
        return capture.text(content)
    if capture.guard.scanner.hits(content, first_only=True) and capture.policy == "redact":
        message = f"the delta holds a secret, and format {format} is not known here, so it cannot be redacted"
        hint = "Send it in a known format, or set the session's policy on secrets to flag."
        raise CtxdError("unsupported", message, hint=hint, outcome="not_applied")
    return content


def concatenated(format: str, deltas: Sequence[bytes]) -> bytes:
    """One delta with the messages of all ``deltas``, in order.

    Raises: CtxdError ``unsupported`` for several deltas of a format that is not known, ``corrupt`` for one that does
    not have the form of its format.
    """
    if format in LINES:
        return b"".join(delta if delta.endswith(b"\n") or not delta else delta + b"\n" for delta in deltas)
    if format in ARRAYS:
        parts = [_array(delta) for delta in deltas]
        return b"".join((_head(sum(count for count, _ in parts)), *(items for _, items in parts)))
    if len(deltas) == 1:
        return deltas[0]
    raise CtxdError("unsupported", f"deltas of format {format} cannot be concatenated: the format is not known here")


def _json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _records(format: str, content: Content) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of ``content`` and what each holds; empty lines are left out."""
    if isinstance(content, bytes):
        raise _refused(format, "it is not UTF-8")
    # Only a line feed ends a line: texts in JSON may hold other line breaks of Unicode.
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise _refused(format, f"line {number} is not JSON") from error
        if not isinstance(record, dict):
            raise _refused(format, f"line {number} is not an object")
        yield line, record


def _items(format: str, content: Content) -> list[Any]:
    data = encode_content(content)
    file = io.BytesIO(data)
    try:
        items = cbor2.CBORDecoder(file).decode()
    except (cbor2.CBORError, ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise _refused(format, f"it is not CBOR: {error}") from error
    if file.tell() != len(data):
        raise _refused(format, "bytes follow the end of the array")
    if items is None:
        return []
    if not isinstance(items, list):
        raise _refused(format, "it is not an array")
    return items


def _kept(capture: Capture, value: Any) -> Any:  # noqa: ANN401 - any CBOR value
    """``value`` with its texts captured; JSON in byte strings too."""
    if isinstance(value, bytes):
        try:
            inner = json.loads(value)
        except ValueError:
            return value
        kept = capture.value(inner)
        return value if kept is inner else _json(kept).encode()
    if isinstance(value, str):
        return capture.text(value)
    if isinstance(value, dict):
        return {key: _kept(capture, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_kept(capture, item) for item in value]
    return value


def _array(delta: bytes) -> tuple[int, bytes]:
    """The number of items of a CBOR array, and their bytes."""
    if delta == _NIL:
        return 0, b""
    low = delta[0] - _ARRAY if delta else -1
    if 0 <= low < min(_WIDTHS):
        return low, delta[1:]
    if low in _WIDTHS:
        end = 1 + _WIDTHS[low]
        return int.from_bytes(delta[1:end], "big"), delta[end:]
    try:
        items = cbor2.loads(delta)
    except (cbor2.CBORError, ValueError, RecursionError) as error:
        raise CtxdError("corrupt", f"a delta is not a CBOR array: {error}") from error
    return len(items), b"".join(cbor2.dumps(item, canonical=True) for item in items)


def _head(count: int) -> bytes:
    if count < min(_WIDTHS):
        return bytes((_ARRAY + count,))
    low = next(low for low, width in _WIDTHS.items() if count < 1 << 8 * width)
    return bytes((_ARRAY + low,)) + count.to_bytes(_WIDTHS[low], "big")
