"""Cache of materialised contexts, which are written and read in pieces.

Short contexts are in memory, longer ones in unnamed files in the state directory, which no process, crash or backup can
find. The least recently used go first.
"""

import fcntl
import os
import tempfile
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec
from blake3 import blake3

from ctxd.file_writes import write_all

MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum bytes of contexts in memory."""

FILE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Maximum bytes of contexts in files."""

_SHORT_BYTES: Final = 4 * 1024 * 1024
"""Size of the longest context that is kept in memory."""

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK

Figures = TypeVar("Figures")


class ContextContent:
    """The bytes of one context. They are written once; then any thread may read them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: list[bytes | memoryview] = []
        self._file = self._copy = -1
        self._hash = blake3()
        self.size = 0

    def __del__(self) -> None:
        for each in (self._file, self._copy):
            if each >= 0:
                os.close(each)

    @property
    def is_in_memory(self) -> bool:
        """False if the bytes are in a file."""
        return self._file < 0

    @property
    def artifact_ref(self) -> str:
        """The BLAKE3 of all bytes."""
        return self._hash.hexdigest()

    def write(self, piece: bytes | memoryview) -> None:
        """Append bytes. Raises: OSError."""
        self._hash.update(piece)
        self.size += len(piece)
        if self._file < 0 and self.size <= _SHORT_BYTES:
            self._held.append(piece)
            return
        if self._file < 0:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                self._file = os.dup(file.fileno())
            for each in self._held:
                write_all(self._file, each)
            self._held = []
        write_all(self._file, piece)

    def read(self, offset: int, limit: int) -> bytes:
        """Up to ``limit`` bytes from ``offset`` on; fewer only at the end. Raises: OSError."""
        if self._file < 0:
            # Join the pieces at the first read; a copy does not need that. Another thread may do the same concurrently.
            if len(held := self._held) != 1 or not isinstance(held[0], bytes):
                held = self._held = [b"".join(held)]
            return bytes(held[0][offset : offset + limit])
        found = bytearray()
        while len(found) < limit and (piece := os.pread(self._file, limit - len(found), offset + len(found))):
            found += piece
        return bytes(found)

    @property
    def has_copy(self) -> bool:
        """True if the next ``open_copy`` does not have to write a copy."""
        return self._copy >= 0

    def make_copy(self) -> None:
        """Prepare one result of ``open_copy``, on the thread that wrote the content. Raises: OSError."""
        self._copy = self.open_copy()

    def open_copy(self) -> int:
        """A descriptor of a read-only file with all bytes, positioned at its start. The caller closes it.

        Raises: OSError.
        """
        copy, self._copy = self._copy, -1
        if copy >= 0:
            return copy
        if self._file >= 0:
            return os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
        copy = os.memfd_create("ctxd-context", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            for each in self._held:
                write_all(copy, each)
            fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
            os.lseek(copy, 0, os.SEEK_SET)
        except BaseException:
            os.close(copy)
            raise
        return copy


class CachedContext(msgspec.Struct, Generic[Figures], frozen=True):
    """A context: its bytes, and its figures."""

    content: ContextContent
    figures: Figures


class ContextCache(Generic[Figures]):
    """Contexts by key, in two kinds: in memory and in files. The newest of each kind is kept whatever its size."""

    def __init__(self) -> None:
        self._kept: tuple[OrderedDict[Hashable, CachedContext[Figures]], ...] = (OrderedDict(), OrderedDict())
        self._bytes = [0, 0]

    def get(self, key: Hashable) -> CachedContext[Figures] | None:
        """The context of ``key``, or None; marks it as the most recently used."""
        for kept in self._kept:
            if (found := kept.get(key)) is not None:
                kept.move_to_end(key)
                return found
        return None

    def put(self, key: Hashable, made: CachedContext[Figures]) -> None:
        """Cache a context, and drop the least recently used ones of its kind if they exceed its limit."""
        kind = 0 if made.content.is_in_memory else 1
        kept = self._kept[kind]
        if (replaced := kept.pop(key, None)) is not None:
            self._bytes[kind] -= replaced.content.size
        kept[key] = made
        self._bytes[kind] += made.content.size
        while self._bytes[kind] > (MEMORY_BYTES_MAX, FILE_BYTES_MAX)[kind] and len(kept) > 1:
            _, oldest = kept.popitem(last=False)
            self._bytes[kind] -= oldest.content.size

    def clear(self) -> None:
        """Drop all contexts. A file is removed once no call reads it any more."""
        for kept in self._kept:
            kept.clear()
        self._bytes = [0, 0]
