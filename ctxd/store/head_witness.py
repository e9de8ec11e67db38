"""The head witness: a small file beside the database that records how far the journal reached.

SQLite silently drops the end of a damaged write-ahead log. The witness is a separate file, so that such a loss is
noticed. Two slots are written in turn, each with its own checksum, so a torn write leaves the other one intact.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final

import msgspec

from ctxd.file_writes import sync_folder

_SLOT: Final = struct.Struct(">8sQ32sI")
_CHECK: Final = struct.Struct(">I")
_SLOT_STRIDE: Final = 512
"""Bytes from slot to slot: one sector each, so that a torn write damages only one."""
_MAGIC: Final = b"ctxdhd1\0"


class Head(msgspec.Struct, frozen=True):
    """The newest durable row: its sequence and chain hash (32 bytes). Sequence 0 is before the first row."""

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
        """Damage found by the last ``read``."""

    def read(self) -> Head | None:
        """Return the newest head that was written; None if none is readable."""
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
        # A slot that was never written is empty or zeros. A single write fills only the first slot.
        damaged = [slot for slot in (0, 1) if slot not in [found[1] for found in heads] and any(_packed(data, slot))]
        self.complaints = tuple(f"record {slot} in {self._path} does not match its check sum" for slot in damaged)
        if not heads:
            self.complaints = self.complaints or (f"{self._path} holds no record of the journal's end",)
            return None
        farthest, slot = max(heads, key=lambda found: found[0].seq)
        self._slot = 1 - slot
        return farthest

    def write(self, head: Head, *, sync: bool) -> None:
        """Write ``head``; with ``sync`` flush it to the disk, else leave that to the system."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Also if the file existed: its creator may have died before this.
            sync_folder(self._path.parent)
        packed = _SLOT.pack(_MAGIC, head.seq, head.chain, 0)[:-4]
        os.pwrite(self._descriptor, packed + _CHECK.pack(zlib.crc32(packed)), self._slot * _SLOT_STRIDE)
        self._slot = 1 - self._slot
        if sync:
            self.sync()

    def sync(self) -> None:
        """Flush earlier writes to the disk. May run concurrently with ``write``."""
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
