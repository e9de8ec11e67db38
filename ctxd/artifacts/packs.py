"""Pack files: consecutive records, each with a header and a checksum of all its bytes.

A pack is appended to up to a limit, then a new one is started. A removed record is overwritten in place and becomes a
dead record of the same length. Everything else about artifacts can be rebuilt from the packs.
"""

import errno
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

from blake3 import blake3

from ctxd.failpoints import hit
from ctxd.file_writes import erase, sync_folder
from ctxd.zstandard import zstd

PACK_BYTES: Final = 64 * 1024 * 1024
"""Size in bytes at which a pack takes no further records."""

Kind = Literal[b"C", b"W", b"M", b"D"]
CHUNK: Final = b"C"
"""A chunk, which manifests refer to by its BLAKE3."""
WHOLE: Final = b"W"
"""An artifact that was not cut."""
MANIFEST: Final = b"M"
"""The chunks of an artifact, in order: hash and size of each. The record's hash is the BLAKE3 of the artifact."""
DEAD: Final = b"D"
"""Zeros in place of a removed record."""

_MAGIC: Final = b"CTXP"
_HEADER: Final = struct.Struct("<4scBxxII32s")
_PART: Final = struct.Struct("<32sI")
_CHECK_BYTES: Final = 16
_HEADER_BYTES: Final = _HEADER.size + _CHECK_BYTES
_RAW: Final = 0
_ZSTD: Final = 1
_LEVEL: Final = 3
_THREAD: Final = threading.local()
_WORTH: Final = 0.9
"""Maximum ratio at which a payload is stored compressed."""


class Location(NamedTuple):
    """A record's location: the number of its pack, its offset there, and its length including the header."""

    pack: int
    at: int
    length: int

    @property
    def end(self) -> int:
        """The offset after the record."""
        return self.at + self.length


class PackRecord(NamedTuple):
    """One record; ``data`` is uncompressed."""

    kind: Kind
    hash: bytes
    data: bytes
    location: Location


class DamagedRecord(Exception):
    """The bytes at ``location`` are not a record, or not the one that was written there."""

    def __init__(self, location: Location, message: str) -> None:
        super().__init__(message)
        self.location = location


def encode(kind: Kind, hash: bytes, data: bytes) -> bytes:
    """Encode ``data`` as a record, compressed if that is worthwhile."""
    payload, encoding = _compressed(data), _ZSTD
    if len(payload) > len(data) * _WORTH:
        payload, encoding = data, _RAW
    header = _HEADER.pack(_MAGIC, kind, encoding, len(payload), len(data), hash)
    return b"".join((header, _check(header, payload), payload))


def _compressed(data: bytes) -> bytes:
    # Reuse the compressor: a new one per record would make the C library map and unmap a megabyte each time.
    compressor = getattr(_THREAD, "compressor", None) or zstd.ZstdCompressor(_LEVEL)
    # Keep it only after success: after an error it may contain part of ``data``.
    _THREAD.compressor = None
    packed: bytes = compressor.compress(data, mode=zstd.ZstdCompressor.FLUSH_FRAME)
    _THREAD.compressor = compressor
    return packed


