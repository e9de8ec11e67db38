"""``ctx session ls``, and changes of its rows: ``archive``, ``unarchive``, ``title``, ``label`` and ``moved``."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from ctxd.cli.common_options import (
    Invocation,
    common,
    harness_option,
    listing,
    note_next_page,
    paged,
    session_argument,
    sessions_argument,
)
from ctxd.cli.exit_codes import NOT_FOUND, USAGE
from ctxd.cli.revision_lookup import session_id
from ctxd.cli.revisions import moment_ms
from ctxd.cli.session_lookup import Filter, named_session, sessions
from ctxd.cli.session_table import header, print_table, unique_prefixes
from ctxd.click_support import Command, Stop
from ctxd.clock import SystemClock
from ctxd.formatting import age, count
from ctxd.terminal import cell
from ctxd_client.errors import InvalidCall, NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.session_list import SessionListResult
from ctxd_protocol.session_types import Project, SessionStatus, SessionSummary


@click.command(
    cls=Command,
    examples="ctx session ls\nctx session ls --project . --since yesterday\nctx session ls --harness codex --text tab\n"
    "ctx session ls --project owner/name --file src/parser.py\nctx session ls --agent demo -q\nctx session ls --json",
)
@click.option(
    "--state", type=click.Choice(["active", "paused", "closed", "removed"]), help="Only sessions in this state."
)
@click.option("--agent", metavar="AGENT", help="Only sessions of this agent.")
@harness_option
@click.option(
    "--project",
    metavar="PATH|NAME",
    help="Only sessions of this project: a path that begins with '.', '/' or '~', else a name, the address of a remote "
    "or the end of one, or a root commit.",
)
@click.option("--file", metavar="PATH", help="Only sessions that have read, changed or named this file.")
@click.option("--since", metavar="TIME", help="Only sessions with an event after TIME: 2h, yesterday, a date.")
@click.option("--until", metavar="TIME", help="Only sessions without an event after TIME.")
@click.option("--label", metavar="KEY=VALUE", help="Only sessions with this label.")
@click.option("--text", metavar="TEXT", help="Only sessions whose id, agent, title or preview has this text.")
@click.option("--archived", is_flag=True, help="Archived sessions instead of the others.")
@click.option("--elsewhere", is_flag=True, help="The sessions of other hosts that use the same log.")
@paged
@listing
@common
def ls(
    run: Invocation,
    state: SessionStatus | None,
    agent: str | None,
    harness: str | None,
    project: str | None,
    file: str | None,
    since: str | None,
    until: str | None,
    label: str | None,
    text: str | None,
    archived: bool,
    elsewhere: bool,
    limit: int,
    cursor: str | None,
) -> None:
    """List sessions, newest first; those in the trash with --state removed, archived ones with --archived.

    A project is the same in all clones of its repository, wherever they are. If a repository has several packages, a
    path inside a package selects the sessions of that package.
    """
    now = SystemClock().wall_ms()
    with run.client() as client:
        page = client.session_list(
            state=state,
            agent=agent,
            harness=harness,
            label=label,
            text=text,
            archived=archived,
            project=project_place(project),
            file=None if file is None else os.path.abspath(os.path.expanduser(file)),
            since=None if since is None else moment_ms(since, now),
            until=None if until is None else moment_ms(until, now),
            elsewhere=elsewhere,
            limit=limit,
            cursor=cursor,
        )
        _show(run, client, page, now, is_archive=archived, is_trash=state == "removed", elsewhere=elsewhere)


def _show(
    run: Invocation,
    client: SyncClient,
    page: SessionListResult,
    now: int,
    *,
    is_archive: bool,
    is_trash: bool,
    elsewhere: bool,
) -> None:
    beside = {name: value for name in ("total", "archived", "removed", "forks") if (value := getattr(page, name))}
    ids = [each.session for each in page.sessions]
    if run.screen.listing(page.sessions, ids, next_cursor=page.next_cursor, **beside):
        return
    rows = [
        (
            each.session,
            age(each.updated_at, now),
            each.agent,
            each.state,
            project_name(each.project),
            "" if each.harness and not each.turn_count else count(each.turn_count),
            count(each.active_count),
            count(each.index_count),
            (each.host or "") if elsewhere else _titled(each),
        )
        for each in page.sessions
    ]
    is_whole = len(ids) == page.total and not (is_archive or is_trash)
    prefixes = partial(_prefixes, client, ids, is_whole=is_whole)
    # Prefixes of ids of other hosts are not accepted.
    print_table(run.screen, header("HOST" if elsewhere else "TITLE"), rows, None if elsewhere else prefixes)
    _note_left_out(run, page, is_trash=is_trash)
    note_next_page(run, page.next_cursor)


def project_place(given: str | None) -> str | None:
    """The project that the option ``--project`` names; a path is made absolute."""
    if given is None or not given.startswith((".", "/", "~")):
        return given
    return os.path.abspath(os.path.expanduser(given))


def _prefixes(client: SyncClient, ids: Sequence[str], *, is_whole: bool) -> dict[str, str]:
    """Return a prefix of each of ``ids`` that no other session has. ``is_whole``: they are all sessions that are
    searched for a prefix first. Cost: unless so, the ids of all sessions are read."""
    others: list[str] = []
    if not is_whole:
        for more in (Filter(), Filter(archived=True), Filter(state="removed")):
            others += [each.session for each in sessions(client, **more)]
    return unique_prefixes(ids, others)


def _titled(row: SessionSummary) -> str:
    """The title of a row on one line, with the session or the commit that it continues."""
    title = " ".join((row.title or row.preview).split())
    source = None if row.origin is None else row.origin.session or row.origin.commit
    return title if source is None else f"{title} (continues {source})".lstrip()


def project_name(project: Project | None) -> str:
    """The short name of a project, with the path in it."""
    if project is None:
        return ""
    place = project.remotes[0] if project.remotes else project.directory
    name = os.path.basename(place.rstrip("/")) or place
    return f"{name}/{project.path}" if project.path else name


def _note_left_out(run: Invocation, page: SessionListResult, *, is_trash: bool) -> None:
    """Print on standard error how many sessions the list leaves out, and how to see them."""
    if page.total and page.next_cursor is None and len(page.sessions) < page.total and not is_trash:
        run.screen.note(f"{len(page.sessions):,} of {count(page.total, 'session')} match the filters")
    for number, what, how in (
        (page.archived, "archived", "--archived"),
        (page.removed, "in the trash", "--state removed"),
        (page.forks, "of forks", "--project ROOT_COMMIT"),
    ):
        if number:
            run.screen.note(f"left out: {number:,} {what}; {how} lists {'them' if number > 1 else 'it'}")


@click.command(cls=Command, examples="ctx session archive s1\nctx session archive s1 s2 s3")
@sessions_argument
@common
def archive(run: Invocation, sessions: tuple[str, ...]) -> None:
    """Hide sessions from lists without changing them; `ctx session unarchive` shows them again."""
    _annotated(run, sessions, "archived", archived=True)


@click.command(cls=Command, examples="ctx session unarchive s1\nctx session ls --archived")
@sessions_argument
@common
def unarchive(run: Invocation, sessions: tuple[str, ...]) -> None:
    """Show archived sessions in lists again."""
    _annotated(run, sessions, "listed", archived=False)


@click.command(
    cls=Command,
    examples="ctx session title 'Fix the parser'\nctx session title s1 'Fix the parser'\nctx session title s1 ''",
)
@session_argument
@click.argument("title", metavar="TITLE", required=False)
@common
def title(run: Invocation, session: str | None, title: str | None) -> None:
    """Name a session TITLE. With an empty TITLE, the harness's own title is shown, or the first prompt."""
    is_alone = title is None
    if title is None:
        session, title = None, session
    missing = click.UsageError("Missing argument 'TITLE'.", click.get_current_context())
    if title is None:
        raise missing
    with run.client() as client:
        if is_alone and title:
            with suppress(NotFound, InvalidCall):
                client.session_get(title)
                raise missing  # A session, whose title was forgotten.
        done = client.session_annotate(session_id(client, session), title=title)
    if run.screen.as_json:
        run.screen.document(done)
    else:
        run.screen.line(f"{done.session.session}: {cell(done.session.title)}")


