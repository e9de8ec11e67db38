"""``ctxd verify``: recompute every hash, the chain and every table."""

from pathlib import Path
from typing import IO, NoReturn

import click

from ctxd.commands.command_support import (
    config_option,
    end_verified,
    json_option,
    state_dir_option,
    state_root,
    stepped,
    working,
)
from ctxd.commands.xtdb_projection import ProjectionTarget, end, find_target, perform, print_counts, url_option


@click.command()
@click.option("--store", is_flag=True, help="Compare the XTDB node with the journal instead: versions, texts, digests.")
@click.option(
    "--absent",
    type=click.File("rb"),
    metavar="FILE",
    help="Also search every file of the state directory for the lines of FILE; - is standard input.",
)
@url_option
@json_option
@state_dir_option
@config_option
def verify(
    store: bool,
    absent: IO[bytes] | None,
    store_url: str | None,
    as_json: bool,
    state_dir: Path | None,
    config: Path | None,
) -> None:
    """Recompute every hash, the chain, and every table from the journal. A daemon may be running.

    With --store, the XTDB node must be reachable; otherwise the exit code is 69.

    With --absent FILE, the exit code is 1 if any file contains a line of FILE. After a purge, pass the erased text.

    \b
    Examples:
      ctxd verify
      ctxd verify --state-dir /var/lib/ctxd --json
      ctxd verify --absent purged.txt
      ctxd verify --store
    """
    if store or store_url is not None:
        _compare(find_target(state_dir, store_url, config), as_json)
    from ctxd.store.verify import search, verified

    root = state_root(state_dir, config)
    with working():
        report = verified(root, stepped)
        if absent is not None:
            report.residue = search(root, filter(None, map(bytes.strip, absent)), stepped)
            for path in report.residue:
                report.note("warning", f"{path} holds a line of {absent.name}")
    end_verified(as_json, report)


def _compare(at: ProjectionTarget, as_json: bool) -> NoReturn:
    from ctxd.projection.node_connection import connect
    from ctxd.projection.node_maintenance import compared

    report = perform(lambda: compared(at.url, at.root, connect, print_counts))
    end(as_json, report, store_url=at.url)
