"""Lines that the commits of an import repeat from others, such as those that a compaction keeps, read from their files.

This decides what may be repeated, as a purge may have erased the commit of a line since.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ctxd.imports.changed_sources import ChangedSources
from ctxd.imports.commit_batches import Parent
from ctxd.imports.plan_types import PlannedDelta, Repeated
from ctxd.imports.source_reading import PlannedSource
from ctxd.transcripts.discovery import Transcript, lines_at
from ctxd_client.errors import NotFound

if TYPE_CHECKING:
    from ctxd_client import Client


class RepeatedLines:
    """Reading of repeated lines. ``planned``: the sources planned in this run, by path."""

    def __init__(self, client: "Client", sources: ChangedSources, planned: Mapping[str, PlannedSource]) -> None:
        self._client = client
        self._sources = sources
        self._planned = planned
        self._purged: dict[str, bool] = {}
        """Whether a commit is purged, by its id."""
        self._found: dict[str, Transcript | None] = {}
        """The sources that are not planned in this run, by path."""

    def begin_run(self) -> None:
        """Forget which commits are purged, and the sources that were found."""
        self._purged = {}
        self._found = {}

    async def content(self, planned: PlannedSource, delta: PlannedDelta, parent: Parent, *, dry_run: bool) -> bytes:
        """Return the content of the commit of a delta. It repeats no line of a purged commit, unless an earlier import
        has made it before the purge. Raises: CallFailed; as ``lines_of``."""
        wanted = delta.parent.repeated
        lines = b"".join([*self._read(planned, wanted), delta.lines])
        if not wanted or dry_run or planned.batches.has(delta, parent, lines):
            return lines
        left = [each for each in wanted if not await self._is_purged(planned, each)]
        return lines if len(left) == len(wanted) else b"".join([*self._read(planned, left), delta.lines])

    async def _is_purged(self, planned: PlannedSource, line: Repeated) -> bool:
        """Return True if the commit with ``line`` was purged; False if it is not made yet. Raises: CallFailed."""
        there = planned if line.source == planned.source.path else self._planned.get(line.source)
        number = 0 if there is None else there.plan.commit_of(line.start)
        commit = "" if there is None or not number else there.batches.ids[number - 1]
        if commit and commit not in self._purged:
            self._purged[commit] = True
            with suppress(NotFound):
                self._purged[commit] = (await self._client.commit_show(commit)).commit.artifact_ref is None
        return bool(commit) and self._purged[commit]

    def _read(self, planned: PlannedSource, wanted: Sequence[Repeated]) -> Iterator[bytes]:
        for path in dict.fromkeys(each.source for each in wanted):
            source = self._source(planned, path)
            if source is not None:
                starts = (each.start for each in wanted if each.source == path)
                yield from (line.to_store for line in lines_at(source, starts))

    def _source(self, planned: PlannedSource, path: str) -> Transcript | None:
        """Return the source at ``path``; None if it is gone. To find it again in a database, all its sessions are
        listed."""
        there = planned if path == planned.source.path else self._planned.get(path)
        if there is not None:
            return there.source
        if path not in self._found:
            self._found[path] = self._sources.find_again(path)
        return self._found[path]
