"""The head witness: a small file beside the database that remembers how far the journal reached.

SQLite drops the end of a damaged write-ahead log without a word. The witness is written apart from it, so that such a loss
is noticed. Two slots are written in turn, each with its own check sum: a torn one leaves the other.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final

import msgspec

_SLOT: Final = struct.Struct(">8sQ32sI")
_SLOT_STRIDE: Final = 512
"""Bytes from slot to slot: a sector each, so that a torn write hits one."""
_MAGIC: Final = b"ctxdhd1\0"


class Head(msgspec.Struct, frozen=True):
    """The newest durable row: its sequence, and the chain hash there (32 bytes). Sequence 0 is before the first row."""

    seq: int
    chain: bytes


class WitnessFile:
    """The file ``head`` of a state directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = 0

    def read(self) -> Head | None:
        """The farthest head that was ever written; null if none is readable."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        heads = []
        for offset in (0, _SLOT_STRIDE):
            slot = data[offset : offset + _SLOT.size]
            if len(slot) == _SLOT.size:
                magic, seq, chain, check = _SLOT.unpack(slot)
                if magic == _MAGIC and check == zlib.crc32(slot[:-4]):
                    heads.append(Head(seq, chain))
        return max(heads, key=lambda head: head.seq, default=None)

    def write(self, head: Head, *, sync: bool) -> None:
        """Remember ``head``; with ``sync`` on the disk, else as soon as the system likes."""
        slot = _SLOT.pack(_MAGIC, head.seq, head.chain, 0)[:-4]
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, slot + struct.pack(">I", zlib.crc32(slot)), self._written % 2 * _SLOT_STRIDE)
            if sync:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        self._written += 1
