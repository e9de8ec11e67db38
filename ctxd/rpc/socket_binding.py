"""Binding of a Unix socket that is never accessible to other users than intended, and never taken from a live daemon.

The file system side of a listener.
"""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ctxd.errors import StateDirError
from ctxd.rpc.caller import peer_of
from ctxd_protocol.limits import SOCKET_PATH_BYTES_MAX

EXIT_USAGE: Final = 64
EXIT_UNAVAILABLE: Final = 69
EXIT_CANNOT_CREATE: Final = 73
_BACKLOG: Final = 1024
_PROBE_S: Final = 1.0


def bind_socket(path: Path, *, gid: int | None = None) -> socket.socket:
    """A listening socket at ``path``: mode 0600, or 0660 and of group ``gid``. Its folder is created, 0700, if missing.

    A dead socket there is replaced. Blocks for at most a second.
    Raises: StateDirError if the path is too long, in use by a live daemon or not a socket, or not writable.
    """
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        message = f"the socket path {path} has {len(os.fsencode(path))} bytes; the maximum is {SOCKET_PATH_BYTES_MAX}"
        raise StateDirError(f"{message}; choose a shorter one", exit_code=EXIT_USAGE)
    try:
        _make_folder(path.parent)
        with _folder_locked(path.parent):
            _clear(path)
            return _bind(path, gid)
    except OSError as exc:
        raise StateDirError(f"cannot listen at {path}: {exc.strerror}", exit_code=EXIT_CANNOT_CREATE) from exc


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket at ``path`` of mode 0600, closed and removed afterwards.

    Raises: StateDirError as ``bind_socket``.
    """
    bound = bind_socket(path)
    try:
        inode = inode_of(path)
        try:
            yield bound
        finally:
            remove_socket(path, inode)
    finally:
        bound.close()


def remove_socket(path: Path, inode: tuple[int, int]) -> None:
    """Remove the socket if its device and inode number are still ``inode``."""
    try:
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == inode:
            path.unlink()
    except FileNotFoundError:
        return


def inode_of(path: Path) -> tuple[int, int]:
    """Device and inode number of the file at ``path``."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _make_folder(folder: Path) -> None:
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def _folder_locked(folder: Path) -> Iterator[None]:
    """Keep other daemons from binding in ``folder`` meanwhile: of two that start together, one sees the other."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _clear(path: Path) -> None:
    """Remove a dead socket at ``path``.

    Raises: StateDirError if it is alive or not a socket.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise StateDirError(f"{path} exists and is not a socket", exit_code=EXIT_CANNOT_CREATE)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except (TimeoutError, BlockingIOError):
            holder = "a daemon that does not respond"
        else:
            holder = _name_of(probe.fileno())
    raise StateDirError(f"{path} is in use by {holder}", exit_code=EXIT_UNAVAILABLE)


def _name_of(fd: int) -> str:
    pid = peer_of(fd).pid
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        name = "another process"
    return f"{name} (pid {pid})"


def _bind(path: Path, gid: int | None) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # The file that bind creates gets the descriptor's mode, minus the umask: never a wider one.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        if gid is not None:
            os.chown(path, -1, gid)
            path.chmod(0o660)
        elif stat.S_IMODE(path.stat().st_mode) != 0o600:
            path.chmod(0o600)
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise StateDirError(f"{path} is in use", exit_code=EXIT_UNAVAILABLE) from exc
        raise
    return listener
