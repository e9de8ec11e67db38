"""One source being imported: its plan, and the reading of its lines, some of which were read before."""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

from ctxd.clock import Clock
from ctxd.imports.commit_batches import CommitBatches
from ctxd.imports.import_state import SourceState
from ctxd.imports.plan_types import PLAN_VERSION, ROOT, Start
from ctxd.imports.transcript_plan import TranscriptPlan
from ctxd.transcripts.discovery import TAIL_BYTES, Transcript, lines_of
from ctxd.transcripts.format_detection import LINE_READERS
from ctxd.transcripts.opencode_storage import STATE
from ctxd.transcripts.record_decoding import Line
from ctxd.transcripts.session_metadata import SessionFacts
from ctxd.transcripts.source_lines import DIGEST_BYTES, SourceLine
from ctxd.transcripts.transcript_files import Stat, stat_of
from ctxd_client.errors import NotFound
from ctxd_protocol.limits import PAGE_ITEMS_MAX

if TYPE_CHECKING:
    from ctxd_client import Client

_BYTES_HASHED_AT_ONCE: Final = 256 * 1024
_SETTLED_MS: Final = 1000
"""Milliseconds without a change after which a file that became shorter is read as it is."""

_SETTLING_MS_MAX: Final = 5000


async def await_stable(path: Path, before: Stat | None, clock: Clock) -> Stat:
    """Return the identity of a file's content. If the file is shorter than ``before``, it may be in the middle of a
    rewrite: wait, for seconds at most, until it is as long again or stops changing. Raises: OSError. Cancel: safe."""
    stat = stat_of(path)
    for _ in range(0, _SETTLING_MS_MAX, 100):
        is_shorter = before is not None and stat[:2] == before[:2] and stat.size < before.size
        if not is_shorter or clock.wall_ms() - stat.changed_ns // 1_000_000 > _SETTLED_MS:
            break
        await clock.sleep(0.1)
        stat = stat_of(path)
    return stat


def is_grown(before: Stat | None, stat: Stat | None) -> bool:
    """True if ``stat`` and ``before`` are of the same file, and it has not become shorter."""
    return stat is not None and before is not None and stat[:2] == before[:2] and stat.size >= before.size


class SourceReading:
    """One reading of a source: its bytes so far, compared with the last import. ``start``: where its first chain
    begins. ``is_within_copy``: all lines so far may be copies of another source's. ``conversation_end``: the newest
    time in the conversation of the whole source, in ms since 1970, once it is needed."""

    def __init__(self, state: SourceState, facts: SessionFacts, start: Start = ROOT) -> None:
        self.state = state
        self.facts = facts
        self.start = start
        self.size = self.lines = self.lines_before = self.copied_before = 0
        self.is_same = self.is_level = self.is_continued = self.is_within_copy = False
        self.conversation_end: int | None = None
        self.directory_before = ""
        """The directory in ``facts`` at the end of the last import."""
        self.counted = Counter[str]()
        self._cuts = set(state.cuts)
        self.tail = b""
        """The last bytes that were read."""
        self.listed_tx = 0
        """The journal sequence of the session's newest commit when the deltas of other imports were last read."""
        self.ends = set(state.ends)
        """Line ends at which another import ended a delta."""
        self.planned_before = state.planned_before
        """The bytes that an earlier parser version planned, whose deltas keep their ends."""
        self._learnt: dict[bytes, set[int]] = {}
        self._hash = blake3()
        self._unhashed: list[bytes] = []
        self._hashed = 0

    def continue_reading(self, plan: TranscriptPlan) -> None:
        """Continue where the last reading ended."""
        self.is_same = self.is_continued = True
        self.is_level = False
        self.directory_before = self.facts.directory
        self.lines_before, self.copied_before, self.counted = self.lines, plan.copied, plan.counts.copy()

    def take(self, line: SourceLine) -> bool:
        """Add a line. Returns: True if an earlier import ended after it. ``is_level``: the last import did, with equal
        bytes."""
        if line.record is not None:
            self.facts.add(line.record)
            if STATE in line.record:
                return False  # Later lines are inserted before it.
        self._unhashed.append(line.source)
        if line.end - self._hashed >= _BYTES_HASHED_AT_ONCE:
            self._update()
        self.size = line.end
        self.tail = (self.tail + line.source)[-TAIL_BYTES:]
        self.lines += bool(line.to_store)
        self.is_level = self.size == self.state.size and self.digest() == self.state.digest
        if self.is_level:
            self.is_same = True
            self.lines_before, self.directory_before = self.lines, self.facts.directory
        return self.size in self._cuts

    def learn(self, delta: bytes) -> None:
        """Remember where ``delta`` ends, which another import has committed, so that a delta ends there again."""
        self._learnt.setdefault(_last_line(delta), set()).add(len(delta))

    def note_learnt_end(self, line: SourceLine, pending: tuple[int, bool]) -> bool:
        """Add the end of ``line`` to ``ends`` if another import has committed a delta that ends with it and is as long
        as the ``pending`` one, or longer if that one begins with repeated lines. Returns: True if it is one of them."""
        if STATE in (line.record or ()):
            return False
        size, is_repeating = pending
        sizes = self._learnt.get(_last_line(line.to_store), ()) if self._learnt and size else ()
        if size in sizes or (is_repeating and any(size < each for each in sizes)):
            self.ends.add(line.end)
        return line.end in self.ends

    def digest(self) -> str:
        self._update()
        return self._hash.hexdigest(length=DIGEST_BYTES)

    def _update(self) -> None:
        self._hash.update(b"".join(self._unhashed))
        self._unhashed.clear()
        self._hashed = self.size


