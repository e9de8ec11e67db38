"""Contexts that were materialised: written in pieces, kept for a while, and read in pieces.

A short one is in memory, a longer one in a file without a name in the state directory, so that no process, crash or
backup finds it. Least recently used ones go first.
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

MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of contexts in memory."""

FILE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Bytes of contexts in files."""

_SHORT_BYTES: Final = 4 * 1024 * 1024
"""Bytes up to which a context is in memory."""

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK

Figures = TypeVar("Figures")


class ContextContent:
    """Bytes of one context. Written once; then any thread may read them."""

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
        """False if it is in a file."""
        return self._file < 0

    @property
    def artifact_ref(self) -> str:
        """The BLAKE3 of all bytes."""
        return self._hash.hexdigest()

    def write(self, piece: bytes | memoryview) -> None:
        """Add bytes. Raises: OSError."""
        self._hash.update(piece)
        self.size += len(piece)
        if self._file < 0 and self.size <= _SHORT_BYTES:
            self._held.append(piece)
            return
        if self._file < 0:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                self._file = os.dup(file.fileno())
            for each in self._held:
                _write_all(self._file, each)
            self._held = []
        _write_all(self._file, piece)

    def read(self, offset: int, limit: int) -> bytes:
        """At most ``limit`` bytes from ``offset`` on; fewer at the end only. Raises: OSError."""
        if self._file < 0:
            # Joined once it is read, which a copy does not need. Another thread may do the same meanwhile.
            if len(held := self._held) != 1 or not isinstance(held[0], bytes):
                held = self._held = [b"".join(held)]
            return bytes(held[0][offset : offset + limit])
        found = bytearray()
        while len(found) < limit and (piece := os.pread(self._file, limit - len(found), offset + len(found))):
            found += piece
        return bytes(found)

    @property
    def has_copy(self) -> bool:
        """True if ``open_copy`` has its result at once."""
        return self._copy >= 0

    def make_copy(self) -> None:
        """Prepare one result of ``open_copy``, where the content was written. Raises: OSError."""
        self._copy = self.open_copy()

    def open_copy(self) -> int:
        """A descriptor of a file with all bytes, at its start, which its holders cannot change. The caller closes it.

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
                _write_all(copy, each)
            fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
            os.lseek(copy, 0, os.SEEK_SET)
        except BaseException:
            os.close(copy)
            raise
        return copy


def _write_all(file: int, piece: bytes | memoryview) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(file, view) :]


class CachedContext(msgspec.Struct, Generic[Figures], frozen=True):
    """A context: its bytes, and its figures."""

    content: ContextContent
    figures: Figures


class ContextCache(Generic[Figures]):
    """Contexts by key. Of each kind, those in memory and those in files, the newest is kept however large it is."""

    def __init__(self) -> None:
        self._kept: tuple[OrderedDict[Hashable, CachedContext[Figures]], ...] = (OrderedDict(), OrderedDict())
        self._bytes = [0, 0]

    def get(self, key: Hashable) -> CachedContext[Figures] | None:
        """The context of ``key``, which is the most recently used one now."""
        for kept in self._kept:
            if (found := kept.get(key)) is not None:
                kept.move_to_end(key)
                return found
        return None

    def put(self, key: Hashable, made: CachedContext[Figures]) -> None:
        """Keep a context; the least recently used ones of its kind go if they are too many bytes."""
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
        """Forget all contexts. A file goes with the last call that reads it."""
        for kept in self._kept:
            kept.clear()
        self._bytes = [0, 0]
