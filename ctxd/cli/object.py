"""``ctx object``: files and tool calls, now and at any earlier time."""

import json
import sys
from typing import Any, Final

import click

from ctxd.cli.common_options import (
    Invocation,
    Seconds,
    WholeNumber,
    common,
    listing,
    note_next_page,
    object_argument,
    paged,
    quiet,
    require_one_scope,
    session_option,
)
from ctxd.cli.exit_codes import NOT_FOUND, USAGE
from ctxd.cli.object_lookup import object_id
from ctxd.cli.revision_lookup import Times, session_id, session_if_any, times_of
from ctxd.cli.revisions import is_revision
from ctxd.cli.unified_diff import print_diff, unified
from ctxd.click_support import Command, Group, Stop
from ctxd.formatting import count, moment, short, size
from ctxd.terminal import cell
from ctxd_client.sync import SyncClient
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.object_types import ObjectType, ObjectVersion
from ctxd_protocol.session_types import ContextLevel

_DIGITS_MAX: Final = 15
"""Maximum digits of a journal sequence on the command line."""


@click.group("object", cls=Group, examples="ctx object ls\nctx object cat 3f9a01bc\nctx object as-of 3f9a01bc 2h")
@common
def object_group(run: Invocation) -> None:
    """List, read and compare files and tool calls, as of any time. OBJECT is an id, a unique prefix, or a path."""


@object_group.command(cls=Command, examples="ctx object ls\nctx object ls -s s1 --level active\nctx object ls --all -q")
@session_option
@click.option("--all", "everything", is_flag=True, help="Objects of all sessions.")
@click.option("--type", "type", type=click.Choice(["file", "toolcall"]), help="Only objects of this type.")
@click.option("--level", type=click.Choice(["active", "inactive", "indexed"]), help="Only objects at this level.")
@paged
@listing
@common
def ls(
    run: Invocation,
    session: str | None,
    everything: bool,
    type: ObjectType | None,
    level: ContextLevel | None,
    limit: int,
    cursor: str | None,
) -> None:
    """List the objects of a session, or all."""
    require_one_scope(everything, session)
    with run.client() as client:
        id = None if everything else session_if_any(client, session)
        page = client.object_list(session=id, type=type, level=level, limit=limit, cursor=cursor)
    if run.screen.listing(page.objects, [each.object for each in page.objects], next_cursor=page.next_cursor):
        return
    run.screen.table(
        ("OBJECT", "TYPE", "STATE", "LEVEL", "CHARS", "LABEL"),
        [
            (
                short(each.object),
                each.type,
                each.state,
                (each.level or "") + (" pinned" if each.pinned else ""),
                count(each.char_count),
                each.label + (f" (secrets: {', '.join(each.secrets)})" if each.secrets else ""),
            )
            for each in page.objects
        ],
        right=(4,),
    )
    note_next_page(run, page.next_cursor)


@object_group.command(cls=Command, examples="ctx object cat 3f9a01bc\nctx object cat /workspace/a.py -s s1 > a.py")
@object_argument
@session_option
@common
def cat(run: Invocation, object: str, session: str | None) -> None:
    """Print the newest content of OBJECT, byte for byte into a pipe; a chat or a session as JSON."""
    with run.client() as client:
        id, name = _names(client, object, session)
        found = client.object_get(name, session=id).object
    _print(run, found)


@object_group.command(
    "as-of",
    cls=Command,
    examples="ctx object as-of 3f9a01bc 2h\nctx object as-of a.py 2026-05-01\nctx object as-of a.py @~1\n"
    "ctx object as-of a.py s1@12\nctx object as-of a.py ctx-1a2b3c4d",
)
@object_argument
@click.argument("when", required=False)
@click.option("--tx", type=WholeNumber(0), metavar="SEQ", help="As it was known after journal sequence SEQ.")
@session_option
@common
def as_of(run: Invocation, object: str, when: str | None, tx: int | None, session: str | None) -> None:
    """Print the content that OBJECT had at a time: 2h (ago), 2026-05-01T12:00, or milliseconds since 1970.

    WHEN may be a revision: s1@12, the end of turn 12; ctx-1a2b3c4d, the version that a model saw; see ctx --help. Its
    session is that of OBJECT, unless -s names another.
    """
    with run.client() as client:
        given = session_id(client, session) if session else None
        named, at = times_of(client, when, tx, given)
        id, name = _names(client, object, given or named)
        found = client.object_get(name, session=id, **at).object
    if not run.screen.as_json:
        run.screen.note(f"version of {moment(found.valid_time)}, journal sequence {found.tx}")
    _print(run, found)


