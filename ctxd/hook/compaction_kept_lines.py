"""Transcript lines of the messages that Claude Code keeps verbatim after the summary of a compaction.

The harness lists them in the record of the compaction, which it writes after the hooks have ended: ``ctx-hook`` waits
for it in a detached process. Loaded only for a compaction, since it needs the module ``json``.
"""

import json
import os
from time import CLOCK_MONOTONIC, clock_gettime, sleep

TYPE_CHECKING = False  # The module ``typing`` takes long to load.
if TYPE_CHECKING:
    from collections.abc import Callable

WRITTEN_S = 2.0
"""Seconds after the hook within which the harness writes the record."""

SEARCH_BYTES_MAX = 16 * 1024 * 1024
"""Bytes before the record that are searched for the messages."""

BEFORE_BYTES = 256 * 1024
"""Bytes at the end of the transcript, at the start of the hook, that may have the record already."""

LINES_MAX = 16
"""Maximum number of lines delivered, from the first: with them the session finds the first event that it keeps."""

LINE_BYTES_MAX = 256 * 1024

_BOUNDARY = b'"subtype":"compact_boundary"'
_ANSWER = b'"type":"assistant"'
_MESSAGES = (b'"type":"user"', _ANSWER)
_ID = b'"uuid":"'
_PAUSE_S = 0.02


def kept_lines(event: str, path: str, detach: "Callable[[], None]") -> list[bytes]:
    """The lines of the messages that the compaction ``event`` keeps, if the harness lists them in its transcript within
    ``WRITTEN_S``; else empty. ``detach`` lets the hook wait in a detached process.

    Raises: OSError; ValueError for a damaged record.
    """
    # The extension of pi names the first kept message itself, and its transcript never has such a record.
    if '"compact_summary"' not in event or '"kept_from"' in event:
        return []
    began = os.stat(path).st_size
    detach()
    return _late_lines(path, max(0, began - BEFORE_BYTES))


def _late_lines(path: str, begin: int) -> list[bytes]:
    """The lines of the messages that the newest compaction after byte ``begin`` keeps; empty without one in time.

    Raises: OSError; ValueError for a damaged record.
    """
    ends = clock_gettime(CLOCK_MONOTONIC) + WRITTEN_S
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            new = os.pread(file, SEARCH_BYTES_MAX, begin)
            if (found := _boundary(new)) is not None:
                at, line = found
                first = max(0, begin + at - SEARCH_BYTES_MAX)
                return _kept(os.pread(file, begin + at - first, first), _ids(line))
            if clock_gettime(CLOCK_MONOTONIC) > ends:
                return []
            sleep(_PAUSE_S)
    finally:
        os.close(file)


def _boundary(new: bytes) -> tuple[int, bytes] | None:
    """The place and the whole line of the last compaction in ``new``; None without one, or if an answer follows it."""
    at = new.rfind(_BOUNDARY)
    end = new.find(b"\n", at)
    if at < 0 or end < 0 or _ANSWER in new[end:]:
        return None
    begin = new.rfind(b"\n", 0, at) + 1
    return begin, new[begin:end]


def _ids(line: bytes) -> list[bytes]:
    """The ids of the kept messages, or that of the first one if the record does not list all. Raises: ValueError."""
    record = json.loads(line)
    found = record.get("compactMetadata") if isinstance(record, dict) else None
    kept, segment = (found.get(name) for name in ("preservedMessages", "preservedSegment")) if found else (None, None)
    ids = kept.get("uuids") if isinstance(kept, dict) else None
    if not isinstance(ids, list):
        ids = [segment.get("headUuid")] if isinstance(segment, dict) else []
    return [id.encode("utf-8", "replace") for id in ids if isinstance(id, str)]


def _kept(before: bytes, ids: list[bytes]) -> list[bytes]:
    """At most ``LINES_MAX`` lines of messages in ``before``, from the first of ``ids`` on, without very long ones."""
    lines = before.split(b"\n")
    first = next((place for place, line in enumerate(lines) if any(_ID + id in line for id in ids)), len(lines))
    found = [line for line in lines[first:] if any(mark in line for mark in _MESSAGES)]
    return [line for line in found if len(line) <= LINE_BYTES_MAX][:LINES_MAX]
