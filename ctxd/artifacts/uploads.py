"""Uploads: unfinished artifacts that arrive in pieces; each piece is on the disk before it is acknowledged.

An upload survives disconnects and restarts: its file has all acknowledged bytes, perhaps followed by a torn piece. The
next piece goes to its end.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from ctxd.errors import CtxdError
from ctxd.failpoints import hit
from ctxd.file_writes import erase, sync_folder

KEPT_MS: Final = 24 * 3_600_000
"""Milliseconds for which an upload is kept after its newest piece."""

_READ_BYTES: Final = 256 * 1024
"""Below the C library's mmap threshold: see ``process_setup.tune_malloc``."""


class Uploads:
    """The uploads in one folder, one file each. Methods block; one call at a time per upload."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.upload"

    def size(self, name: str) -> int:
        """The size of the upload ``name`` in bytes; 0 if it is new. Raises: OSError."""
        try:
            return self._path(name).stat().st_size
        except FileNotFoundError:
            return 0

    def write(self, name: str, offset: int, data: bytes) -> int:
        """Write a piece at ``offset``, which must not leave a gap, and flush it. Returns: the upload's size in bytes.

        A repeated piece is written again; one at offset 0 restarts the upload.

        Raises: CtxdError ``upload_offset_mismatch``; OSError.
        """
        size = self.size(name)
        if offset > size:
            hint = f"Continue at offset {size}."
            message = f"the upload has {size} bytes, so offset {offset} would leave a gap"
            raise CtxdError("upload_offset_mismatch", message, hint=hint, outcome="not_applied")
        is_new = not self._path(name).exists()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if offset == 0:
                os.ftruncate(descriptor, 0)
                size = 0
            view = memoryview(data)
            while view:
                hit("upload.write")
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(self._folder)
            sync_folder(self._folder.parent)
        return max(size, offset)

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of an upload. Raises: as ``open``."""
        with self.open(name) as file:
            while data := file.read(_READ_BYTES):
                yield data

    def open(self, name: str) -> BinaryIO:
        """Open an upload for reading. Raises: CtxdError ``upload_offset_mismatch`` for an unknown one; OSError."""
        try:
            return self._path(name).open("rb")
        except FileNotFoundError:
            message, hint = "upload: there is no upload of this name", "Send its pieces with artifact.upload first."
            raise CtxdError("upload_offset_mismatch", message, hint=hint, outcome="not_applied") from None

    def remove(self, name: str) -> None:
        """Overwrite and remove an upload. A missing one is ignored. Raises: OSError."""
        erase(self._path(name))

    def remove_stale(self, now_ms: int) -> None:
        """Remove the uploads whose newest piece is older than ``KEPT_MS``. Raises: OSError."""
        if self._folder.is_dir():
            for path in self._folder.glob("*.upload"):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime_ns // 1_000_000 < now_ms - KEPT_MS:
                        erase(path)
