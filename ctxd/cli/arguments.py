"""Resolution of arguments: sessions by prefix or default, objects by path, times as people write them."""

import os
import re
from contextlib import suppress
from datetime import datetime, time, timedelta
from typing import Final

from ctxd.cli.exit_codes import CONFLICT, NOT_FOUND, USAGE
from ctxd.command_line import Stop
from ctxd_client.errors import InvalidCall, NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.limits import PAGE_ITEMS_MAX, SAFE_INTEGER_MAX
from ctxd_protocol.session_types import SessionStatus, SessionSummary

_AGE: Final = re.compile(
    r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|(?:sec(?:ond)?|min(?:ute)?|hour|hr|day|week)s?)(?:\s+ago)?$", re.ASCII
)
_CLOCK: Final = re.compile(r"^(?:today )?(yesterday )?(\d\d:\d\d(?::\d\d)?)$", re.ASCII)
_DIGITS_MAX: Final = 16
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def session_id(client: SyncClient, given: str | None) -> str:
    """Return the session that ``given``, an id or a unique prefix of one, names; without it ``$CTXD_SESSION`` counts.

    Without either, return the only session that is not closed, else the one whose working directory contains the
    current directory. On a sandbox's socket, which may not list sessions, return the sandbox's current one.
    Raises: ``Stop`` without a match, or for several.
    """
    name = given or os.environ.get("CTXD_SESSION")
    if not name:
        return _default_session(client)
    try:
        return client.session_get(name).session.session
    except NotFound:
        matching = []
        with suppress(InvalidCall):  # a sandbox may not list sessions
            matching = [each.session for each in _sessions(client) if each.session.startswith(name)]
        if not matching:
            raise Stop(
                NOT_FOUND, f"no such session: {name}", hint="ctx session ls lists them", symbol="session_not_found"
            ) from None
    if len(matching) > 1:
        raise Stop(
            CONFLICT,
            f"ambiguous prefix {name!r}: {_some(matching)}",
            hint="add characters",
            symbol="ambiguous_id",
        )
    return matching[0]


def session_if_any(client: SyncClient, given: str | None) -> str | None:
    """Return as ``session_id`` does; None instead of a failure if no session is named and there is no default."""
    if given or os.environ.get("CTXD_SESSION"):
        return session_id(client, given)
    try:
        return _default_session(client)
    except Stop:
        return None


def object_id(client: SyncClient, session: str | None, given: str) -> str:
    """Return the object that ``given`` names: an id as it is, or a file's path as the session sees it.

    A relative path starts at the current directory, else at the session's; an id wins over a path of the same name.
    Raises: ``Stop`` for a path without an object.
    """
    if not given.startswith(("/", "./", "../")):
        if session is not None:
            return _by_either(client, session, given)
        if not os.path.lexists(given) or _is_id(client, given):
            return given
    if session is None:
        raise Stop(USAGE, f"{given!r} is a path, and paths belong to a session", hint="name one with -s SESSION")
    found = client.file_resolve(session, os.path.abspath(given))
    if not found.known:
        message = f"no object for the file {found.display_path}"
        hint = "ctx object ls lists known objects; a file becomes one when an agent reads or lists it"
        raise Stop(NOT_FOUND, message, hint=hint, symbol="object_not_found")
    return found.object


def moment_ms(text: str, now_ms: int) -> int:
    """Return a point in time in ms since 1970.

    ``text`` is ``now``, ``yesterday`` (optionally with a time of day), an age (``2h``, ``2 hours ago``), a time of day
    (``13:44``, the latest such time that is past), an ISO 8601 date with or without time, or milliseconds since 1970.
    Times without an offset are local. Raises: ``Stop``, also beyond 2^53 ms from 1970.
    """
    found = _moment_ms(text.strip().lower(), now_ms)
    if found is None or abs(found) > SAFE_INTEGER_MAX:
        hint = "write 2h, 'yesterday 13:44', 2026-05-01T12:00, or milliseconds since 1970"
        raise Stop(USAGE, f"invalid time: {text!r}", hint=hint)
    return found


def _moment_ms(text: str, now_ms: int) -> int | None:
    if text.isdigit() and text.isascii():
        return int(text) if len(text) <= _DIGITS_MAX else None
    if text in ("now", "yesterday"):
        return now_ms - (_UNIT_MS["d"] if text == "yesterday" else 0)
    try:
        if age := _AGE.match(text):
            return now_ms - round(float(age[1]) * _UNIT_MS[age[2] if age[2] == "ms" else age[2][0]])
        if clock := _CLOCK.match(text):
            today = datetime.fromtimestamp(now_ms / 1000).astimezone().date()
            moment = datetime.combine(today, time.fromisoformat(clock[2]))
            if clock[1] or moment.timestamp() * 1000 > now_ms:
                moment -= timedelta(days=1)
        else:
            moment = datetime.fromisoformat(text.upper())
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _by_either(client: SyncClient, session: str, given: str) -> str:
    # A call that this socket does not offer fails in the command's own call, with a better message.
    with suppress(InvalidCall):
        try:
            client.object_get(given, session=session, content=False)
        except NotFound:
            for path in (os.path.abspath(given), given):
                found = client.file_resolve(session, path)
                if found.known:
                    return found.object
    return given


def _is_id(client: SyncClient, given: str) -> bool:
    try:
        client.object_get(given, content=False)
    except NotFound:
        return False
    return True


def _default_session(client: SyncClient) -> str:
    open_sessions: list[SessionSummary] = []
    try:
        for state in ("active", "paused"):
            open_sessions += _sessions(client, state=state)
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
        open_sessions = _at_current_directory(open_sessions) or open_sessions
    if len(open_sessions) > 1:
        names = _some([each.session for each in open_sessions])
        raise Stop(USAGE, f"several sessions are open: {names}", hint="name one, or set CTXD_SESSION")
    return open_sessions[0].session


def _at_current_directory(sessions: list[SessionSummary]) -> list[SessionSummary]:
    """Return the sessions with the deepest working directory that contains the current one; "/" does not count."""
    current = os.getcwd()
    containing = [
        each for each in sessions if each.workdir != "/" and f"{current}/".startswith(each.workdir.rstrip("/") + "/")
    ]
    deepest = max((len(each.workdir) for each in containing), default=0)
    return [each for each in containing if len(each.workdir) == deepest]


def _sessions(client: SyncClient, state: SessionStatus | None = None) -> list[SessionSummary]:
    found: list[SessionSummary] = []
    cursor: str | None = None
    while True:
        page = client.session_list(state=state, limit=PAGE_ITEMS_MAX, cursor=cursor)
        found.extend(page.sessions)
        cursor = page.next_cursor
        if cursor is None:
            return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
