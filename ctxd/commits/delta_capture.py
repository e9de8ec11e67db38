"""Deltas that are committed: their counts, and the secrets in them. Pure.

Deltas of formats that are not known are kept as they are.
"""

import json
from collections.abc import Iterator
from typing import Any

from ctxd.errors import CtxdError
from ctxd.formats.array_secrets import captured_array
from ctxd.formats.cbor_array import UnreadableDelta
from ctxd.formats.delta_formats import DELTA_FORMATS, Counts, count
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


def is_checked_by_capture(format: str) -> bool:
    """True if ``captured`` refuses what is not of ``format``."""
    known = DELTA_FORMATS.get(format)
    return known is not None and known.is_lines


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
        kept = captured_array(capture, encode_content(content))
        return decode_content(kept) if capture.redacted else content
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
