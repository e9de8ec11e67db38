"""Artifacts that an earlier version kept in one file each: they can be read, and a start moves them into packs."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from blake3 import blake3

from ctxd import sqlite_file
from ctxd.file_writes import erase
from ctxd.formatting import count

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_FOLDER: Final = re.compile(r"[0-9a-f]{2}")
_TEMPORARY: Final = ".tmp-*"


class LooseFiles:
    """The files below one folder, each ``ab/abcd…`` with the bytes of that address. Methods block."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, ref: str) -> Path:
        """Return the path of the artifact ``ref``, whether or not it exists."""
        return self._root / ref[:2] / ref

    def size(self, ref: str) -> int | None:
        """The size of ``ref`` in bytes; None if it has no file."""
        try:
            return self.path(ref).stat().st_size
        except FileNotFoundError:
            return None

    def names(self) -> Iterator[str]:
        """The names of all files, in order."""
        for folder in self._folders():
            yield from sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))

    def _folders(self) -> list[Path]:
        if not self._root.is_dir():
            return []
        return sorted(path for path in self._root.iterdir() if _FOLDER.fullmatch(path.name) and path.is_dir())

    def pack(self, keep: Callable[[bytes], None]) -> sqlite_file.DiskFull | None:
        """Pass the bytes of each file to ``keep``, which makes them durable elsewhere, then remove the file.

        Returns: the error if the disk became full, in which case the next start moves the rest; None if all are moved.
        Raises: OSError; ``sqlite_file``'s other errors.
        """
        for folder in self._folders():
            for path in folder.glob(_TEMPORARY):
                erase(path)
        names = list(self.names())
        for at, ref in enumerate(names):
            path = self.path(ref)
            data = path.read_bytes()
            # Leave a damaged file in place, so that reads of it are reported as damage.
            if blake3(data).hexdigest() == ref:
                try:
                    with sqlite_file.faults():
                        keep(data)
                except sqlite_file.DiskFull as error:
                    left = count(len(names) - at, "artifact")
                    message = f"{left} of an earlier version stay in files of their own until the next start: {error}"
                    full = sqlite_file.DiskFull(message)
                    full.hint = error.hint
                    return full
                erase(path)
        for folder in self._folders():
            with suppress(OSError):
                folder.rmdir()
        return None
