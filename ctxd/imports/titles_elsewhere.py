"""Titles that transcripts of Claude Code before 2.0 have for other sessions.

A copy with which Claude Code continues a session names the title of the copied one, by the last message there.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ctxd.transcripts.session_metadata import SessionFacts
from ctxd_client.errors import NotFound
from ctxd_protocol.session_types import RecordedSession

if TYPE_CHECKING:
    from ctxd_client import Client


class TitlesElsewhere:
    """Collects the titles for other sessions, and the last message of each session, from the transcripts of a run."""

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