@object_group.command(cls=Command, examples="ctx object history 3f9a01bc\nctx object history 3f9a01bc --json")
@object_argument
@paged
@click.option("--corrections", is_flag=True, help="Also versions that were corrected later.")
@quiet("Journal sequences only, one per line.")
@session_option
@common
def history(
    run: Invocation, object: str, limit: int, cursor: str | None, corrections: bool, session: str | None
) -> None:
    """List the versions of OBJECT, newest first."""
    with run.client() as client:
        id, name = _names(client, object, session)
        page = client.object_history(
            name, session=id, order="desc", corrections=corrections, limit=limit, cursor=cursor
        )
    if run.screen.listing(page.versions, [str(row.tx) for row in page.versions], next_cursor=page.next_cursor):
        return
    run.screen.table(
        ("VALID FROM", "SEQ", "STATE", "CHARS", "CONTENT"),
        [
            (moment(row.valid_time), str(row.tx), row.state, count(row.char_count), (row.content_hash or "")[:12])
            for row in page.versions
        ],
        right=(1, 3),
    )
    note_next_page(run, page.next_cursor)


@object_group.command(
    cls=Command, examples="ctx object diff 3f9a01bc\nctx object diff 3f9a01bc 41 57\nctx object diff a.py @~2 @"
)
@object_argument
@click.argument("a", required=False)
@click.argument("b", required=False)
@session_option
@common
def diff(run: Invocation, object: str, a: str | None, b: str | None, session: str | None) -> None:
    """Compare two versions of OBJECT; without B the newest, without A the one before.

    A and B are journal sequences, or revisions such as s1@12; see ctx --help.
    """
    with run.client() as client:
        given = session_id(client, session) if session else None
        versions = [_version(client, each, given) for each in (a, b)]
        id, name = _names(client, object, given or versions[0][0] or versions[1][0])
        before, after = _two_versions(client, name, id, *(at for _, at in versions))
    lines = _difference(before, after)
    if run.screen.as_json:
        run.screen.document({"from": before.tx, "to": after.tx, "diff": "".join(lines)})
    else:
        print_diff(run, lines)


def _names(client: SyncClient, object: str, session: str | None) -> tuple[str | None, str]:
    id = session_if_any(client, session)
    return id, object_id(client, id, object)


def _two_versions(
    client: SyncClient, object: str, session: str | None, a: Times | None, b: Times | None
) -> tuple[ObjectVersion, ObjectVersion]:
    upto = b or Times()
    after = client.object_get(object, session=session, **upto).object
    if a is not None:
        return client.object_get(object, session=session, **a).object, after
    rows = client.object_history(object, session=session, order="desc", limit=2, **upto).versions
    if len(rows) < 2:
        raise Stop(NOT_FOUND, f"{object} has one version only", hint="ctx object cat shows it")
    before: Times = {**upto, "valid_time": rows[1].valid_time}
    return client.object_get(object, session=session, **before).object, after


def _version(client: SyncClient, text: str | None, session: str | None) -> tuple[str | None, Times | None]:
    """Return the session, by default ``session``, and the point in time that an argument of ``diff`` names, if any."""
    if text is None:
        return session, None
    if is_revision(text):
        return times_of(client, text, default=session)
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        hint = "write a journal sequence, or a revision: ctx object diff OBJECT @~1 @"
        raise Stop(USAGE, f"{text!r} is not a version", hint=hint)
    return session, {"tx": int(text)}


def _difference(before: ObjectVersion, after: ObjectVersion) -> list[str]:
    names = [f"{each.display_path or each.id} seq {each.tx}" for each in (before, after)]
    for each in (before, after):
        if _text(each) is None and each.state == "present":
            if (before.content_hash, before.source_hash) == (after.content_hash, after.source_hash):
                return []
            return [cell(f"{names[0]} and {names[1]} differ: of seq {each.tx} no text is kept, {_why(each)}") + "\n"]
    return unified(_text(before) or "", _text(after) or "", *names)


