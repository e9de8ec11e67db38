"""``ctxd rebuild-xtdb``: everything in the journal, put into an XTDB node."""

from pathlib import Path

import click

from ctxd.commands.projecting import counted, end, perform, place, projected, url_option
from ctxd.commands.terminal import config_option, json_option, state_dir_option


@click.command("rebuild-xtdb")
@click.option("--force", is_flag=True, help="Also into a node that holds something else under this journal's name.")
@url_option
@json_option
@state_dir_option
@config_option
def rebuild_xtdb(
    force: bool, store_url: str | None, as_json: bool, state_dir: Path | None, config: Path | None
) -> None:
    """Put the whole journal into an XTDB node, and compare. The daemon has to be stopped.

    The node is to be an empty one, or one that a rebuild was interrupted on: it goes on there. One that has all of it
    is only compared. One that holds what this journal does not is refused, unless forced: then the journal takes a new
    name and is put there whole. Nothing is erased; what is there under the old name is not looked at again.

    \b
    Examples:
      ctxd rebuild-xtdb
      ctxd rebuild-xtdb --store-url unix:/run/ctxd/xtdb.sock --json
    """
    from ctxd.clock import SystemClock
    from ctxd.projection.rebuild import rebuild

    at = place(state_dir, store_url, config)
    report = perform(lambda: rebuild(at.root, at.url, SystemClock(), projected, counted, force=force))
    end(as_json, report, f"{at.url}:", store_url=at.url)
