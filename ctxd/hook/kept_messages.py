"""Lines of a transcript with the messages that Claude Code keeps word for word behind the summary of a compaction.

The harness names them in the record of the compaction, which it writes once the hooks have ended: ``ctx-hook`` waits
for it in a process of its own. Only loaded for a compaction, as it needs the module ``json``.
"""

import json
import os
import time
from _json import encode_basestring  # type: ignore[import-not-found,unused-ignore]

TYPE_CHECKING = False  # The module ``typing`` takes long to load.
if TYPE_CHECKING:
    from collections.abc import Callable

WRITTEN_S = 2.0
"""Seconds from the hook on in which the harness writes the record."""

SEARCH_BYTES_MAX = 16 * 1024 * 1024
"""Bytes before the record in which the messages are looked for."""

BEFORE_BYTES = 256 * 1024
"""Bytes before the end of the transcript, as the hook found it, in which the record may be already."""

LINES_MAX = 16
"""Lines that are delivered, the first ones: the session finds the place from which on its own events stay."""

LINE_BYTES_MAX = 256 * 1024

_BOUNDARY = b'"subtype":"compact_boundary"'
_ANSWER = b'"type":"assistant"'
_MESSAGES = (b'"type":"user"', _ANSWER)
_ID = b'"uuid":"'
_PAUSE_S = 0.02


def with_kept(raw: bytes, text: str, path: str, go_apart: "Callable[[], None]") -> bytes:
    """The event ``raw`` of a compaction, which is ``text``, with ``transcript_lines`` if the harness writes to its
    transcript within ``WRITTEN_S`` which messages stay; as it came if it does not, and where that cannot be read.

    ``go_apart`` lets the harness go on. Raises: OSError if that fails.
    """
    # The event of pi has the place from which messages stay, and its transcript never has such a record.
    if '"compact_summary"' not in text or '"kept_from"' in text:
        return raw
    try:
        began = os.stat(path).st_size
    except OSError:
        return raw
    go_apart()
    try:
        lines = _late_lines(path, max(0, began - BEFORE_BYTES))
    except (OSError, ValueError, RecursionError):
        return raw
    quoted = ",".join([encode_basestring(line.decode("utf-8", "replace")) for line in lines])
    return f'{text[:-1]},"transcript_lines":[{quoted}]}}'.encode() if lines else raw


def _late_lines(path: str, begin: int) -> list[bytes]:
    """The lines of messages that the newest compaction, behind byte ``begin``, has kept; empty without one in time.

    Raises: OSError; ValueError for a damaged record.
    """
    ends = time.clock_gettime(time.CLOCK_MONOTONIC) + WRITTEN_S
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            new = os.pread(file, SEARCH_BYTES_MAX, begin)
            if (found := _boundary(new)) is not None:
                at, line = found
                first = max(0, begin + at - SEARCH_BYTES_MAX)
                return _kept(os.pread(file, begin + at - first, first), _ids(line))
            if time.clock_gettime(time.CLOCK_MONOTONIC) > ends:
                return []
            time.sleep(_PAUSE_S)
    finally:
        os.close(file)


def _boundary(new: bytes) -> tuple[int, bytes] | None:
    """The place and the whole line of the compaction at the end of ``new``; None without one that no answer follows."""
    at = new.rfind(_BOUNDARY)
    end = new.find(b"\n", at)
    if at < 0 or end < 0 or _ANSWER in new[end:]:
        return None
    begin = new.rfind(b"\n", 0, at) + 1
    return begin, new[begin:end]


def _ids(line: bytes) -> list[bytes]:
    """The ids of the messages that stay, or those of the first and the last one. Raises: ValueError."""
    record = json.loads(line)
    found = record.get("compactMetadata") if isinstance(record, dict) else None
    kept, segment = (found.get(name) for name in ("preservedMessages", "preservedSegment")) if found else (None, None)
    ids = kept.get("uuids") if isinstance(kept, dict) else None
    if not isinstance(ids, list):
        ids = [segment.get("headUuid")] if isinstance(segment, dict) else []
    return [id.encode("utf-8", "replace") for id in ids if isinstance(id, str)]


def _kept(before: bytes, ids: list[bytes]) -> list[bytes]:
    """The lines in ``before`` from the first of the messages ``ids`` on."""
    lines = before.split(b"\n")
    first = next((place for place, line in enumerate(lines) if any(_ID + id in line for id in ids)), len(lines))
    found = [line for line in lines[first:] if any(mark in line for mark in _MESSAGES)]
    return [line for line in found if len(line) <= LINE_BYTES_MAX][:LINES_MAX]