class PlannedSource(NamedTuple):
    """A source that is being imported, or was in this run or watch: its plan, its commits and its reading."""

    source: Transcript
    plan: TranscriptPlan
    batches: CommitBatches
    done: SourceReading
    stat: Stat | None
    is_continuation: bool = False
    """The plan continues the commits of an earlier import, which are not known one by one."""


async def keep_cuts(client: "Client", source: Transcript, done: SourceReading) -> None:
    """Keep the ends of the deltas that an earlier parser version planned: with other ends, the same lines would be
    committed twice. Raises: CallFailed, and as ``lines_of``. Cancel: safe."""
    state = done.state
    if state.parser == PLAN_VERSION or not _is_as_imported(source, state):
        return
    left = [*state.commits.values()]
    with suppress(NotFound):
        while left:
            deltas = (await client.commit_deltas(left[:PAGE_ITEMS_MAX])).deltas
            for each in deltas:
                if each.data is None:
                    return  # It was purged, or is too long: its end is unknown.
                done.learn(each.data)
            left = left[max(1, len(deltas)) :]
        done.planned_before = state.size


def _is_as_imported(source: Transcript, state: SourceState) -> bool:
    """True if a source still begins with the lines that were imported from it. Raises: as ``lines_of``."""
    found, end = blake3(), 0
    for line in lines_of(source):
        if line.end > state.size:
            break
        if STATE not in (line.record or ()):
            found.update(line.source)
            end = line.end
    return end == state.size and found.hexdigest(length=DIGEST_BYTES) == state.digest


def newest_time(planned: PlannedSource) -> int | None:
    """Return the newest time in the whole conversation of a source, in ms since 1970. Raises: as ``lines_of``."""
    newest, read = planned.plan.newest, LINE_READERS[planned.source.format]
    for line in lines_of(planned.source, planned.done.size):
        for entry in read([Line(1, line.record)]) if line.record else ():
            if entry.event.at is not None and entry.event.sidechain is None:
                newest = max(newest or 0, entry.event.at)
    return newest


def _last_line(delta: bytes) -> bytes:
    start = delta.rfind(b"\n", 0, -1) + 1
    return blake3(delta[start:]).digest(DIGEST_BYTES)
