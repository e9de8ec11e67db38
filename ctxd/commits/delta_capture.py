"""Deltas that are committed: their counts, and the secrets in them. Pure.

Deltas of formats that are not known are kept as they are.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cbor2 import CBORTag

from ctxd.errors import CtxdError
from ctxd.formats.cbor_array import UnreadableDelta, encoded, items, joined
from ctxd.formats.delta_formats import DELTA_FORMATS, Counts, count
from ctxd.formats.events_v1 import whole_items
from ctxd.objects.document import Content, decode_content, encode_content
from ctxd.secrets.guard import Capture


def counted(format: str, content: Content) -> Counts:
    """The messages and tokens of a delta. Raises: CtxdError ``invalid_params`` if it is not what ``format`` names."""
    known = DELTA_FORMATS.get(format)
    if known is not None and known.is_lines:
        for _ in _records(format, content):
            pass
    try:
        return count(format, encode_content(content))
    except (UnreadableDelta, OverflowError, MemoryError) as error:
        raise _refused(format, str(error)) from error


def captured(capture: Capture, format: str, content: Content) -> Content:
    """``content``, which ``counted`` has checked, as it is to be kept: the secrets in it flagged or redacted.

    Raises: CtxdError ``unsupported`` for bytes of a format that is not known with a secret in them, which cannot be
    redacted.
    """
    known = DELTA_FORMATS.get(format)
    if known is not None and known.is_lines:
        lines = []
        for line, record in _records(format, content):
            kept = capture.value(record)
            lines.append(line if kept is record else _json(kept))
        return "".join(line + "\n" for line in lines) if capture.redacted else content
    if known is not None:
        whole = whole_items(items(encode_content(content)))
        found = [each for item, split in whole for each in split(encoded(_kept(capture, item)))]
        return decode_content(joined(found)) if capture.redacted else content
    if isinstance(content, str):
        return capture.text(content)
    if capture.policy == "redact" and capture.guard.scanner.hits(content, first_only=True):
        message = f"the delta holds a secret, and format {format} is not known here, so it cannot be redacted"
        hint = "Send it in a known format, or set the session's policy on secrets to flag."
        raise CtxdError("unsupported", message, hint=hint, outcome="not_applied")
    return content


def _refused(format: str, why: str) -> CtxdError:
    return CtxdError("invalid_params", f"the delta is not {format}: {why}", outcome="not_applied")


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
        except (ValueError, RecursionError) as error:
            raise _refused(format, f"line {number} is not JSON") from error
        if not isinstance(record, dict):
            raise _refused(format, f"line {number} is not an object")
        yield line, record


def _kept(capture: Capture, value: Any) -> Any:  # noqa: ANN401 - any CBOR value
    """``value`` with its texts captured; byte strings too, as JSON if they are."""
    if isinstance(value, bytes):
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            text = value.decode("utf-8", "surrogateescape")
            kept = capture.text(text)
            return value if kept is text else kept.encode("utf-8", "surrogateescape")
        kept = capture.value(inner)
        return value if kept is inner else _json(kept).encode()
    if isinstance(value, str):
        return capture.text(value)
    if isinstance(value, Mapping):
        kind: Any = type(value)  # A map that is a key is not a dict.
        return kind({_kept(capture, key): _kept(capture, item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(_kept(capture, item) for item in value)
    if isinstance(value, CBORTag):
        return CBORTag(value.tag, _kept(capture, value.value))
    return value
