"""``ctx object``: what is known of files and tool calls, now and at any earlier time."""

import json
import sys
from typing import Any

import click

from ctxd.cli.common_options import Invocation, common, listing, note_next_page, object_argument, paged, session_option
from ctxd.cli.default_session import session_if_any
from ctxd.cli.diff import print_diff, unified
from ctxd.cli.exit_codes import NOT_FOUND, USAGE
from ctxd.cli.object_by_path import object_id
from ctxd.cli.revisions import moment_ms
from ctxd.clock import SystemClock
from ctxd.command_line import Command, Group, Stop
from ctxd.formatting import count, moment, short, size
from ctxd.terminal import cell
from ctxd_client.sync import SyncClient
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.object_types import ObjectType, ObjectVersion
from ctxd_protocol.session_types import ContextLevel


@click.group("object", cls=Group, examples="ctx object ls\nctx object cat 3f9a01bc\nctx object as-of 3f9a01bc 2h")
def object_group() -> None:
    """Files and tool calls: list, read, compare, as of any time. OBJECT is an id, a unique prefix, or a path."""


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
    """Print the newest content of OBJECT, byte for byte into a pipe; of a chat or a session what it holds, as JSON."""
    with run.client() as client:
        id, name = _names(client, object, session)
        found = client.object_get(name, session=id).object
    _print(run, found)


@object_group.command("as-of", cls=Command, examples="ctx object as-of 3f9a01bc 2h\nctx object as-of a.py 2026-05-01")
@object_argument
@click.argument("when", required=False)
@click.option("--tx", type=click.IntRange(min=0), metavar="SEQ", help="As it was known after journal sequence SEQ.")
@session_option
@common
def as_of(run: Invocation, object: str, when: str | None, tx: int | None, session: str | None) -> None:
    """Print the content that OBJECT had at a time: 2h (ago), 2026-05-01T12:00, or milliseconds since 1970."""
    valid_time = None if when is None else moment_ms(when, SystemClock().wall_ms())
    with run.client() as client:
        id, name = _names(client, object, session)
        found = client.object_get(name, session=id, valid_time=valid_time, tx=tx).object
    if not run.screen.as_json:
        run.screen.note(f"version of {moment(found.valid_time)}, journal sequence {found.tx}")
    _print(run, found)


@object_group.command(cls=Command, examples="ctx object history 3f9a01bc\nctx object history 3f9a01bc --json")
@object_argument
@paged
@click.option("--corrections", is_flag=True, help="Also versions that were corrected later.")
@listing
@session_option
@common
def history(
    run: Invocation, object: str, limit: int, cursor: str | None, corrections: bool, session: str | None
) -> None:
    """List the versions of OBJECT, newest first. With -q, their journal sequences."""
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


@object_group.command(cls=Command, examples="ctx object diff 3f9a01bc\nctx object diff 3f9a01bc 41 57")
@object_argument
@click.argument("a", type=click.IntRange(min=0), required=False)
@click.argument("b", type=click.IntRange(min=0), required=False)
@session_option
@common
def diff(run: Invocation, object: str, a: int | None, b: int | None, session: str | None) -> None:
    """Compare two versions of OBJECT by their journal sequences; without B the newest, without A the one before."""
    with run.client() as client:
        id, name = _names(client, object, session)
        before, after = _two_versions(client, name, id, a, b)
    lines = _difference(before, after)
    if run.screen.as_json:
        run.screen.document({"from": before.tx, "to": after.tx, "diff": "".join(lines)})
    else:
        print_diff(run, lines)


def _names(client: SyncClient, object: str, session: str | None) -> tuple[str | None, str]:
    id = session_if_any(client, session)
    return id, object_id(client, id, object)


def _two_versions(
    client: SyncClient, object: str, session: str | None, a: int | None, b: int | None
) -> tuple[ObjectVersion, ObjectVersion]:
    after = client.object_get(object, session=session, tx=b).object
    if a is not None:
        return client.object_get(object, session=session, tx=a).object, after
    rows = client.object_history(object, session=session, order="desc", limit=2, tx=b).versions
    if len(rows) < 2:
        raise Stop(NOT_FOUND, f"{object} has one version only", hint="ctx object cat shows it")
    before = rows[1]
    return client.object_get(object, session=session, valid_time=before.valid_time, tx=b).object, after


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
        hint = "ctx activate reads it" if unread else "--json shows what is known of it"
        name = version.display_path or version.id
        raise Stop(NOT_FOUND, f"{name} has no text: {_why(version)}", hint=hint, symbol="no_text")
    run.screen.content(text)


@click.command(
    cls=Command,
    examples="""ctx query '{:find [e] :where [[e :type "toolcall"] [e :tool "bash"]]}'
ctx query '{:find [e path] :in [s] :where [[e :session s] [e :path path]]}' '"s1"' --json
ctx query --at 2h < query.edn""",
)
@click.argument("text", metavar="[QUERY]", required=False)
@click.argument("args", metavar="[ARG]...", nargs=-1)
@click.option("--at", "when", metavar="WHEN", help="As of this time.")
@click.option("--tx", type=click.IntRange(min=0), metavar="SEQ", help="As it was known after journal sequence SEQ.")
@click.option("--limit", type=click.IntRange(1, PAGE_ITEMS_MAX), default=100, help="Maximum number of rows.")
@click.option("--time", "time_s", type=click.FloatRange(0.001, 30), default=10.0, help="Seconds the query may run.")
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

    Each ARG is a JSON value for the query's :in. Rows are printed one a line, each a JSON array. The keys to look up by
    are in ctxd/backends/xtdb/README.md.
    """
    values = [_json_argument(arg) for arg in args]
    at = None if when is None else moment_ms(when, SystemClock().wall_ms())
    if text is None:
        text = sys.stdin.read()
    if not text.strip():
        hint = """ctx query '{:find [e] :where [[e :type "toolcall"]]}'"""
        raise Stop(USAGE, "there is no query", hint=f"give one, or pipe it in: {hint}", symbol="usage")
    with run.client() as client:
        found = client.object_query(
            text, args=values, valid_time=at, tx=tx, limit=limit, timeout_ms=round(time_s * 1_000)
        )
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
    except ValueError as error:
        message = f"{text!r} is not a JSON value: {error}"
        raise click.UsageError(f"{message}. Quote a text twice: '\"s1\"'") from None
