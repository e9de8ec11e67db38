"""Port for files on the host's filesystems, by canonical absolute path: what they offer beyond any source.

Paths and their symlinks, devices, and the confinement of what sandboxes write belong to files alone.
"""

import struct
from collections.abc import Collection
from typing import Final, Literal, Protocol

import msgspec

from ctxd.sources.port import Missing, SourceAdapter, Special, Stamp, Unreadable
from ctxd.sources.rights import User
from ctxd_protocol.objects import FilesystemSource

_SIGNATURE: Final = struct.Struct("<QQQqq")

SpecialKind = Literal["directory", "fifo", "socket", "character_device", "block_device", "other"]


def signature(device: int, inode: int, size_bytes: int, mtime_ns: int, ctime_ns: int) -> bytes:
    """A stat result as a fingerprint (see ``ctxd.sources.port.fingerprint_of``): a file's size is in the same place."""
    return _SIGNATURE.pack(device, inode, size_bytes, mtime_ns, ctime_ns)


LEADS_OUT: Final = "it leads out of the mount, by a symlink or onto another file system"
"""Reason given for a path that is ``Unreadable`` with EXDEV."""


class Regular(msgspec.Struct, frozen=True, tag=True):
    """A regular file that was looked at, not read."""

    stamp: Stamp


Look = Regular | Unreadable | Special | Missing
"""What a path is, without reading it."""


class FilesystemAdapter(SourceAdapter[FilesystemSource], Protocol):
    """Files by canonical absolute path. Symlinks are followed. Nothing here blocks the loop, nor waits for a file
    system that hangs; cancel: safe anywhere.

    A reading's ``volume`` is the ``st_dev`` of the file's directory, which on an overlay is not the file's own. A
    binding is read by its path: the caller has made sure that its filesystem is the one that lies
    there. ``Special.kind`` is a ``SpecialKind``. A symlink that leads nowhere is no confirmed absence.
    """

    def confine(self, root: str, view: tuple[tuple[str, str | None], ...] = ()) -> None:
        """From now on read and look at paths below ``root`` only if they lead to files below it, symlinks followed.

        For a directory that a sandbox writes to: its symlinks mean the sandbox's files, and must not fetch the host's.
        ``view`` maps each of the sandbox's directories to the host's directory, `None` where it is
        none of the host's. Without, they mean what they would on the host. Where several sandboxes share ``root`` and a
        link means different files to them, it leads nowhere.
        """

    def is_confined(self, path: str) -> bool:
        """True if ``path`` is below a directory that ``confine`` named: a sandbox may have written what is there."""

    async def look_many(self, paths: list[str]) -> list[Look]:
        """Look at each path, in one hop to a thread and one stat each."""

    async def resolve_many(self, paths: list[str]) -> list[str]:
        """Each path without symlinks, in one hop to a thread; it need not exist.

        A path below a confined directory is resolved as its sandboxes do. One that leads out, or whose file system
        does not answer, stays as it is.
        """

    async def devices_of(self, paths: list[str]) -> list[int | None]:
        """The ``st_dev`` of the nearest directory above each path that can be looked at, in one hop to a thread; `None`
        if its file system does not answer.

        It is the directory's, as a reading's volume, so that a path keeps its device whether or not its file is there.
        """


class Limited(Protocol):
    """A source that reads for users who may read less than the daemon."""

    def limit(self, key: str, roots: Collection[str], user: User) -> None:
        """From now on, until ``lift``, what ``user`` may not read below ``roots`` is not read for any caller: what is
        read of a file is one version for all. Directories on the way count, down from the roots."""

    def lift(self, key: str) -> None:
        """End that limit, if there is one."""
