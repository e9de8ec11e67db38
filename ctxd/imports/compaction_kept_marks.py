"""Marks of one transcript by which a compaction names the messages that it leaves in the window. Pure.

Separate from the plan: this knows records and the places of lines, but neither chains nor commits.
"""

from typing import NamedTuple

from ctxd.imports.line_ids import LineIds
from ctxd.transcripts.claude_code import BOUNDARY, Segment, compaction_metadata, preserved
from ctxd.transcripts.record_decoding import Record, as_text, number_of, records_of
from ctxd_protocol.event_types import CompactionEvent


class KeptMark(NamedTuple):
    """The messages that a compaction leaves: those from line ``first`` on, those from entry ``entry`` of pi's first
    version on, or the lines ``places``; all from the first to the last of them if ``is_segment``. ``last``: the id of
    the last one. ``boundary``: the line of Claude Code before the summary."""

    first: int | None
    entry: int | None
    places: list[int]
    is_segment: bool
    last: str | None
    boundary: int | None


class CompactionMarks:
    """The marks in the lines of a transcript, in order. ``ids``: those of the lines."""

    def __init__(self, ids: LineIds) -> None:
        self._ids = ids
        self._forget()

    def _forget(self) -> None:
        self._places: list[int] = []
        self._is_segment = False
        self._last: str | None = None
        self._tail: str | None = None
        self._boundary: int | None = None

    def note(self, record: Record, place: int) -> None:
        """Note the marks that the line at ``place`` has for the compaction after it, or in it."""
        if record.get("subtype") == BOUNDARY:
            self._boundary = place
        if ids := preserved(compaction_metadata(record)):
            self._places = sorted(kept for id in ids if (kept := self._ids.place(id)) is not None)
            self._is_segment, self._last = isinstance(ids, Segment), ids[-1]
        for part in records_of(record.get("parts")):
            if part.get("type") == "compaction":
                self._tail = as_text(part.get("tail_start_id")) or None

    def take(self, compaction: CompactionEvent) -> KeptMark:
        """Return the mark of ``compaction``, which is in the last line, and forget all marks."""
        first = compaction.kept_from or self._tail
        place = self._ids.place(first) if first is not None and first != compaction.id else None
        entry = number_of((compaction.meta or {}).get("firstKeptEntryIndex"))
        found = KeptMark(place, entry, self._places, self._is_segment, self._last, self._boundary)
        self._forget()
        return found
