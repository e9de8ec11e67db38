"""``ctx tracker``: list the files that the daemon tracks on disk."""

import click

from ctxd.cli.common_options import Invocation, common, note_next_page, paged, quiet
from ctxd.cli.revision_lookup import session_id
from ctxd.click_support import Command, Group
from ctxd.clock import SystemClock
from ctxd.formatting import age, count
from ctxd_protocol.tracker_types import TrackerState, Watching


@click.group(cls=Group, examples="ctx tracker ls\nctx tracker ls --state orphaned")
@common
def tracker(run: Invocation) -> None:
    """List the files that are tracked on disk."""


@tracker.command(cls=Command, examples="ctx tracker ls\nctx tracker ls -s s1 --state orphaned\nctx tracker ls --json")
@click.option(
    "-s", "--session", metavar="SESSION", help="All files that this session has read, including untracked ones."
)
@click.option("--state", type=click.Choice(["attached", "orphaned", "resumed"]), help="Only files in this state.")
@paged
@quiet("Ids of the files' objects only, one per line.")
@common
def ls(run: Invocation, session: str | None, state: TrackerState | None, limit: int, cursor: str | None) -> None:
    """List tracked files by path, each with its state (attached, orphaned or resumed) and the reason."""
    with run.client() as client:
        named = None if session is None else session_id(client, session)
        page = client.tracker_list(session=named, state=state, limit=limit, cursor=cursor)
    objects = [each.object for each in page.trackers]
    if run.screen.listing(page.trackers, objects, watching=page.watching, next_cursor=page.next_cursor):
        return
    now = SystemClock().wall_ms()
    run.screen.table(
        ("STATE", "BY", "SINCE", "SESSIONS", "PATH", "REASON"),
        [
            (each.state, each.by or "", age(each.since, now), count(each.sessions), each.path, each.reason)
            for each in page.trackers
        ],
        right=(3,),
    )
    run.screen.note(followed(page.watching))
    note_next_page(run, page.next_cursor)


def followed(found: Watching) -> str:
    """Return a summary of file tracking as text."""
    if found.watcher is None:
        return "none tracked: tracking.watcher is off"
    parts = [
        f"{count(found.files)} tracked in {count(found.directories, 'directory')}",
        f"{count(found.watches, 'watch')} by {found.watcher}",
        f"{count(found.versions, 'version')} stored",
        *([f"{count(found.polled, 'directory')} polled instead"] if found.polled else []),
        *([f"{count(found.away, 'directory')} not tracked"] if found.away else []),
        *([f"events dropped {count(found.overflows, 'time')}"] if found.overflows else []),
        *([f"{count(found.refused, 'file')} not tracked: limit reached"] if found.refused else []),
    ]
    return ", ".join(parts)
