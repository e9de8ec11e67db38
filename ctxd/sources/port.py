"""Port for sources: the files that sourced objects are bound to, by canonical path.

A reading is a value in every case: only a broken daemon raises. ``bytes`` paths are for names that are not UTF-8.
"""

import struct
from collections.abc import Collection
from typing import Final, Literal, Protocol

import msgspec

from ctxd.sources.rights import User

_SIGNATURE: Final = struct.Struct("<QQQqq")

SpecialKind = Literal["directory", "fifo", "socket", "character_device", "block_device", "other"]


def signature(device: int, inode: int, size_bytes: int, mtime_ns: int, ctime_ns: int) -> bytes:
    """A stat result in 40 bytes, to be kept and compared."""
    return _SIGNATURE.pack(device, inode, size_bytes, mtime_ns, ctime_ns)


def size_of(signature: bytes) -> int:
    """The size in bytes of the file that ``signature`` is of."""
    size: int = _SIGNATURE.unpack(signature)[2]
    return size


class Stamp(msgspec.Struct, frozen=True):
    """Result of ``stat`` for a file at one moment: equal stamps mean an unchanged file, if the first was ``settled``.

    ``signature`` is of the function of that name. ``settled`` false: the file changed so shortly before that a second
    change could leave the same times behind. ``directory_device`` is the ``st_dev`` of the directory it was read from;
    `None` if the file was not read.
    """

    signature: bytes
    settled: bool
    directory_device: int | None = None


class Present(msgspec.Struct, frozen=True, tag=True):
    """A regular file, read whole between two equal stamps.

    ``source_hash`` is the hash of ``raw``. ``text`` is ``raw`` decoded, `None` if that holds a NUL or is not UTF-8.
    """

    raw: bytes
    source_hash: str
    text: str | None
    stamp: Stamp

    @property
    def kind(self) -> Literal["text", "binary"]:
        """The kind of the bytes."""
        return "binary" if self.text is None else "text"


class OverLimit(msgspec.Struct, frozen=True, tag=True):
    """A regular file beyond ``FILE_BYTES_MAX``. Nothing of it was kept. ``modified_us`` counts from 1970."""

    size_bytes: int
    modified_us: int
    stamp: Stamp


LEADS_OUT: Final = "it leads out of the mount, by a symlink or onto another file system"
"""Reason given for a path that is ``Unreadable`` with EXDEV."""


class Unreadable(msgspec.Struct, frozen=True, tag=True):
    """Something is there, or may be, and cannot be read.

    EAGAIN: the file changed during each of several readings. ETIMEDOUT: its file system does not answer. EXDEV: a
    symlink, or a file system mounted on the way, leads out of the directory that the path is confined to.
    """

    errno: int


class Special(msgspec.Struct, frozen=True, tag=True):
    """Something that is no regular file. It was not opened."""

    kind: SpecialKind


class Missing(msgspec.Struct, frozen=True, tag=True):
    """Nothing of that name. ``parent_exists`` makes it a deletion; a symlink that leads nowhere is not one.

    ``parent_device`` is the ``st_dev`` of the parent: another one than when the file was read (``directory_device``)
    means that a disk is not mounted. The file's own device is no measure: on an overlay it is not its directory's.
    """

    parent_exists: bool
    parent_device: int | None = None


Reading = Present | OverLimit | Unreadable | Special | Missing
"""What was found at a path."""


class Regular(msgspec.Struct, frozen=True, tag=True):
    """A regular file that was looked at, not read."""

    stamp: Stamp


Look = Regular | Unreadable | Special | Missing
"""What a path is, without reading it."""


class Source(Protocol):
    """Files by canonical absolute path. Symlinks are followed. Nothing here blocks the loop, nor waits for a file
    system that hangs; cancel: safe anywhere."""

    def confine(self, root: str, view: tuple[tuple[str, str | None], ...] = ()) -> None:
        """From now on read and look at paths below ``root`` only if they lead to files below it, symlinks followed.

        For a directory that a sandbox writes to: its symlinks mean the sandbox's files, and must not fetch the host's.
        ``view`` maps each of the sandbox's directories to the host's directory, `None` where it is
        none of the host's. Without, they mean what they would on the host. Where several sandboxes share ``root`` and a
        link means different files to them, it leads nowhere.
        """

    def is_confined(self, path: str) -> bool:
        """True if ``path`` is below a directory that ``confine`` named: a sandbox may have written what is there."""

    async def read(self, path: str | bytes) -> Reading:
        """The file whole, as it is now."""

    async def read_many(self, paths: list[str]) -> list[Reading]:
        """The same of each path, in one hop to a thread. The caller bounds how many bytes it asks for."""

    async def look_many(self, paths: list[str]) -> list[Look]:
        """Look at each path, in one hop to a thread and one stat each."""

    async def resolve_many(self, paths: list[str]) -> list[str]:
        """Each path without symlinks, in one hop to a thread; it need not exist.

        A path below a confined directory is resolved as its sandboxes do. One that leads out, or whose file system
        does not answer, stays as it is.
        """

    async def stat_many(self, paths: list[str]) -> list[bytes | None]:
        """The signature of each regular file, `None` for anything else: the cheapest proof of no change."""

    async def devices_of(self, paths: list[str]) -> list[int | None]:
        """The ``st_dev`` of the nearest directory above each path that can be looked at, in one hop to a thread; `None`
        if its file system does not answer.

        It is the directory's, as in ``Stamp``, so that a path keeps its device whether or not its file is there.
        """


class Limited(Protocol):
    """A source that reads for users who may read less than the daemon."""

    def limit(self, key: str, roots: Collection[str], user: User) -> None:
        """From now on, until ``lift``, what ``user`` may not read below ``roots`` is not read for any caller: what is
        read of a file is one version for all. Directories on the way count, down from the roots."""

    def lift(self, key: str) -> None:
        """End that limit, if there is one."""
