"""Interface of sources of any kind: the things that sourced objects are bound to.

A kind is a member of ``ctxd_protocol.object_types.Source``, a row in ``ctxd.objects.document.SOURCE_TYPES``, and a
``SourceAdapter``, through which the indexer reads. A reading is always a value; an exception means a bug in the daemon.
"""

import struct
from collections.abc import Sequence
from typing import Final, Literal, Protocol, TypeVar

import msgspec

from ctxd_protocol.object_types import Source

_FINGERPRINT: Final = struct.Struct("<16sQ16s")

FINGERPRINT_BYTES: Final = _FINGERPRINT.size

LEADS_OUT: Final = "it leads out of the mount, by a symlink or onto another file system"
"""Reason given for a source that is ``Unreadable`` with EXDEV."""


def fingerprint_of(proof: bytes, size_bytes: int) -> bytes:
    """A fingerprint of ``FINGERPRINT_BYTES`` from the 32 bytes ``proof`` and the size, to be stored and compared."""
    return _FINGERPRINT.pack(proof[:16], size_bytes, proof[16:])


def size_of(fingerprint: bytes) -> int:
    """The size in bytes of the source that ``fingerprint`` was made from."""
    size: int = _FINGERPRINT.unpack(fingerprint)[1]
    return size


def decoded_text(raw: bytes) -> str | None:
    """``raw`` decoded; None if it is not text: it contains a NUL or is not UTF-8."""
    if b"\0" in raw:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


class Stamp(msgspec.Struct, frozen=True):
    """State of a source at one moment: an equal ``fingerprint`` means unchanged bytes, if the first was ``settled``.

    ``settled`` False: it changed so recently that another change could leave the same fingerprint. ``volume``
    identifies the store that it was read from, such as a disk or a bucket; None if it was not read.
    """

    fingerprint: bytes
    settled: bool
    volume: int | None = None


class Present(msgspec.Struct, frozen=True, tag=True):
    """A source that was read completely, in one state.

    ``source_hash`` is the hash of ``raw``, ``text`` its ``decoded_text``.
    """

    raw: bytes
    source_hash: str
    text: str | None
    stamp: Stamp

    @property
    def kind(self) -> Literal["text", "binary"]:
        """The kind of content."""
        return "binary" if self.text is None else "text"


class OverLimit(msgspec.Struct, frozen=True, tag=True):
    """A source larger than ``FILE_BYTES_MAX``, whose content was not kept. ``modified_us``: microseconds since 1970."""

    size_bytes: int
    modified_us: int
    stamp: Stamp


class Unreadable(msgspec.Struct, frozen=True, tag=True):
    """A source that exists, or may exist, but cannot be read.

    EAGAIN: it changed during each of several reads. ETIMEDOUT: its store does not respond. EXDEV: it leads out of the
    directories that reads are confined to.
    """

    errno: int


class Special(msgspec.Struct, frozen=True, tag=True):
    """A source without content of its own, such as a directory, or with content that is only the daemon's. It was not
    opened. ``kind`` is for people."""

    kind: str


class Missing(msgspec.Struct, frozen=True, tag=True):
    """A source that does not exist. ``confirmed``: its container exists, so it was deleted.

    ``volume``: see ``Stamp``; if it differs from the last one, that one is not mounted, and nothing was deleted.
    """

    confirmed: bool
    volume: int | None = None


Reading = Present | OverLimit | Unreadable | Special | Missing
"""Result of reading a source."""

S_contra = TypeVar("S_contra", bound=Source, contravariant=True)


class SourceAdapter(Protocol[S_contra]):
    """Sources of one kind. No method blocks the loop or waits for a source that hangs. Cancel: safe everywhere."""

    async def read(self, binding: S_contra) -> Reading:
        """Read the whole source, as it is now."""

    async def read_many(self, bindings: Sequence[S_contra]) -> list[Reading]:
        """Read each source. The caller bounds the total size."""

    async def fingerprint(self, bindings: Sequence[S_contra]) -> list[bytes | None]:
        """The fingerprint of each source that can be read, None for any other: the cheapest proof of no change."""
