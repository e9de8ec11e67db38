"""Commits by the names that people give them, looked up in the daemon.

A commit is named by its id, by the id of an assembly (the newest commit before it), by a tag, by ``HEAD`` (the newest
of the command's session), by the session whose newest it is, or by ``PRINCIPAL@TIME`` or ``SESSION@{TIME}`` (the newest
at that time); ``~N`` after any of them goes N parents back. ``SESSION@12`` is the newest commit without events after
turn 12; after a turn ``~N`` goes N turns back, as ``@~N`` does from the newest turn.
"""

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypedDict

from ctxd.cli.exit_codes import CONFLICT, NOT_FOUND, USAGE
from ctxd.cli.revision_lookup import fork_times, locate, located_assembly, session_id, session_if_any, turn_of
from ctxd.cli.revisions import is_revision, parse, past_ms
from ctxd.cli.session_lookup import named_session
from ctxd.click_support import Stop
from ctxd.clock import SystemClock
from ctxd.formatting import moment
from ctxd.terminal import cut
from ctxd_client.errors import InvalidCall, NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.ids import is_context_id
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.commits import Commit, StartContext

_BACK: Final = re.compile(r"(.*?)~([0-9]{0,9})", re.ASCII | re.DOTALL)
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}", re.ASCII)
_NAME_CHARS: Final = 130
"""Longest name in a message; tags have at most 128 characters."""
_FORMS: Final = "write ctx-1a2b3c4d, HEAD~2, a tag, a session, or PRINCIPAL@TIME; ctx log lists commits"


class _Scope(TypedDict, total=False):
    """Conditions on the commits that are searched."""

    principal: str
    session: str


def is_tag(text: str) -> bool:
    """True if ``text`` may be a tag."""
    return _TAG.fullmatch(text) is not None


def located_commit(client: SyncClient, text: str | None, session: str | None = None) -> Commit:
    """Return the commit that ``text`` names, ``HEAD`` without one; ``session`` is that of the command's option.

    Raises: ``Stop`` for text that names no commit, or several.
    """
    given = "HEAD" if text is None else text
    if not given:
        raise Stop(USAGE, "the name of the commit is empty", hint=_FORMS)
    if "@" in given and (found := _at_turn(client, given, session)) is not None:
        return found
    back = _BACK.fullmatch(given)
    name, steps = (back[1] or "HEAD", int(back[2] or 1)) if back else (given, 0)
    found = _named(client, name, session)
    return _ancestor(client, found, steps)


def newest_commit(client: SyncClient, session: str | None) -> Commit | None:
    """Return the newest commit of ``session``, the command's if None; without any session the caller's newest. Raises:
    ``Stop`` if several sessions are open."""
    id = session_if_any(client, session, refuses_several=True)
    return client.commit_resolve(session=id).commit


def start_context(client: SyncClient, text: str | None) -> StartContext:
    """Return the context that ``text`` names: a commit, or a session with or without a moment; without it the default
    session. Raises: ``Stop`` if it names none."""
    if text is None:
        return _as_it_is(client, session_id(client, None))
    if not text:
        raise Stop(USAGE, "the name of the commit is empty", hint=_FORMS)
    if is_context_id(text):
        with suppress(NotFound):
            return StartContext(commit=client.commit_show(text).commit.commit)
        session, record = located_assembly(client, text)
        return StartContext(session=session, tx=record.tx)
    if is_revision(text):
        try:
            found = locate(client, text)
            return StartContext(session=found.session, **fork_times(client, found))
        except Stop as stop:
            # It may be PRINCIPAL@TIME, which names a commit.
            if stop.code not in (NOT_FOUND, USAGE):
                raise
    else:
        # HEAD~2 and the like are not session names.
        with suppress(NotFound, InvalidCall):
            return _as_it_is(client, client.session_get(text).session.session)
        if is_tag(text) and text != "HEAD" and tagged_commit(client, text, None) is None:
            with suppress(Stop):
                return _as_it_is(client, named_session(client, text))
    return StartContext(commit=located_commit(client, text).commit)


def _as_it_is(client: SyncClient, session: str) -> StartContext:
    """Return the context of a session as it is now; for a session with commits only, such as an imported one, that of
    its newest commit."""
    if not client.session_get(session).session.session_index and not client.session_events(session, limit=1).events:
        commit = client.commit_resolve(session=session).commit
        if commit is not None:
            return StartContext(commit=commit.commit)
    return StartContext(session=session)


def _at_turn(client: SyncClient, text: str, session: str | None) -> Commit | None:
    """Return the newest commit up to the turn that ``text`` names, or of the session before a bare ``@``; None if it
    names neither. Raises: ``Stop``."""
    try:
        revision = parse(text, SystemClock().wall_ms())
    except Stop:
        return None
    is_newest = revision.is_now and text.endswith("@")
    if not is_newest and (revision.valid_time is not None or (revision.turn is None and revision.back is None)):
        return None
    found = locate(client, text, None if session is None else session_id(client, session))
    if is_newest:
        return _named(client, "HEAD", found.session)
    turn = turn_of(client, found).turn
    commit = client.commit_resolve(session=found.session, turn=turn).commit
    if commit is None:
        message = f"session {found.session} has no commit up to turn {turn}"
        raise Stop(NOT_FOUND, message, hint="ctx log lists commits", symbol="commit_not_found")
    return commit


