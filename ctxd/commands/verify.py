"""``ctxd verify``: every hash, the chain and every table, recomputed."""

import sys
from pathlib import Path

import click
import msgspec

from ctxd.commands.terminal import (
    EXITS,
    config_option,
    fail,
    json_option,
    progress,
    show,
    state_dir_option,
    state_root,
    told,
)
from ctxd.errors import StateDirError


@click.command()
@json_option
@state_dir_option
@config_option
def verify(as_json: bool, state_dir: Path | None, config: Path | None) -> None:
    """Recompute every hash, the chain, and every table from the journal. A daemon may be running.

    \b
    Examples:
      ctxd verify
      ctxd verify --state-dir /var/lib/ctxd --json
    """
    from ctxd.store.verify import Report
    from ctxd.store.verify import verify as check

    root = state_root(state_dir, config)
    report = Report()
    try:
        for report in check(root):
            progress(f"{report.phase}: {report.done}")
    except StateDirError as error:
        fail(str(error), error.exit_code)
    progress("")
    show(as_json, {**msgspec.to_builtins(report), "worst": report.worst}, told(report))
    sys.exit(EXITS[report.worst])
