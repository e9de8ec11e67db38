"""``ctx purge``: permanently erase the content of objects, commits, artifacts and chats."""

import os
import sys
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from ctxd.cli.common_options import Invocation, WholeNumber, common, object_argument, session_option
from ctxd.cli.exit_codes import FAILURE, OK, USAGE
from ctxd.cli.object_lookup import object_id
from ctxd.cli.revision_lookup import session_if_any
from ctxd.cli.spool_maintenance import hold
from ctxd.cli.undelivered_commits import erase_undelivered
from ctxd.click_support import Command, Stop
from ctxd.formatting import count, short
from ctxd.terminal import cell
from ctxd_client.errors import NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.ids import is_context_id
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.objects import ObjectPurgeResult

_CHAT: Final = "chat:"
_COMMIT: Final = "commit:"
_ARTIFACT: Final = "artifact:"

_OUTPUTS_SHOWN: Final = 3
"""Number of tool calls that are named if a purge of a chat leaves their outputs."""

_NOTHING: Final = ObjectPurgeResult(objects=(), versions=0, texts=0, residue=(), complete=True, receipt=None)


class _Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Effects of a purge beside those in the daemon: the number of hook events that waited for the daemon, and of
    commits that a capture could not deliver, which were erased; and of the commits of a purged chat's session that
    still have messages."""

    waiting: int = 0
    undelivered: int = 0
    commits_left: int = 0


@click.command(
    cls=Command,
    examples=(
        "ctx purge 3f9a01bc… --yes\nctx purge /workspace/.env -s s1 --yes\nctx purge chat:s1 --turn 3 --yes\n"
        "ctx purge chat:s1 --commits\nctx purge ctx-1a2b3c4d --yes\nctx purge artifact:3f9a01bc --yes"
    ),
)
@object_argument
@session_option
@click.option("--turn", "turns", type=WholeNumber(0), multiple=True, help="Erase only this turn; repeatable.")
@click.option("--commits", is_flag=True, help="With a chat, also erase every commit of its session.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@click.option("--dry-run", is_flag=True, help="Name what would be erased, and erase nothing.")
@common
def purge(
    run: Invocation, object: str, session: str | None, turns: tuple[int, ...], commits: bool, yes: bool, dry_run: bool
) -> int:
    """Permanently erase OBJECT's content, in every version.

    OBJECT is a full id, a path, a commit (ctx-…), an artifact (artifact:ADDRESS), or chat:SESSION. A purged chat keeps
    its turns without their text. Captured, imported and checkpointed commits store their text separately from the chat;
    --commits erases that text too. Outputs of tool calls are objects of their own, and stay. If a file still exists,
    its next change is recorded again, with all of its text: remove the text from the file first. Backups are not
    changed, and neither is other text that quotes the erased text: `ctx scan --all --history` finds secrets,
    `ctx search` finds words, and `ctxd verify --absent FILE` searches every file of the state directory. Exits with 1
    if erased content may remain in the state directory.
    """
    is_chat = object.startswith(_CHAT)
    if turns and not is_chat:
        raise click.UsageError("--turn applies only to a chat: give chat:SESSION")
    if commits and (turns or not is_chat):
        raise click.UsageError("--commits applies only to a whole chat: give chat:SESSION, without --turn")
    with run.client() as client:
        socket = run.socket_path()
        try:
            id, what = _target(client, session, object, turns)
        except (NotFound, Stop):
            # Only a hook event that the daemon has not received may have it.
            if turns or dry_run or not yes:
                raise
            if waiting := _erase_waiting(socket, (object, os.path.abspath(object))):
                return _erased_waiting(run, waiting)
            raise
        beside = _with_content(client, object.removeprefix(_CHAT)) if commits else []
        if beside:
            what = f"{what}, and {count(len(beside), 'commit')} of its session"
        if not yes or dry_run:
            foreseen = client.object_purge(id, turns=turns or None, dry_run=True)
            what += _also(foreseen.sessions)
            if dry_run:
                _report_foreseen(run, msgspec.structs.replace(foreseen, objects=(id, *beside)), what)
                return OK
            _require_confirmed(what)
        quoted = (id, object, os.path.abspath(object) if "/" in object else "")
        # An event that waits is erased once the daemon has erased the object, and none is delivered in between.
        with hold(socket) as held:
            done = client.object_purge(id, turns=turns or None)
            waiting = 0 if turns else held.erase(quoted)
        undelivered = _erased_commits(object.removeprefix(_CHAT)) if commits else 0
        # A capture may have delivered some of its commits meanwhile.
        done = _with_commits(client, done, _with_content(client, object.removeprefix(_CHAT)) if commits else ())
        # The purge of the chat also erased the texts that its commits share with it.
        left = len(_with_content(client, object.removeprefix(_CHAT))) if is_chat and not turns else 0
    _report(run, id, done, _Beside(waiting=waiting, undelivered=undelivered, commits_left=left))
    if not done.complete:
        hint = "if a verification or a backup is running, the daemon erases the files when it ends"
        raise Stop(FAILURE, f"not yet erased: {', '.join(done.residue)}", hint=hint, symbol="residue")
    return OK


def _erase_waiting(socket: str | None, names: Sequence[str]) -> int:
    """Erase the waiting events that quote one of ``names``. Returns: their number. Raises: OSError."""
    with hold(socket) as held:
        return held.erase(names)


def _require_confirmed(what: str) -> None:
    """Raises: Stop unless the user confirms the erasure of ``what``."""
    if not sys.stdin.isatty():
        raise Stop(USAGE, f"cannot confirm the erasure of {what}: standard input is not a terminal", hint="add --yes")
    if not click.confirm(f"Erase {what}?", err=True):
        raise Stop(FAILURE, "nothing was purged", hint="answer y, or add --yes")


def _report_foreseen(run: Invocation, foreseen: ObjectPurgeResult, what: str) -> None:
    if run.screen.as_json:
        run.screen.document(foreseen)
    else:
        run.screen.line(f"would erase {what}")


def _also(sessions: Sequence[str]) -> str:
    return f", and the same text in {', '.join(map(cell, sessions))}" if sessions else ""


def _erased_commits(session: str) -> int:
    """Erase the commits of ``session`` that captures could not deliver. Returns: their number. Raises: Stop."""
    try:
        return erase_undelivered(session, os.environ)
    except (OSError, ValueError) as error:
        message = f"commits that a capture could not deliver cannot be read: {error}"
        raise Stop(FAILURE, message, hint="remove that file, then purge again", symbol="residue") from None


def _report(run: Invocation, id: str, done: ObjectPurgeResult, beside: _Beside) -> None:
    """Write the outcome of a purge."""
    if run.screen.as_json:
        run.screen.document({**msgspec.structs.asdict(done), **msgspec.structs.asdict(beside)})
        return
    run.screen.line(f"purged {short(id)}: {count(done.versions, 'version')}, {count(done.texts, 'text')}")
    if others := [short(each) for each in done.objects if each != id]:
        run.screen.line(f"purged with it, for the same text: {', '.join(others)}")
    if done.sessions:
        run.screen.line(f"the same text was erased in {', '.join(map(cell, done.sessions))}")
    if beside.waiting:
        run.screen.line(f"{count(beside.waiting, 'event')} that waited for the daemon quoted it, and were erased")
    if beside.undelivered:
        run.screen.line(f"{count(beside.undelivered, 'commit')} of ctx capture that waited for the daemon, erased")
    if done.complete:
        _report_complete(run, id, done, beside.commits_left)
    for path in done.existing:
        message = f"{cell(path)} still exists: its next change is recorded again, with all of its text"
        run.screen.note(f"{message}; remove the text from the file first")


def _report_complete(run: Invocation, id: str, done: ObjectPurgeResult, left: int) -> None:
    """Write what a complete purge has left. ``left``: see ``_Beside.commits_left``."""
    if left:
        have = "has" if left == 1 else "have"
        run.screen.line(f"nothing of the chat is left; {count(left, 'commit')} of its session {have} other texts")
        run.screen.note(f"ctx purge {id} --commits erases them too; ctx log -s {id.removeprefix(_CHAT)} lists them")
    elif not done.copies or done.outputs_left:
        run.screen.line("no version of it is left; longer texts that quote it stay: ctx search finds words")
    if done.copies:
        have = (
            "session, which began with its commits, has"
            if len(done.copies) == 1
            else "sessions, which began with its commits, have"
        )
        purges = _purges([f"{_CHAT}{each}" for each in done.copies], len(done.copies), " --commits")
        run.screen.line(f"{len(done.copies)} {have} a copy: {purges}")
    if done.outputs_left:
        stay = "stays" if done.outputs_left == 1 else "stay"
        outputs = "the output" if done.outputs_left == 1 else "the outputs"
        purges = _purges(done.outputs, done.outputs_left)
        run.screen.line(f"{outputs} of {count(done.outputs_left, 'tool call')} {stay}: {purges}")


def _purges(ids: Sequence[str], number: int, option: str = "") -> str:
    """The commands that purge the first of ``ids``, and how many of the ``number`` are left out."""
    shown = ", ".join(f"ctx purge {cell(each)}{option}" for each in ids[:_OUTPUTS_SHOWN])
    return f"{shown}, and {count(number - _OUTPUTS_SHOWN)} more" if number > _OUTPUTS_SHOWN else shown


def _with_commits(client: SyncClient, done: ObjectPurgeResult, commits: Sequence[str]) -> ObjectPurgeResult:
    """Purge ``commits`` one after the other. Returns: the sum of their results and ``done``."""
    for number, commit in enumerate(commits, 1):
        one = client.object_purge(commit)
        done = msgspec.structs.replace(
            done,
            objects=tuple(dict.fromkeys((*done.objects, *one.objects))),
            versions=done.versions + one.versions,
            texts=done.texts + one.texts,
            residue=tuple(dict.fromkeys((*done.residue, *one.residue))),
            complete=done.complete and one.complete,
            receipt=one.receipt or done.receipt,
            existing=tuple(dict.fromkeys((*done.existing, *one.existing))),
            sessions=tuple(dict.fromkeys((*done.sessions, *one.sessions))),
        )
        if sys.stderr.isatty():
            click.echo(f"\r{number} of {count(len(commits), 'commit')}", err=True, nl=number == len(commits))
    return done


def _with_content(client: SyncClient, session: str) -> list[str]:
    """The commits of ``session`` that have messages, as ids of objects."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = client.commit_list(session=session, limit=PAGE_ITEMS_MAX, cursor=cursor)
        found += [f"{_COMMIT}{one.commit}" for one in page.commits if one.artifact_ref and one.message_count]
        if (cursor := page.next_cursor) is None:
            return found


