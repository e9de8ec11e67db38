"""Writes to descriptors, and durable creation and removal of folders and files."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_ZEROS: Final = bytes(128 * 1024)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of ``data``, of which one call of the system may write only a part. Raises: OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def erase(path: Path) -> None:
    """Overwrite and remove a file; its bytes are off the disk on return. A missing file is ignored; for a symbolic
    link, only the link is removed. Raises: OSError."""
    try:
        if path.is_symlink():
            path.unlink()
            return
        left = path.stat().st_size
        path.chmod(0o600)
        with path.open("r+b", buffering=0) as file:
            while left > 0:
                left -= file.write(_ZEROS[:left])
                # Flush in steps: one flush of everything would delay other flushes as long.
                os.fdatasync(file.fileno())
        path.unlink()
    except FileNotFoundError:
        return
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents, with mode 0700. Their entries are flushed on return, except those in a
    folder that is writable but not readable.

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
