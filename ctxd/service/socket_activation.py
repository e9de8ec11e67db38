"""Socket activation: listening sockets that the service manager passes, the host's and those held over a restart.

Separate because it runs before anything else opens a descriptor. Passed sockets are closed on ``exec``, and the
variables that describe them are removed, so that no child process uses them.
"""

import fcntl
import os
import socket
from collections.abc import MutableMapping
from typing import Final

FIRST_FD: Final = 3
"""The first passed descriptor; the others follow."""

_NAMELESS: Final = "unknown"


def take(environ: MutableMapping[str, str], pid: int | None = None) -> dict[str, list[socket.socket]]:
    """Return the passed listening Unix sockets for process ``pid`` (None: this one) by name.

    Other passed descriptors are closed.
    """
    meant, count, names = (environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if not (meant.isdecimal() and count.isdecimal()) or int(meant) != (os.getpid() if pid is None else pid):
        return {}
    called = names.split(":") if names else []
    taken: dict[str, list[socket.socket]] = {}
    for number in range(int(count)):
        listener = _listener(FIRST_FD + number)
        if listener is not None:
            taken.setdefault(called[number] if number < len(called) else _NAMELESS, []).append(listener)
    return taken


def path_of(listener: socket.socket) -> str:
    """Return the path of ``listener``; empty for a socket without a path."""
    name = listener.getsockname()
    return name if isinstance(name, str) else ""


def _listener(fd: int) -> socket.socket | None:
    try:
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    except OSError:
        return None
    try:
        found = socket.socket(fileno=fd)
        listens = bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        os.close(fd)
        return None
    if not listens or found.family != socket.AF_UNIX or found.type != socket.SOCK_STREAM:
        found.close()
        return None
    found.setblocking(False)
    return found
