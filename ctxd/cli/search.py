"""``ctx search``: search the text of all sessions and commits."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, get_args

import click

from ctxd.cli.common_options import Invocation, common, harness_option, note_next_page
from ctxd.cli.exit_codes import USAGE
from ctxd.cli.id_completion import sessions as complete_sessions
from ctxd.cli.revision_lookup import session_id
from ctxd.cli.revisions import moment_ms
from ctxd.cli.session_list import project_name, project_place
from ctxd.click_support import Command, ExclusiveOptions, Stop
from ctxd.clock import SystemClock
from ctxd.formatting import count, moment
from ctxd.terminal import Screen, cell
from ctxd_client.errors import InvalidCall, NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.methods.search import HITS_MAX, SearchHit, SearchKind

_PROGRESS_S: Final = 0.2
"""Seconds between two reports of a rebuild."""

_TITLE_CHARS: Final = 40
_SESSION_CHARS: Final = 20
"""Characters of the title and of the id of a session beside a result."""


@click.command(
    cls=Command,
    examples="ctx search parser tabs\nctx search 'FileNotFoundError*' --error --since '2 days ago'\n"
    "ctx search '\"rate limit\" retry' --tool bash --json\nctx search timeout --file src/net.py -s s1\n"
    "ctx search --rebuild",
)
@click.argument("words", nargs=-1, metavar="WORDS...")
@click.option("-s", "--session", metavar="SESSION", shell_complete=complete_sessions, help="Only text of this session.")
@click.option("--project", metavar="PATH|NAME", help="Only sessions of this project; see ctx session ls --help.")
@harness_option
@click.option("--tool", metavar="TOOL", help="Only calls of this tool, and their output.")
@click.option("--file", metavar="PATH", help="Only tool calls whose arguments name this file.")
@click.option(
    "--kind", type=click.Choice(get_args(SearchKind)), metavar="KIND",
    help=f"Only text of this kind: {', '.join(get_args(SearchKind))}.",
)  # fmt: skip
@click.option("--error", is_flag=True, help="Only output of tool calls that failed.")
@click.option("--since", metavar="TIME", help="Only text from this time on, such as '2 days ago'.")
@click.option("--until", metavar="TIME", help="Only text up to this time.")
@click.option("--newest", is_flag=True, help="Newest first instead of best first.")
@click.option(
    "--limit", type=click.IntRange(1, HITS_MAX), default=20, show_default=True, help="Maximum number of results."
)
@click.option("--cursor", metavar="CURSOR", help="Continue where the previous page ended.")
@click.option("--rebuild", is_flag=True, help="Rebuild the index from the journal, and wait until it is complete.")
@common
def search(
    run: Invocation,
    /,
    words: tuple[str, ...],
    session: str | None,
    project: str | None,
    since: str | None,
    until: str | None,
    newest: bool,
    cursor: str | None,
    rebuild: bool,
    **conditions: Any,  # noqa: ANN401 - click's options
) -> None:
    """Search the text of all sessions and commits.

    Searches prompts, responses, reasoning and tool calls, also in imported and captured commits. A text matches if it
    contains all WORDS, in any case and order. "two words" is a phrase, pars* a prefix; every other character separates
    words. Each result ends with a command that shows it in context.
    """
    if rebuild and words:
        raise ExclusiveOptions("WORDS", "--rebuild")
    if not (rebuild or words):
        raise Stop(USAGE, "missing argument 'WORDS'", hint="ctx search parser tabs")
    narrowed = (value for name, value in conditions.items() if name != "limit")
    if rebuild and any((session, project, since, until, newest, cursor, *narrowed)):
        message = "--rebuild and all other options but --json exclude each other: it is of the whole index"
        raise Stop(USAGE, message, hint="leave them out")
    with run.client() as client:
        if rebuild:
            _rebuild(run, client)
            return
        now = SystemClock().wall_ms()
        found = client.search_query(
            " ".join(words),
            session=None if session is None else session_id(client, session),
            since=None if since is None else moment_ms(since, now),
            project=project_place(project),
            until=None if until is None else moment_ms(until, now),
            order="newest" if newest else "best",
            cursor=cursor,
            **conditions,
        )
        titles = {} if run.screen.as_json else _titles(client, found.hits)
    if run.screen.as_json:
        run.screen.document(found)
        return
    for hit in found.hits:
        _show(run.screen, hit, titles.get(hit.session or "", ""))
    if found.behind:
        run.screen.note(f"the index is {count(found.behind, 'row')} behind: newer text may be missing")
    if not found.hits:
        run.screen.note("nothing found")
    note_next_page(run, found.next_cursor)


def _titles(client: SyncClient, hits: Sequence[SearchHit]) -> dict[str, str]:
    """Return the title of the session of each hit, else its project; of those that have neither, nothing."""
    found: dict[str, str] = {}
    for session in dict.fromkeys(hit.session for hit in hits if hit.session is not None):
        with suppress(NotFound, InvalidCall):
            view = client.session_get(session).session
            found[session] = " ".join((view.title or project_name(view.project)).split())
    return found


def _show(screen: Screen, hit: SearchHit, title: str) -> None:
    place = hit.commit or (hit.session if hit.turn is None else f"{hit.session}@{hit.turn}") or ""
    what = hit.kind.replace("_", " ") + (f" {hit.tool}" if hit.tool else "") + (", failed" if hit.error else "")
    session = hit.session[:_SESSION_CHARS] if hit.session is not None and hit.commit is not None else ""
    cut = title if len(title) <= _TITLE_CHARS else title[: _TITLE_CHARS - 1].rstrip() + "…"
    origin = " ".join(filter(None, (cell(session), f"({cell(cut)})" if cut else "")))
    beside = f"  {origin}" if origin else ""
    screen.line(f"{screen.paint(cell(place), 'yellow')}  {moment(hit.at)}  {screen.paint(cell(what), 'dim')}{beside}")
    screen.line(f"    {_painted(screen, hit)}")
    screen.line(f"    {screen.paint(cell(shlex.join(hit.open)), 'cyan')}")


def _painted(screen: Screen, hit: SearchHit) -> str:
    parts, at = list[str](), 0
    for start, end in hit.matches:
        parts += [cell(hit.snippet[at:start]), screen.paint(cell(hit.snippet[start:end]), "bold")]
        at = end
    return "".join([*parts, cell(hit.snippet[at:])])


def _rebuild(run: Invocation, client: SyncClient) -> None:
    from time import sleep

    client.search_rebuild()
    while (found := client.daemon_status().search).state != "current" and not found.reason:
        if sys.stderr.isatty():
            share = 100 * found.seq // max(1, found.seq + found.lag_rows)
            click.echo(f"\r{share:3} %, {count(found.lag_rows, 'row')} left   ", err=True, nl=False)
        sleep(_PROGRESS_S)
    if sys.stderr.isatty():
        click.echo(err=True)
    if run.screen.as_json:
        run.screen.document(found)
    else:
        run.screen.line(f"the search index is {found.state}{found.reason and ': ' + cell(found.reason)}")
