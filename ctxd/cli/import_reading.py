"""Reading of one imported source: what of it was read before, and what of it repeats another source."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import Final

import msgspec
from blake3 import blake3

from ctxd.capture.planned_deltas import PlannedDelta
from ctxd.capture.transcript_plan import TranscriptPlan
from ctxd.cli.import_record import SourceRecord
from ctxd.transcripts.discovery import Transcript, lines_of
from ctxd.transcripts.opencode_storage import STATE
from ctxd.transcripts.records import Record, id_of, number_of
from ctxd.transcripts.session_facts import SessionFacts
from ctxd.transcripts.source_lines import DIGEST_BYTES, SourceLine

_TAIL_BYTES: Final = 16 * 1024
"""Bytes before the end of what was read that must be the same for the reading to go on there."""

_HELD_BYTES_MAX: Final = 8 * 1024 * 1024
_BYTES_HASHED_AT_ONCE: Final = 256 * 1024
_COPIED: Final = frozenset(
    {
        "sessionId", "forkedFrom", "parentUuid", "logicalParentUuid", "isSidechain", "sessionKind", "agentId", "cwd",
        "gitBranch", "version", "slug", "ordinal", "row", "seq",
    }
)  # fmt: skip
"""Members of a record that a copy changes: a fork of Claude Code is one chain, whatever tree its origin is."""


class Pass:
    """One reading of a source: its bytes so far, compared with what was read before. ``facts``: None for a sub-agent,
    which is in no list."""

    def __init__(self, record: SourceRecord, facts: SessionFacts | None) -> None:
        self.record = record
        self.facts = facts
        self.size = self.lines = self.lines_before = self.copied_before = 0
        self.is_same = self.is_level = self.is_continued = False
        self.counted = Counter[str]()
        self._cuts = set(record.cuts)
        self.tail = b""
        """The last bytes that were read."""
        self.listed_tx = 0
        """The journal sequence of the newest commit of the session whose delta was looked at."""
        self.ends = set(record.ends)
        """Ends of lines with which another import has ended a delta."""
        self._learnt: dict[bytes, set[int]] = {}
        self._hash = blake3()
        self._unhashed: list[bytes] = []
        self._hashed = 0

    def go_on(self, plan: TranscriptPlan) -> None:
        """Read on where the last reading ended."""
        self.is_same = self.is_continued = True
        self.is_level = False
        self.lines_before, self.copied_before, self.counted = self.lines, plan.copied, plan.counts.copy()

    def ends_at(self, line: SourceLine) -> bool:
        """Take a line; True if an earlier import ended behind it. ``is_level``: the last one did."""
        if line.record is not None:
            if self.facts is not None:
                self.facts.add(line.record)
            if STATE in line.record:
                return False  # Whatever is added stands before it.
        self._unhashed.append(line.source)
        if line.end - self._hashed >= _BYTES_HASHED_AT_ONCE:
            self._update()
        self.size = line.end
        self.tail = (self.tail + line.source)[-_TAIL_BYTES:]
        self.lines += bool(line.kept)
        self.is_level = self.size == self.record.size and self.digest() == self.record.digest
        if self.is_level:
            self.is_same = True
            self.lines_before = self.lines
        return self.size in self._cuts

    def learn(self, delta: bytes) -> None:
        """Let deltas end as ``delta`` does, which another import has committed."""
        self._learnt.setdefault(_last_line(delta), set()).add(len(delta))

    def ends_another(self, line: SourceLine, size: int) -> bool:
        """True if another import has committed a delta of ``size`` bytes that ends with ``line``."""
        if STATE in (line.record or ()):
            return False
        if self._learnt and size in self._learnt.get(_last_line(line.kept), ()):
            self.ends.add(line.end)
        return line.end in self.ends

    def digest(self) -> str:
        self._update()
        return self._hash.hexdigest(length=DIGEST_BYTES)

    def _update(self) -> None:
        self._hash.update(b"".join(self._unhashed))
        self._unhashed.clear()
        self._hashed = self.size


def _last_line(delta: bytes) -> bytes:
    start = delta.rfind(b"\n", 0, -1) + 1
    return blake3(delta[start:]).digest(DIGEST_BYTES)


def fingerprint(record: Record) -> int:
    """Return a hash of a record without the members that a copy of it in another session changes."""
    same = {name: value for name, value in record.items() if name not in _COPIED}
    if "payload" in record:
        same.pop("timestamp", None)
    return int.from_bytes(blake2b(msgspec.json.encode(same, order="sorted"), digest_size=8).digest())


class Copies:
    """Comparison of a source with another one of which it may repeat the beginning, or some of its lines. The beginning
    may lack lines of the other: a fork has one branch of a tree.

    Memory: of one that repeats some lines, some 150 bytes for each line of the other.
    """

    def __init__(self, source: Transcript, origin: tuple[Transcript, TranscriptPlan] | None) -> None:
        self._source = source
        self._plan = origin[1] if origin is not None else None
        self._theirs = self._lines(*origin) if origin is not None else iter(())
        self._ahead: deque[tuple[int, SourceLine]] = deque()
        """Lines of the other one that were read ahead: some without an id, and the one with an id behind them."""
        self._held: list[tuple[int, SourceLine]] = []
        self._size = self._number = 0
        # Of their origin, a sub-agent of codex and a fork of opencode get what is settled alone.
        is_of_another = origin is not None and origin[0].session != source.session
        self._is_selection = is_of_another and (bool(source.first_own) or source.format == "opencode")
        self._places: dict[int, deque[int]] | None = None

    def taken(self, plan: TranscriptPlan, line: SourceLine) -> Iterator[PlannedDelta]:
        """Take the next line into ``plan``, unless it is a copy. Lines without an id wait for the end of the copy."""
        if self._plan is None:
            yield from plan.add(line)
            return
        number, self._number = self._number, self._number + 1
        is_keyed = self._is_keyed(line, number)
        place = self._place(line, number, is_keyed=is_keyed)
        if place is not None:
            plan.skip(line, self._plan, place)
        elif is_keyed and not self._is_inherited(line.record or {}):
            yield from self.rest(plan)
            yield from plan.add(line)
        else:
            self._held.append((plan.reserve(line), line))
            self._size += len(line.kept)
            if self._size > _HELD_BYTES_MAX:
                yield from self.rest(plan)

    def _is_inherited(self, record: Record) -> bool:
        """True for a line of a sub-agent of codex that is its caller's, equal to one of its lines or not."""
        ordinal = number_of(record.get("ordinal"))
        return ordinal is not None and ordinal < self._source.first_own

    def _place(self, line: SourceLine, number: int, *, is_keyed: bool) -> int | None:
        """Return the place of the line of the other source of which ``line`` is a copy."""
        if not line.kept or (self._is_selection and not is_keyed):
            return None
        if self._is_selection:
            return self._selected(line.record or {})
        return self._next(line.record or {}, number) if is_keyed else self._repeated(line)

    def _next(self, record: Record, number: int) -> int | None:
        has_ids = self._source.format != "codex"
        while (found := self._next_keyed()) is not None:
            self._ahead.clear()
            place, theirs = found[0], found[1].record or {}
            if has_ids and id_of(theirs) != id_of(record):
                continue
            if fingerprint(theirs) == fingerprint(record):
                return place
            if has_ids or number > 1 or theirs.get("type") != "session_meta" or record.get("type") == "session_meta":
                return None
        return None

    def _repeated(self, line: SourceLine) -> int | None:
        """Return the place at the other one of a line without an id, before its next line with one."""
        self._next_keyed()
        for position, (place, theirs) in enumerate(self._ahead):
            if theirs.kept == line.kept:
                for _ in range(position + 1):
                    self._ahead.popleft()
                return place
        return None

    def _next_keyed(self) -> tuple[int, SourceLine] | None:
        """Return the other one's next line with an id, the last one that was read ahead."""
        if self._ahead and self._is_keyed_there(*self._ahead[-1]):
            return self._ahead[-1]
        for place, line in self._theirs:
            self._ahead.append((place, line))
            if self._is_keyed_there(place, line):
                return place, line
        return None

    def _selected(self, record: Record) -> int | None:
        if self._source.first_own and not self._is_inherited(record):
            return None
        if self._places is None:
            self._places = defaultdict(deque)
            for place, theirs in self._theirs:
                if self._is_keyed_there(place, theirs):
                    self._places[fingerprint(theirs.record or {})].append(place)
        found = self._places.get(fingerprint(record))
        return found.popleft() if found else None

    def release(self, plan: TranscriptPlan) -> Iterator[PlannedDelta]:
        """Take the lines that wait."""
        held, self._held, self._size = self._held, [], 0
        for place, line in held:
            yield from plan.add(line, place)

    def rest(self, plan: TranscriptPlan) -> Iterator[PlannedDelta]:
        """End the comparison: what follows is the source's own."""
        self._plan = None
        yield from self.release(plan)

    def _lines(self, source: Transcript, plan: TranscriptPlan) -> Iterator[tuple[int, SourceLine]]:
        with suppress(OSError):
            yield from islice(enumerate(lines_of(source)), plan.size)

    def _is_keyed_there(self, place: int, line: SourceLine) -> bool:
        return line.record is not None and (self._source.format == "codex" or self._is_keyed(line, place))

    def _is_keyed(self, line: SourceLine, number: int) -> bool:
        record = line.record
        if record is None:
            return False
        match self._source.format:
            case "codex":
                return number > 0
            case "pi":
                return record.get("type") != "session" and id_of(record) is not None
            case "opencode":
                return "session" not in record and STATE not in record
            case _:
                return id_of(record) is not None