def _erased_waiting(run: Invocation, waiting: int) -> int:
    if run.screen.as_json:
        _report(run, "", _NOTHING, _Beside(waiting=waiting))
    else:
        run.screen.line(f"erased {count(waiting, 'event')} that waited for the daemon; it has no such object")
    return OK


def _target(client: SyncClient, session: str | None, object: str, turns: tuple[int, ...]) -> tuple[str, str]:
    """Return the id of the object to purge, and a description of the part that is erased."""
    if object.startswith(_CHAT):
        for turn in turns:
            # The daemon's purge ignores turns that do not exist.
            client.session_turn(object.removeprefix(_CHAT), turn=turn)
        which = f"turn {', '.join(map(str, turns))}" if turns else "every turn"
        return object, f"the messages of {object} in {which}"
    if object.startswith(_ARTIFACT):
        artifact = client.artifact_stat(object.removeprefix(_ARTIFACT))
        return f"{_ARTIFACT}{artifact.artifact}", f"artifact {artifact.artifact[:12]} ({artifact.size:,} bytes)"
    if is_context_id(name := object.removeprefix(_COMMIT)):
        commit = client.commit_show(name).commit.commit
        return f"{_COMMIT}{commit}", f"the messages and the summary of {commit}"
    in_session = session_if_any(client, session)
    id = object_id(client, in_session, object)
    found = client.object_get(id, session=in_session, content=False).object
    return found.id, f"every version of {found.id} ({found.display_path or found.type})"
