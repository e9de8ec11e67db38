"""Folders and files whose entries are on the disk when a call returns. Stands alone: the store and the state directory
use it too."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_ZEROS: Final = bytes(128 * 1024)


def erase(path: Path) -> None:
    """Overwrite and remove a file; on return it is off the disk. A missing one is no error; of a symbolic link only the
    link is removed. Raises: OSError."""
    try:
        if path.is_symlink():
            path.unlink()
            return
        left = path.stat().st_size
        path.chmod(0o600)
        with path.open("r+b", buffering=0) as file:
            while left > 0:
                left -= file.write(_ZEROS[:left])
                # A flush of all of it at once would keep those of others waiting for as long.
                os.fdatasync(file.fileno())
        path.unlink()
    except FileNotFoundError:
        return
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make ``folder``, with mode 0700, and the missing ones above it; on return their entries are on the disk, but for
    one in a folder that may be written and not read.

    Raises: OSError.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in reversed(made):
        with suppress(PermissionError):
            sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Sync the entries of ``folder`` to the disk. Raises: OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
