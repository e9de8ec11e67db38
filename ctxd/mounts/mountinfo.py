"""Parser of ``/proc/PID/mountinfo``: the mounts of a process.

Names are decoded with ``os.fsdecode``, so that bytes that are not UTF-8 survive.
"""

import os
import re
from typing import Final

import msgspec

OWN_MOUNTS: Final = "/proc/self/mountinfo"
"""The kernel's list of this process's mounts; reading it never hangs."""

_DEVICE: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}", re.ASCII)
_ESCAPE: Final = re.compile(rb"\\([0-3][0-7]{2})")


class Mounted(msgspec.Struct, frozen=True):
    """One line: ``root`` of the filesystem on ``device``, an ``st_dev``, is mounted at ``mount_point``.

    ``filesystem`` is its type, with a subtype after a dot: ``fuse.sshfs``.
    """

    device: int
    root: str
    mount_point: str
    writable: bool
    filesystem: str


def mounts_in(text: str) -> list[Mounted]:
    """Parse each line of ``text``, in order: a later mount hides an earlier one at the same mount point.

    Raises: ValueError with the first malformed line.
    """
    # Names may contain the other characters that splitlines splits at.
    return [_mounted(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _mounted(number: int, line: str) -> Mounted:
    fields = line.split(" ")
    try:
        end = fields.index("-", 6)
        if _DEVICE.fullmatch(fields[2]) is None:
            raise ValueError(fields[2])
        device = os.makedev(*map(int, fields[2].split(":")))
        filesystem, super_options = fields[end + 1], fields[end + 3]
        root, mount_point = _unescaped(fields[3]), _unescaped(fields[4])
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"line {number} is not of mountinfo's form") from error
    read_only = "ro" in fields[5].split(",") or "ro" in super_options.split(",")
    return Mounted(device, root, mount_point, not read_only, filesystem)


def _unescaped(field: str) -> str:
    """Undo the kernel's escapes: blanks, line feeds and backslashes in a name are three octal digits each."""
    if "\\" not in field:
        return field
    return os.fsdecode(_ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), os.fsencode(field)))
