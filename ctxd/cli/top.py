"""``ctx top``: show the current work of the daemon, refreshed until interrupted."""

import time
from typing import TYPE_CHECKING

import click
import msgspec

from ctxd.cli.common_options import Invocation, Seconds, streaming
from ctxd.click_support import Command
from ctxd.formatting import count, span
from ctxd.terminal import Screen, cell
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.status_types import DaemonStatus
from ctxd_protocol.tracker_types import Watching

if TYPE_CHECKING:
    from ctxd_client.sync import SyncClient

_HOME = "\x1b[H\x1b[J"
"""Escape sequence that clears the screen and moves the cursor to its top."""

_AROUND_TABLE = 3
"""Lines of the screen that are not rows of the table: a blank line, the header, and the line of the cursor."""


class Sample(msgspec.Struct, frozen=True):
    """The daemon at one moment."""

    status: DaemonStatus
    sandboxes: tuple[SandboxView, ...]


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox, and its calls per second."""

    sandbox: str
    principal: str
    connections: int
    calls_per_s: float
    refused: int


class Top(msgspec.Struct, frozen=True, kw_only=True):
    """Rates between two samples, and current values; the busiest sandboxes come first.

    ``calls_per_s`` counts the calls of the host's clients, including this command's own.
    """

    seconds: float
    calls_per_s: float
    writes_per_s: float
    commits_per_s: float
    status: DaemonStatus
    sandboxes: tuple[Busy, ...]


@click.command(cls=Command, examples="ctx top\nctx top --once --json | jq .writes_per_s")
@click.option("--interval", type=Seconds(0.1, 3600), default=2.0, show_default=True, help="Seconds between updates.")
@click.option("--once", is_flag=True, help="Show one interval, and end.")
@streaming
def top(run: Invocation, interval: float, once: bool) -> None:
    """Show calls, writes, queues and sandboxes live, until interrupted. With --json, one document per line."""
    with run.client() as client:
        before = sample(client)
        while True:
            time.sleep(interval)
            now = sample(client)
            found = between(before, now)
            if run.screen.as_json:
                run.screen.record(found)
            else:
                _show(run.screen, found, once=once)
            run.screen.out.flush()
            if once:
                return
            before = now


def sample(client: "SyncClient") -> Sample:
    """Return the current state of the daemon."""
    return Sample(client.daemon_status(), client.sandbox_list().sandboxes)


def between(before: Sample, now: Sample) -> Top:
    """Return the rates since ``before``, or since the start of the daemon if it was started after that."""
    same = before.status.incarnation == now.status.incarnation
    seconds = max(now.status.uptime_s - (before.status.uptime_s if same else 0.0), 0.001)

    def rate(then: int, since: int) -> float:
        return round(max(0, since - (then if same else 0)) / seconds, 1)

    were = {each.sandbox: each.requests for each in before.sandboxes}
    busy = (
        Busy(
            sandbox=each.sandbox,
            principal=each.principal,
            connections=each.connections,
            calls_per_s=rate(were.get(each.sandbox, 0), each.requests),
            refused=each.refused,
        )
        for each in now.sandboxes
    )
    rows = before.status.store.rows if same else now.status.store.rows
    return Top(
        seconds=round(seconds, 3),
        calls_per_s=rate(before.status.requests, now.status.requests),
        writes_per_s=round((now.status.store.rows - rows) / seconds, 1),
        commits_per_s=rate(before.status.store.commits, now.status.store.commits),
        status=now.status,
        sandboxes=tuple(sorted(busy, key=lambda each: (-each.calls_per_s, each.sandbox))),
    )


def _show(screen: Screen, found: Top, *, once: bool) -> None:
    status, store = found.status, found.status.store
    reason = f": {store.reason}" if store.reason else ""
    home = _HOME if screen.terminal and not once else ""
    flush = f"flush p50 {store.flush_ms_p50:.1f} ms p99 {store.flush_ms_p99:.1f} ms"
    open_ = f"{count(status.in_flight)} in flight  {count(status.connections, 'connection')}"
    lines = [
        f"ctxd {status.version}  {status.state}{reason}  pid {status.pid}  up {span(status.uptime_s)}",
        f"calls {found.calls_per_s:,.1f}/s  {open_}",
        f"writes {found.writes_per_s:,.1f}/s in {found.commits_per_s:,.1f} commits/s  "
        f"{count(store.pending_writes)} pending  {flush}",
        f"sessions {count(status.sessions_live)} live  {count(status.objects_cached, 'object')} in memory",
        _followed(status.tracking),
    ]
    if store.projection is not None:
        node = store.projection
        lines.append(f"node {node.state}  {count(node.lag_rows, 'row')} behind for {span(node.lag_s)}")
    screen.line(home + "\n".join(screen.clipped(cell(line)) for line in lines))
    # Only the busiest: more rows than there is room for would scroll the lines above away.
    room = None if once or screen.rows is None else max(0, screen.rows - len(lines) - _AROUND_TABLE)
    if found.sandboxes and room != 0:
        screen.line()
        screen.table(
            ("SANDBOX", "PRINCIPAL", "OPEN", "CALLS/S", "REFUSED"),
            [
                (each.sandbox, each.principal, count(each.connections), f"{each.calls_per_s:,.1f}", count(each.refused))
                for each in found.sandboxes[:room]
            ],
            right=(2, 3, 4),
        )
    if not screen.terminal:
        screen.line()


def _followed(found: Watching) -> str:
    if found.watcher is None:
        return "files none tracked"
    polled = f", {count(found.polled)} polled instead" if found.polled else ""
    return f"files {count(found.files)} tracked  {count(found.directories, 'directory')} by {found.watcher}{polled}"
