"""Lines of one source that repeat lines of another: forks, sub-agents and other copies of a session."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import Final

import msgspec

from ctxd.imports.plan_types import CopyEnd, PlannedDelta
from ctxd.imports.transcript_plan import TranscriptPlan
from ctxd.transcripts.discovery import Transcript, lines_of
from ctxd.transcripts.format_detection import HEADLESS, ROLLOUTS
from ctxd.transcripts.opencode_storage import STATE
from ctxd.transcripts.record_decoding import Record, as_text, id_of, number_of, record_of, records_of
from ctxd.transcripts.source_lines import SourceLine

_HELD_BYTES_MAX: Final = 8 * 1024 * 1024

_BEHIND_MAX: Final = 64
"""Lines of the origin, before the last copied one, among which the copy of a later line may be: a line that only the
copy has, and that equals one further on, lets the lines between them appear to be passed."""

_COPIED: Final = frozenset(
    {
        "sessionId", "forkedFrom", "parentUuid", "logicalParentUuid", "isSidechain", "sessionKind", "agentId", "cwd",
        "promptId", "requestSessionId", "gitBranch", "version", "slug", "ordinal", "row", "seq",
    }
)  # fmt: skip
"""Members of a record that a copy may change: a fork of Claude Code is one chain even if its origin is a tree."""


_RENAMED: Final = frozenset({"id", "sessionID", "messageID", "parentID", "tail_start_id"})
"""Members of messages and parts of opencode with ids that are others in a fork."""


def copied_to(plan: TranscriptPlan) -> CopyEnd:
    """Return the end of the copy at the end of a source without later lines of its own. ``plan`` has copied lines."""
    there, place = plan.outside[next(reversed(plan.outside))]
    return _end_at(there, place, 0)


def _end_at(plan: TranscriptPlan, place: int, own: int) -> CopyEnd:
    """Return the end of a copy after line ``place`` of ``plan``, which may be a copy itself."""
    while place in plan.outside:
        plan, place = plan.outside[place]
    return CopyEnd(plan.source, place, own)


def fingerprint(record: Record) -> int:
    """Return a hash of a record that is equal for its copies in other sessions."""
    same = {name: value for name, value in record.items() if name not in _COPIED}
    if "payload" in record:
        same.pop("timestamp", None)
    if "parts" in record:
        # Exports and folders of opencode repeat in each part the ids that a database has in columns.
        same["info"] = _without_place(record_of(record.get("info")))
        same["parts"] = [_without_place(part) for part in records_of(record["parts"])]
    return int.from_bytes(blake2b(msgspec.json.encode(same, order="sorted"), digest_size=8).digest())


def _fork_fingerprint(record: Record) -> int:
    """Return the ``fingerprint`` of a message of opencode that is equal for a copy under other ids, even if the origin
    has changed since: opencode adds a summary of changed files, and the time at which an output left the window."""
    info = record_of(record.get("info"))
    same = {name: value for name, value in info.items() if name not in _RENAMED and not isinstance(value, dict)}
    parts = [_without_renamed(part) for part in records_of(record.get("parts"))]
    return fingerprint({"info": {**same, "time": info.get("time")}, "parts": parts})


def _without_renamed(part: Record) -> Record:
    state = record_of(part.get("state"))
    time = {name: value for name, value in record_of(state.get("time")).items() if name != "compacted"}
    files = [_without_renamed(file) for file in records_of(state.get("attachments"))]
    same = {name: value for name, value in part.items() if name not in _RENAMED}
    return {**same, "state": {**state, "time": time, "attachments": files}} if state else same


def _without_place(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in ("sessionID", "messageID")}


def _content_key(line: SourceLine) -> int:
    """Return a hash of a line without an id, equal for the first records of the same opencode session: their members
    have other names in an export."""
    session = as_text(record_of((line.record or {}).get("session")).get("id"))
    content = f"session {session}".encode("utf-8", "replace") if session else line.to_store
    return int.from_bytes(blake2b(content, digest_size=8).digest())


class _PlacesByHash:
    """Places of lines in an origin, by a hash of each line. Memory: about 150 bytes for each line."""

    def __init__(self) -> None:
        # Most lines are unique: a queue for each would take five times as much.
        self._places: dict[int, int | deque[int]] = {}

    def add(self, key: int, place: int) -> None:
        """Add a place, which comes after those before."""
        known = self._places.setdefault(key, place)
        if isinstance(known, deque):
            known.append(place)
        elif known != place:
            self._places[key] = deque((known, place))

    def take(self, key: int, first: int = 0, behind: int = 0) -> int | None:
        """Remove and return the first place of ``key`` from ``first`` on, else the first of those that are at most
        ``behind`` places before it; None without one. Those before are removed."""
        places, least = self._places.get(key), first - behind
        if not isinstance(places, deque):
            self._places.pop(key, None)
            return places if places is not None and places >= least else None
        while places and places[0] < least:
            places.popleft()
        for number, place in enumerate(places):
            if place >= first:
                del places[number]
                return place
        return places.popleft() if places else None


class CopyDetector:
    """Comparison of a source with its ``origin``, whose beginning, or some of whose lines, it may repeat.

    The beginning may lack lines of the origin: a fork has one branch of a tree. If another copy of the same origin
    continues like this one, the comparison continues with that copy, found by ``end``: the place where this source
    leaves the origin, None if no copy is wanted.

    ``ends_delta``: called with each held line that is added, and with ``plan.pending``; True ends the delta after it.
    Memory: about 150 bytes for each line of the origin that is compared out of order: all lines for a source that
    repeats only some, else those without an id up to the next line with one.
    """

    def __init__(self, source: Transcript, origin: tuple[Transcript, TranscriptPlan] | None) -> None:
        self._source = source
        self.end: CopyEnd | None = None
        self.ends_delta: Callable[[SourceLine, tuple[int, bool]], bool] = lambda line, pending: False
        self._last_copied: int | None = None
        self.origin = source if origin is None else origin[0]
        self._plan = None if origin is None else origin[1]
        self._theirs = self._lines(*origin) if origin is not None else iter(())
        self._ahead, self._first_ahead = _PlacesByHash(), 0
        """Lines of the origin without an id that were read ahead, and the place from which on they are compared."""
        self._keyed_ahead: tuple[int, SourceLine] | None = None
        """The next line of the origin with an id, after those without one."""
        self._held: list[tuple[int, SourceLine]] = []
        self._held_at_cut: int | None = None
        """The number of held lines at which an earlier import ended, unless lines after them are copies."""
        self._size = self._number = 0
        # A sub-agent of codex and a fork of opencode copy only the completed parts of their origin.
        is_of_another = origin is not None and origin[0].session != source.session
        self._is_selection = is_of_another and (bool(source.first_own) or source.format == "opencode")
        self._places: _PlacesByHash | None = None
        has_other_ids = is_of_another and source.stored is not None and bool(source.stored.copied_from)
        self._fingerprint = _fork_fingerprint if has_other_ids else fingerprint

    def taken(self, plan: TranscriptPlan, line: SourceLine) -> Iterator[PlannedDelta | None]:
        """Add the next line to ``plan``, or skip it there if it is a copy. Other lines without an id are held until the
        copy ends.

        Yields the deltas that are due, and None after ``end`` was set: the copy ends unless ``continue_comparison`` is
        called then.
        """
        if self._plan is None:
            yield from plan.add(line)
            return
        number, self._number = self._number, self._number + 1
        is_keyed = self._is_keyed(line, number)
        place = self._place(line, number, is_keyed=is_keyed)
        is_own = is_keyed and not self._is_inherited(line.record or {})
        while place is None and is_own and self._leave_origin(line):
            yield None
            if self.end is not None:
                break
            self._skip_held(plan)
            place = self._place(line, number, is_keyed=True)
        if place is not None:
            plan.skip(line, self._plan, place)
            if is_keyed:
                self._last_copied, self._held_at_cut = place, None
        elif is_own:
            self._leave_headless(plan)
            yield from self.rest(plan)
            yield from plan.add(line)
        else:
            self._held.append((plan.reserve(line), line))
            self._size += len(line.to_store)
            if self._size > _HELD_BYTES_MAX:
                yield from self.rest(plan)

    def _leave_origin(self, line: SourceLine) -> bool:
        """Set ``end``, as the copy leaves its origin before ``line``. Returns: False if no beginning was copied."""
        if self._is_selection or self._last_copied is None:
            return False
        assert self._plan is not None, "until the copy ends"
        self.end = _end_at(self._plan, self._last_copied, fingerprint(line.record or {}))
        return True

    def continue_comparison(self, source: Transcript, plan: TranscriptPlan, *, after: int | None = None) -> None:
        """Compare the next lines with those of ``source`` after line ``after``; None: with all lines of its own."""
        self.end, self._last_copied = None, after
        self.origin, self._plan = source, plan
        self._pass_keyed()
        own = (place for place in range(plan.size) if place not in plan.outside)
        first = next(own, 0) if after is None else after + 1
        lines = self._lines(source, plan, 0 if source.stored is not None else first)
        self._theirs = ((place, line) for place, line in lines if place >= first and place not in plan.outside)

    def _skip_held(self, plan: TranscriptPlan) -> None:
        """Skip those held lines that are copies."""
        held, self._held, self._size = self._held, [], 0
        for number, (here, line) in enumerate(held):
            if number == self._held_at_cut:
                self._held_at_cut = len(self._held)
            if self._plan is not None and (place := self._repeated(line)) is not None:
                plan.skip(line, self._plan, place, here)
            else:
                self._held.append((here, line))
                self._size += len(line.to_store)

    def _is_inherited(self, record: Record) -> bool:
        """True for a line that a sub-agent of codex has from its caller, even if the caller has no equal line."""
        ordinal = number_of(record.get("ordinal"))
        return ordinal is not None and ordinal < self._source.first_own

    def _place(self, line: SourceLine, number: int, *, is_keyed: bool) -> int | None:
        """Return the place of the line of the origin that ``line`` copies, None without one."""
        if not line.to_store or (self._is_selection and not is_keyed):
            return None
        if self._is_selection:
            return self._selected(line.record or {})
        return self._next(line.record or {}, number) if is_keyed else self._repeated(line)

    def _next(self, record: Record, number: int) -> int | None:
        has_ids = self._source.format not in ROLLOUTS
        while (found := self._next_keyed()) is not None:
            self._pass_keyed()
            place, theirs = found[0], found[1].record or {}
            if has_ids and id_of(theirs) != id_of(record):
                continue
            if fingerprint(theirs) == fingerprint(record):
                return place
            if has_ids or number > 1 or theirs.get("type") != "session_meta" or record.get("type") == "session_meta":
                return None
        return None

    def _repeated(self, line: SourceLine) -> int | None:
        """Return the place of an equal line without an id, before the origin's next line with an id; for one that was
        passed, the place of the last copied line."""
        keyed, key = self._next_keyed(), _content_key(line)
        place = self._ahead.take(key, self._first_ahead, _BEHIND_MAX)
        if place is not None:
            # The source's own lines after a copy from behind continue after all copied lines.
            place = max(place, self._first_ahead - 1)
            self._first_ahead = place + 1
        elif keyed is not None and _content_key(keyed[1]) == key:
            place = keyed[0]
            self._pass_keyed()
        return place

    def _next_keyed(self) -> tuple[int, SourceLine] | None:
        """Return the origin's next line with an id, up to which lines are read ahead."""
        while self._keyed_ahead is None and (found := next(self._theirs, None)) is not None:
            place, line = found
            if self._is_keyed_there(place, line):
                self._keyed_ahead = found
            else:
                self._ahead.add(_content_key(line), place)
        return self._keyed_ahead

    def _pass_keyed(self) -> None:
        """Compare the next lines with those of the origin after the line with an id up to which it is read ahead."""
        self._ahead, self._first_ahead, self._keyed_ahead = _PlacesByHash(), 0, None

    def _selected(self, record: Record) -> int | None:
        if self._source.first_own and not self._is_inherited(record):
            return None
        if self._places is None:
            self._places = _PlacesByHash()
            for place, theirs in self._theirs:
                if self._is_keyed_there(place, theirs):
                    self._places.add(self._fingerprint(theirs.record or {}), place)
        return self._places.take(self._fingerprint(record))

    def _leave_headless(self, plan: TranscriptPlan) -> None:
        """Let the output of a run that continues the session of an earlier one begin after that."""
        if self._source.format in HEADLESS and self._plan is not None:
            plan.begin_after(self._plan)

    @property
    def is_copy(self) -> bool:
        """True as long as the source has not left its origin."""
        return self._plan is not None

    def cut(self, plan: TranscriptPlan) -> Iterator[PlannedDelta]:
        """End the deltas of ``plan`` after the last line, as an earlier import did. Within a copy, that import has
        committed the held lines: they are added here unless the copy continues."""
        if self._plan is None:
            yield from plan.flush()
        else:
            self._held_at_cut = len(self._held)

    def rest(self, plan: TranscriptPlan) -> Iterator[PlannedDelta]:
        """End the comparison: add the held lines, and treat all later lines as the source's own."""
        self.end = None
        if self._held:
            self._leave_headless(plan)
        if self._held_at_cut is not None:
            yield from self._release(plan, self._held_at_cut)
            yield from plan.flush()
        yield from self._release(plan, len(self._held))
        self._plan, self._held_at_cut, self._size = None, None, 0

    def _release(self, plan: TranscriptPlan, number: int) -> Iterator[PlannedDelta]:
        released, self._held = self._held[:number], self._held[number:]
        for place, line in released:
            yield from plan.add(line, place)
            if self.ends_delta(line, plan.pending):
                yield from plan.end_delta()

    def _lines(self, source: Transcript, plan: TranscriptPlan, first: int = 0) -> Iterator[tuple[int, SourceLine]]:
        start = plan.starts[first] if first < plan.size else 0
        with suppress(OSError):
            yield from islice(enumerate(lines_of(source, start), first), plan.size - first)

    def _is_keyed_there(self, place: int, line: SourceLine) -> bool:
        return line.record is not None and (self._source.format in ROLLOUTS or self._is_keyed(line, place))

    def _is_keyed(self, line: SourceLine, number: int) -> bool:
        record = line.record
        if record is None:
            return False
        match self._source.format:
            case "codex" | "codex-events":
                return number > 0
            case "pi":
                return record.get("type") != "session" and id_of(record) is not None
            case "opencode":
                return "session" not in record and STATE not in record
            case _:
                return id_of(record) is not None
