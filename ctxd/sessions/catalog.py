"""Every session's durable head, in memory: what listings and the question for the current context are answered from."""

from bisect import bisect_left, insort
from heapq import nsmallest
from typing import Final

from ctxd.errors import CtxdError
from ctxd.sessions.head import Head, Settings
from ctxd_protocol.context import CurrentContext
from ctxd_protocol.sessions import SessionState, SessionSummary

NOWHERE: Final = CurrentContext(context_id=None, session=None, turn=0, assembly=0)
"""The current context when no session is meant."""


def no_session(session: str) -> CtxdError:
    """The error of a call for ``session``, which is not there."""
    return CtxdError("session_not_found", f"there is no session {session}", hint="session.list names them.")


def summary_of(session: str, head: Head, valid_time: int, *, host: str | None = None) -> SessionSummary:
    """A row of a listing of ``session``, whose head was written at ``valid_time``; ``host``: by that other host."""
    settings = head.settings
    return SessionSummary(
        session=session,
        agent=settings.agent,
        state=settings.state,
        created_at=settings.created_at,
        updated_at=valid_time,
        turn_count=head.turn_count,
        index_count=head.index_count,
        active_count=head.active_count,
        preview=head.preview,
        labels=settings.labels,
        host=host,
    )


class Catalog:
    """Session id to head. About 1 KiB a session."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[Head, int]] = {}
        self._order: list[tuple[int, str]] = []
        self._open: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def __contains__(self, session: object) -> bool:
        return session in self._heads

    def newest(self, session: str) -> tuple[Head, int] | None:
        """The head of ``session`` and when it was written, null if it is not known."""
        return self._heads.get(session)

    def names(self, after: str, limit: int) -> list[str]:
        """The ids of at most ``limit`` sessions, in order, from beyond ``after`` on."""
        return nsmallest(limit, (session for session in self._heads if session > after))

    def state(self, session: str) -> SessionState | None:
        """The state of ``session``, null if it is not known."""
        known = self._heads.get(session)
        return None if known is None else known[0].settings.state

    def states(self) -> dict[str, SessionState]:
        """The state of every session."""
        return {session: head.settings.state for session, (head, _) in self._heads.items()}

    def put(self, session: str, head: Head, valid_time: int) -> None:
        """Take ``head``, written at ``valid_time``, for the newest of ``session``."""
        if session not in self._heads:
            insort(self._order, (head.settings.ordinal, session))
        self._heads[session] = (head, valid_time)
        if head.settings.state == "closed":
            self._open.pop(session, None)
        else:
            self._open[session] = None

    def discard(self, session: str) -> None:
        """Know nothing of ``session`` any more. One that is not known: no effect."""
        known = self._heads.pop(session, None)
        if known is not None:
            self._order.remove((known[0].settings.ordinal, session))
            self._open.pop(session, None)

    def settings(self, session: str) -> Settings:
        """What ``session`` is set to. Raises: CtxdError session_not_found."""
        if session not in self._heads:
            raise no_session(session)
        return self._heads[session][0].settings

    def summary(self, session: str) -> SessionSummary:
        """One row of a listing."""
        head, valid_time = self._heads[session]
        return summary_of(session, head, valid_time)

    def current(self, session: str | None) -> CurrentContext:
        """Where ``session`` stands; null means the only one that is not closed, or nowhere if there is not just one.

        Raises: CtxdError session_not_found.
        """
        if session is None:
            if len(self._open) != 1:
                return NOWHERE
            session = next(iter(self._open))
        if session not in self._heads:
            raise no_session(session)
        head, _ = self._heads[session]
        return CurrentContext(context_id=head.context_id, session=session, turn=head.turn_count, assembly=head.assembly)

    def page(
        self,
        *,
        state: SessionState | None,
        agent: str | None,
        label: str | None,
        text: str | None,
        limit: int,
        cursor: str | None,
    ) -> tuple[list[str], str | None]:
        """The ids of sessions that pass all filters, newest created first, and the cursor of the next page.

        ``label`` is ``key=value``; ``text`` is sought, in any case, in preview, id and agent. A cursor stays good
        whatever is created meanwhile. Raises: CtxdError invalid_params for a label or a cursor of another form.
        """
        key, equals, value = (label or "=").partition("=")
        if not equals:
            raise CtxdError("invalid_params", f"label {label!r} is not of the form key=value")
        needle = text.casefold() if text else ""
        found: list[str] = []
        for place in range(self._place(cursor) - 1, -1, -1):
            ordinal, session = self._order[place]
            head, _ = self._heads[session]
            settings = head.settings
            if state not in (None, settings.state) or agent not in (None, settings.agent):
                continue
            if label is not None and settings.labels.get(key) != value:
                continue
            if needle and not any(needle in part.casefold() for part in (head.preview, session, settings.agent)):
                continue
            found.append(session)
            if len(found) == limit:
                return found, str(ordinal) if place else None
        return found, None

    def _place(self, cursor: str | None) -> int:
        if cursor is None:
            return len(self._order)
        if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20):
            raise CtxdError(
                "invalid_params", f"{cursor!r} is no cursor of this listing", hint="Give next_cursor as it was."
            )
        return bisect_left(self._order, (int(cursor), ""))
