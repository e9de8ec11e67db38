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
    from collections.abc import Callable, Iterator

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
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def kept_in(new: bytes) -> list[bytes] | None:
        if (found := _boundary(new, began - begin)) is None:
            return None
        at, ids = found
        first = max(0, begin + at - SEARCH_BYTES_MAX)
        return _kept(os.pread(file, begin + at - first, first), ids)

    try:
        return _awaited(file, begin, kept_in)
    finally:
        os.close(file)


def _awaited(file: int, begin: int, lines_in: "Callable[[bytes], list[bytes] | None]") -> list[bytes]:
    """The lines that ``lines_in`` finds in ``file`` from byte ``begin`` on, once it finds some within ``WRITTEN_S``;
    else empty. Raises: OSError, and as ``lines_in``."""
    ends = clock_gettime(CLOCK_MONOTONIC) + WRITTEN_S
    while (found := lines_in(os.pread(file, SEARCH_BYTES_MAX, begin))) is None:
        if clock_gettime(CLOCK_MONOTONIC) > ends:
            return []
        sleep(_PAUSE_S)
    return found


def _lines_with(mark: bytes, text: bytes) -> "Iterator[tuple[int, bytes]]":
    """Yield the complete lines of ``text`` that contain ``mark``, each with its place."""
    at = text.find(mark)
    while at >= 0 and (end := text.find(b"\n", at)) >= 0:
        begin = text.rfind(b"\n", 0, at) + 1
        yield begin, text[begin:end]
        at = text.find(mark, end)


def _boundary(new: bytes, since: int) -> tuple[int, list[bytes]] | None:
    """The place and the ``_ids`` of the first compaction in ``new`` from byte ``since`` on, else of the last one before
    it; None without one, or if an answer follows the one before. Raises: ValueError for a damaged record."""
    lines = list(_lines_with(_BOUNDARY, new))
    later = [(at, line) for at, line in lines if at + len(line) >= since]
    for at, line in later or lines[-1:]:
        record = json.loads(line)
        # The input of a call is JSON as well, and may contain the mark.
        is_boundary = isinstance(record, dict) and record.get("subtype") == "compact_boundary"
        if is_boundary and (later or _ANSWER not in new[at + len(line) :]):
            return at, _ids(record.get("compactMetadata"))
    return None


def _ids(metadata: object) -> list[bytes]:
    """The ids of the kept messages, or that of the first one if the record does not list all."""
    found = metadata if isinstance(metadata, dict) else {}
    kept, segment = found.get("preservedMessages"), found.get("preservedSegment")
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
        if at >= 0 and _ITEM not in known[at:]:
            if (found := _window_in(known[known.rfind(b"\n", 0, at) + 1 :])) is not None:
                return found
        detach()
        return _awaited(file, begin + known.rfind(b"\n") + 1, _window_in)
    finally:
        os.close(file)


def _window_in(text: bytes) -> list[bytes] | None:
    """The first record of a compaction of codex in ``text``, with only its summary and window; empty if it is too
    large, None without one. Raises: ValueError for a damaged record."""
    for _, line in _lines_with(_COMPACTED, text):
        record = json.loads(line)
        payload = record.get("payload") if isinstance(record, dict) else None
        # The arguments of an MCP tool are JSON as well, and may contain the mark.
        if not isinstance(payload, dict) or record.get("type") != "compacted":
            continue
        members = {name: payload[name] for name in ("message", "replacement_history") if name in payload}
        window = json.dumps({**record, "payload": members}, separators=(",", ":"), ensure_ascii=False)
        found = window.encode("utf-8", "replace")
        return [found] if len(found) <= RECORD_BYTES_MAX else []
    return None