@click.command(
    cls=Command,
    examples="ctx session label task=parser\nctx session label s1 task=parser area=core\nctx session label s1 task=",
)
@session_argument
@click.argument("labels", metavar="KEY=[VALUE]...", nargs=-1)
@common
def label(run: Invocation, session: str | None, labels: tuple[str, ...]) -> None:
    """Add labels to a session; KEY= without a value removes one."""
    if session is not None and "=" in session:
        # No session id contains '='.
        labels, session = (session, *labels), None
    if not labels:
        raise click.UsageError("Missing argument 'KEY=[VALUE]...'.", click.get_current_context())
    changes: dict[str, str | None] = {}
    for text in labels:
        key, equals, value = text.partition("=")
        if not (key and equals):
            lacks = "'='" if key else "key"
            raise Stop(USAGE, f"{text!r} has no {lacks}", hint="write KEY=VALUE, or KEY= to remove a label")
        changes[key] = value or None
    with run.client() as client:
        done = client.session_annotate(session_id(client, session), labels=changes)
    if run.screen.as_json:
        run.screen.document(done)
    else:
        shown = " ".join(f"{key}={value}" for key, value in done.session.labels.items())
        run.screen.line(f"{done.session.session}: {cell(shown)}")


def _annotated(run: Invocation, names: tuple[str, ...], what: str, **changes: Any) -> None:  # noqa: ANN401
    """Annotate the sessions ``names``; none unless every one is found."""
    with run.client() as client:
        ids = dict.fromkeys([named_session(client, name) for name in names])
        done = [client.session_annotate(id, **changes) for id in ids]
    if run.screen.as_json:
        run.screen.document({"sessions": done})
        return
    for each in done:
        run.screen.line(f"{each.session.session} is {what}")