def manifest_of(parts: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the manifest for these chunks, in order: the hash and size of each."""
    return b"".join(_PART.pack(*part) for part in parts)


def parts_of(record: PackRecord) -> list[tuple[bytes, int]]:
    """The chunks of a manifest in order, as hash and size; empty for other records."""
    return list(_PART.iter_unpack(record.data)) if record.kind == MANIFEST else []


def _dead(length: int) -> bytes:
    payload = bytes(length - _HEADER_BYTES)
    header = _HEADER.pack(_MAGIC, DEAD, _RAW, len(payload), 0, bytes(32))
    return b"".join((header, _check(header, payload), payload))


def _check(header: bytes | memoryview, payload: bytes | memoryview) -> bytes:
    return blake3(header).update(payload).digest(_CHECK_BYTES)


def _decode(raw: memoryview, pack: int, at: int) -> PackRecord:
    """Return the record at the start of ``raw``, whose offset in the pack is ``at``. Raises: DamagedRecord."""
    if len(raw) < _HEADER_BYTES:
        raise DamagedRecord(Location(pack, at, len(raw)), "a record is cut off")
    header = raw[: _HEADER.size]
    magic, kind, encoding, stored, size, hash = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise DamagedRecord(Location(pack, at, 0), "there is no record")
    location = Location(pack, at, _HEADER_BYTES + stored)
    payload = raw[_HEADER_BYTES : location.length]
    if len(payload) < stored or _check(header, payload) != raw[_HEADER.size : _HEADER_BYTES]:
        raise DamagedRecord(location, "a record does not match its check")
    if kind == DEAD:
        return PackRecord(kind, hash, b"", location)
    data = zstd.decompress(payload) if encoding == _ZSTD else bytes(payload)
    if len(data) != size or (kind != MANIFEST and blake3(data).digest() != hash):
        raise DamagedRecord(location, "a record does not match its hash")
    return PackRecord(kind, hash, data, location)


def records(path: Path, at: int = 0) -> Iterator[PackRecord | DamagedRecord]:
    """Every record of the pack in ``path`` from offset ``at`` on, and every damaged place. Blocks.

    After damage it continues with the next intact record. Raises: OSError.
    """
    pack, data = int(path.stem), memoryview(path.read_bytes())
    while at < len(data):
        try:
            record = _decode(data[at:], pack, at)
        except DamagedRecord as damage:
            yield damage
            at = _next_record(data, pack, at)
        else:
            yield record
            at += record.location.length


def _next_record(data: memoryview, pack: int, at: int) -> int:
    raw = data.obj
    assert isinstance(raw, bytes)
    while (at := raw.find(_MAGIC, at + 1)) >= 0:
        with suppress(DamagedRecord):
            _decode(data[at:], pack, at)
            return at
    return len(data)


def _write(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def sync(descriptor: int) -> None:
    """Flush the pack of a ``descriptor`` to the disk, and close it. Raises: OSError."""
    try:
        hit("art.fsync")
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


class Packs:
    """The packs in one folder. Any thread may read; one thread at a time may write, after ``open``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._end = 0
        self._descriptor = -1

    def path(self, number: int) -> Path:
        """Return the path of a pack."""
        return self._folder / f"{number:08d}.pack"

    def numbers(self) -> list[int]:
        """The numbers of the existing packs, in order."""
        return sorted(int(path.stem) for path in self._folder.glob("*.pack") if path.stem.isdecimal())

    def open(self, end: int) -> None:
        """Continue the newest pack at ``end``; bytes after it are cut off. Raises: OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        hit("art.dirsync")
        sync_folder(self._folder)
        sync_folder(self._folder.parent)
        numbers = self.numbers()
        if numbers:
            self._begin(numbers[-1], end)

    def _begin(self, number: int, end: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self.path(number), flags, 0o600)
        self._number, self._end = number, end
        os.ftruncate(self._descriptor, end)

    def close(self) -> None:
        """Close the pack being written."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def writing(self) -> int:
        """The number of the pack being written; 0 without one."""
        return self._number

    @contextmanager
    def append(self, encoded: Sequence[bytes]) -> Iterator[list[Location]]:
        """Append records to the newest pack, without flushing, and yield their locations.

        An error inside cuts them off again, because no removal would find a record that is not in the index. Raises:
        OSError; then none is written.
        """
        locations = self._append(encoded)
        try:
            yield locations
        except BaseException:
            self._end = locations[0].at
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise

    def _append(self, encoded: Sequence[bytes]) -> list[Location]:
        if self._descriptor < 0 or self._end >= PACK_BYTES:
            self._next_pack()
        at = self._end
        try:
            hit("art.write")
            data = b"".join(encoded)
            _write(self._descriptor, data, at)
            # Make the system start writing now: one flush of a large artifact would delay other flushes as long.
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, at, len(data), os.POSIX_FADV_DONTNEED)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, at)
            raise
        locations = []
        for record in encoded:
            locations.append(Location(self._number, self._end, len(record)))
            self._end += len(record)
        return locations

    def _next_pack(self) -> None:
        # Flush this pack, so that later only the newest one has to be.
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)
        number = self._number + 1
        self.close()
        self._begin(number, 0)
        hit("art.dirsync")
        sync_folder(self._folder)

    def descriptor(self) -> int:
        """Return a new descriptor of the pack being written, for ``sync`` concurrently with further writes."""
        return os.dup(self._descriptor)

    def read(self, location: Location) -> PackRecord:
        """Return the record at ``location``. Raises: DamagedRecord; OSError."""
        descriptor = os.open(self.path(location.pack), os.O_RDONLY | os.O_CLOEXEC)
        try:
            raw = os.pread(descriptor, location.length, location.at)
        finally:
            os.close(descriptor)
        record = _decode(memoryview(raw), location.pack, location.at)
        if record.location != location:
            raise DamagedRecord(location, "a record has another length")
        return record

    def erase(self, locations: Iterable[Location]) -> None:
        """Overwrite records; they are off the disk on return. Missing packs are ignored. Raises: OSError."""
        by_pack: dict[int, list[Location]] = {}
        for location in locations:
            by_pack.setdefault(location.pack, []).append(location)
        for number, found in by_pack.items():
            with suppress(FileNotFoundError):
                descriptor = os.open(self.path(number), os.O_RDWR | os.O_CLOEXEC)
                try:
                    for location in found:
                        _write(descriptor, _dead(location.length), location.at)
                    hit("art.erase")
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)

    def end_without(self, locations: Iterable[Location]) -> int | None:
        """Return the end of the newest pack without these records, if they are its last ones; else None."""
        starts = {location.end: location.at for location in locations if location.pack == self._number}
        end = self._end
        while end in starts:
            end = starts[end]
        return end if end < self._end else None

    def cut(self, end: int) -> None:
        """Truncate the newest pack at ``end``, after which all records are erased. Raises: OSError."""
        os.ftruncate(self._descriptor, end)
        self._end = end

    def bury(self, locations: Iterable[Location]) -> None:
        """Erase records that were replaced. One on a bad sector is left. Raises: OSError."""
        for location in locations:
            try:
                self.erase((location,))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise

    def remove(self, number: int) -> None:
        """Overwrite and remove a pack that is not the newest. Raises: OSError."""
        erase(self.path(number))
