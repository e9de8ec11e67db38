"""Directories of sandboxes: their paths, access for another user, and the file with the current context.

A sandbox mounts its directory, not the files in it: a bind-mounted socket stops working when the daemon restarts, and
so does a bind-mounted ``current.json``, which is replaced by each write. Promise: a reader of ``current.json`` always
gets the newest context, whole. ``lifecycle`` uses the same path after a restart.
"""

import errno
import os
import shutil
import socket
import stat
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.file_writes import write_all
from ctxd.sources import user_rights
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.default_paths import CONTEXT_FILE_NAME, SOCKET_NAME
from ctxd_protocol.limits import SOCKET_PATH_BYTES_MAX

_PASSABLE: Final = 0o711
"""Mode of the directories: other users cannot list their names, which are secrets."""

_FILE_MODE: Final = 0o600
_ID_CHARS: Final = 16
_READ_WRITE: Final = 6


class Directories:
    """The directories below ``root``, which is created with the first sandbox."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, sandbox: str) -> Path:
        """The directory to mount into ``sandbox``."""
        return self.root / sandbox

    def socket(self, sandbox: str) -> Path:
        """The path of the socket of ``sandbox``."""
        return self.root / sandbox / SOCKET_NAME

    def require_room(self) -> None:
        """Raises: CtxdError unsupported if the path of a sandbox's socket would be too long to bind."""
        size = len(os.fsencode(self.socket("x" * _ID_CHARS)))
        if size > SOCKET_PATH_BYTES_MAX:
            raise CtxdError(
                "unsupported",
                f"the path of a sandbox's socket would have {size} bytes; the maximum is {SOCKET_PATH_BYTES_MAX}",
                hint="Give the daemon's own socket a shorter path.",
                outcome="not_applied",
            )

    def make(self, sandbox: str) -> None:
        """Create the directory of ``sandbox`` if it does not exist. Blocks briefly. Raises: OSError."""
        directory = self.directory(sandbox)
        for place in (self.root, directory):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stat.S_IMODE(place.stat().st_mode) != _PASSABLE:
                place.chmod(_PASSABLE)

    def write_context(self, sandbox: str, current: CurrentContext, uid: int | None) -> None:
        """Replace the context file of ``sandbox`` atomically, readable by user ``uid`` too. Cost: two writes and a
        rename.

        Raises: OSError.
        """
        directory = self.directory(sandbox)
        fresh = directory / f".{CONTEXT_FILE_NAME}"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
        try:
            write_all(fd, msgspec.json.encode(current) + b"\n")
            grant(fd, uid)
        finally:
            os.close(fd)
        os.replace(fresh, directory / CONTEXT_FILE_NAME)

    def grant_socket(self, sandbox: str, uid: int | None) -> None:
        """Let user ``uid`` connect to the socket of ``sandbox``. Raises: OSError."""
        grant(self.socket(sandbox), uid)

    def remove(self, sandbox: str) -> None:
        """Remove the directory of ``sandbox``, if it exists. Blocks briefly. Raises: OSError."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.directory(sandbox))

    def remove_strays(self, known: Container[str]) -> dict[str, OSError | None]:
        """Remove the directories of sandboxes not ``known`` that a killed daemon left. Blocks briefly.

        A directory whose socket accepts connections belongs to another daemon, and is kept. Returns: the ids of the
        others, each with the error if it could not be removed. Raises: OSError if the directories cannot be listed.
        """
        try:
            found = sorted(os.listdir(self.root))
        except (FileNotFoundError, NotADirectoryError):  # Another daemon's socket may have that name.
            return {}
        strays = [name for name in found if len(name) == _ID_CHARS and name not in known]
        removed: dict[str, OSError | None] = {}
        for name in strays:
            if not _accepts_connections(self.socket(name)):
                try:
                    self.remove(name)
                    removed[name] = None
                except OSError as error:
                    removed[name] = error
        return removed


def _accepts_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) not in (errno.ENOENT, errno.ECONNREFUSED)


def grant(file: int | os.PathLike[str], uid: int | None) -> None:
    """Allow user ``uid`` to read and write ``file``, a path or a descriptor, besides the daemon. Cost: two system calls
    at most.

    ``None`` or the daemon's own user: no change. A daemon that runs as root changes the owner; another one, which may
    not, adds the user to the file's access control list.
    Raises: OSError, with EOPNOTSUPP on a file system without access control lists.
    """
    if uid is None or uid == os.geteuid():
        return
    if os.geteuid() == 0:
        os.chown(file, uid, -1)
    else:
        entries = (
            (user_rights.OWNER, _READ_WRITE, user_rights.NO_ID),
            (user_rights.USER, _READ_WRITE, uid),
            (user_rights.GROUP, 0, user_rights.NO_ID),
            (user_rights.MASK, _READ_WRITE, user_rights.NO_ID),
            (user_rights.OTHERS, 0, user_rights.NO_ID),
        )
        os.setxattr(file, user_rights.ATTRIBUTE, user_rights.packed(entries))
