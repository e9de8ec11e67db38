"""Facts that an import stores in the session of a source: title, times, grants, and the directory of its project."""

import posixpath
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from ctxd.imports.handed_over_start import HandedOverStart
from ctxd.imports.import_state import SourceState
from ctxd.imports.source_reading import PlannedSource
from ctxd.transcripts.claude_sidecars import title_beside
from ctxd.transcripts.session_metadata import SessionFacts
from ctxd_client.errors import NotFound
from ctxd_protocol.session_types import PURGED_TEXT, RecordedSession, SessionView

if TYPE_CHECKING:
    from ctxd_client import Client

_PATH_BYTES_MAX: Final = 4096
_WINDOWS: Final = re.compile(r"([A-Za-z]):[\\/](.*)")


async def describe_session(
    client: "Client",
    planned: PlannedSource,
    listed: dict[str, SessionView | None],
    states: Mapping[str, SourceState],
    *,
    changed_at: int | None,
) -> None:
    """Store title, times and grants from a source that was read to its end in its session, and the project if an
    earlier import did not know the working directory, or the harness has moved the session since. A copy of a
    session whose title or first prompt was purged has none.

    ``listed``: the sessions without events of their own, of which it replaces the described one. ``changed_at``: the
    time of the last change of the source, in ms, None if it is not known. Raises: CallFailed.
    """
    source, session = planned.source, planned.source.session
    if source.format == "claude-code" and not source.agent and (title := title_beside(source.file)) is not None:
        planned.done.facts.add_title_beside(title)
    with suppress(NotFound):  # A source without a line of its own has no session.
        is_listed = session in listed
        view = listed[session] if is_listed else (await client.session_get(session)).session
        known = None if view is None else view.recorded
        directory = _new_directory(planned, view)
        if (recorded := planned.done.facts.recorded(known, changed_at)) != known:
            recorded = msgspec.structs.replace(recorded, **await _purged_facts(client, planned, states))
            if view is not None and view.title and HandedOverStart.read(view.labels) is not None:
                # The session has the title of the one that it continues; its file may begin with a later prompt.
                recorded = msgspec.structs.replace(recorded, prompt="" if known is None else known.prompt)
        if recorded != known or directory != "/":
            made = await client.session_annotate(
                session, recorded=recorded, directory=directory if directory != "/" else None
            )
            if is_listed:
                listed[session] = made.session


async def _purged_facts(client: "Client", planned: PlannedSource, states: Mapping[str, SourceState]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in {origin.source for origin, _ in planned.plan.outside.values()}:
        origin = states[path].session if path in states else ""
        with suppress(NotFound):
            recorded = (await client.session_get(origin)).session.recorded if origin else None
            gone = [name for name in ("title", "prompt") if getattr(recorded, name, "") == PURGED_TEXT]
            found.update((name, PURGED_TEXT) for name in gone)
    return found


def _new_directory(planned: PlannedSource, view: SessionView | None) -> str:
    """Return the directory for the project of a session: the one to which the harness has moved it since the last
    import, as the user may have corrected an earlier one, or its working directory if it has no project. The root
    directory if the project stays."""
    moved = planned.done.facts.directory
    if moved != planned.done.directory_before:
        return directory_of(moved)
    return directory_of(moved or planned.source.workdir) if view is not None and view.project is None else "/"


def directory_of(found: str) -> str:
    """Return a working directory that a harness names; the root directory for a path that is not absolute. A path of
    a Windows drive becomes its place in WSL (Windows Subsystem for Linux)."""
    if (drive := _WINDOWS.fullmatch(found)) is not None:
        found = f"/mnt/{drive[1].lower()}/{drive[2]}".replace("\\", "/").rstrip("/")
    if not found.startswith("/") or "\0" in found or len(found.encode("utf-8", "surrogatepass")) > _PATH_BYTES_MAX:
        return "/"
    return posixpath.normpath(found)


class TitlesElsewhere:
    """Collects the titles for other sessions, and the last message of each session, from the transcripts of a run: a
    copy with which Claude Code before 2.0 continues a session names the title of the copied one, by its last message.
    """

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}
        self._sessions: dict[str, str] = {}

    def note(self, session: str, facts: SessionFacts) -> None:
        """Note what a transcript of ``session`` that was read to its end has."""
        self._titles.update(facts.titles_elsewhere())
        if facts.last_id:
            self._sessions[facts.last_id] = session

    async def store(self, client: "Client") -> None:
        """Give these titles to the sessions of the run that have none. Raises: CallFailed."""
        for leaf in self._titles.keys() & self._sessions.keys():
            session = self._sessions[leaf]
            with suppress(NotFound):
                known = (await client.session_get(session)).session.recorded or RecordedSession()
                if not known.title:
                    titled = msgspec.structs.replace(known, title=self._titles[leaf])
                    await client.session_annotate(session, recorded=titled)
        self._titles, self._sessions = {}, {}
