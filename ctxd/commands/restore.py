"""``ctxd restore``: restore a backup into an empty state directory."""

from pathlib import Path

import click

from ctxd.commands.command_support import AbsolutePath, end_verified, json_option, stepped, working


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
    end_verified(as_json, report, f"{state_dir}: ")
