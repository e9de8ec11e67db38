"""The directories of sandboxes: where each one is, who may enter, and the file in it that tells the current context.

Owns the file system side but for the socket. A sandbox has its directory mounted as a directory: a mounted socket file
would be dead after the daemon's first restart, and so would a mounted ``current.json``, which is a new file each time.
Promise: whoever reads ``current.json`` reads one answer whole, the newest.
"""

import errno
import os
import socket
import stat
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.sandboxes.access import let_in
from ctxd_protocol.context import CurrentContext
from ctxd_protocol.limits import SOCKET_PATH_BYTES_MAX
from ctxd_protocol.places import CONTEXT_FILE_NAME, SOCKET_NAME

_PASSABLE: Final = 0o711
"""Mode of the directories: their names, which are secrets, are not listed to other users."""

_FILE_MODE: Final = 0o600
_ID_CHARS: Final = 16


class Places:
    """The directories below ``root``, which is made when the first sandbox is."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, sandbox: str) -> Path:
        """What is to be mounted into ``sandbox``."""
        return self.root / sandbox

    def socket(self, sandbox: str) -> Path:
        """The socket of ``sandbox``."""
        return self.root / sandbox / SOCKET_NAME

    def require_room(self) -> None:
        """Raises: CtxdError unsupported if the path of a sandbox's socket would be too long to bind."""
        size = len(os.fsencode(self.socket("x" * _ID_CHARS)))
        if size > SOCKET_PATH_BYTES_MAX:
            raise CtxdError(
                "unsupported",
                f"the path of a sandbox's socket would have {size} bytes, {SOCKET_PATH_BYTES_MAX} are possible",
                hint="Give the daemon's own socket a shorter path.",
                outcome="not_applied",
            )

    def make(self, sandbox: str) -> None:
        """Make the directory of ``sandbox``, if it is not there. Blocks briefly. Raises: OSError."""
        directory = self.directory(sandbox)
        for place in (self.root, directory):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stat.S_IMODE(place.stat().st_mode) != _PASSABLE:
                place.chmod(_PASSABLE)

    def tell(self, sandbox: str, current: CurrentContext, uid: int | None) -> None:
        """Put ``current`` into the file of ``sandbox``, in one step, for user ``uid`` too. Two writes and a rename.

        Raises: OSError.
        """
        directory = self.directory(sandbox)
        fresh = directory / f".{CONTEXT_FILE_NAME}"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
        try:
            os.write(fd, msgspec.json.encode(current) + b"\n")
            let_in(fd, uid)
        finally:
            os.close(fd)
        os.replace(fresh, directory / CONTEXT_FILE_NAME)

    def hand_over(self, sandbox: str, uid: int | None) -> None:
        """Have user ``uid`` connect to the socket of ``sandbox``. Raises: OSError."""
        let_in(self.socket(sandbox), uid)

    def remove(self, sandbox: str) -> None:
        """Take the directory of ``sandbox`` away. Blocks briefly. Raises: OSError, unless it is gone already."""
        directory = self.directory(sandbox)
        with suppress(FileNotFoundError):
            for name in os.listdir(directory):
                (directory / name).unlink()
            directory.rmdir()

    def remove_strays(self, known: Container[str]) -> list[str]:
        """Take away what a killed daemon left of sandboxes that are not ``known``; their ids. Blocks briefly.

        A directory whose socket answers is another daemon's, and stays. Raises: OSError.
        """
        try:
            found = sorted(os.listdir(self.root))
        except FileNotFoundError:
            return []
        strays = [name for name in found if len(name) == _ID_CHARS and name not in known]
        removed = [name for name in strays if not _answers(self.socket(name))]
        for name in removed:
            self.remove(name)
        return removed


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) not in (errno.ENOENT, errno.ECONNREFUSED)
