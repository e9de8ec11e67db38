"""Ids of filesystem namespaces (spec 1 §5.4).

Two hosts with one machine id (cloned images) would share objects; that is for their operator to mend, by
``systemd-machine-id-setup``, as it is for every other program that relies on it.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ctxd.errors import CtxdError, StateDirError
from ctxd_protocol.ids import FilesystemId

MACHINE_ID_PATHS: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
"""Where a machine id is kept: systemd's place first, D-Bus's own where there is no systemd."""

_EXIT_CONFIG: Final = 78
"""EX_CONFIG of sysexits.h: restarting does not help."""

_CONTAINER_ID: Final = re.compile(r"[0-9a-f]{64}")


def host_filesystem_id(paths: Sequence[Path] = MACHINE_ID_PATHS, *, substitute: Path | None = None) -> FilesystemId:
    """The id of the host's own filesystem: SHA-256 of the machine id without the blanks around it.

    Images without systemd have no machine id. ``substitute`` is then read in its place, and written with a random id if
    it is not there, so that the id stays the same as long as that file (in the state directory) does. Blocks; meant for
    start-up. Raises: StateDirError if there is neither a machine id nor a usable substitute.
    """
    for path in paths:
        text = _machine_id(path)
        if text:
            return FilesystemId(hashlib.sha256(text.encode()).hexdigest())
    if substitute is None:
        places = " nor ".join(str(path) for path in paths)
        raise StateDirError(f"no machine id in {places}: run systemd-machine-id-setup", exit_code=_EXIT_CONFIG)
    return FilesystemId(hashlib.sha256(_substitute(substitute).encode()).hexdigest())


def container_filesystem_id(container: str) -> FilesystemId:
    """The id of a container's own filesystem: its full container id as it is.

    Raises: CtxdError invalid_params for anything but 64 lower-case hex digits; a short id is not unique.
    """
    if _CONTAINER_ID.fullmatch(container) is None:
        raise CtxdError(
            "invalid_params",
            f"container id {container[:80]!r} is not 64 hex digits",
            hint="Take .Id of docker inspect, not the short id of docker ps.",
        )
    return FilesystemId(container)


def _machine_id(path: Path) -> str:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    # systemd writes this word into images whose first start has yet to come.
    return "" if text == "uninitialized" else text


def _substitute(path: Path) -> str:
    try:
        text = _machine_id(path)
        if not text:
            text = secrets.token_hex(16)
            path.write_text(text + "\n", "ascii")
    except OSError as error:
        raise StateDirError(f"cannot keep a machine id in {path}: {error.strerror}", exit_code=_EXIT_CONFIG) from error
    return text
