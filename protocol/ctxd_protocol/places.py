"""Where a daemon's socket and state are when nobody says otherwise, so that both sides look in the same places.

Owns the paths. Which of them is taken is each side's own rule: the daemon's depends on its user, the client's on what
exists.
"""

import os
from collections.abc import Mapping
from typing import Final

SYSTEM_SOCKET: Final = "/run/ctxd/ctxd.sock"
"""The system daemon's socket, and the place where a sandbox has its own mounted."""

SYSTEM_STATE_DIR: Final = "/var/lib/ctxd"
"""The system daemon's state."""

SOCKET_NAME: Final = "ctxd.sock"
"""What a socket is called in its directory, the host's and a sandbox's alike."""

CONTEXT_FILE_NAME: Final = "current.json"
"""The file beside a sandbox's socket that tells the current context."""

SANDBOXES_NAME: Final = "s"
"""The directory beside the host's socket that holds those of the sandboxes: short, for a socket's path is bounded."""


def home(environ: Mapping[str, str]) -> str:
    """The user's home."""
    return environ.get("HOME") or os.path.expanduser("~")


def user_state_dir(environ: Mapping[str, str]) -> str:
    """The state of a user's own daemon."""
    return os.path.join(environ.get("XDG_STATE_HOME") or os.path.join(home(environ), ".local", "state"), "ctxd")


def runtime_socket(environ: Mapping[str, str]) -> str | None:
    """The socket of a user's own daemon; null where the user has no runtime directory."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    return os.path.join(runtime, "ctxd", SOCKET_NAME) if runtime else None


def socket_in(state_dir: str) -> str:
    """The socket inside a state directory, used where there is no runtime directory."""
    return os.path.join(state_dir, SOCKET_NAME)
