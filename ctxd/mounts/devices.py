"""Filesystem ids by device: the fallback for paths without a mount mapping (spec 1 §5.3).

Stands alone: only sessions that detect filesystems by device need it. An id made of a device number
holds as long as the number does: until the device is unmounted or the host restarts.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ctxd_protocol.ids import FilesystemId

HOST_PLACES: Final = ("/", "/home", "/opt", "/srv", "/usr", "/var", "~")
"""Directories whose devices are the host's own: the root, what is often put on disks of its own, and the home of the
daemon's user. What lies elsewhere on a device of its own may be another disk tomorrow, or none: ``/mnt``, ``/media``,
``/tmp``. No place of a session is among them: an agent may work on a disk of any owner.
"""


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
