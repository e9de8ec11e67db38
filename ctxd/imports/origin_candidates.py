"""Candidates for the origin of an imported source: sources of its session, and sources that it may be a copy of.

Separate from the import, which reads and commits: this does no I/O.
"""

from typing import TYPE_CHECKING

from ctxd.imports.import_state import ImportState, SourceState
from ctxd.imports.plan_types import CopyEnd

if TYPE_CHECKING:
    from ctxd.transcripts.discovery import Transcript


class OriginCandidates:
    """Index of one harness's sources, from this import and earlier ones, by path."""

    def __init__(self, state: ImportState) -> None:
        self._state = state
        # Paths in order: of all sources by root, and of main conversations by session.
        self._roots: dict[str, dict[str, None]] = {}
        self._conversations: dict[str, dict[str, None]] = {}
        self._going_on: dict[CopyEnd, str] = {}

    def enter(self, path: str, source: "SourceState | Transcript") -> None:
        """Add the source at ``path``, so that other sources find it."""
        if source.root:
            self._roots.setdefault(source.root, {})[path] = None
        if not source.agent:
            self._conversations.setdefault(source.session, {})[path] = None
        if isinstance(source, SourceState) and source.copy_end is not None:
            self._going_on.setdefault(source.copy_end, path)

    def of_session(self, source: "Transcript", session: str) -> list[str]:
        """Return the paths of a session's main conversations except ``source``, in the order of their first import."""
        found = (path for path in self._conversations.get(session, ()) if path in self._state.sources)
        return [path for path in self._state.in_order(found) if path != source.path]

    def of_copy(self, source: "Transcript") -> list[str]:
        """Return the paths of the sources whose beginning ``source`` may repeat, the likeliest first.

        If ``source`` was imported before, only earlier sources are returned: a later one is not its origin.
        """
        known = self._state.sources
        # The record has renamed sources under their new paths only.
        paths = self._state.in_order(path for path in self._roots.get(source.root, ()) if path in known)
        before = paths[: paths.index(source.path)] if source.path in paths else []
        found = self.of_session(source, source.origin) if source.origin else []
        if source.parent and source.base is None and (not source.is_spawned or source.first_own):
            # Before other forks of the parent, which contain less of it.
            own = set(self._conversations.get(source.session, ()))
            found += [path for path in before if path in own]
            found += self.of_session(source, source.parent)
        found += before
        number = known[source.path].number
        return [path for path in found if not number or 0 < known[path].number < number]

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
