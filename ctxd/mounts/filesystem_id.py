"""Ids of filesystem namespaces (spec 1 §5.4): of the host, of containers, and of devices.

A device is the fallback for paths without a mount mapping (spec 1 §5.3). An id made of a device number holds as long as
the number does: until the device is unmounted or the host restarts.

Two hosts with the same machine id (cloned images) would share objects; their operator has to fix that with
``systemd-machine-id-setup``, as for every other program that relies on the id.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ctxd.errors import CtxdError, StateDirError
from ctxd_protocol.ids import FilesystemId

MACHINE_ID_PATHS: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
"""Files of the machine id: systemd's first, then D-Bus's for hosts without systemd."""

HOST_PLACES: Final = ("/", "/home", "/opt", "/srv", "/usr", "/var", "~")
"""Directories whose devices count as the host's: the root, directories that are often on separate disks, and the home
of the daemon's user. Devices elsewhere, such as at ``/mnt``, ``/media`` or ``/tmp``, may change or disappear.
Directories of sessions are not included: an agent may work on any disk.
"""

_EXIT_CONFIG: Final = 78
"""EX_CONFIG of sysexits.h: restarting does not help."""

_CONTAINER_ID: Final = re.compile(r"[0-9a-f]{64}")


def host_filesystem_id(paths: Sequence[Path] = MACHINE_ID_PATHS, *, substitute: Path | None = None) -> FilesystemId:
    """The id of the host's own filesystem: the SHA-256 of the stripped machine id.

    Images without systemd have no machine id. Then ``substitute`` is read instead, or created with a random id, so that
    the id lasts as long as that file (in the state directory). Blocks; meant for start-up. Raises: StateDirError if
    there is neither a machine id nor a usable substitute.
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
    """The id of a container's own filesystem: its full container id.

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
    # systemd writes this word into images that have not been booted yet.
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


class Devices:
    """Filesystem ids by device number. Mount mappings take precedence, so check those first.

    ``host_devices`` are the ``st_dev`` numbers that count as the host's own filesystem. The id of any other device
    depends only on the host and the number, so it is the same after a restart.
    """

    def __init__(self, host_filesystem_id: str, host_devices: frozenset[int] = frozenset()) -> None:
        self.host = FilesystemId(host_filesystem_id)
        self._host_devices = host_devices

    def filesystem_id(self, device: int) -> FilesystemId:
        """The filesystem id of ``device``, an ``st_dev``."""
        if device in self._host_devices:
            return self.host
        return FilesystemId(hashlib.sha256(f"{self.host}\0{device}".encode()).hexdigest())


def host_devices(places: Iterable[str] = HOST_PLACES) -> frozenset[int]:
    """The current ``st_dev`` of each of ``places`` that exists. Blocks; meant for start-up."""
    devices: set[int] = set()
    for place in places:
        try:
            devices.add(os.stat(Path(place).expanduser()).st_dev)
        except (OSError, RuntimeError):
            # The directory does not exist, or the user has no home.
            continue
    return frozenset(devices)
