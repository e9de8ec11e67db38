"""``ctxd restore``: restore a backup into an empty state directory."""

import sys
from pathlib import Path

import click

from ctxd.commands.output import (
    EXITS,
    AbsolutePath,
    document_of,
    json_option,
    progress,
    refuse,
    show,
    stepped,
    summary_of,
)
from ctxd.errors import StateDirError


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True))
@click.option("--state-dir", type=AbsolutePath(), required=True, help="Empty or new directory to restore into.")
@json_option
def restore(directory: Path, as_json: bool, state_dir: Path) -> None:
    """Restore the backup in DIRECTORY into an empty state directory, and verify it.

    \b
    Examples:
      ctxd restore /backup/today --state-dir /var/lib/ctxd
    """
    from ctxd.store.backup import restore as put_back

    try:
        report = put_back(directory, state_dir, stepped)
    except (StateDirError, OSError) as error:
        progress("")
        refuse(error)
    progress("")
    show(as_json, document_of(report), f"{state_dir}: {summary_of(report)}")
    sys.exit(EXITS[report.worst])
