"""Plans of the beginning of a source whose lines later chains repeat, as its commits are unknown or lack events."""

from collections import deque

from blake3 import blake3

from ctxd.imports.plan_types import ROOT, Repeated, Start
from ctxd.imports.transcript_plan import TranscriptPlan
from ctxd.transcripts.discovery import Transcript, lines_of
from ctxd.transcripts.source_lines import DIGEST_BYTES


class LinesToRepeat(TranscriptPlan):
    """Plan of the beginning of a source whose commits are not known, or lack what hooks have recorded: chains after its
    lines repeat them."""

    def __init__(self, source: Transcript, size: int, *, start: Start = ROOT) -> None:
        """Read the first ``size`` bytes of the source. ``start``: the start of its first chain. Raises: as
        ``lines_of``."""
        super().__init__(source.format, source.path, start=start, agent=source.agent)
        # None while lines are added: until then, chains begin within this plan.
        self._tip: Start | None = None
        self._digest, self._end = blake3(), 0
        for line in lines_of(source):
            if line.end > size:
                break
            self._digest.update(line.source)
            self._end = line.end
            deque(self.add(line), maxlen=0)
        deque(self.flush(), maxlen=0)
        self._tip = self.at_spawn()

    def at_line(self, place: int) -> Start:
        """Return the start of a chain after line ``place``, which repeats the lines up to there, from the last
        compaction on."""
        start = super().at_line(place)
        if self._tip is None:
            return start
        back = [*reversed(start.repeated)]
        while start.tip and start.source == self.source:
            start, places, _ = self._made[start.tip - 1]
            back += [*map(self.line, reversed(places)), *reversed(start.repeated)]
            if any(self.starts[each] in self._summaries for each in places):
                start = ROOT  # A compaction replaces everything before it.
        return start._replace(repeated=tuple(reversed(back)))


class ImportedLines(LinesToRepeat):
    """Plan of the lines of a source that an earlier import committed, which serves as the origin of the later lines: if
    a copy's own origin is gone, its commits cannot be recognised, as their parents are unknown."""

    def __init__(self, source: Transcript, size: int, digest: str, newest: str) -> None:
        """Read the first ``size`` bytes of the source, those with the hash ``digest``. ``newest``: the last commit of
        its main chain. Raises: as ``lines_of``; ValueError if it was rewritten."""
        super().__init__(source, size)
        self._newest = newest
        if self._end != size or self._digest.hexdigest(length=DIGEST_BYTES) != digest:
            raise ValueError("not the lines that were imported")

    def at_line(self, place: int) -> Start:
        """As before, but after the last line, whose commit is known, a chain continues that commit."""
        is_last = self._tip is not None and TranscriptPlan.at_line(self, place) == self._tip
        return Start(tip=1, commit=self._newest) if is_last else super().at_line(place)

    def _after_kept(self, place: int) -> Start | None:
        """As ``at_line``: the lines that the compaction keeps, and its summary, are all that is repeated."""
        start = super()._after_kept(place)
        return start if start is None or self._tip is None else Start(repeated=start.repeated)

    def _path(self, first: int, start: Start) -> list[Repeated]:
        return super()._path(first, start if start.source or self._tip is None else self._tip)
