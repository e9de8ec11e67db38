"""Port for sources: what sourced objects are bound to, whatever its kind.

A kind is a member of ``ctxd_protocol.object_types.Source``, a row in ``ctxd.objects.document.SOURCE_TYPES``, and a
``SourceAdapter``, which the indexer reads all its sources through. A reading is a value in every case: only a broken
daemon raises.
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
    """A fingerprint of ``FINGERPRINT_BYTES``: the 32 bytes ``proof`` and the size. It is stored and compared."""
    return _FINGERPRINT.pack(proof[:16], size_bytes, proof[16:])


def size_of(fingerprint: bytes) -> int:
    """The size in bytes of what ``fingerprint`` was taken of."""
    size: int = _FINGERPRINT.unpack(fingerprint)[1]
    return size


def decoded_text(raw: bytes) -> str | None:
    """``raw`` decoded; None if it is no text: it holds a NUL or is not UTF-8."""
    if b"\0" in raw:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


class Stamp(msgspec.Struct, frozen=True):
    """State of a source at one moment: an equal ``fingerprint`` means unchanged bytes, if the first was ``settled``.

    ``settled`` false: it changed so shortly before that a second change could leave the same fingerprint. ``volume``
    is a number for the store that it was read from, as a disk or a bucket; None if it was not read.
    """

    fingerprint: bytes
    settled: bool
    volume: int | None = None


class Present(msgspec.Struct, frozen=True, tag=True):
    """A source that was read whole, in one state.

    ``source_hash`` is the hash of ``raw``, ``text`` its ``decoded_text``.
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
    """A source beyond ``FILE_BYTES_MAX``. Nothing of it was kept. ``modified_us`` counts from 1970."""

    size_bytes: int
    modified_us: int
    stamp: Stamp


class Unreadable(msgspec.Struct, frozen=True, tag=True):
    """Something is there, or may be, and cannot be read.

    EAGAIN: it changed during each of several readings. ETIMEDOUT: what holds it does not answer. EXDEV: it leads out
    of what the reading is restricted to.
    """

    errno: int


class Special(msgspec.Struct, frozen=True, tag=True):
    """Something that holds no bytes of its own, as a directory. It was not opened. ``kind`` is for a person."""

    kind: str


class Missing(msgspec.Struct, frozen=True, tag=True):
    """Nothing of that name. ``confirmed``: what would hold it is there, which makes it a deletion.

    ``volume``: see ``Stamp``; another one than when it was read means that its own is away, and nothing was deleted.
    """

    confirmed: bool
    volume: int | None = None


Reading = Present | OverLimit | Unreadable | Special | Missing
"""Result of reading a source."""

S_contra = TypeVar("S_contra", bound=Source, contravariant=True)


class SourceAdapter(Protocol[S_contra]):
    """Sources of one kind. Nothing here blocks the loop, nor waits for what hangs; cancel: safe anywhere."""

    async def read(self, binding: S_contra) -> Reading:
        """The source whole, as it is now."""

    async def read_many(self, bindings: Sequence[S_contra]) -> list[Reading]:
        """The same of each. The caller bounds how many bytes it asks for."""

    async def fingerprint(self, bindings: Sequence[S_contra]) -> list[bytes | None]:
        """The fingerprint of each source that can be read, None for any other: the cheapest proof of no change."""
