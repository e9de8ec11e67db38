"""``ctxd requeue``: rows that an XTDB node did not take, put there after all."""

import sys
from pathlib import Path

import click

from ctxd.commands.projecting import perform, place, url_option
from ctxd.commands.terminal import config_option, json_option, show, state_dir_option


@click.command()
@click.argument("rows", type=int, nargs=-1)
@url_option
@json_option
@state_dir_option
@config_option
def requeue(
    rows: tuple[int, ...], store_url: str | None, as_json: bool, state_dir: Path | None, config: Path | None
) -> None:
    """Put the journal rows ROWS, or all that were left out, into the XTDB node. The daemon has to be stopped.

    "ctx status" names them, and why. Ends with 1 if the node still does not take one.

    \b
    Examples:
      ctxd requeue
      ctxd requeue 4711
    """
    from ctxd.projection.offline import put_back

    at = place(state_dir, store_url, config)
    outcome = perform(lambda: put_back(at.root, at.url, rows))
    lines = [f"row {seq}: {reason or 'is there now'}" for seq, reason in outcome.items()] or ["no row is left out"]
    items = [{"seq": seq, "reason": reason} for seq, reason in outcome.items()]
    show(as_json, {"items": items}, "\n".join(lines))
    sys.exit(int(any(outcome.values())))
