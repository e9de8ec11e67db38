"""Check whether a transcript has to be imported whole, including what its session has from hooks or a hand-over. Pure.

The session has its events in the order of their time. If the conversation goes back to before one of them, the session
would keep the abandoned turns in its context.
"""

from collections import deque

from ctxd.capture.event_deduplication import RecordedEvents
from ctxd.capture.native_import_plan import TranscriptPlan
from ctxd.transcripts.claude_code import is_typed
from ctxd.transcripts.discovery import TAIL_BYTES, Transcript
from ctxd.transcripts.format_detection import LINE_READERS
from ctxd.transcripts.records import Line
from ctxd.transcripts.source_lines import SourceLine


class WholeImportCheck:
    """Reading of the lines of one source in order. ``recorded``: the events that the session has, counted as found.
    Memory: that of a ``TranscriptPlan``."""

    def __init__(self, source: Transcript, recorded: RecordedEvents) -> None:
        self.recorded = recorded
        self.is_needed = False
        """True once the conversation has gone back to before a line that the session has. Also true once a turn that
        the session lacks comes after turns that it has and that came after a first continuation: the lines of a source
        continue a session at one place only."""
        self.size = 0
        """Bytes of the source that were read, up to its last complete line."""
        self.tail = b""
        """The last of these bytes."""
        self._plan = TranscriptPlan(source.format, source.path)
        self._read = LINE_READERS[source.format]
        self._last_recorded = -1
        self._is_recorded_after_continuation = False

    def add(self, line: SourceLine) -> None:
        """Read the next line."""
        self.size, self.tail = line.end, (self.tail + line.source)[-TAIL_BYTES:]
        number = len(self._plan.branch_points)
        deque(self._plan.add(line), maxlen=0)
        # The plan keeps no events, so the record is read a second time.
        events = [] if line.record is None else [entry.event for entry in self._read([Line(1, line.record)])]
        # Imports of the first bytes, whole or before the session had events, have dealt with the branches in them.
        if line.end > max(self.recorded.whole, self.recorded.since) and self._last_recorded >= 0:
            points = self._plan.branch_points[number:]
            self.is_needed = self.is_needed or any(point <= self._last_recorded for point in points)
        start = max(self.recorded.continued_at, self.recorded.whole)
        is_after_continuation = self.recorded.continued_at > 0 and line.end > start
        if self.recorded.find(line, events):
            self._last_recorded = self._plan.size - 1
            self._is_recorded_after_continuation |= is_after_continuation
        elif self._is_recorded_after_continuation and any(is_typed(each) and not each.sidechain for each in events):
            self.is_needed = True