def _text(version: ObjectVersion) -> str | None:
    """Return the text to print: a version's content, or a chat or session as JSON; None without text."""
    if version.type in ("chat", "session"):
        held = {name: value for name, value in version.payload.items() if name != "content"}
        return json.dumps(held, indent=2, ensure_ascii=False) + "\n"
    content: Any = None if "encoding" in version.payload else version.payload.get("content")
    return content if isinstance(content, str) else None


def _why(version: ObjectVersion) -> str:
    match version.payload.get("kind"):
        case "binary":
            known = version.payload.get("media_type")
            return f"it is binary: {known}, {size(version.payload['size_bytes'])}" if known else "it is binary"
        case "too_large":
            return f"it is too large: {size(version.payload['size_bytes'])}"
    return f"it is {version.state}"


def _print(run: Invocation, version: ObjectVersion) -> None:
    if run.screen.as_json:
        run.screen.document(version)
        return
    text = _text(version)
    if text is None:
        unread = version.state == "unread"
        hint = "ctx activate reads it" if unread else "--json shows its other fields"
        name = version.display_path or version.id
        raise Stop(NOT_FOUND, f"{name} has no text: {_why(version)}", hint=hint, symbol="no_text")
    run.screen.content(text)


@click.command(
    cls=Command,
    examples="""ctx query '{:find [e] :where [[e :type "toolcall"] [e :tool "bash"]]}'
ctx query '{:find [e p] :in [s] :where [[e :session s] [e :path p]]}' '"s1"'
ctx query --at 2h < query.edn""",
)
@click.argument("text", metavar="[QUERY]", required=False)
@click.argument("args", metavar="[ARG]...", nargs=-1)
@click.option("--at", "when", metavar="WHEN", help="As of this time or revision.")
@click.option("--tx", type=WholeNumber(0), metavar="SEQ", help="As it was known after journal sequence SEQ.")
@click.option(
    "--limit",
    type=click.IntRange(1, PAGE_ITEMS_MAX),
    default=100,
    show_default=True,
    help="Maximum number of rows.",
)
@click.option(
    "--time",
    "time_s",
    type=Seconds(0.001, 30),
    default=10.0,
    show_default=True,
    help="Seconds the query may run.",
)
@common
def query(
    run: Invocation,
    text: str | None,
    args: tuple[str, ...],
    when: str | None,
    tx: int | None,
    limit: int,
    time_s: float,
) -> None:
    """Query all documents in Datalog, on an XTDB node. QUERY is a map in EDN, read from standard input if left out.

    Each ARG is a JSON value for the query's :in. Rows are printed one per line, each a JSON array.

    The keys of a document are :type (file, toolcall, system_prompt, session, segment, assembly or content), :session,
    :tool, :turn, :path, :source, :identity_hash, :source_hash, :content_hash and :writer, the journal. Everything else
    is in :payload, whose keys are text: "tx", "tx_time", "valid_time", "fields", "content" and others.
    """
    values = [_json_argument(arg) for arg in args]
    if text is None:
        text = sys.stdin.read()
    if not text.strip():
        hint = """ctx query '{:find [e] :where [[e :type "toolcall"]]}'"""
        raise Stop(USAGE, "there is no query", hint=f"give one, or pipe it in: {hint}")
    with run.client() as client:
        _, at = times_of(client, when, tx)
        found = client.object_query(text, args=values, **at, limit=limit, timeout_ms=round(time_s * 1_000))
    if run.screen.as_json:
        run.screen.document(found)
        return
    for row in found.rows:
        run.screen.line(json.dumps(row, ensure_ascii=False))
    if not found.complete:
        run.screen.note(f"more than {count(limit, 'row')}: raise --limit, or narrow the query")


def _json_argument(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        message = f"{text[:100]!r} is not a JSON value: {why}"
        raise click.UsageError(f"{message}. Quote a text twice: '\"s1\"'") from None
