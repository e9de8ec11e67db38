"""From what a person types to what the daemon knows: sessions by prefix, objects by path, times by age."""

import os
import re
from contextlib import suppress
from datetime import datetime
from typing import Final

from ctxd.cli.exit_codes import CONFLICT, NOT_FOUND, USAGE
from ctxd.command_line import Stop
from ctxd_client.errors import InvalidCall, NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.limits import PAGE_ITEMS_MAX, SAFE_INTEGER_MAX

_AGE: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)(?:\s+ago)?$")
_DIGITS_MAX: Final = 16
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def session_id(client: SyncClient, given: str | None) -> str:
    """The session that is meant: ``given`` or a unique prefix of it, else ``$CTXD_SESSION``, else the only one.

    Raises: ``Stop`` when there is none, or several fit.
    """
    name = given or os.environ.get("CTXD_SESSION")
    if not name:
        return _only_session(client)
    try:
        return client.session_get(name).session.session
    except NotFound:
        fitting = [session for session in _sessions(client) if session.startswith(name)]
        if not fitting:
            raise
    if len(fitting) > 1:
        raise Stop(CONFLICT, f"{name!r} fits {_some(fitting)}", hint="type more of it", symbol="ambiguous_id")
    return fitting[0]


def session_if_any(client: SyncClient, given: str | None) -> str | None:
    """As ``session_id`` when one is named or there is only one; null otherwise: full object ids need none."""
    if given or os.environ.get("CTXD_SESSION"):
        return session_id(client, given)
    try:
        found = client.session_list(limit=2).sessions
    except InvalidCall:
        return None
    return found[0].session if len(found) == 1 else None


def object_id(client: SyncClient, session: str | None, given: str) -> str:
    """The object that is meant: an id as it is, or a file's path as the session sees it.

    A relative path starts at the current directory, else at the session's; an id goes before a path of the same name.
    Raises: ``Stop`` for a path that can only be one, and is of no object.
    """
    if not given.startswith(("/", "./", "../")):
        return given if session is None else _by_either(client, session, given)
    if session is None:
        raise Stop(USAGE, f"{given!r} is a path, and paths belong to a session", hint="name one with -s SESSION")
    found = client.file_resolve(session, os.path.abspath(given))
    if not found.known:
        message = f"there is no object of the file {found.display_path}"
        hint = "ctx object ls names those that are known; an agent has to read or list it"
        raise Stop(NOT_FOUND, message, hint=hint, symbol="object_not_found")
    return found.object


def moment_ms(text: str, now_ms: int) -> int:
    """A point in time in ms since 1970: such a number, an age (``2h``), or ISO 8601, local unless it names an offset.

    Raises: ``Stop``, also for a time that is not within 2^53 ms of 1970.
    """
    found = _moment_ms(text.strip(), now_ms)
    if found is None or abs(found) > SAFE_INTEGER_MAX:
        hint = "write 2h, 2026-05-01T12:00, or milliseconds since 1970"
        raise Stop(USAGE, f"{text!r} is no point in time", hint=hint)
    return found


def _moment_ms(text: str, now_ms: int) -> int | None:
    if text.isdigit() and text.isascii():
        return int(text) if len(text) <= _DIGITS_MAX else None
    try:
        if age := _AGE.match(text):
            return now_ms - round(float(age[1]) * _UNIT_MS[age[2]])
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _by_either(client: SyncClient, session: str, given: str) -> str:
    # What this socket does not offer, or does not take, is told by the call that the name is for.
    with suppress(InvalidCall):
        try:
            client.object_get(given, session=session, content=False)
        except NotFound:
            for path in (os.path.abspath(given), given):
                found = client.file_resolve(session, path)
                if found.known:
                    return found.object
    return given


def _only_session(client: SyncClient) -> str:
    try:
        found = client.session_list(limit=3).sessions
    except InvalidCall:
        current = client.context_current().session
        if current is None:
            raise Stop(NOT_FOUND, "this socket has no session", hint="name one", symbol="session_not_found") from None
        return current
    if not found:
        raise Stop(NOT_FOUND, "there is no session", hint="make one: ctx session new AGENT", symbol="session_not_found")
    if len(found) > 1:
        names = _some([session.session for session in found])
        raise Stop(USAGE, f"there are several sessions: {names}", hint="name one, or set CTXD_SESSION")
    return found[0].session


def _sessions(client: SyncClient) -> list[str]:
    names: list[str] = []
    cursor: str | None = None
    while True:
        try:
            page = client.session_list(limit=PAGE_ITEMS_MAX, cursor=cursor)
        except InvalidCall:
            return names
        names.extend(session.session for session in page.sessions)
        cursor = page.next_cursor
        if cursor is None:
            return names


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
