"""The state directory: its permissions, and the lock that admits only one daemon.

``journal_writer`` checks before each commit that the files are still in their place.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from ctxd.errors import StateDirError
from ctxd.file_writes import make_folder, sync_folder
from ctxd.store.chain_snapshots import ChainSnapshots

SEARCH_INDEX: Final = "search"
"""Name of the folder of the search index, or of the link to that folder in the cache directory."""

RESTORING: Final = "restoring"
"""Name of the file that marks a state directory until ``ctxd restore`` has verified it."""

LOCK: Final = "LOCK"
"""Name of the file that a process locks. A backup has none."""

_EXIT_NO_STATE: Final = 10
_EXIT_NO_PLACE: Final = 73
_EXIT_LOCKED: Final = 75
_EXIT_UNSAFE: Final = 78


class StateDir:
    """A state directory locked by this process until ``close``. ``root`` is its path, ``snapshots`` are in it."""

    def __init__(self, root: Path, lock: int, *, ephemeral: bool) -> None:
        self.root = root
        self.snapshots = ChainSnapshots(root)
        self._lock = lock
        self._ephemeral = ephemeral

    @property
    def database(self) -> Path:
        """The database file."""
        return self.root / "state.db"

    @property
    def artifacts(self) -> Path:
        """The folder of the artifact store."""
        return self.root / "artifacts"

    @property
    def witness(self) -> Path:
        """The head witness."""
        return self.root / "head"

    @property
    def key(self) -> Path:
        """The file of the key for tags of secrets."""
        return self.root / "secrets.key"

    @property
    def projection(self) -> Path:
        """The file of the projection's watermark."""
        return self.root / "projection.json"

    def close(self) -> None:
        """Unlock the directory; remove it if it is ephemeral."""
        if self._ephemeral:
            shutil.rmtree(self.root, ignore_errors=True)
        os.close(self._lock)


def hold_existing(root: Path) -> StateDir:
    """Lock the state directory ``root`` until ``close``. Raises: as ``hold``; StateDirError if there is no state."""
    if not (root / "state.db").is_file():
        raise StateDirError(f"there is no state in {root}", exit_code=_EXIT_NO_STATE)
    return hold(root)


def hold(root: Path | None, *, is_restore: bool = False) -> StateDir:
    """Lock the directory ``root``, created with mode 0700 if missing; None creates one that lasts until ``close``.

    Raises: StateDirError if another process holds it, other users could change it, it cannot be created, it is a backup
    or in one, or a restore into it did not end, unless ``is_restore``.
    """
    try:
        if root is None:
            path = Path(tempfile.mkdtemp(prefix="ctxd-"))
            return StateDir(path, _lock(path), ephemeral=True)
        root = root.absolute()
        refuse_backup(root)
        make_folder(root)
        if not (root / "state.db").exists():
            # The daemon that created the directory may have died before its entry was flushed. If the parent may not be
            # read, another program created the entry.
            with suppress(PermissionError):
                sync_folder(root.parent)
        check_safe(root)
        held = StateDir(root, _lock(root), ephemeral=False)
    except OSError as error:
        where = error.filename or root
        raise StateDirError(f"cannot keep state in {where}: {error.strerror}", exit_code=_EXIT_NO_PLACE) from error
    if not is_restore and (root / RESTORING).exists():
        held.close()
        remedy = "run ctxd restore again: it replaces the incomplete copy"
        raise StateDirError(f"a restore into {root} was interrupted", exit_code=_EXIT_NO_PLACE, remedy=remedy)
    return held


def refuse_backup(root: Path) -> None:
    """Refuse a directory that is a backup or in one: a backup with other files could not be restored.

    One that a daemon has used, as earlier versions allowed, is a state directory. Raises: StateDirError; OSError.
    """
    real = Path(os.path.realpath(root))
    for folder in (real, *real.parents):
        is_backup = (folder / "manifest.json").is_file() and (folder / "state.db").is_file()
        if is_backup and not (folder / LOCK).exists():
            where = f"{root} is a backup" if folder == real else f"{root} is in the backup {folder}"
            remedy = f"name a directory outside; ctxd restore {folder} --state-dir PATH makes a state directory of it"
            raise StateDirError(where, exit_code=_EXIT_NO_PLACE, remedy=remedy)


def check_safe(root: Path) -> None:
    """Refuse a directory that other users can access, or one with a parent in which they could replace it.

    Raises: StateDirError.
    """
    real = Path(os.path.realpath(root))
    found = real.stat()
    if found.st_uid != os.geteuid():
        raise StateDirError(f"{root} belongs to uid {found.st_uid}, not to {os.geteuid()}", exit_code=_EXIT_UNSAFE)
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise StateDirError(f"{root} is open to others: run chmod 700 {root}", exit_code=_EXIT_UNSAFE)
    for folder in real.parents:
        above = folder.stat()
        shared = above.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        trusted = above.st_uid in (0, os.geteuid())
        # In a sticky folder owned by root, such as /tmp, only an entry's owner can move it.
        if not trusted or (shared and not (above.st_mode & stat.S_ISVTX and above.st_uid == 0)):
            raise StateDirError(f"{folder} above {root} can be written by others", exit_code=_EXIT_UNSAFE)


def _lock(root: Path) -> int:
    path = root / LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise StateDirError(f"{root} is in use by process {holder}", exit_code=_EXIT_LOCKED) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
