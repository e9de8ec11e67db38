"""``ctxd backup``: copy the state; a daemon may be running."""

from pathlib import Path

import click
import msgspec

from ctxd.commands.command_support import (
    AbsolutePath,
    config_option,
    json_option,
    show,
    state_dir_option,
    state_root,
    stepped,
    working,
)
from ctxd.formatting import count


@click.command()
@click.argument("directory", type=AbsolutePath())
@json_option
@state_dir_option
@config_option
def backup(directory: Path, as_json: bool, state_dir: Path | None, config: Path | None) -> None:
    """Copy the state to DIRECTORY, which must be new or empty. A daemon may be running.

    \b
    Examples:
      ctxd backup /backup/today
    """
    from ctxd.store.backup import backup as copy

    root = state_root(state_dir, config)
    with working():
        manifest = copy(root, directory, stepped)
    size = sum(file.size for file in manifest.files)
    files = f"{count(len(manifest.files), 'file')}, {count(size, 'byte')}"
    summary = f"{directory}: {files}, up to journal row {manifest.head_seq}"
    show(as_json, msgspec.to_builtins(manifest), summary)
