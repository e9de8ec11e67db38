"""A chain of one transcript in progress, and the events that decide where it is cut. Pure.

Separate from ``native_import_plan``, as the routes of that module only choose between such chains.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ctxd.capture.import_plan_types import Start
from ctxd.formats.compacted_window import FROM_AGENT, replaces
from ctxd.formats.delta_formats import measure_event
from ctxd.transcripts.records import Record, number_of
from ctxd_protocol.event_types import CompactionEvent, Event, OpaqueEvent, PromptEvent


class Branch:
    """A chain in progress: its newest commit, and the lines that are not in a commit yet.

    ``at``: the newest time in its commits, in ms since 1970. ``times``: the newest time in each line, if it has one.
    """

    def __init__(self, number: int, agent: str, start: Start) -> None:
        self.number = number
        self.agent = agent
        self.start = self.begin = start
        self.last = self.last_spoken = self.last_typed = -1
        self.at: int | None = None
        self.clear()

    def clear(self) -> None:
        self.lines: list[bytes] = []
        self.places: list[int] = []
        self.times: list[int | None] = []
        self.size = self.messages = self.text = 0
        self.is_counted = True
        self.has_spoken = self.ends_with_boundary = False

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
    return next((event for event in events if replaces(event)), None)


class Repetitions:
    """The lines of a source with an id, of which Claude Code may write one twice. Memory: about 70 bytes for each."""

    def __init__(self) -> None:
        self._seen = set[int]()

    def note(self, id: str | None, line: bytes) -> bool:
        """Add a line with an ``id``. Returns: True if the same line was added before."""
        before = len(self._seen)
        if id is not None:
            self._seen.add(hash((id, line)))
        return id is not None and len(self._seen) == before


class BegunTurn(NamedTuple):
    """A turn: the start of a branch that takes its place, and the line that begins it. ``size``: that of its prompt;
    0 if a message of another agent begins it."""

    start: Start
    place: int
    size: int

    @classmethod
    def of(cls, begun: Event, start: Start, place: int) -> "BegunTurn":
        """Return the turn that the event ``begun`` begins."""
        return cls(start, place, max(1, measure_event(begun)[1]) if isinstance(begun, PromptEvent) else 0)


def turn_in(events: Sequence[Event]) -> Event | None:
    """Return the event that begins a turn, None without one: a prompt, or in codex a message of another agent, which
    a rollback counts alike."""
    return next(filter(_begins_turn, events), None)


def _begins_turn(event: Event) -> bool:
    return isinstance(event, PromptEvent) or (isinstance(event, OpaqueEvent) and event.kind in FROM_AGENT)


def rolled_back(payload: Record) -> int:
    """Return the number of turns that a record of codex rolls back."""
    return max(0, number_of(payload.get("num_turns")) or 0) if payload.get("type") == "thread_rolled_back" else 0
