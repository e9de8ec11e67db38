"""The sources among which an imported one finds its origin: those of its session, and those it may be a copy of.

Separate from the import, which reads and commits: this reads nothing.
"""

from typing import TYPE_CHECKING

from ctxd.cli.import_record import CopyEnd, ImportRecord, SourceRecord

if TYPE_CHECKING:
    from ctxd.transcripts.discovery import Transcript


class ImportOrigins:
    """Index of the sources of one harness, of this import and of earlier ones, by their paths."""

    def __init__(self, record: ImportRecord) -> None:
        self._record = record
        # Paths in order, by root, and of main conversations by session.
        self._roots: dict[str, dict[str, None]] = {}
        self._conversations: dict[str, dict[str, None]] = {}
        self._going_on: dict[CopyEnd, str] = {}

    def enter(self, path: str, source: "SourceRecord | Transcript") -> None:
        """Let other sources find that of ``path``."""
        if source.root:
            self._roots.setdefault(source.root, {})[path] = None
        if not source.agent:
            self._conversations.setdefault(source.session, {})[path] = None
        if isinstance(source, SourceRecord) and source.copy_end is not None:
            self._going_on.setdefault(source.copy_end, path)

    def of_session(self, source: "Transcript", session: str) -> list[str]:
        """Return the main conversations of a session, ``source`` left out, those first that were imported first."""
        found = (path for path in self._conversations.get(session, ()) if path in self._record.sources)
        return [path for path in self._record.in_order(found) if path != source.path]

    def of_copy(self, source: "Transcript") -> list[str]:
        """Return the sources of which ``source`` may repeat the beginning, the likeliest first.

        Of a source that was imported before, only those that were imported before that: a later one is not its origin.
        """
        known = self._record.sources
        # One that was renamed is known by its new path.
        paths = self._record.in_order(path for path in self._roots.get(source.root, ()) if path in known)
        before = paths[: paths.index(source.path)] if source.path in paths else []
        found = self.of_session(source, source.origin) if source.origin else []
        if source.parent and source.base is None and (not source.is_spawned or source.first_own):
            # Other forks of the parent have less of it.
            own = set(self._conversations.get(source.session, ()))
            found += [path for path in before if path in own]
            found += self.of_session(source, source.parent)
        found += before
        number = known[source.path].number
        return [path for path in found if not number or 0 < known[path].number < number]

    def going_on(self, source: "Transcript", end: CopyEnd) -> str | None:
        """Return another source that leaves the same origin at the same line, with the same line of its own.

        The copy that ``source`` is of its origin goes on there. None without one, or if it is ``source`` that the
        others go on from."""
        if self._record.sources[source.path].copy_end == end:
            return None
        path = self._going_on.get(end)
        return path if path != source.path else None

    def note_end(self, source: "Transcript", end: CopyEnd) -> None:
        """Record where ``source`` leaves its origin, so that a copy of it goes on with it."""
        self._record.sources[source.path].copy_end = end
        self._going_on.setdefault(end, source.path)
