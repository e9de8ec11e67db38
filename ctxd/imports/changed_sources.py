"""Search for the sources of an import that are new, or have changed since they were imported."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ctxd.imports.import_result import ImportResult
from ctxd.imports.import_state import ImportState, SourceState
from ctxd.imports.plan_types import PLAN_VERSION, SPLITS_PLAN_VERSION
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd.transcripts.transcript_files import Skipped, Stat, candidates, is_of_source, source_reason, stat_of

if TYPE_CHECKING:
    from ctxd.transcripts.discovery import Transcript
    from ctxd.transcripts.format_detection import Format


def changed_files(
    places: Sequence[Path], known: Mapping[str, SourceState], live: Mapping[str, Stat | None], result: ImportResult
) -> Iterator[tuple[Path, Stat]]:
    """Yield the files and folders in ``places`` to read, because ``known`` lacks them or they have changed since.

    ``live``: the states of sources whose plans are kept, by path; they are newer than the record. Unchanged sources are
    counted in ``result``, and those that cannot be read are added to it.
    """
    for place in places:
        for path in candidates(result.harness, place):
            if isinstance(path, Skipped):
                result.skipped.append(path)
                continue
            try:
                stat = stat_of(path)
            except OSError as error:
                result.skipped.append(Skipped(str(path), source_reason(error)))
                continue
            state = known.get(str(path))
            last = live[str(path)] if str(path) in live else state and state.stat
            if state and state.parser == PLAN_VERSION and last == stat and stat.size >= 0:
                _count_unchanged(result, max(1, state.sessions))
            else:
                yield path, stat


class ChangedSources:
    """The sources of one harness, compared with the record of their imports."""

    def __init__(self, harness: HarnessCommand, state: ImportState) -> None:
        self._harness = harness
        self._state = state
        # Databases that were read, each with its number of sessions.
        self._databases: dict[str, tuple[Stat, int]] = {}

    def find(
        self, places: Sequence[Path], live: Mapping[str, Stat | None], result: ImportResult
    ) -> Iterator["Transcript"]:
        """Yield the new and changed sources in ``places``, with a record of each. See ``changed_files``."""
        for path, stat in changed_files(places, self._state.sources, live, result):
            yield from self._changed_in(path, stat, result)

    def _changed_in(self, path: Path, stat: Stat, result: ImportResult) -> Iterator["Transcript"]:
        # Without a changed file, no reader is loaded.
        from ctxd.transcripts.discovery import transcripts

        sessions = 0
        for source in transcripts(self._harness, path):
            if isinstance(source, Skipped):
                result.skipped.append(source)
                continue
            known, stored = self._state.sources.get(source.path), source.stored
            if stored is not None and stored.stamp:
                sessions += 1
                if known is not None and known.parser == PLAN_VERSION and known.stamp == stored.stamp:
                    _count_unchanged(result)
                    continue
            known = known or self._state.adopt(source.path, source.session, source.agent)
            if known is None:
                known = SourceState(PLAN_VERSION, None, "", source.session, source.agent, source.root)
                self._state.sources[source.path] = known
            if source.format == "codex":
                try:
                    known.format = _rollout_format(source, known)
                except Exception as error:
                    if not is_of_source(error):
                        raise
                    result.skipped.append(Skipped(source.path, source_reason(error)))
                    continue
            yield _as_recorded(source, known)
        if sessions and stat.size >= 0:
            self._databases[str(path)] = stat, sessions

    def note_databases(self, result: ImportResult) -> None:
        """Record the databases that ``find`` has read, unless one of their sessions is among the skipped sources of
        ``result``: the next import does not open them if they are unchanged."""
        skipped = {name for each in result.skipped for name in (each.path, each.path.rpartition("#")[0])}
        for path, (stat, sessions) in self._databases.items():
            if path not in skipped:
                self._state.sources[path] = SourceState(PLAN_VERSION, stat, "", "", "", "", sessions=sessions)
                self._state.changed.add(path)
        self._databases.clear()

    def find_again(self, path: str) -> "Transcript | None":
        """Return the source at ``path``, read again; None if the record lacks it or it is gone."""
        from ctxd.transcripts.discovery import transcripts

        if path not in self._state.sources:
            return None
        for source in transcripts(self._harness, _file_of(path)):
            if not isinstance(source, Skipped) and source.path == path:
                return _as_recorded(source, self._state.sources[path])
        return None


def _file_of(path: str) -> Path:
    """Return the file of the source ``path``: of a session in a database, the part before its last ``#``."""
    return Path(path if os.path.lexists(path) else path.rpartition("#")[0] or path)


def _as_recorded(source: "Transcript", known: SourceState) -> "Transcript":
    """Return the source as the conversation or the sub-agent that it was when it was imported before, even if lines
    that came since let it appear as the other: its chain would begin anew. A rollout has the recorded format, and an
    unnamed fork the recorded origin, if it was imported before. Long lines keep their parts."""
    if known.parser < SPLITS_PLAN_VERSION:
        known.early_splits = known.size
    source = source._replace(early_splits=known.early_splits)
    if source.format == "codex" and known.format == "codex-events":
        source = source._replace(format="codex-events")
    if (stored := source.stored) is not None and (stored.copied_from or known.copied_from):
        from ctxd.transcripts.discovery import with_origin

        # Versions that did not recognise such a fork have imported all of it.
        known.copied_from = known.copied_from or ("" if known.commits else stored.copied_from)
        source = with_origin(source, known.copied_from)
    is_other = bool(known.size) and known.session == source.session and known.agent != source.agent
    return source._replace(agent=known.agent, spawn_keys=()) if is_other else source


def _rollout_format(source: "Transcript", known: SourceState) -> "Format":
    """Return the format in which to read a rollout. A conversation of which some was imported keeps its format, even if
    messages follow in the other form, as all its lines would be stored again. Raises: as ``open_source``."""
    from ctxd.transcripts.codex import conversation_in_events
    from ctxd.transcripts.source_lines import open_source

    imported = known.size if known.session == source.session else 0
    if imported and known.format == "codex-events":
        return "codex-events"
    with open_source(source.file) as file:
        begin = conversation_in_events(file)
    # Versions before this format have imported such a conversation as any other.
    return "codex" if begin is None or begin < imported else "codex-events"


def _count_unchanged(result: ImportResult, sources: int = 1) -> None:
    result.sources += sources
    result.unchanged += sources
