"""Plan of the commits of one transcript in its own format: branches of a tree, sub-agents, compactions. Pure.

A delta holds complete lines of the source, so that nothing is converted. It ends before the next prompt, after a call
that spawns a sub-agent, at a compaction, and when it is long. A branch begins at the commit that ends with the parent
of its first line; if the parent is within a delta, it begins one commit earlier and repeats the lines up to the parent.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from ctxd.capture.stream_checkpoints import Trigger
from ctxd.formats.delta_formats import tokens_of
from ctxd.imports.compaction_kept_marks import CompactionMarks, KeptMark
from ctxd.imports.existing_events import ExistingEvents
from ctxd.imports.line_ids import LineIds
from ctxd.imports.plan_types import CONTINUED, ROOT, PlannedDelta, Repeated, Start
from ctxd.imports.spawning_calls import SpawningCalls
from ctxd.imports.transcript_branch import BegunTurns, Branch, LineEvents, LineTimes, rolled_back, turn_in
from ctxd.transcripts.claude_code import BOUNDARY, is_rewind
from ctxd.transcripts.codex import HISTORY
from ctxd.transcripts.format_detection import LINE_READERS, Format
from ctxd.transcripts.opencode_storage import STATE, reverted
from ctxd.transcripts.pi import changes_window
from ctxd.transcripts.record_decoding import Line, Record, as_text, id_of, parent_of, record_of
from ctxd.transcripts.source_lines import SourceLine
from ctxd_protocol.event_types import CompactionEvent, Event, OpaqueEvent

DELTA_BYTES: Final = 192 * 1024
"""Bytes at which a delta is cut."""

_PENDING_BYTES_MAX: Final = 8 * 1024 * 1024
_SUMMARY_CHARS_MAX: Final = 16_000


class TranscriptPlan:
    """Plan of one source of lines.

    ``start``, ``agent``: the start and the sub-agent of its first chain. Memory: about 150 bytes for each line, and the
    lines that are not in a commit yet.
    """

    def __init__(self, format: Format, source: str, *, start: Start = ROOT, agent: str = "") -> None:
        self.source = source
        self.counts: Counter[str] = Counter()
        self.copied = 0  # Lines that repeat lines of another source, or of this one.
        self.existing: ExistingEvents | None = None
        """Events that the session already has, which are left out of the following lines."""
        self.keeps_cuts = False  # Another version planned the next lines: ``end_delta`` cuts them as it did.
        self._read = LINE_READERS[format]
        self._start, self._agent = start, agent
        self.starts, self._ends = array("Q"), array("Q")
        self._commit_of, self._branch_of, self._spoken = array("L"), array("L"), bytearray()
        self._ids = LineIds()
        self._marks = CompactionMarks(self._ids)
        self.outside: dict[int, tuple[TranscriptPlan, int]] = {}  # Lines that repeat those of another plan.
        self._branches: list[Branch] = []
        self._main: Branch | None = None
        self._agents: dict[str, Branch] = {}
        self.spawning = SpawningCalls()
        self._turns, self._clock = BegunTurns(), LineTimes()
        self._task: Start | None = None
        self._is_task_begun = self._is_continued = self._has_turn = self._is_late = False
        self._entries = array("L")
        self._made: list[tuple[Start, array[int], int]] = []
        self._aside: dict[int, int] = {}  # Lines beside a turn, each with the line that it follows.
        self._kept_in: dict[int, int] = {}  # Lines that a compaction keeps, each with the number of its commit.
        self._pending = 0
        self.newest: int | None = None
        """The newest time so far in the conversation, or in the sub-agent whose source it is, in ms since 1970."""
        self._oldest: int | None = None
        self.branch_points: list[int] = []
        """The line after which each branch of the conversation begins, or is continued; -1 for none."""
        self._continued, self._summaries = set[int](), set[int]()
        self._place = 0  # Of the line that is added.
        self._to: Branch | None = None
        self._route = _ROUTES.get(format, _linear)

    @property
    def made(self) -> int:
        """Number of commits planned so far."""
        return len(self._made)

    @property
    def size(self) -> int:
        """Number of lines so far, including blank ones."""
        return len(self._spoken)

    # --- lines ---

    def add(self, line: SourceLine, place: int | None = None) -> Iterator[PlannedDelta]:
        """Take the next line of the source, and yield the commits that are due before and after it. ``place``: returned
        by ``reserve`` for this line."""
        self._place = place = self.reserve(line) if place is None else place
        if not line.to_store:
            return
        record, events = line.record or {}, list[Event]([OpaqueEvent(kind="damaged")])
        if line.record is not None:
            events = [entry.event for entry in self._read([Line(1, record)])]
        id = id_of(record)
        if self._ids.is_repetition(id, line.to_store) and not self.keeps_cuts:
            self.copied += STATE not in record
            return
        if self.existing is not None:
            line, events = self._unrecorded(self.existing, line, events)
            record = line.record or {}
            if not line.to_store:
                self._ids.pass_over(id, record)
                return
        self._to, self._is_late = None, False  # Late: a child of the line was written before it.
        found = LineEvents.of(events)
        yield from self._route(self, record, found)
        branch = self._to or self._main_branch()
        if (begun := found.begun) is not None and not branch.agent:
            if branch.has_spoken and not self.keeps_cuts:
                yield self._cut(branch, "turn_boundary")
            self._turns.add(begun, self._task or branch.start, place)
            self._task, self._is_task_begun, self._has_turn = None, False, True
        if found.compaction is not None:
            yield from self._cut_before_boundary(branch)
        self._append(branch, place, line.to_store, found)
        branch.ends_with_boundary = record.get("subtype") == BOUNDARY
        self._marks.note(record, place)
        self._ids.note(id, record, place)
        is_spawning = self.spawning.note(events, place)
        yield from self._due(branch, found.compaction, is_spawning=is_spawning)

    def _unrecorded(
        self, existing: ExistingEvents, line: SourceLine, events: list[Event]
    ) -> tuple[SourceLine, list[Event]]:
        """Return the part of ``line`` and its ``events`` that the session lacks. The first line that continues the
        session begins a chain of its own."""
        found = existing.without(line, events)
        if found.to_store and found.record is not None and found.record is not line.record:
            events = [entry.event for entry in self._read([Line(1, found.record)])]
        if not self._is_continued and existing.note_continuing(found, events):
            self._is_continued, self._main = True, self._branch(CONTINUED, self._agent)
            # Its parent line is in the session's own chain, whichever chain has the last line that was not left out.
            self._ids.forget(parent_of(record_of(line.record)))
        return found, events

    def _due(self, branch: Branch, compaction: CompactionEvent | None, *, is_spawning: bool) -> Iterator[PlannedDelta]:
        """Cut the deltas that are due after a line with ``compaction``, or with a call that spawns sub-agents."""
        if compaction is not None:
            mark = self._marks.take(compaction)
            kept = self._kept(mark, compaction, branch)
            own = [each for each in kept if each.source == self.source and self._route is _claude_code]
            if mark.boundary is not None and self._commit_of[mark.boundary] and not self.keeps_cuts:
                # An earlier import ended after it. It names the first line that stays, so it is read with them.
                kept, own = (*kept, self.line(mark.boundary)), []
            if mark.last is not None:
                self._ids.relink(mark.last, branch.last)
            self._summaries.add(self.starts[branch.last])
            made = self._cut(branch, "compaction", summary=compaction.summary[:_SUMMARY_CHARS_MAX], kept=kept)
            self._kept_in.update((bisect_left(self.starts, each.start), self.made) for each in own)
            yield made
        elif is_spawning and not self.keeps_cuts:
            yield self._cut(branch, "tool_call")
        elif not self.keeps_cuts and branch.size >= DELTA_BYTES and (branch.has_spoken or self.newest is not None):
            yield self._cut(branch, "explicit")
        if self._pending >= _PENDING_BYTES_MAX:
            yield from self.flush("explicit")

    def skip(self, line: SourceLine, origin: "TranscriptPlan", place: int, here: int | None = None) -> None:
        """Skip a line that repeats line ``place`` of ``origin``: later lines continue there. ``here``: as reserved."""
        here = self.reserve(line) if here is None else here
        record, before = line.record or {}, self._start
        self.copied += STATE not in record
        self.outside[here] = origin, place
        self._start, self._main = origin.at_line(place), None
        self._ids.note_copied(id_of(record), record, here)
        if self._route is not _codex:
            return
        if (begun := turn_in([entry.event for entry in self._read([Line(1, record)])])) is not None:
            self._turns.add(begun, before, here)
        elif (turns := rolled_back(record_of(record.get("payload")))) and self._turns:
            self._turns.take_back(turns)

    def begin_after(self, origin: "TranscriptPlan") -> None:
        """Begin after the end of ``origin`` if no message was skipped as its copy."""
        if self._main is None and not any(there._spoken[place] for there, place in self.outside.values()):
            self._start = origin.at_spawn()

    @property
    def pending(self) -> tuple[int, bool]:
        """Bytes of the unfinished delta with the last line, and whether it repeats other lines before them."""
        branch = self._to or self._main
        return (0, False) if branch is None else (branch.size, bool(branch.start.repeated))

    def end_delta(self) -> Iterator[PlannedDelta]:
        """Yield the commit of the unfinished delta with the last line."""
        branch = self._to or self._main
        if branch is not None and branch.lines:
            yield self._cut(branch, "session_end")

    def flush(self, trigger: Trigger = "session_end") -> Iterator[PlannedDelta]:
        """Yield the commits of all pending lines, that of the main chain last, so that it is the newest."""
        for branch in sorted(self._branches, key=lambda branch: branch is self._main):
            if branch.lines:
                yield self._cut(branch, trigger)

    # --- places for other chains ---

    def at_line(self, place: int) -> Start:
        """Return the start of a chain that continues after line ``place``, which is in a commit."""
        if place in self.outside:
            origin, there = self.outside[place]
            return origin.at_line(there)
        number = self._commit_of[place]
        if number == 0:
            return Start()
        before, places, _ = self._made[number - 1]
        if not any(self._spoken[later] for later in places if later > place):
            return Start(self.source, number)
        repeated = map(self.line, (each for each in places if each <= place))
        return before._replace(repeated=(*before.repeated, *repeated))

    def commit_of(self, start: int) -> int:
        """Return the number of the commit with the line at byte ``start``; 0 if it is in none of this plan."""
        return self._commit_of[bisect_left(self.starts, start)]

    def at_byte(self, end: int) -> tuple[Start, bool]:
        """Return the start of a chain after the line that ends at byte ``end``, and True if a line ends there."""
        if not end or not self.size:
            return Start(), not end
        place = min(bisect_left(self._ends, end), self.size - 1)
        return self.at_line(place), self._ends[place] == end

    def at_spawn(self, *keys: str, began: int | None = None, after: str = "") -> Start:
        """Return the start of the chain of the sub-agent with ``keys``: after the message ``after``, if committed, its
        call, or the last line before ``began``, in ms (no commit if all are later), else at the newest commit."""
        if (forked := self._ids.place(after)) is not None and (forked in self.outside or self._commit_of[forked]):
            return self.at_line(forked)
        last = None if began is None else self._clock.last_at(began)
        place = self.spawning.line(keys, last)
        if place is None and began is not None and self._clock.is_before_end(began):
            if last is None:
                return Start()
            place = last
        if place is not None:
            return self.at_line(place)
        if (main := self._main) is not None and main.start.source == self.source:
            return main.start
        return Start(self.source, self.made) if self.made else Start()

    # --- chains ---

    def reserve(self, line: SourceLine) -> int:
        """Reserve and return the place of the next line of the source, which is added or skipped later, if at all."""
        self.starts.append(line.end - len(line.source))
        self._ends.append(line.end)
        self._commit_of.append(0)
        self._branch_of.append(0)
        self._spoken.append(0)
        return len(self._spoken) - 1

    def _main_branch(self) -> Branch:
        if self._main is None:
            self._main = self._branch(self._start, self._agent)
        return self._main

    def _branch(self, start: Start, agent: str = "", *, after: int | None = None) -> Branch:
        branch = Branch(len(self._branches), agent, start)
        if agent == self._agent:
            branch.at = self.newest  # It is newer than what it leaves, even if the clock was set back since.
        self._branches.append(branch)
        if after is not None and agent == self._agent:
            self.branch_points.append(after)
        return branch

    def _go_on(self, branch: Branch, place: int) -> None:
        """Direct the next line to ``branch``, after its line ``place``."""
        if branch is not self._main and branch.agent == self._agent:
            self.branch_points.append(place)
        self._to = branch

    def _after(self, place: int) -> Iterator[PlannedDelta]:
        """Begin a branch after line ``place``, and direct the next line to it."""
        if self._commit_of[place] == 0 and place not in self.outside:
            yield self._cut(self._branches[self._branch_of[place]], "explicit", upto=place)
        agent = "" if place in self.outside else self._branches[self._branch_of[place]].agent
        kept = None if self.keeps_cuts else self._after_kept(place)
        self._to = self._branch(kept or self.at_line(place), agent, after=place)
        self._to.begins_with_summary = kept is not None

    def _begin_anew(self, found: LineEvents) -> None:
        """Begin a chain with a root record, unless only records without a message, such as settings, were before it."""
        if (main := self._main) is not None and main.number and main.begin == ROOT and main.last_spoken < 0:
            return
        is_new_turn = self.existing is None and (self._has_turn or self.copied) and found.is_typed
        if is_new_turn or (main is not None and main.last_spoken >= 0):
            self._main = self._to = self._branch(ROOT, self._agent, after=-1)

    def _note_aside(self, place: int, found: LineEvents) -> None:
        """Note the next line if it is not part of the turns after its parent ``place``: Claude Code writes such lines
        before the prompt with which a branch begins."""
        is_before = self._branches[self._branch_of[place]].last_typed > place
        if place in self._aside or (is_before and not found.messages):
            self._aside[self._place] = place

    def _after_turn(self, place: int) -> Iterator[PlannedDelta]:
        """Begin a branch after line ``place``, with the lines up to it that are beside a turn."""
        first, rest = place, list[int]()
        while first in self._aside:
            rest.append(first)
            first = self._aside.pop(first)
        rest.reverse()
        before = self._branches[self._branch_of[place]]
        yield from self._after(first)
        assert self._to is not None
        if kept := before.give(rest, self._to):
            repeated = (*self._to.start.repeated, *map(self.line, kept))
            self._to.start = self._to.start._replace(repeated=repeated)
        for each in rest:
            self._branch_of[each] = self._to.number

    def _goes_on_from(self, place: int) -> bool:
        """True if the main chain has no line of this source yet, and begins after line ``place`` of the origin."""
        main = self._main
        start = self._start if main is None else main.begin
        return (main is None or main.last_spoken < 0) and start == self.at_line(place)

    def _append(self, branch: Branch, place: int, line: bytes, found: LineEvents) -> None:
        branch.append(place, line, found, is_late=self._is_late)
        at = found.newest
        self._branch_of[place] = branch.number
        self._pending += len(line)
        if at is not None and branch.agent == self._agent:
            self.newest = max(self.newest or 0, at)
            self._clock.note(at, place)
        if found.oldest is not None:
            self._oldest = found.oldest if self._oldest is None else min(self._oldest, found.oldest)
        found.count_kinds(self.counts)
        if found.is_spoken:
            self._spoken[place] = branch.has_spoken = True
            branch.last_spoken = branch.last_spoken if self._is_late else place
        elif self._route is _pi:
            self._spoken[place] = any(map(changes_window, found.events))

    def _cut(
        self, branch: Branch, trigger: Trigger, *, upto: int | None = None, summary: str | None = None,
        kept: tuple[Repeated, ...] = (),
    ) -> PlannedDelta:  # fmt: skip
        """Make a commit of the pending lines of ``branch``, or of those up to line ``upto``."""
        number = len(branch.places) if upto is None else bisect_left(branch.places, upto) + 1
        lines, places = branch.lines[:number], branch.places[:number]
        rest = branch.lines[number:], branch.places[number:], branch.times[number:]
        branch.at = max((at for at in (branch.at, *branch.times[:number]) if at is not None), default=None)
        parent = branch.start._replace(repeated=(*branch.start.repeated, *kept))
        is_counted = branch.is_counted and not rest[0] and not parent.repeated
        counts = (branch.messages, tokens_of(branch.text)) if is_counted else None
        self._made.append((parent, array("L", places), len(kept)))
        if parent.tip == 0 or (parent.source == self.source and parent.tip in self._continued):
            self._continued.add(self.made)
        for place in places:
            self._commit_of[place] = self.made
        is_compaction = summary is not None or branch.begins_with_summary
        branch.clear()
        branch.start = Start(self.source, self.made)
        branch.lines, branch.places, branch.times = rest
        branch.size = sum(map(len, branch.lines))
        branch.has_spoken = any(self._spoken[place] for place in branch.places)
        branch.is_counted = not branch.lines
        self._pending -= sum(map(len, lines))
        return PlannedDelta(
            self.made, parent, branch.agent, trigger, b"".join(lines), is_compaction, summary or "", counts,
            self.newest if branch.at is None else branch.at, self.made in self._continued, branch.is_of_session,
        )  # fmt: skip

    def _cut_before_boundary(self, branch: Branch) -> Iterator[PlannedDelta]:
        """Cut the lines before a compaction, which includes the line with its boundary."""
        if branch.ends_with_boundary and len(branch.lines) > 1:
            yield self._cut(branch, "compaction", upto=branch.places[-2])
        elif branch.lines and not branch.ends_with_boundary:
            yield self._cut(branch, "compaction")

    def _kept(self, mark: KeptMark, compaction: CompactionEvent, branch: Branch) -> tuple[Repeated, ...]:
        """Return the lines that stay in the window after a compaction: its commit replaces everything before."""
        places = mark.places
        if mark.first is not None:
            # pi shows only the newest of several summaries.
            older = self._summaries if self._route is _pi else ()
            return tuple(each for each in self._path(mark.first, branch.start) if each.start not in older)
        if mark.entry is not None and 0 < mark.entry < len(self._entries):
            return tuple(self._path(self._entries[mark.entry], branch.start))
        if mark.is_segment and places:
            path, last = self._path(places[0], branch.start), self.line(places[-1])
            return tuple(path[: path.index(last) + 1]) if last in path else ()
        if self._route is _codex and not (compaction.meta or {}).get(HISTORY):
            places = self._turns.recent_prompts()
        return tuple(self.line(place) for place in places if place in self.outside or self._commit_of[place])

    def _after_kept(self, place: int) -> Start | None:
        """Return the start of a branch after line ``place`` if a compaction keeps it: the lines kept up to there, and
        the summary; else None."""
        if place in self.outside:
            origin, there = self.outside[place]
            return origin._after_kept(there)
        if (number := self._kept_in.get(place)) is None:
            return None
        before, places, many = self._made[number - 1]
        end = before.repeated.index(self.line(place), len(before.repeated) - many) + 1
        return before._replace(repeated=(*before.repeated[:end], *map(self.line, places)))

    def line(self, place: int) -> Repeated:
        """Return line ``place`` as a line to repeat."""
        if place in self.outside:
            origin, there = self.outside[place]
            return origin.line(there)
        return Repeated(self.source, self.starts[place])

    def _path(self, first: int, start: Start) -> list[Repeated]:
        """Return the lines from ``first`` on in a chain that begins at ``start``; none if ``first`` is not in it."""
        back: list[Repeated] = []
        wanted = self.line(first)
        source, tip, repeated, _ = start
        while wanted not in repeated:
            back += reversed(repeated)
            if tip is None or source != self.source:
                break
            (source, tip, repeated, _), places, kept = self._made[tip - 1]
            back += [self.line(place) for place in reversed(places) if place >= first]
            if first in places:
                return back[::-1]
            # Lines that an earlier compaction kept are in the commits before it too.
            repeated = repeated[: len(repeated) - kept]
        else:
            return [*repeated[repeated.index(wanted) :], *reversed(back)]
        if first in self.outside and tip is not None:
            origin, there = self.outside[first]
            before = origin._path(there, Start(source, tip))
            return [*before, *reversed(back)] if before else []
        return []


# --- routes: the branch of a line ---


def _linear(plan: TranscriptPlan, record: Record, found: LineEvents) -> Iterator[PlannedDelta]:
    """Route to one chain, and to one for each sub-agent named by a line."""
    agent = next((event.sidechain for event in found.events if event.sidechain), None)
    if agent is not None and agent != plan._agent:
        yield from _to_agent(plan, agent)


def _to_agent(plan: TranscriptPlan, agent: str) -> Iterator[PlannedDelta]:
    if agent not in plan._agents:
        if agent not in plan.spawning and plan._main is not None and plan._main.lines:
            yield plan._cut(plan._main, "explicit")
        plan._agents[agent] = plan._branch(plan.at_spawn(agent), agent)
    plan._to = plan._agents[agent]


def _claude_code(plan: TranscriptPlan, record: Record, found: LineEvents) -> Iterator[PlannedDelta]:
    """Route by ``parentUuid``. A branch begins with a typed prompt: siblings of other kinds belong to one step."""
    if is_rewind(record):
        yield from _rewind(plan, as_text(record.get("leafUuid")))
        return
    is_boundary = record.get("subtype") == BOUNDARY
    parent = as_text(record.get("parentUuid")) or (as_text(record.get("logicalParentUuid")) if is_boundary else "")
    # Children of the last message that a compaction kept follow the compaction.
    place = plan._ids.followed(parent)
    if record.get("isSidechain") and not plan._agent:
        named = as_text(record.get("agentId"))
        if not named and place is not None and place not in plan.outside:
            named = plan._branches[plan._branch_of[place]].agent
        yield from _to_agent(plan, named or id_of(record) or "sidechain")
        return
    if "parentUuid" not in record or plan._agent:
        return
    child = None if plan.keeps_cuts else plan._ids.early_child(id_of(record))
    if child is not None and (place is None or plan._branch_of[place] == plan._branch_of[child]):
        plan._is_late = True
        plan._main = plan._to = plan._branches[plan._branch_of[child]]
    elif not parent and not is_boundary:
        plan._begin_anew(found)
    elif place is not None:
        yield from _claude_child(plan, place, found)


def _claude_child(plan: TranscriptPlan, place: int, found: LineEvents) -> Iterator[PlannedDelta]:
    """Route a record of the conversation after its parent at ``place``."""
    if place in plan.outside:
        if found.is_typed and not plan._goes_on_from(place):
            yield from plan._after(place)
            plan._main = plan._to
        return
    branch = plan._branches[plan._branch_of[place]]
    if found.is_typed and (place in plan._aside or branch.last_spoken > place):
        yield from plan._after_turn(place)
    else:
        plan._go_on(branch, place)
        plan._note_aside(place, found)
    plan._main = plan._to


def _rewind(plan: TranscriptPlan, leaf: str) -> Iterator[PlannedDelta]:
    """Continue after the message ``leaf``, or from a new root if it is empty: later records that name it follow this
    one."""
    if plan.keeps_cuts or plan._agent or (plan.existing is not None and not plan.existing.is_within):
        return
    main, place = plan._main, plan._ids.place(leaf)
    if not leaf:
        if main is not None and (main.last_spoken >= 0 or main.begin != ROOT):
            plan._to = plan._branch(ROOT, after=-1)
    elif place is None or (place in plan.outside and plan._goes_on_from(place)):
        return
    elif place in plan.outside:
        yield from plan._after(place)
    elif (branch := plan._branches[plan._branch_of[place]]).agent:
        return
    elif branch is plan._main and branch.last_spoken <= place:
        plan._to = branch
    else:
        yield from plan._after_turn(place)
    if plan._to is not None:
        plan._main = plan._to
        if plan._to is not main:
            # The chain is as new as the conversation is now, not as it will be.
            plan._to.at = plan.newest
        plan._ids.relink(leaf, plan._place)


def _pi(plan: TranscriptPlan, record: Record, found: LineEvents) -> Iterator[PlannedDelta]:
    """Route by ``parentId`` alone. An entry without one, or with an unknown one, is a root."""
    if "parentId" not in record:
        # The first version of the format has no ids, and refers to an entry by its number.
        if record:
            plan._entries.append(plan.size - 1)
        return
    place = plan._ids.place(as_text(record.get("parentId")))
    if place is None:
        plan._begin_anew(found)
    elif place in plan.outside:
        if not plan._goes_on_from(place):
            yield from plan._after(place)
            plan._main = plan._to
    else:
        branch = plan._branches[plan._branch_of[place]]
        if branch.last != place:
            yield from plan._after(place)
        else:
            plan._go_on(branch, place)
        plan._main = plan._to


def _codex(plan: TranscriptPlan, record: Record, found: LineEvents) -> Iterator[PlannedDelta]:
    """Route to one chain; a rollback begins a branch before the turns that it removes."""
    payload = record_of(record.get("payload"))
    main = plan._main_branch()
    match payload.get("type"):
        case "task_started":
            plan._is_task_begun = True
        case "task_complete" | "turn_aborted":
            plan._task, plan._is_task_begun = None, False
        case _ if plan._is_task_begun and plan._task is None and found.compaction is not None:
            # A compaction before the prompt of a turn is rolled back with the turn.
            if main.lines:
                yield plan._cut(main, "compaction")
            plan._task = main.start
    if found.begun is not None and main.lines and not (plan._turns and plan._has_turn):
        # Lines before the first turn stay when all turns are rolled back.
        yield plan._cut(main, "explicit")
    if (turns := rolled_back(payload)) and plan._turns:
        if main.lines:
            yield plan._cut(main, "turn_boundary")
        first = plan._turns.take_back(turns)
        plan._main = plan._to = plan._branch(first.start, after=first.place - 1)


def _opencode(plan: TranscriptPlan, record: Record, found: LineEvents) -> Iterator[PlannedDelta]:
    """Route to one chain, and changes of the session's row to a separate, older one. A pending revert begins a branch
    before the messages that it removes."""
    if STATE not in record:
        yield from _linear(plan, record, found)
        return
    message, is_part = reverted(record_of(record.get(STATE)))
    main = plan._main_branch()
    if message and main.lines:
        yield plan._cut(main, "session_end")
    first = plan._ids.place(message) or 0
    # If the revert names a part of a message, the parts before it stay.
    place = first if is_part else first - 1
    if first and (plan._commit_of[place] or place in plan.outside):
        yield from plan._after(place)
        plan._main = plan._to
    else:
        plan._to = plan._branch(Start())
        plan._to.at, plan._to.is_of_session = plan._oldest, True


_ROUTES: Final[dict[Format, Callable[[TranscriptPlan, Record, LineEvents], Iterator[PlannedDelta]]]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "codex-events": _codex,
    "opencode": _opencode,
    "pi": _pi,
}
