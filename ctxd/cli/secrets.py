"""``ctx scan`` and ``ctx purge``: find secrets in files and in the daemon's store, and erase objects.

A secret itself is never shown: only its rule, its place, and a tag, which is equal for equal secrets.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from ctxd.cli.commit_lookup import is_context_id
from ctxd.cli.common_options import Invocation, common, object_argument, session_option
from ctxd.cli.exit_codes import FAILURE, FOUND, OK, USAGE
from ctxd.cli.object_by_path import object_id
from ctxd.cli.revision_lookup import session_id, session_if_any
from ctxd.cli.undelivered_events import erase
from ctxd.command_line import Command, Stop
from ctxd.formatting import count, short
from ctxd_client.errors import NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.objects import ObjectPurgeResult

if TYPE_CHECKING:
    from ctxd.secrets.redaction import Guard

_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_LEFT_OUT: Final = frozenset({".git", "node_modules", ".venv", "__pycache__"})
_PAGE: Final = min(500, PAGE_ITEMS_MAX)
_CHAT: Final = "chat:"
_COMMIT: Final = "commit:"
_ARTIFACT: Final = "artifact:"


class FoundSecret(msgspec.Struct, frozen=True, kw_only=True):
    """One secret: its place, the line it begins on (0 for arguments, metadata and chats), the rule, its tag."""

    place: str
    line: int
    rule: str
    tag: str


@click.command(
    cls=Command, examples="ctx scan\nctx scan src notes.md\ngit diff | ctx scan -\nctx scan -s s1\nctx scan --all"
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, allow_dash=True))
@session_option
@click.option("--all", "everything", is_flag=True, help="All that the daemon holds.")
@click.option("--history", is_flag=True, help="Of what the daemon holds also earlier versions.")
@click.option("--rules", type=click.Path(path_type=Path), help="A file of rules; as configured if left out.")
@common
def scan(
    run: Invocation, paths: tuple[Path, ...], session: str | None, everything: bool, history: bool, rules: Path | None
) -> int:
    """Look for secrets in PATHS (folders whole, - for standard input, this folder if none), or in the daemon: in files,
    tool calls, system prompts, setting entries, declared tools, and chats turn by turn.

    Ends with 0 if there are none, with 8 if there are, with 1 if something could not be read.
    """
    if paths and (session or everything):
        raise click.UsageError("PATHS are on disk, --session and --all are in the daemon: give one of them")
    if history and not (session or everything):
        raise click.UsageError("--history goes with --session or --all: files on disk have no versions")
    if session or everything:
        hits, scanned = _stored(run, session, history)
    else:
        hits, scanned = _on_disk(run, paths or (Path(),), rules)
    if run.screen.as_json:
        run.screen.document({"items": hits, "scanned": scanned})
    else:
        if hits:
            rows = [(hit.place, str(hit.line or "-"), hit.rule, hit.tag) for hit in hits]
            run.screen.table(("PLACE", "LINE", "RULE", "TAG"), rows, right=(1,))
        searched = "object" if session or everything else "file"
        run.screen.note(f"{count(len(hits), 'secret')} in {count(scanned, searched)}")
    return FOUND if hits else OK


def host_guard(rules: Path | None = None) -> "Guard":
    """Return a guard with the built-in rules and those of the file ``rules``, by default the configured one.

    Raises: Stop for invalid rules.
    """
    from ctxd.config import load
    from ctxd.secrets.redaction import KEY_BYTES, Guard
    from ctxd.secrets.rulefile import RulesRefused, scanner_of

    try:
        # A client may not read the daemon's key: tags are only comparable within this run.
        return Guard(scanner_of(rules or load().secrets_rules), os.urandom(KEY_BYTES))
    except RulesRefused as refused:
        raise Stop(FAILURE, str(refused), symbol="rules") from None


def _on_disk(run: Invocation, paths: tuple[Path, ...], rules: Path | None) -> tuple[list[FoundSecret], int]:
    guard = host_guard(rules)
    hits: list[FoundSecret] = []
    scanned = 0
    for place, data in _texts(run, paths):
        scanned += 1
        for hit in guard.scanner.hits(data):
            line = data.count(b"\n", 0, hit.start) + 1
            hits.append(
                FoundSecret(
                    place=guard.redacted(place), line=line, rule=hit.rule, tag=guard.tag(data[hit.start : hit.end])
                )
            )
    return hits, scanned


def _texts(run: Invocation, paths: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        if str(path) == "-":
            yield "-", sys.stdin.buffer.read()
        elif path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(set(folders) - _LEFT_OUT)
                for name in sorted(names):
                    yield from _file(run, Path(folder, name), named=False)
        else:
            yield from _file(run, path, named=True)


def _file(run: Invocation, path: Path, *, named: bool) -> Iterator[tuple[str, bytes]]:
    try:
        if not path.is_file() and not named:
            return
        if path.stat().st_size > _FILE_BYTES_MAX:
            run.screen.note(f"{path} is left out: it has more than {_FILE_BYTES_MAX >> 20} MiB")
            return
        yield str(path), path.read_bytes()
    except OSError as error:
        if named:
            raise Stop(FAILURE, f"{path} cannot be read: {error.strerror}") from None
        run.screen.note(f"{path} is left out: {error.strerror}")


def _stored(run: Invocation, session: str | None, history: bool) -> tuple[list[FoundSecret], int]:
    hits: list[FoundSecret] = []
    scanned = 0
    with run.client() as client:
        id = session_id(client, session) if session else None
        cursor: str | None = None
        while True:
            page = client.object_scan(session=id, history=history, limit=_PAGE, cursor=cursor)
            scanned += page.scanned
            for row in page.objects:
                line = row.lines[0] if row.lines else 0
                place = f"{row.object} {row.label}"
                hits += [FoundSecret(place=place, line=line, rule=found.rule, tag=found.tag) for found in row.found]
            cursor = page.next_cursor
            if cursor is None:
                return hits, scanned


@click.command(
    cls=Command,
    examples=(
        "ctx purge 3f9a01bc… --yes\nctx purge /workspace/.env -s s1 --yes\nctx purge chat:s1 --turn 3 --yes\n"
        "ctx purge chat:s1 --commits\nctx purge ctx-1a2b3c4d --yes\nctx purge artifact:3f9a01bc --yes"
    ),
)
@object_argument
@session_option
@click.option("--turn", "turns", type=click.IntRange(min=0), multiple=True, help="Of a chat only this turn; repeat it.")
@click.option("--commits", is_flag=True, help="With a chat also every commit of its session.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
def purge(run: Invocation, object: str, session: str | None, turns: tuple[int, ...], commits: bool, yes: bool) -> int:
    """Permanently erase OBJECT's content, in every version.

    OBJECT is a full id, a path, a commit (ctx-…), an artifact (artifact:ADDRESS), or chat:SESSION, whose turns stay
    without their text. Commits that were captured, imported or checkpointed have their texts beside the chat: --commits
    erases them too. Backups are not changed, nor are other objects with other text that quotes it:
    `ctx scan --all --history` finds secrets in them, and `ctxd verify --absent FILE` searches every file of the state
    directory. Ends with 1 if something of it is left.
    """
    is_chat = object.startswith(_CHAT)
    if turns and not is_chat:
        raise click.UsageError("--turn is of a chat: give chat:SESSION")
    if commits and (turns or not is_chat):
        raise click.UsageError("--commits goes with a whole chat: give chat:SESSION, without --turn")
    with run.client() as client:
        socket = run.socket_path()
        try:
            id, what = _target(client, session, object, turns)
        except (NotFound, Stop):
            # Only a waiting hook event may have it, which the daemon has not received.
            if not turns and yes and (waiting := erase(socket, (object, os.path.abspath(object)))):
                return _erased_waiting(run, waiting)
            raise
        beside = _with_content(client, object.removeprefix(_CHAT)) if commits else []
        if beside:
            what = f"{what}, and {count(len(beside), 'commit')} of its session"
        if not yes:
            _require_confirmed(what)
        quoted = (id, object, os.path.abspath(object) if "/" in object else "")
        waiting = 0 if turns else erase(socket, quoted)
        done = _with_commits(client, client.object_purge(id, turns=turns or None), beside)
        # The purge of the chat also erased the texts that its commits share with it.
        left = len(_with_content(client, object.removeprefix(_CHAT))) if is_chat and not turns else 0
    if run.screen.as_json:
        run.screen.document(done)
    else:
        _report(run, id, done, waiting, left)
    if not done.complete:
        hint = "a verification or a backup still reads it; the rest is erased when that ends"
        raise Stop(FAILURE, "something of it is left", hint=hint, symbol="residue")
    return OK


def _require_confirmed(what: str) -> None:
    """Raises: Stop unless the user confirms the erasure of ``what``."""
    if not sys.stdin.isatty():
        raise Stop(USAGE, f"standard input is no terminal to confirm the erasure of {what}", hint="add --yes")
    if not click.confirm(f"Erase {what}?", err=True):
        raise Stop(FAILURE, "nothing was purged", hint="answer y, or add --yes")


def _report(run: Invocation, id: str, done: ObjectPurgeResult, waiting: int, left: int) -> None:
    """Write the outcome of a purge; ``left``: the number of commits of the session that still have messages."""
    run.screen.line(f"purged {short(id)}: {count(done.versions, 'version')}, {count(done.texts, 'text')}")
    if others := [short(each) for each in done.objects if each != id]:
        run.screen.line(f"purged with it, for the same text: {', '.join(others)}")
    if waiting:
        run.screen.line(f"{count(waiting, 'event')} that waited for the daemon quoted it, and were erased")
    if not done.complete:
        run.screen.line(f"not yet erased: {', '.join(done.residue)}")
    elif left:
        have = "has" if left == 1 else "have"
        run.screen.line(f"nothing of the chat is left; {count(left, 'commit')} of its session {have} other texts")
        run.screen.note(f"ctx purge {id} --commits erases them too; ctx log -s {id.removeprefix(_CHAT)} lists them")
    else:
        run.screen.line("nothing of it is left")


def _with_commits(client: SyncClient, done: ObjectPurgeResult, commits: Sequence[str]) -> ObjectPurgeResult:
    """Purge ``commits`` one after the other. Returns: the sum of their results and ``done``."""
    for number, commit in enumerate(commits, 1):
        one = client.object_purge(commit)
        done = ObjectPurgeResult(
            objects=tuple(dict.fromkeys((*done.objects, *one.objects))),
            versions=done.versions + one.versions,
            texts=done.texts + one.texts,
            residue=tuple(dict.fromkeys((*done.residue, *one.residue))),
            complete=done.complete and one.complete,
            receipt=one.receipt or done.receipt,
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
        run.screen.document({"waiting": waiting})
    else:
        run.screen.line(f"erased {count(waiting, 'event')} that waited for the daemon; it has no such object")
    return OK


def _target(client: SyncClient, session: str | None, object: str, turns: tuple[int, ...]) -> tuple[str, str]:
    """Return the id of the object to purge, and a description of the part that is erased."""
    if object.startswith(_CHAT):
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