@click.command(cls=Command, examples="ctx session moved ~/old-name .")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW", type=click.Path(exists=True, file_okay=False, resolve_path=True))
@common
def moved(run: Invocation, old: str, new: str) -> None:
    """Record that a project moved from OLD to NEW, so that its sessions belong to the project at NEW.

    A git repository needs no such record: ctxd recognises it by its root commits and remotes.
    """
    before = os.path.abspath(os.path.expanduser(old))
    with run.client() as client:
        done = []
        for each in _at_or_below(client, before):
            below = os.path.relpath(_place(each), before)
            place = new if below == "." else os.path.join(new, below)
            done.append(client.session_annotate(each.session, directory=place).session)
    if not done:
        hint = "ctx session ls --json shows the directory of each session's project"
        raise Stop(NOT_FOUND, f"no session has its project at {before}", hint=hint, symbol="session_not_found")
    if run.screen.as_json:
        run.screen.document({"sessions": done})
    else:
        run.screen.line(f"{count(len(done), 'session')} moved to {new}")


def _place(row: SessionSummary) -> str:
    project = row.project
    return "" if project is None else os.path.normpath(os.path.join(project.directory, project.path))


def _at_or_below(client: SyncClient, directory: str) -> Iterator[SessionSummary]:
    """The sessions whose directory, as recorded with the project, is at or below ``directory``, in any state."""
    for more in ({}, {"archived": True}, {"state": "removed"}):
        cursor: str | None = None
        while True:
            page = client.session_list(limit=PAGE_ITEMS_MAX, cursor=cursor, **more)
            for each in page.sessions:
                if f"{_place(each)}/".startswith(directory.rstrip("/") + "/"):
                    yield each
            cursor = page.next_cursor
            if cursor is None:
                break
