"""Transcript lines that complete the event of a compaction. Loaded only for one, since it needs the module ``json``.

Claude Code keeps messages verbatim after the summary, and lists them in the record of the compaction. It writes that
after the hooks have ended: ``ctx-hook`` waits for it in a detached process. codex passes no summary to its hooks: its
record has the summary and the new window. It is usually written before the hooks.
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

RECORD_BYTES_MAX = 3 * 1024 * 1024
"""Maximum bytes of codex's window, so that the event is not cut: an import reads a larger one."""

_BOUNDARY = b'"subtype":"compact_boundary"'
_ANSWER = b'"type":"assistant"'
_MESSAGES = (b'"type":"user"', _ANSWER)
_ID = b'"uuid":"'
_COMPACTED = b'"type":"compacted"'
_ITEM = b'"type":"response_item"'
_PAUSE_S = 0.02


def compaction_lines(event: str, path: str, detach: "Callable[[], None]") -> list[bytes]:
    """The lines of the messages that the compaction ``event`` keeps, or the record of codex, if the harness writes it
    to its transcript within ``WRITTEN_S``; else empty. ``detach`` lets the hook wait in a detached process.

    Raises: OSError; ValueError for a damaged record.
    """
    if '"compact_summary"' not in event:
        return _codex_lines(path, detach)
    # The extension of pi names the first kept message itself, and its transcript never has such a record.
    if '"kept_from"' in event:
        return []
    began = os.stat(path).st_size
    detach()
    return _late_lines(path, began)


def _late_lines(path: str, began: int) -> list[bytes]:
    """The lines of the messages that the compaction keeps whose hook began when the file had ``began`` bytes; empty
    without one in time. Raises: OSError; ValueError for a damaged record."""
    begin = max(0, began - BEFORE_BYTES)
    ends = clock_gettime(CLOCK_MONOTONIC) + WRITTEN_S
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            new = os.pread(file, SEARCH_BYTES_MAX, begin)
            if (found := _boundary(new, began - begin)) is not None:
                at, line = found
                first = max(0, begin + at - SEARCH_BYTES_MAX)
                return _kept(os.pread(file, begin + at - first, first), _ids(line))
            if clock_gettime(CLOCK_MONOTONIC) > ends:
                return []
            sleep(_PAUSE_S)
    finally:
        os.close(file)


def _boundary(new: bytes, since: int) -> tuple[int, bytes] | None:
    """The place and the whole line of the first compaction in ``new`` from byte ``since`` on, else of the last one
    before it; None without one, or if an answer follows the one before."""
    at = new.find(_BOUNDARY, since)
    is_earlier = at < 0
    at = new.rfind(_BOUNDARY) if is_earlier else at
    end = new.find(b"\n", at)
    if at < 0 or end < 0 or (is_earlier and _ANSWER in new[end:]):
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


def _codex_lines(path: str, detach: "Callable[[], None]") -> list[bytes]:
    """The record of the newest compaction of codex, with only its summary and window; empty without one in time, or
    if it is too large. Raises: OSError; ValueError for a damaged record."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        begin = max(0, os.fstat(file).st_size - SEARCH_BYTES_MAX)
        known = os.pread(file, SEARCH_BYTES_MAX, begin)
        at = known.rfind(_COMPACTED)
        # An item after the record is of a turn since then, and the record of an earlier compaction.
        if at >= 0 and _ITEM not in known[at:] and (line := _line_at(known, at)) is not None:
            return _window(line)
        begin += known.rfind(b"\n") + 1
        detach()
        ends = clock_gettime(CLOCK_MONOTONIC) + WRITTEN_S
        while clock_gettime(CLOCK_MONOTONIC) <= ends:
            new = os.pread(file, SEARCH_BYTES_MAX, begin)
            at = new.find(_COMPACTED)
            if at >= 0 and (line := _line_at(new, at)) is not None:
                return _window(line)
            sleep(_PAUSE_S)
        return []
    finally:
        os.close(file)


def _line_at(text: bytes, at: int) -> bytes | None:
    """The line of ``text`` around byte ``at``; None if it is not complete."""
    begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
    return text[begin:end] if end >= 0 else None


def _window(line: bytes) -> list[bytes]:
    """The record ``line`` of codex with only its summary and window. Raises: ValueError."""
    record = json.loads(line)
    payload = record.get("payload") if isinstance(record, dict) else None
    if not isinstance(payload, dict) or record.get("type") != "compacted":
        return []
    members = {name: payload[name] for name in ("message", "replacement_history") if name in payload}
    window = json.dumps({**record, "payload": members}, separators=(",", ":"), ensure_ascii=False)
    found = window.encode("utf-8", "replace")
    return [found] if len(found) <= RECORD_BYTES_MAX else []
