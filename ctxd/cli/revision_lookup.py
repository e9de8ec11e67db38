"""Lookup of revisions in the daemon: the session, and the assembly or the point in time that a revision names."""

import os
from contextlib import suppress
from typing import NamedTuple, TypedDict

from ctxd.cli.exit_codes import CONFLICT, NOT_FOUND, USAGE
from ctxd.cli.revisions import Revision, is_revision, parse, past_ms
from ctxd.cli.session_lookup import named_session
from ctxd.click_support import ExclusiveOptions, Stop
from ctxd.clock import SystemClock
from ctxd_client.errors import NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.context_types import AssemblyRecord
from ctxd_protocol.methods.chat import SessionTurnResult


class Located(NamedTuple):
    """A revision and its session. ``tx``: the journal sequence of its context id, if any; ``number``: its assembly, or
    the newest one before a commit; else None."""

    session: str
    revision: Revision
    tx: int | None = None
    number: int | None = None


class Times(TypedDict, total=False):
    """Parameters of a read as of a point in time; empty for now."""

    valid_time: int
    tx: int


class AssemblyKey(TypedDict, total=False):
    """Parameters that select a recorded assembly; empty for the newest."""

    number: int
    turn: int
    at: int


def session_id(client: SyncClient, given: str | None) -> str:
    """Return the session of a command that works on its current state. Raises: ``Stop`` for a moment, or no session."""
    found = locate(client, given)
    if not found.revision.is_now:
        raise Stop(
            USAGE,
            f"{given!r} names a moment, and this command works on the session as it is now",
            hint=f"write {found.session}",
        )
    return found.session


def session_if_any(client: SyncClient, given: str | None, *, refuses_several: bool = False) -> str | None:
    """As ``session_id``, but None if no session is named and there is no default. ``refuses_several``: for a command
    that would otherwise work on a commit of any of several open sessions. Raises: ``Stop``."""
    if given or os.environ.get("CTXD_SESSION"):
        return session_id(client, given)
    try:
        return named_session(client, None)
    except Stop as stop:
        if refuses_several and stop.code != NOT_FOUND:
            raise
        return None


def locate(client: SyncClient, text: str | None, default: str | None = None) -> Located:
    """Return the revision ``text`` with its session, by default ``default``.

    Raises: ``Stop`` for text that is not a revision, and for a session or a context id that does not exist.
    """
    revision = parse(text or "", SystemClock().wall_ms())
    if revision.literal and not revision.is_now and text is not None:
        with suppress(NotFound):
            return Located(client.session_get(text).session.session, Revision())
    if revision.context is not None:
        return _of_context(client, revision, revision.context, default)
    if revision.session is None and default is not None:
        return Located(default, revision)
    return Located(named_session(client, revision.session), revision)


def times(client: SyncClient, found: Located) -> Times:
    """Return the point in time of a revision: the end of a turn, the record of an assembly, or the time itself."""
    revision = found.revision
    if found.tx is not None:
        return {"tx": found.tx}
    if revision.valid_time is not None and revision.back is None:
        return {"valid_time": revision.valid_time}
    if revision.is_now:
        return {}
    return _end_of(turn_of(client, found))


def _end_of(turn: SessionTurnResult) -> Times:
    return {} if turn.tx is None else {"tx": turn.tx}


def fork_times(client: SyncClient, found: Located) -> Times:
    """As ``times``, for a fork. Raises: ``Stop`` for a turn at whose end the session had a part of the next as well."""
    revision = found.revision
    if found.tx is None and not revision.is_now and (revision.valid_time is None or revision.back is not None):
        turn = turn_of(client, found)
        if turn.has_later:
            place = f"the end of turn {turn.turn}"
            message = f"session {found.session} cannot be forked at {place}: one write holds it and the next turn"
            hint = f"fork a commit of that turn: ctx log {found.session} lists them"
            raise Stop(CONFLICT, message, hint=hint, symbol="turn_not_separate")
        return _end_of(turn)
    return times(client, found)


def times_of(
    client: SyncClient, text: str | None, tx: int | None = None, default: str | None = None
) -> tuple[str | None, Times]:
    """Return the point in time that ``text``, a time or a revision, and the option ``--tx`` name, and the session.

    The session is that of the revision, ``default`` for a time. Raises: ``Stop``.
    """
    session, at = default, Times()
    if text is not None and is_revision(text):
        found = locate(client, text, default)
        session, at = found.session, times(client, found)
    elif text is not None and (moment := past_ms(text, SystemClock().wall_ms())) is not None:
        at["valid_time"] = moment
    if tx is not None:
        if "tx" in at:
            raise ExclusiveOptions(repr(text), "--tx", reason="both name a journal sequence")
        at["tx"] = tx
    return session, at


def assembly(client: SyncClient, found: Located) -> AssemblyKey:
    """Return the assembly that a revision names: the newest of a turn, or the newest by a time. Raises: ``Stop``."""
    revision = found.revision
    if found.number is not None:
        return {"number": found.number}
    if found.tx is not None:
        message = f"session {found.session} had no assembly at commit {revision.context}"
        hint = f"ctx context --commit {revision.context} shows the context that an agent would continue from it"
        raise Stop(NOT_FOUND, message, hint=hint, symbol="assembly_not_found")
    if revision.is_now:
        return {}
    if revision.back is None and revision.turn is not None:
        return {"turn": revision.turn}
    if revision.back is None and revision.valid_time is not None:
        return {"at": revision.valid_time}
    return {"turn": turn_of(client, found).turn}


def turn_of(client: SyncClient, found: Located) -> SessionTurnResult:
    """Return the turn that a revision names by number, distance or time. Raises: ``NotFound`` without such a turn."""
    revision = found.revision
    return client.session_turn(
        found.session, turn=revision.turn, valid_time=revision.valid_time, back=revision.back or 0
    )


def _of_context(client: SyncClient, revision: Revision, context: str, default: str | None) -> Located:
    """Return the commit or the assembly with the id ``context``."""
    with suppress(NotFound):
        commit = client.commit_show(context).commit
        if commit.session is None:
            message = f"commit {context} belongs to no session"
            raise Stop(NOT_FOUND, message, hint=f"ctx show {context} shows it", symbol="session_not_found")
        number = newest_number(client, commit.session, commit.tx)
        return Located(commit.session, revision, commit.tx, number or None)
    session, record = located_assembly(client, context, default)
    return Located(session, revision, record.tx, record.number)


def located_assembly(client: SyncClient, context: str, default: str | None = None) -> tuple[str, AssemblyRecord]:
    """Return the session of the assembly with the id ``context``, and the assembly. Searches ``default``, the command's
    own session, then all others. Raises: ``Stop``."""
    mine = default or session_if_any(client, None)
    for session in (mine, None) if mine else (None,):
        for record in client.context_list(session, context_id=context).assemblies:
            if (owner := record.session or session) is not None:
                return owner, record
    hint = "ctx current prints the newest id; other hosts do not know the id of an assembly"
    raise Stop(NOT_FOUND, f"no commit or assembly has the id {context}", hint=hint, symbol="assembly_not_found")


def newest_number(client: SyncClient, session: str, before_tx: int | None = None) -> int:
    """Return the number of the newest assembly, before journal sequence ``before_tx`` if given, 0 without one, by
    exponential search."""

    def is_before(number: int) -> bool:
        found = client.context_list(session, after=number - 1, limit=1).assemblies
        return bool(found) and (before_tx is None or found[0].tx < before_tx)

    low, high = 0, 1
    while is_before(high):
        low, high = high, 2 * high
    high -= 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_before(middle) else (low, middle - 1)
    return low
