"""Reading of one imported source: what of it was read before, and what of it repeats another source."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from blake3 import blake3

from ctxd.capture.transcript_plan import PlannedDelta, TranscriptPlan, fingerprint, id_of
from ctxd.cli.import_record import SourceRecord
from ctxd.transcripts.discovery import Transcript, lines_of
from ctxd.transcripts.records import Record
from ctxd.transcripts.session_facts import SessionFacts
from ctxd.transcripts.source_lines import DIGEST_BYTES, SourceLine

_TAIL_BYTES: Final = 16 * 1024
"""Bytes before the end of what was read that must be the same for the reading to go on there."""

_HELD_BYTES_MAX: Final = 8 * 1024 * 1024
_BYTES_HASHED_AT_ONCE: Final = 256 * 1024


class Pass:
    """One reading of a source: its bytes so far, compared with what was read before."""

    def __init__(self, record: SourceRecord, facts: SessionFacts) -> None:
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
            self.facts.add(line.record)
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


class Copies:
    """Comparison of a source with another one of which it may repeat the beginning."""

    def __init__(self, source: Transcript, origin: tuple[Transcript, TranscriptPlan] | None) -> None:
        self._source = source
        self._plan = origin[1] if origin is not None else None
        self._theirs = self._keyed_lines(origin[0]) if origin is not None else iter(())
        self._held: list[SourceLine] = []
        self._size = self._number = 0

    def taken(self, plan: TranscriptPlan, line: SourceLine) -> Iterator[PlannedDelta]:
        """Take the next line into ``plan``, unless it is a copy. Lines without an id wait for the end of the copy."""
        if self._plan is None:
            yield from plan.add(line)
            return
        number, self._number = self._number, self._number + 1
        record = line.record
        if line.kept and (record is None or not self._is_keyed(record, number)):
            self._held.append(line)
            self._size += len(line.kept)
            if self._size > _HELD_BYTES_MAX:
                yield from self.rest(plan)
            return
        if not line.kept or record is None:
            yield from ()
            return
        place, theirs = next(self._theirs, (0, None))
        if theirs is not None and number <= 1 and theirs.get("type") == "session_meta" != record.get("type"):
            place, theirs = next(self._theirs, (0, None))
        if theirs is not None and fingerprint(theirs) == fingerprint(record):
            plan.skip(line, self._plan, place)
            return
        yield from self.rest(plan)
        yield from plan.add(line)

    def rest(self, plan: TranscriptPlan) -> Iterator[PlannedDelta]:
        """End the comparison: what follows is the source's own."""
        held, self._held, self._plan = self._held, [], None
        for line in held:
            yield from plan.add(line)

    def _keyed_lines(self, source: Transcript) -> Iterator[tuple[int, Record]]:
        with suppress(OSError):
            for place, line in enumerate(lines_of(source)):
                if line.record is not None and (self._is_keyed(line.record, place) or source.format == "codex"):
                    yield place, line.record

    def _is_keyed(self, record: Record, number: int) -> bool:
        match self._source.format:
            case "codex":
                return number > 0
            case "pi":
                return record.get("type") != "session" and id_of(record) is not None
            case "opencode":
                return "session" not in record
            case _:
                return id_of(record) is not None
