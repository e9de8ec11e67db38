"""``ctxd restore``: a backup, put into an empty state directory and checked there."""

import sys
from pathlib import Path

import click
import msgspec

from ctxd.commands.terminal import (
    EXITS,
    config_option,
    json_option,
    progress,
    refuse,
    show,
    state_dir_option,
    state_root,
    stepped,
    told,
)
from ctxd.errors import StateDirError


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True))
@json_option
@state_dir_option
@config_option
def restore(directory: Path, as_json: bool, state_dir: Path | None, config: Path | None) -> None:
    """Put the backup in DIRECTORY into an empty state directory, and check it there.

    \b
    Examples:
      ctxd restore /backup/today --state-dir /var/lib/ctxd
    """
    from ctxd.store.backup import restore as put_back

    root = state_root(state_dir, config)
    try:
        report = put_back(directory, root, stepped)
    except (StateDirError, OSError) as error:
        progress("")
        refuse(error)
    progress("")
    show(as_json, {**msgspec.to_builtins(report), "worst": report.worst}, f"{root}: {told(report)}")
    sys.exit(EXITS[report.worst])
