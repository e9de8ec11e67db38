"""The head witness: a small file beside the database that remembers how far the journal reached.

SQLite drops the end of a damaged write-ahead log without a word. The witness is written apart from it, so that such
a loss is noticed. Two slots are written in turn, each with its own check sum: a torn one leaves the other.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final

import msgspec

from ctxd.artifacts.disk import sync_folder

_SLOT: Final = struct.Struct(">8sQ32sI")
_CHECK: Final = struct.Struct(">I")
_SLOT_STRIDE: Final = 512
"""Bytes from slot to slot: a sector each, so that a torn write hits one."""
_MAGIC: Final = b"ctxdhd1\0"


class Head(msgspec.Struct, frozen=True):
    """The newest durable row: its sequence, and the chain hash there (32 bytes). Sequence 0 is before the first row."""

    seq: int
    chain: bytes


def _packed(data: bytes, slot: int) -> bytes:
    return data[slot * _SLOT_STRIDE :][: _SLOT.size]


class WitnessFile:
    """The file ``head`` of a state directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._slot = 0
        self.complaints: tuple[str, ...] = ()
        """Damage that the last ``read`` has found."""

    def read(self) -> Head | None:
        """Return the farthest head that was ever written; None if none is readable."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            self.complaints = (f"{self._path} is missing: a journal that lost its end would not be noticed",)
            return None
        heads = []
        for slot in (0, 1):
            packed = _packed(data, slot)
            if len(packed) == _SLOT.size:
                magic, seq, chain, check = _SLOT.unpack(packed)
                if magic == _MAGIC and check == zlib.crc32(packed[:-4]):
                    heads.append((Head(seq, chain), slot))
        # A slot that was never written is empty or zeros. One write alone fills the first slot only.
        damaged = [slot for slot in (0, 1) if slot not in [found[1] for found in heads] and any(_packed(data, slot))]
        self.complaints = tuple(f"record {slot} in {self._path} does not match its check sum" for slot in damaged)
        if not heads:
            self.complaints = self.complaints or (f"{self._path} holds no record of the journal's end",)
            return None
        farthest, slot = max(heads, key=lambda found: found[0].seq)
        self._slot = 1 - slot
        return farthest

    def write(self, head: Head, *, sync: bool) -> None:
        """Remember ``head``; with ``sync`` on the disk, else as soon as the system likes."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Also when the file was there: its writer may have died before this.
            sync_folder(self._path.parent)
        packed = _SLOT.pack(_MAGIC, head.seq, head.chain, 0)[:-4]
        os.pwrite(self._descriptor, packed + _CHECK.pack(zlib.crc32(packed)), self._slot * _SLOT_STRIDE)
        self._slot = 1 - self._slot
        if sync:
            self.sync()

    def sync(self) -> None:
        """See that what was written is on the disk. May run beside a ``write``."""
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
