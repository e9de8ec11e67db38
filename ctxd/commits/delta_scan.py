"""Scan of deltas: their counts, and the secrets in them. Pure.

Deltas of unknown formats are kept unchanged.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.formats.cbor_array import UnreadableDelta
from ctxd.formats.cbor_array_secrets import captured_array
from ctxd.formats.delta_formats import DELTA_FORMATS, Counts, count
from ctxd.objects.document import Content, decode_content, encode_content
from ctxd.secrets.redaction import Capture, Guard
from ctxd_protocol.secret_types import Secrets


class _Object(msgspec.Struct):
    """Any JSON object; its members are skipped."""


_OBJECT: Final = msgspec.json.Decoder(_Object)


def count_delta(format: str, content: Content) -> Counts:
    """Count the messages and tokens of a delta. Raises: CtxdError ``invalid_params`` if it is not in ``format``."""
    known = DELTA_FORMATS.get(format)
    if known is not None and known.is_lines:
        _require_objects(format, _lines(format, content))
    try:
        return count(format, encode_content(content))
    except (UnreadableDelta, OverflowError) as error:
        raise _refused(format, str(error)) from error
    except MemoryError as error:
        # A CBOR header of a few bytes may claim any length; lines take no more memory than their length.
        if known is not None and known.is_lines:
            raise
        raise _refused(format, "it names more items than fit into memory") from error


def checks_format(format: str) -> bool:
    """True if ``delta_captured`` refuses content that is not in ``format``."""
    known = DELTA_FORMATS.get(format)
    return known is not None and known.is_lines


def delta_captured(capture: Capture, format: str, content: Content) -> Content:
    """``content``, which ``count_delta`` has checked, in the form to be kept, with secrets flagged or redacted.

    Raises: CtxdError ``invalid_params`` for a CBOR map with a duplicate key; ``unsupported`` for a secret in bytes of
    an unknown format, which cannot be redacted.
    """
    known = DELTA_FORMATS.get(format)
    if known is not None and known.is_lines:
        return _captured_lines(capture, format, content)
    if known is not None:
        try:
            kept = captured_array(capture, encode_content(content))
        except UnreadableDelta as error:
            raise _refused(format, str(error)) from error
        return decode_content(kept) if capture.redacted else content
    if isinstance(content, str):
        return capture.text(content)
    if capture.policy == "redact" and capture.guard.scanner.hits(content, first_only=True):
        message = f"the delta holds a secret, and format {format} is not known here, so it cannot be redacted"
        hint = "Send it in a known format, or set the session's policy on secrets to flag."
        raise CtxdError("unsupported", message, hint=hint, outcome="not_applied")
    return content


def found_in_delta(guard: Guard, format: str, content: Content) -> Secrets | None:
    """Return the secrets in a stored delta; None if there are none. Bytes of an unknown format are not searched, and
    content that is not in ``format`` is searched as text."""
    capture = Capture(guard, "flag")
    try:
        delta_captured(capture, format, content)
    except CtxdError:
        if isinstance(content, str):
            capture = Capture(guard, "flag")
            capture.text(content)
    return capture.secrets


def _captured_lines(capture: Capture, format: str, content: Content) -> Content:
    lines = _lines(format, content)
    _require_objects(format, lines)
    if capture.policy == "off":
        return content
    for number in capture.guard.scanner.lines_to_search(encode_content(content)):
        if not lines[number].strip():
            continue
        try:
            lines[number] = capture.json(lines[number])
        except (ValueError, RecursionError) as error:
            raise _refused(format, f"line {number + 1} is not JSON") from error
    return "".join(line + "\n" for line in lines if line.strip()) if capture.redacted else content


def _refused(format: str, why: str) -> CtxdError:
    hint = f"Send it as {format}, or name the format that it has."
    return CtxdError("invalid_params", f"the delta is not {format}: {why}", hint=hint, outcome="not_applied")


def _lines(format: str, content: Content) -> list[str]:
    if isinstance(content, bytes):
        raise _refused(format, "it is not UTF-8")
    # Only a line feed ends a line: JSON strings may contain other Unicode line breaks.
    return content.split("\n")


def _require_objects(format: str, lines: Sequence[str]) -> None:
    """Raises: CtxdError ``invalid_params`` unless each line is a JSON object or empty."""
    for number, line in enumerate(lines):
        if line.strip():
            try:
                _OBJECT.decode(line)
            except (msgspec.DecodeError, RecursionError):
                # The standard library accepts more, such as lone surrogates.
                _record(format, number, line)


def _record(format: str, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _refused(format, f"line {number + 1} is not JSON") from error
    if not isinstance(record, dict):
        raise _refused(format, f"line {number + 1} is not an object")
    return record
