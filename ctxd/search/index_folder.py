"""The folder of the search index. It is in the cache directory, because the index can be rebuilt, and is linked from
the state directory as ``search``.

A file in the folder contains the path of its state directory; a link back would be a loop for programs that copy
directories. A folder is removed if its state directory is gone, was moved, or uses another cache directory, because no
purge would reach it any more. Without a usable cache directory, ``search`` is a plain folder in the state directory.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ctxd import sqlite_file
from ctxd.errors import StateDirError
from ctxd.file_writes import make_folder
from ctxd.search import index_database
from ctxd.store.state_directory import SEARCH_INDEX, check_safe

_OWNER: Final = "owner"
"""File with the path of the state directory, in a folder of the cache directory."""


class IndexFolder(NamedTuple):
    """Path of the folder. ``reason``: why the requested cache directory is not used; empty if it is."""

    path: Path
    reason: str


def prepare(state: Path, cache: Path | None) -> IndexFolder:
    """Create the index folder of the state directory ``state`` in the cache directory ``cache``, or in ``state`` if
    that is None, and remove folders that no state directory uses. Blocks.

    Raises: sqlite_file.DiskFull for lack of room; sqlite_file.DiskFailed if neither directory can be used.
    """
    state = Path(os.path.realpath(state))
    with sqlite_file.faults():
        # Earlier versions kept the index beside the journal.
        index_database.remove(state / index_database.NAME)
    reason = ""
    if cache is not None:
        try:
            with sqlite_file.faults():
                folder = _in_cache(state, cache)
                _remove_orphans(folder.parent)
                return IndexFolder(folder, "")
        except (sqlite_file.DiskFailed, StateDirError) as error:
            reason = f"the cache directory {cache} cannot be used: {error}"
    with sqlite_file.faults():
        return IndexFolder(_in_state(state), reason)


def _in_cache(state: Path, cache: Path) -> Path:
    # A state directory always finds its own folder again, and shares it with no other.
    cache = Path(os.path.realpath(cache))
    folder = cache / hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    make_folder(cache)
    make_folder(folder)
    check_safe(folder)
    link = state / SEARCH_INDEX
    if _link_of(link) != str(folder):
        _remove(link)
        link.symlink_to(folder)
    if _owner_of(folder) != state:
        # Rename it into place, because another daemon that is starting would take a folder without an owner for new.
        written = folder / f"{_OWNER}.new"
        written.write_bytes(os.fsencode(state))
        written.replace(folder / _OWNER)
    # An index that is there may have become read-only with its file system.
    (folder / f"{_OWNER}.new").touch(0o600)
    (folder / f"{_OWNER}.new").unlink()
    return folder


def _in_state(state: Path) -> Path:
    folder = state / SEARCH_INDEX
    if folder.is_symlink():
        _remove(folder)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _remove(link: Path) -> None:
    """Remove the index that the state directory has used so far."""
    if not link.is_symlink():
        shutil.rmtree(link, ignore_errors=True)
        return
    state, folder = link.parent, link.readlink()
    # The state directory may be a copy; then the index belongs to the original.
    owner = _owner_of(folder)
    if owner is not None and (owner == state or not _uses(owner, folder)):
        shutil.rmtree(folder, ignore_errors=True)
    link.unlink()


def _remove_orphans(cache: Path) -> None:
    for folder in list(_folders(cache)):
        owner = _owner_of(folder)
        if owner is not None and not _uses(owner, folder):
            shutil.rmtree(folder, ignore_errors=True)


def _folders(cache: Path) -> Iterator[Path]:
    with os.scandir(cache) as entries:
        yield from (Path(each.path) for each in entries if len(each.name) == 16 and each.is_dir(follow_symlinks=False))


def _uses(state: Path, folder: Path) -> bool:
    return _link_of(state / SEARCH_INDEX) == str(folder)


def _owner_of(folder: Path) -> Path | None:
    """The state directory that ``folder`` belongs to; None if its owner file is missing or empty."""
    with suppress(OSError):
        return Path(os.fsdecode(path)) if (path := (folder / _OWNER).read_bytes()) else None
    return None


def _link_of(path: Path) -> str | None:
    """The target of the symbolic link ``path``; None if there is no such link."""
    with suppress(OSError):
        return os.readlink(path)
    return None
