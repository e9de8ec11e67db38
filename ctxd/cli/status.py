"""``ctx status``: show whether the daemon is healthy."""

import click

from ctxd.cli.common_options import Invocation, common
from ctxd.cli.tracker import followed
from ctxd.click_support import Command
from ctxd.formatting import count, size, span
from ctxd.terminal import Colour, cell
from ctxd_protocol.status_types import DaemonStatus, ProjectionStatus, SandboxesStatus, SearchStatus


@click.command(cls=Command, examples="ctx status\nctx status --json | jq .store.head_seq")
@common
def status(run: Invocation) -> None:
    """Show the state of the daemon. Exits with 5 if no daemon responds."""
    with run.client() as client:
        found = client.daemon_status()
    if run.screen.as_json:
        run.screen.document(found)
        return
    colour: Colour = "green" if found.state == "ready" else "yellow"
    for name, value in _lines(found):
        run.screen.field(name, cell(value), 12, colour=colour if name == "state" else None)


def _lines(found: DaemonStatus) -> list[tuple[str, str]]:
    store = found.store
    reason = f": {store.reason}" if store.reason else ""
    return [
        ("state", found.state),
        ("version", f"{found.version}, pid {found.pid}, start {count(found.incarnation)}, up {span(found.uptime_s)}"),
        ("socket", found.socket),
        ("state dir", found.state_dir),
        ("connections", f"{count(found.connections)}, {count(found.in_flight, 'call')} in flight"),
        ("calls", count(found.requests)),
        ("sessions", f"{count(found.sessions_live)} live, {count(found.objects_cached, 'object')} in memory"),
        ("files", followed(found.tracking)),
        *_sandboxes(found.sandboxes),
        ("store", f"{store.backend}, {store.state}{reason}, {count(store.pending_writes, 'write')} pending"),
        ("journal", f"{count(store.rows, 'row')} in {count(store.commits, 'commit')}, head {store.head_seq}"),
        ("flush", f"p50 {store.flush_ms_p50:.1f} ms, p99 {store.flush_ms_p99:.1f} ms"),
        *_projection(store.projection),
        ("search", _search(found.search)),
    ]


def _sandboxes(found: SandboxesStatus) -> list[tuple[str, str]]:
    if not found.registered:
        return []
    use = f"{count(found.connections, 'connection')}, {count(found.requests, 'call')}, {count(found.refused)} refused"
    return [("sandboxes", f"{count(found.registered)} registered, {use}")]


def _search(found: SearchStatus) -> str:
    if found.reason:
        return f"{found.state}: {found.reason}"
    behind = f"{count(found.lag_rows, 'row')} behind" if found.lag_rows else "up to date"
    return f"{behind}, {size(found.bytes)} in {found.path}"


def _projection(found: ProjectionStatus | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    reason = f": {found.reason}" if found.reason else ""
    behind = f", {count(found.lag_rows)} behind for {span(found.lag_s)}" if found.lag_rows else ", up to date"
    rate = f", {found.rows_per_s:,.0f} rows/s" if found.lag_rows and found.rows_per_s else ""
    return [
        ("node", f"{found.state} at {found.url}{reason}"),
        ("projected", f"{count(found.seq, 'row')}{behind}{rate}"),
    ]
