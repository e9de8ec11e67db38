"""``ctxd doctor``: check the node of the store."""

from pathlib import Path

import click

from ctxd.commands.command_support import json_option, show
from ctxd.commands.xtdb import check_node, directory_option
from ctxd.doctor_findings import lines, ok
from ctxd.terminal import Screen


@click.command("doctor")
@click.option("--url", help="unix:/path or http://host:port [default: store.url].")
@json_option
@directory_option
@click.pass_context
def doctor(ctx: click.Context, url: str | None, as_json: bool, directory: Path | None) -> None:
    """Check the XTDB node, if the store uses one; see "ctxd xtdb check". "ctx doctor" checks the daemon and this host.

    \b
    Examples:
      ctxd doctor
    """
    from ctxd.config import load

    if url is None and directory is None and load().store_backend != "xtdb":
        found = ok("store", 'no node to check: the store is "sqlite"; ctx doctor checks the daemon')
        show(as_json, [found], "\n".join(lines([found], Screen())))
        return
    ctx.invoke(check_node, url=url, as_json=as_json, directory=directory)
