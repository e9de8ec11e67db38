"""Secrets in deltas that are one CBOR array.

Separate: the daemon uses it before it stores deltas, and ``ctx capture`` before it saves undelivered commits to a file.
"""

from collections.abc import Mapping
from typing import Any

from cbor2 import CBORTag

from ctxd.formats.cbor_array import encoded, items, joined
from ctxd.formats.events_v1 import whole_items
from ctxd.secrets.redaction import Capture


def captured_array(capture: Capture, content: bytes) -> bytes:
    """Return ``content`` with secrets flagged or redacted.

    Raises: UnreadableDelta, also for a map with a duplicate key, as readers would see only one of its values.
    """
    found = [(_kept(capture, item), split) for item, split in whole_items(items(content, unique=True))]
    if not capture.redacted:
        return content
    return joined([each for item, split in found for each in split(encoded(item))])


def _kept(capture: Capture, value: Any) -> Any:  # noqa: ANN401 - any CBOR value
    """Return ``value`` with secrets redacted in texts and byte strings; bytes that are JSON are searched as JSON."""
    if isinstance(value, bytes):
        text = value.decode("utf-8", "surrogateescape")
        try:
            kept = capture.json(value.decode())
        except (ValueError, RecursionError):
            kept = capture.text(text)
        return value if kept == text else kept.encode("utf-8", "surrogateescape")
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
