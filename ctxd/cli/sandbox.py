"""``ctx sandbox``: list and release sandboxes, each of which has a socket of its own."""

import click

from ctxd.cli.common_options import Invocation, common, listing
from ctxd.click_support import Command, Group
from ctxd.clock import SystemClock
from ctxd.formatting import age, count


@click.group(cls=Group, examples="ctx sandbox ls\nctx sandbox release k7q2nx4fzr3wv5ta")
@common
def sandbox(run: Invocation) -> None:
    """List and release sandboxes."""


@sandbox.command(cls=Command, examples="ctx sandbox ls\nctx sandbox ls --json | jq -r '.items[].directory'")
@listing
@common
def ls(run: Invocation) -> None:
    """List sandboxes, oldest first, with their principals, leases and use."""
    with run.client() as client:
        found = client.sandbox_list().sandboxes
    if run.screen.listing(found, [each.sandbox for each in found]):
        return
    now = SystemClock().wall_ms()
    run.screen.table(
        ("SANDBOX", "PRINCIPAL", "SESSIONS", "GRANTS", "OPEN", "CALLS", "REFUSED", "LEASE", "SINCE"),
        [
            (
                each.sandbox,
                each.principal,
                ", ".join(each.sessions),
                ", ".join(each.grants) or "none",
                count(each.connections),
                count(each.requests),
                count(each.refused),
                _lease(each.expires_at, now),
                age(each.created_at, now),
            )
            for each in found
        ],
        right=(4, 5, 6),
    )


def _lease(expires_at: int | None, now: int) -> str:
    return "until disconnected" if expires_at is None else f"{count(max(0, expires_at - now) // 1000)} s"


@sandbox.command(cls=Command, examples="ctx sandbox release k7q2nx4fzr3wv5ta")
@click.argument("sandbox_id", metavar="SANDBOX")
@common
def release(run: Invocation, sandbox_id: str) -> None:
    """Release SANDBOX: close its connections, and remove its socket and directory. Its sessions stay."""
    with run.client() as client:
        done = client.sandbox_release(sandbox_id)
    if run.screen.as_json:
        run.screen.document(done)
