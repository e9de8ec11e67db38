"""Check whether a transcript has to be imported whole, including events from hooks or a hand-over. Pure.

The session has its events in the order of their time. If the conversation goes back to before one of them, the session
would keep the abandoned turns in its context. If the conversation has turns before the first of them, or calls between
them, the session would have those after its own. If it was compacted between them, the session would keep the context
before the compaction.
"""

from collections import deque
from collections.abc import Sequence

from ctxd.formats.compacted_window import replaces
from ctxd.imports.existing_events import ExistingEvents
from ctxd.imports.transcript_plan import TranscriptPlan
from ctxd.transcripts.claude_code import is_typed
from ctxd.transcripts.discovery import TAIL_BYTES, Transcript
from ctxd.transcripts.format_detection import LINE_READERS
from ctxd.transcripts.opencode_storage import STATE
from ctxd.transcripts.record_decoding import Line
from ctxd.transcripts.source_lines import SourceLine
from ctxd_protocol.event_types import Event, PromptEvent, ResponseEvent, SystemEvent, ToolCallEvent, ToolResultEvent


class WholeImportCheck:
    """Reading of the lines of one source in order. ``existing``: the events that the session has, counted as found.
    ``is_first``: no import has left any of them out yet. ``imported``: bytes of the source that imports have read.
    Memory: that of a ``TranscriptPlan``."""

    def __init__(self, source: Transcript, existing: ExistingEvents, *, is_first: bool, imported: int) -> None:
        self.existing = existing
        self.is_first = is_first
        self._imported = imported
        self.is_needed = False
        """True once the source cannot be imported as one continuation of the session, for one of these reasons:

        - The conversation has gone back to before a line that the session has.
        - It has gone back to a branch in the part that is imported whole.
        - A turn that the session lacks comes after turns that it has, and these after a first continuation. The lines
          of a source continue a session at one place only.
        - A prompt that the session lacks is between events that it has, and no import has continued the session there.
        - The session has no message at all, such as one whose hooks have recorded only its start and its end.
        - A turn whose prompt the session has contains a call or an output that the session lacks: codex runs some
          calls without the hook of their end, and harnesses refuse invalid ones before any hook.
        - A compaction that the session lacks is between events that it has, or follows the last of them in the same
          turn: the hook of codex may have missed it.
        - ``is_first``, and a whole turn that the session lacks comes before everything that it has. This happens if
          hooks were installed and the session was resumed later, or if the source is a fork by reference, which begins
          after the turns of its origin.
        """
        self.is_passed = False
        """True if the session has events after the line that continues it: the continuation is then not its end."""
        self.size = 0
        """Bytes of the source that were read, up to its last complete line."""
        self.tail = b""
        """The last of these bytes."""
        self._plan = TranscriptPlan(source.format, source.path)
        self._read = LINE_READERS[source.format]
        self._last_recorded = -1  # Or the last line of the part that is imported whole.
        self._is_turn_recorded = self._is_compaction_missed = False
        # A prompt, or an event after those of a hand-over, that the session lacks and no import has continued it with.
        self._is_prompt_missed = self._is_event_missed = False
        self._is_command_missed = False  # No response came after it yet.
        # Before the first line that the session has.
        self._is_asked = self._is_answered = bool(source.base) and not existing.since

    def add(self, line: SourceLine) -> None:
        """Read the next line."""
        if STATE not in (line.record or ()):  # Later lines are inserted before it.
            self.size, self.tail = line.end, (self.tail + line.source)[-TAIL_BYTES:]
        number = len(self._plan.branch_points)
        deque(self._plan.add(line), maxlen=0)
        # The plan keeps no events, so the record is read a second time.
        events = [] if line.record is None else [entry.event for entry in self._read([Line(1, line.record)])]
        # Imports of the first bytes, whole or before the session had events, have dealt with the branches in them.
        if line.end > self.existing.imported_whole and self._last_recorded >= 0:
            points = self._plan.branch_points[number:]
            self.is_needed = self.is_needed or any(point <= self._last_recorded for point in points)
        start = max(self.existing.continued_at, self.existing.whole)
        is_after_continuation = self.existing.continued_at > 0 and line.end > start
        is_recorded, missed = self.existing.find(line, events)
        self._note_missed(events, missed, is_after_continuation)
        own = [event for event in events if event.sidechain is None]
        is_turn_missed = self._begins_turn(own, is_recorded)
        if line.end > max(self.existing.imported_whole, self.existing.written):
            self._note_order(own, missed, line.end, is_turn_missed)
        if self.is_first and line.end > self.existing.since:
            self._note_beginning(events, is_recorded)
        if is_recorded:
            self.is_needed |= self._is_compaction_missed
            self._last_recorded = self._plan.size - 1
            self.is_passed |= is_after_continuation
        elif self.is_passed and is_turn_missed:
            self.is_needed = True

    def _begins_turn(self, events: Sequence[Event], is_recorded: bool) -> bool:
        """Return True for a prompt that the session lacks, and for the first response after a command that it lacks:
        hooks do not report the commands that a harness runs without its model."""
        if is_recorded:
            self._is_command_missed = False
            return False
        is_answer = self._is_command_missed and any(isinstance(each, ResponseEvent | ToolCallEvent) for each in events)
        typed = [event for event in events if is_typed(event)]
        is_command = any(isinstance(each, SystemEvent) for each in typed)
        self._is_command_missed = is_command or (self._is_command_missed and not is_answer)
        return is_answer or any(isinstance(each, PromptEvent) for each in typed)

    def _note_missed(self, events: Sequence[Event], missed: Sequence[Event], is_after_continuation: bool) -> None:
        """Note the calls, outputs and compactions among the events that hooks have ``missed``."""
        unseen = set(map(id, missed))
        for event in events:
            if event.sidechain is not None:
                continue
            is_missed = id(event) in unseen
            if is_typed(event):
                self._is_turn_recorded = not is_missed
            elif is_missed and isinstance(event, ToolCallEvent | ToolResultEvent):
                self.is_needed |= self._is_turn_recorded and bool(event.call)
            elif is_missed and replaces(event) and self._last_recorded >= 0:
                self.is_needed |= self._is_turn_recorded
                # Chains of imports have the compactions of a continuation.
                self._is_compaction_missed |= not is_after_continuation

    def _note_order(self, events: Sequence[Event], missed: Sequence[Event], end: int, is_turn_missed: bool) -> None:
        """Note whether the ``events`` of the conversation in the line that ends at ``end`` are out of order: the
        session lacks one of them, and has a later one. ``is_turn_missed``: they begin a turn that it lacks."""
        unseen = set(map(id, missed))
        if any(id(event) not in unseen for event in events):
            self.is_needed |= self._is_prompt_missed
            self.is_passed |= self._is_prompt_missed or self._is_event_missed
        elif not 0 < self.existing.continued_at <= end <= self._imported:
            self._is_prompt_missed |= self._last_recorded >= 0 and is_turn_missed
            self._is_event_missed |= self.existing.written > 0 and self.existing.is_over
            is_spoken = any(is_typed(event) or isinstance(event, ResponseEvent) for event in events)
            self.is_needed |= is_spoken and not self.existing.has_conversation

    def continue_with(self, existing: ExistingEvents, imported: int) -> None:
        """Continue with the events that the session has now, and the bytes that were imported meanwhile."""
        continued_at = existing.continued_at
        existing.take_over(self.existing)
        existing.continued_at = continued_at
        self.existing, self._imported = existing, imported
        if continued_at:
            self._is_prompt_missed = self._is_event_missed = False

    def _note_beginning(self, events: Sequence[Event], is_recorded: bool) -> None:
        if is_recorded:
            self.is_first, self.is_needed = False, self.is_needed or self._is_answered
            return
        own = [event for event in events if event.sidechain is None]
        self._is_answered |= self._is_asked and any(isinstance(event, ResponseEvent) for event in own)
        self._is_asked |= any(map(is_typed, own))
