"""``ctxd restore``: restore a backup into an empty state directory."""

import sys
from pathlib import Path

import click

from ctxd.commands.output import (
    EXITS,
    AbsolutePath,
    document_of,
    json_option,
    show,
    stepped,
    summary_of,
    working,
)


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

    with working():
        report = put_back(directory, state_dir, stepped)
    show(as_json, document_of(report), f"{state_dir}: {summary_of(report)}")
    sys.exit(EXITS[report.worst])
