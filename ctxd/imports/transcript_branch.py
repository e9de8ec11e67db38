"""A chain of one transcript in progress, and the events that decide where it is cut. Pure.

The routes of ``transcript_plan`` only choose between such chains.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from ctxd.formats.compacted_window import FROM_AGENT, newest_within, replaces
from ctxd.formats.delta_formats import CONVERSATION, measure_event
from ctxd.imports.plan_types import Start
from ctxd.transcripts.claude_code import QUEUE, is_typed
from ctxd.transcripts.record_decoding import Record, number_of, record_of
from ctxd_protocol.event_types import CompactionEvent, Event, OpaqueEvent, PromptEvent


class LineEvents(NamedTuple):
    """The events of a line, and what decides about its chain: the event that ``begun`` a turn, the ``compaction`` with
    a replacement for everything before, and whether a person typed, or any message ``is_spoken``; the number of its
    ``messages``, the bytes of their ``text``, and its ``oldest`` and ``newest`` time. ``is_counted``: these messages
    are all, as no change of a queue is among the events, which may be a message together with the lines before it."""

    events: Sequence[Event]
    begun: Event | None
    compaction: CompactionEvent | None
    is_typed: bool
    is_spoken: bool
    messages: int
    text: int
    oldest: int | None
    newest: int | None
    is_counted: bool

    @classmethod
    def of(cls, events: Sequence[Event]) -> "LineEvents":
        """Find what the ``events`` of one line decide."""
        begun = turn_in(events)
        messages = text = 0
        is_counted = True
        for event in events:
            if isinstance(event, CONVERSATION):
                found, size = measure_event(event)
                messages += found
                text += size
            elif isinstance(event, OpaqueEvent) and event.kind == QUEUE:
                is_counted = is_counted and record_of(event.data).get("operation") != "remove"
        times = [event.at for event in events if event.at is not None]
        return cls(
            events, begun, replacement_in(events), any(map(is_typed, events)), bool(messages) or begun is not None,
            messages, text, min(times, default=None), max(times, default=None), is_counted,
        )  # fmt: skip

    def count_kinds(self, counts: Counter[str]) -> None:
        """Add the events to the number of each kind in ``counts``."""
        for event in self.events:
            counts[_tag(type(event))] += 1


@cache
def _tag(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)


class Branch:
    """A chain in progress: its newest commit, and the lines that are not in a commit yet.

    ``at``: the newest time in its commits, in ms since 1970. ``times``: the newest time in each line, if it has one.
    ``is_of_session``: it has changes of the session, and no messages.
    """

    def __init__(self, number: int, agent: str, start: Start) -> None:
        self.number = number
        self.agent = agent
        self.start = self.begin = start
        self.last = self.last_spoken = self.last_typed = -1
        self.at: int | None = None
        self.is_of_session = False
        self.clear()

    def clear(self) -> None:
        self.lines: list[bytes] = []
        self.places: list[int] = []
        self.times: list[int | None] = []
        self.size = self.messages = self.text = 0
        self.is_counted = True
        self.has_spoken = self.ends_with_boundary = self.begins_with_summary = False

    def append(self, place: int, line: bytes, found: LineEvents, *, is_late: bool = False) -> None:
        """Add a line with the events ``found``. ``is_late``: one of its children is in the chain already, after which
        the next prompt continues it."""
        self.lines.append(line)
        self.places.append(place)
        self.size += len(line)
        self.last = place
        if found.is_typed and not is_late:
            self.last_typed = place
        self.messages += found.messages
        self.text += found.text
        self.is_counted = self.is_counted and found.is_counted
        self.times.append(found.newest)

    def give(self, places: Sequence[int], to: "Branch") -> list[int]:
        """Move those of the lines ``places`` that are not in a commit yet to another chain. Returns: the others. Cost:
        the lines of this chain and ``places``, each once."""
        given, moved = set(places), set[int]()
        held = zip(self.places, self.lines, self.times, strict=True)
        self.places, self.lines, self.times = [], [], []
        for place, line, at in held:
            branch = to if place in given else self
            branch.places.append(place)
            branch.lines.append(line)
            branch.times.append(at)
            if branch is to:
                moved.add(place)
                self.size -= len(line)
                to.size += len(line)
                to.last = place
        return [place for place in places if place not in moved]


def replacement_in(events: Sequence[Event]) -> CompactionEvent | None:
    """Return the compaction with the replacement for everything before it, None without one."""
    return next(filter(replaces, events), None)


class LineTimes:
    """The times of a source's lines, as far as they grow. Memory: 16 bytes for each line with a later time."""

    def __init__(self) -> None:
        self._times, self._places = array("q"), array("L")

    def note(self, at: int, place: int) -> None:
        """Note that the line at ``place`` has the time ``at``, in ms since 1970."""
        if not self._times or at > self._times[-1]:
            self._times.append(at)
            self._places.append(place)
        elif at == self._times[-1]:
            self._places[-1] = place

    def last_at(self, at: int) -> int | None:
        """Return the last line that is not later than ``at``; None if all lines are later."""
        number = bisect_right(self._times, at)
        return self._places[number - 1] if number else None

    def is_before_end(self, at: int) -> bool:
        """Return True if a line is later than ``at``."""
        return bool(self._times) and at < self._times[-1]


class BegunTurn(NamedTuple):
    """A turn: the start of a branch that takes its place, and the line that begins it. ``size``: that of its prompt;
    0 if a message of another agent begins it."""

    start: Start
    place: int
    size: int


class BegunTurns:
    """The turns of a conversation so far, without those that codex has rolled back."""

    def __init__(self) -> None:
        self._turns: list[BegunTurn] = []

    def __bool__(self) -> bool:
        return bool(self._turns)

    def add(self, begun: Event, start: Start, place: int) -> None:
        """Add the turn that the event ``begun`` begins."""
        size = max(1, measure_event(begun)[1]) if isinstance(begun, PromptEvent) else 0
        self._turns.append(BegunTurn(start, place, size))

    def take_back(self, number: int) -> BegunTurn:
        """Forget the newest turns. Returns: the first of them. Raises: IndexError without turns."""
        first = max(0, len(self._turns) - number)
        begun = self._turns[first]
        del self._turns[first:]
        return begun

    def recent_prompts(self) -> list[int]:
        """Return the lines of the newest prompts, as many as codex repeats next to a summary without history."""
        prompts = [turn for turn in self._turns if turn.size]
        kept = newest_within(turn.size for turn in reversed(prompts))
        return [turn.place for turn in prompts[len(prompts) - kept :]]


def turn_in(events: Sequence[Event]) -> Event | None:
    """Return the event that begins a turn, None without one: a prompt, or in codex a message of another agent, which
    a rollback counts alike."""
    return next(filter(_begins_turn, events), None)


def _begins_turn(event: Event) -> bool:
    return isinstance(event, PromptEvent) or (isinstance(event, OpaqueEvent) and event.kind in FROM_AGENT)


def rolled_back(payload: Record) -> int:
    """Return the number of turns that a record of codex rolls back."""
    return max(0, number_of(payload.get("num_turns")) or 0) if payload.get("type") == "thread_rolled_back" else 0