def _named(client: SyncClient, name: str, session: str | None) -> Commit:
    if is_context_id(name):
        try:
            return client.commit_show(name).commit
        except NotFound:
            return _before_assembly(client, name, session)
    if name == "HEAD":
        found = newest_commit(client, session)
        if found is None:
            raise _no_commit(client, session_if_any(client, session))
        return found
    if "@" in name:
        return _by_time(client, name)
    if is_tag(name) and (tagged := tagged_commit(client, name, session)) is not None:
        return tagged
    empty: str | None = None
    with suppress(NotFound, InvalidCall, Stop):
        named = named_session(client, name)
        if (newest := client.commit_resolve(session=named).commit) is not None:
            return newest
        empty = client.session_get(named).session.session
    if empty is not None:
        raise _no_commit(client, empty)
    raise Stop(NOT_FOUND, f"no commit is named {cut(name, _NAME_CHARS)!r}", hint=_FORMS, symbol="commit_not_found")


def _no_commit(client: SyncClient, session: str | None) -> Stop:
    message = f"session {session} has no commit yet" if session else "there is no commit yet"
    hint = f"ctx current -s {session or 'SESSION'} creates one"
    if session and not client.session_events(session, limit=1).events:
        message += ", and no event to commit"
        hint = "it can be committed once it has a message; ctx checkpoint commits a delta from a file"
    return Stop(NOT_FOUND, message, hint=hint, symbol="commit_not_found")


def _before_assembly(client: SyncClient, id: str, session: str | None) -> Commit:
    """Return the newest commit before the assembly ``id``, in the same session."""
    owner, record = located_assembly(client, id, session)
    found = client.commit_resolve(session=owner, assembly=record.number).commit
    if found is None:
        message = f"{id} is an assembly of session {owner}, which had no commit then"
        raise Stop(NOT_FOUND, message, hint=f"ctx context {id} shows it", symbol="commit_not_found")
    return found


def tagged_commit(client: SyncClient, tag: str, session: str | None, *, only_its: bool = False) -> Commit | None:
    """Return the commit with ``tag``: that of the command's session, if several have it. ``only_its``: no commit of
    another session. Raises: ``Stop`` if none of several is of that session."""
    found = tagged = client.commit_list(tag=tag, session=session if only_its else None, limit=PAGE_ITEMS_MAX).commits
    if len(found) > 1:
        own = session_if_any(client, session)
        found = tuple(each for each in found if each.session == own)
        if len(found) != 1:
            several = ", ".join(f"{each.commit} of {each.session or 'no session'}" for each in tagged[:5])
            more = f" and {len(tagged) - 5:,} more" if len(tagged) > 5 else ""
            message = f"several commits have the tag {tag!r}: {several}{more}"
            raise Stop(CONFLICT, message, hint="write the id, or name the session: -s SESSION")
    return found[0] if found else None


def _by_time(client: SyncClient, text: str) -> Commit:
    owner, at, until = owned_moment(text, _FORMS)
    scopes: list[_Scope] = [{"session": owner}, {"principal": owner}] if owner else [{}]
    for scope in scopes:
        # The name is looked up as a session first, else it is a principal.
        with suppress(NotFound, InvalidCall):
            if (found := client.commit_resolve(at=at, **scope).commit) is not None:
                return found
    who = f"{owner} has" if owner else "you have"
    hint = "choose a later time; ctx log lists commits"
    raise Stop(NOT_FOUND, f"{who} no commit at or before {until}", hint=hint, symbol="commit_not_found")


class OwnedMoment(NamedTuple):
    """A moment of an owner, who is empty if none is named. ``at``: the moment as ``instant``, None for now; ``shown``:
    the moment for a message."""

    owner: str
    at: str | None
    shown: str


def owned_moment(text: str, forms: str) -> OwnedMoment:
    """Return what ``text``, OWNER@TIME, names. Raises: ``Stop`` if it names no time, with the hint ``forms``."""
    owner, _, time = text.rpartition("@")
    time = time.removeprefix("{").removesuffix("}")
    if "@" not in text or not time:
        raise Stop(USAGE, f"{text!r} has no time after @", hint=forms)
    past = past_ms(time, SystemClock().wall_ms())
    return OwnedMoment(owner, None, "now") if past is None else OwnedMoment(owner, instant(past), moment(past))


def instant(ms: int) -> str:
    """Return a time in ms since 1970 as ISO 8601 with an offset. Raises: ``Stop`` beyond the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        raise Stop(USAGE, f"{ms} ms since 1970 is out of range", hint="write a year from 1 to 9999") from None


def _ancestor(client: SyncClient, commit: Commit, steps: int) -> Commit:
    if steps > commit.depth:
        message = f"{commit.commit} has {commit.depth} ancestors, not {steps}"
        raise Stop(NOT_FOUND, message, hint=f"the root is {commit.commit}~{commit.depth}", symbol="commit_not_found")
    while steps:
        part = min(steps, PAGE_ITEMS_MAX - 1)
        commit = client.commit_history(commit.commit, depth=part + 1).commits[-1]
        steps -= part
    return commit
