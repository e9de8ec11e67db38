"""Default paths of the daemon's socket and state, for both sides.

Each side has its own rule of choice: the daemon's depends on its user, the client's on the sockets that exist.
"""

import os
from collections.abc import Mapping
from typing import Final

SYSTEM_SOCKET: Final = "/run/ctxd/ctxd.sock"
"""The system daemon's socket, and the path at which a sandbox mounts its own."""

SYSTEM_STATE_DIR: Final = "/var/lib/ctxd"
"""The system daemon's state."""

SOCKET_NAME: Final = "ctxd.sock"
"""Name of a socket in its directory, for the host and for sandboxes."""

CONTEXT_FILE_NAME: Final = "current.json"
"""Name of the file with the current context, beside a sandbox's socket."""

SANDBOXES_NAME: Final = "s"
"""Name of the directory with the sandboxes' directories, beside the host's socket: short, as a socket's path is
bounded."""


def sandboxes_name(socket_name: str) -> str:
    """The name of the directory with the sandboxes' directories, beside a host's socket named ``socket_name``."""
    return SANDBOXES_NAME if socket_name != SANDBOXES_NAME else "s.d"


def home(environ: Mapping[str, str]) -> str:
    """The user's home directory."""
    return environ.get("HOME") or os.path.expanduser("~")


def state_home(environ: Mapping[str, str]) -> str:
    """The directory for the state of the user's programs."""
    return environ.get("XDG_STATE_HOME") or os.path.join(home(environ), ".local", "state")


def user_state_dir(environ: Mapping[str, str]) -> str:
    """The state directory of a user's own daemon."""
    return os.path.join(state_home(environ), "ctxd")


def without_state_home(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with the default state directory, which programs that cron starts use."""
    return {name: value for name, value in environ.items() if name != "XDG_STATE_HOME"}


def runtime_socket(environ: Mapping[str, str]) -> str | None:
    """The socket of a user's own daemon; None if the user has no runtime directory."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    return os.path.join(runtime, "ctxd", SOCKET_NAME) if runtime else None


def socket_in(state_dir: str) -> str:
    """The socket in a state directory, used if there is no runtime directory."""
    return os.path.join(state_dir, SOCKET_NAME)
