"""Lookup of the daemon's socket.

Candidates, in order: the path argument, ``$CTXD_SOCKET``, ``/run/ctxd/ctxd.sock``,
``$XDG_RUNTIME_DIR/ctxd/ctxd.sock`` and the state directory's ``ctxd.sock``. The first two are used without a check; of
the others, the first that this user may connect to is chosen, or else the first that exists.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ctxd_protocol.default_paths import SYSTEM_SOCKET, runtime_socket, socket_in, user_state_dir
from ctxd_protocol.limits import SOCKET_PATH_BYTES_MAX


class SocketPlace(NamedTuple):
    """The path of a socket, and its origin: ``argument``, ``CTXD_SOCKET``, ``system``, ``runtime`` or ``state``."""

    path: str
    origin: str


def socket_places(environ: Mapping[str, str]) -> tuple[SocketPlace, ...]:
    """The places to try, in order, if neither an argument nor ``$CTXD_SOCKET`` names one."""
    places = [SocketPlace(SYSTEM_SOCKET, "system")]
    if runtime := runtime_socket(environ):
        places.append(SocketPlace(runtime, "runtime"))
    places.append(SocketPlace(socket_in(user_state_dir(environ)), "state"))
    return tuple(places)


def find_socket(socket: str | Path | None = None, environ: Mapping[str, str] | None = None) -> SocketPlace:
    """The socket to connect to. If none exists, the place where a daemon of this user would create it.

    ``environ`` defaults to the process's environment.
    """
    environ = os.environ if environ is None else environ
    if socket is not None:
        return SocketPlace(os.fspath(socket), "argument")
    if named := environ.get("CTXD_SOCKET"):
        return SocketPlace(named, "CTXD_SOCKET")
    places = socket_places(environ)
    existing = [place for place in places if _exists(place.path)]
    # If this user may not use the host's service, the user's own daemon is meant.
    open_to_us = next((place for place in existing if os.access(place.path, os.W_OK, effective_ids=True)), None)
    return open_to_us or (existing or [places[0 if os.geteuid() == 0 else 1]])[0]


def remedy(place: SocketPlace, reason: OSError) -> str:
    """The remedy for a failed connection to ``place``."""
    if isinstance(reason, PermissionError):
        return "the socket belongs to another user or group: run as that user, or join its group"
    if isinstance(reason, BlockingIOError):
        return "repeat the call later; ctx doctor checks the daemon"
    if len(os.fsencode(place.path)) > SOCKET_PATH_BYTES_MAX:
        return f"a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes: choose a shorter one"
    if place.origin in ("argument", "CTXD_SOCKET"):
        return f"start the daemon: ctxd run --state-dir DIR --socket {place.path} (DIR is its state directory)"
    places = ", ".join(each.path for each in socket_places(os.environ) if each.path != place.path)
    return (
        "start a daemon: ctxd run, or ctxd service install; or name its socket: --socket PATH or CTXD_SOCKET=PATH"
        f" (other usual places: {places})"
    )


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except OSError:
        return False
    return True
