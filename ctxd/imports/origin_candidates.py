"""Candidates for the origin of an imported source: sources of its session, and sources that it may be a copy of.

The import reads and commits; this does no I/O.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING

from ctxd.imports.import_state import ImportState, SourceState
from ctxd.imports.plan_types import CopyEnd

if TYPE_CHECKING:
    from ctxd.transcripts.discovery import Transcript


class _Family:
    """The sources with one root: in the order of their first import, followed by those that were not imported yet."""

    def __init__(self, states: Mapping[str, SourceState]) -> None:
        self._states = states
        self._imported: list[tuple[int, str]] = []
        self._new: dict[str, None] = {}

    def add(self, path: str) -> None:
        """Add a source, or note that it was imported now."""
        number = self._states[path].number if path in self._states else 0
        if not number:
            self._new.setdefault(path)
            return
        self._new.pop(path, None)
        place = bisect_left(self._imported, (number, path))
        if self._imported[place : place + 1] != [(number, path)]:
            self._imported.insert(place, (number, path))

    def before(self, path: str) -> Iterator[str]:
        """Yield the paths before ``path``; none if it is unknown. Cost: one step for each path that is used."""
        number = self._states[path].number if path in self._states else 0
        if not number and path not in self._new:
            return
        end = bisect_left(self._imported, (number, "")) if number else len(self._imported)
        for place in range(end):
            # The record has renamed sources under their new paths only.
            if (earlier := self._imported[place][1]) in self._states:
                yield earlier
        if not number:
            # A copy: some of them may be imported before the caller continues.
            yield from [*takewhile(lambda each: each != path, self._new)]


class OriginCandidates:
    """Index of one harness's sources, from this import and earlier ones, by path."""

    def __init__(self, state: ImportState) -> None:
        self._state = state
        self._roots: dict[str, _Family] = {}
        # Paths of main conversations by session, in order.
        self._conversations: dict[str, dict[str, None]] = {}
        self._going_on: dict[CopyEnd, str] = {}

    def enter(self, path: str, source: "SourceState | Transcript") -> None:
        """Add the source at ``path``, so that other sources find it."""
        if source.root:
            self._roots.setdefault(source.root, _Family(self._state.sources)).add(path)
        if not source.agent:
            self._conversations.setdefault(source.session, {})[path] = None
        if isinstance(source, SourceState) and source.copy_end is not None:
            self._going_on.setdefault(source.copy_end, path)

    def of_session(self, source: "Transcript", session: str) -> list[str]:
        """Return the paths of a session's main conversations except ``source``, in the order of their first import."""
        found = (path for path in self._conversations.get(session, ()) if path in self._state.sources)
        return [path for path in self._state.in_order(found) if path != source.path]

    def note_imported(self, path: str, root: str) -> None:
        """Note that the source at ``path`` has its number in the order of first imports."""
        if root in self._roots:
            self._roots[root].add(path)

    def of_copy(self, source: "Transcript") -> Iterator[str]:
        """Yield the paths of the sources whose beginning ``source`` may repeat, the likeliest first.

        If ``source`` was imported before, only earlier sources are yielded: a later one is not its origin.
        """
        known = self._state.sources
        number = known[source.path].number
        return (path for path in self._likeliest(source) if not number or 0 < known[path].number < number)

    def _likeliest(self, source: "Transcript") -> Iterator[str]:
        family = self._roots.get(source.root)
        if source.origin:
            yield from self.of_session(source, source.origin)
        if source.parent and source.base is None and (not source.is_spawned or source.first_own):
            # Before other forks of the parent, which contain less of it.
            own = set(self._conversations.get(source.session, ()))
            yield from (path for path in family.before(source.path) if path in own) if family is not None else ()
            yield from self.of_session(source, source.parent)
        if family is not None:
            yield from family.before(source.path)

    def going_on(self, source: "Transcript", end: CopyEnd) -> str | None:
        """Return the path of another source that leaves the same origin at the same line, with the same next line.

        The comparison of ``source`` continues with that one. None without one, or if the others continue with
        ``source``."""
        if self._state.sources[source.path].copy_end == end:
            return None
        path = self._going_on.get(end)
        return path if path != source.path else None

    def note_end(self, source: "Transcript", end: CopyEnd) -> None:
        """Record where ``source`` leaves its origin, so that the comparison of a copy continues with ``source``."""
        self._state.sources[source.path].copy_end = end
        self._going_on.setdefault(end, source.path)
