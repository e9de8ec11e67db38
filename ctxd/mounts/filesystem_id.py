"""Ids of filesystem namespaces (spec 1 §5.4): of the host, of containers, and of devices.

A device is the fallback for paths without a mount mapping (spec 1 §5.3). An id made of a device number holds as long as
the number does: until the device is unmounted or the host restarts.

Two hosts with one machine id (cloned images) would share objects; that is for their operator to mend, by
``systemd-machine-id-setup``, as it is for every other program that relies on it.
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
"""Where a machine id is kept: systemd's place first, D-Bus's own where there is no systemd."""

HOST_PLACES: Final = ("/", "/home", "/opt", "/srv", "/usr", "/var", "~")
"""Directories whose devices are the host's own: the root, what is often put on disks of its own, and the home of the
daemon's user. What lies elsewhere on a device of its own may be another disk tomorrow, or none: ``/mnt``, ``/media``,
``/tmp``. No place of a session is among them: an agent may work on a disk of any owner.
"""

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


class Devices:
    """Filesystem ids by device number. Mount mappings take precedence; ask them first.

    ``host_devices`` are the ``st_dev`` of what counts as the host's own filesystem. Any other device has an id of its
    own, which depends on the host and the number only: a daemon that starts again comes to the same.
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
    """The ``st_dev`` of each of ``places`` that is there, as they are now. Blocks; meant for start-up."""
    devices: set[int] = set()
    for place in places:
        try:
            devices.add(os.stat(Path(place).expanduser()).st_dev)
        except (OSError, RuntimeError):
            # A place that is not there has no files; a user without a home has none to add.
            continue
    return frozenset(devices)
