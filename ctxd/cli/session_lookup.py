"""The session of a command: named by an id or a prefix, or the default without one."""

import os
from contextlib import suppress
from typing import Final, TypedDict

from ctxd.cli.exit_codes import CONFLICT, NOT_FOUND, USAGE
from ctxd.click_support import Stop, current_directory
from ctxd.terminal import cut
from ctxd_client.errors import InvalidCall, NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.session_types import SessionStatus, SessionSummary

_NAME_CHARS: Final = 130
"""Longest name in a message; ids have at most 128 characters."""


class Filter(TypedDict, total=False):
    """Filters of ``sessions``."""

    state: SessionStatus
    archived: bool


def named_session(client: SyncClient, given: str | None) -> str:
    """Return the session named by ``given``, an id or a unique prefix of one, else by ``$CTXD_SESSION``.

    Without either, return the only session that is not closed, else the one whose working directory contains the
    current directory. A paused session without turns, such as an imported one, is returned only if no other is open. On
    a sandbox's socket, which may not list sessions, return the sandbox's current one.
    Raises: ``Stop`` without a match, or for several.
    """
    name = given or os.environ.get("CTXD_SESSION")
    if not name:
        return _default_session(client)
    try:
        return client.session_get(name).session.session
    except NotFound:
        matching: list[str] = []
        with suppress(InvalidCall):  # a sandbox may not list sessions
            # A prefix matches archived sessions, and then those in the trash, only if it matches no others.
            for more in (Filter(), Filter(archived=True), Filter(state="removed")):
                matching = matching or [
                    each.session for each in sessions(client, **more) if each.session.startswith(name)
                ]
        if not matching:
            raise Stop(
                NOT_FOUND,
                f"no such session: {cut(name, _NAME_CHARS)}",
                hint="ctx session ls lists them",
                symbol="session_not_found",
            ) from None
    if len(matching) > 1:
        raise Stop(
            CONFLICT,
            f"ambiguous prefix {name!r}: {_some(matching)}",
            hint="add characters",
            symbol="ambiguous_id",
        )
    return matching[0]


def _default_session(client: SyncClient) -> str:
    open_sessions: list[SessionSummary] = []
    try:
        for state in ("active", "paused"):
            open_sessions += sessions(client, state=state)
        # Imported sessions and LangGraph threads are not in use.
        used = [each for each in open_sessions if each.state == "active" or each.turn_count]
        open_sessions = used or _at_current_directory(open_sessions)
    except InvalidCall:
        current = client.context_current().session
        if current is None:
            raise Stop(
                NOT_FOUND,
                "this socket has no session",
                hint="name one: -s SESSION",
                symbol="session_not_found",
            ) from None
        return current
    if not open_sessions:
        raise Stop(
            NOT_FOUND,
            "there is no open session",
            hint="start one: ctx session new AGENT; ctx session ls lists closed ones",
            symbol="session_not_found",
        )
    if len(open_sessions) > 1:
        here = _at_current_directory(open_sessions)
        open_sessions = here or open_sessions
    if len(open_sessions) > 1:
        names = _some([each.session for each in open_sessions])
        where = f" in {open_sessions[0].workdir}" if here else ""
        hint = f"name one, or export CTXD_SESSION={open_sessions[0].session}"
        raise Stop(USAGE, f"several sessions are open{where}: {names}", hint=hint)
    return open_sessions[0].session


def _at_current_directory(sessions: list[SessionSummary]) -> list[SessionSummary]:
    """Return the sessions with the deepest working directory that contains the current one; "/" does not count."""
    if (current := current_directory()) is None:
        return []
    containing = [
        each for each in sessions if each.workdir != "/" and f"{current}/".startswith(each.workdir.rstrip("/") + "/")
    ]
    deepest = max((len(each.workdir) for each in containing), default=0)
    return [each for each in containing if len(each.workdir) == deepest]


def sessions(client: SyncClient, state: SessionStatus | None = None, archived: bool = False) -> list[SessionSummary]:
    """Return all sessions, or all archived ones, newest first. Raises: ``InvalidCall`` on a sandbox's socket."""
    found: list[SessionSummary] = []
    cursor: str | None = None
    while True:
        page = client.session_list(state=state, archived=archived, limit=PAGE_ITEMS_MAX, cursor=cursor)
        found.extend(page.sessions)
        cursor = page.next_cursor
        if cursor is None:
            return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
