"""``ctxd migrate``: the way from one store to the other, all data kept."""

import sys
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from ctxd.commands.projecting import Place, counted, end, perform, place, projected, url_option
from ctxd.commands.terminal import (
    EXITS,
    config_option,
    json_option,
    progress,
    refuse,
    show,
    state_dir_option,
    stepped,
    summary_of,
)
from ctxd.errors import StateDirError


@click.command()
@click.option("--to", "store", type=click.Choice(["sqlite", "xtdb"]), required=True, help="The store to go to.")
@url_option
@json_option
@state_dir_option
@config_option
def migrate(store: str, store_url: str | None, as_json: bool, state_dir: Path | None, config: Path | None) -> None:
    """Make the other store hold everything, and prove it. The daemon has to be stopped.

    To "xtdb": the journal is put into the node whole and compared. To "sqlite": the embedded versions are compared with
    the journal, and folded from it again if they differ; the node is not needed. What is interrupted goes on, or is as
    it was, when it is run again. Afterwards set "store" in ctxd.toml, and start the daemon.

    \b
    Examples:
      ctxd migrate --to xtdb
      ctxd migrate --to sqlite
    """
    at = place(state_dir, store_url, config)
    if store == "xtdb":
        _to_xtdb(at, as_json)
    _to_sqlite(at, as_json)


def _to_xtdb(at: Place, as_json: bool) -> NoReturn:
    from ctxd.clock import SystemClock
    from ctxd.projection.rebuild import rebuild

    report = perform(lambda: rebuild(at.root, at.url, SystemClock(), projected, counted))
    end(as_json, report, f'{at.url}: set store = "xtdb" and start the daemon', store_url=at.url)


def _to_sqlite(at: Place, as_json: bool) -> NoReturn:
    from ctxd.store.rebuild import checked

    try:
        report, folded = checked(at.root, stepped)
    except StateDirError as error:
        progress("")
        refuse(error)
    progress("")
    how = f"{folded:,} rows were folded again" if folded else "the embedded versions are what the journal says"
    document = {**msgspec.to_builtins(report), "worst": report.worst, "folded": folded}
    show(as_json, document, f'{how}: set store = "sqlite" and start the daemon\n{summary_of(report)}')
    sys.exit(EXITS[report.worst])
