"""Artifacts that an earlier version kept in a file each: read where they are, and moved into packs by a start."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from blake3 import blake3

from ctxd import dbfile
from ctxd.artifacts.disk import erase
from ctxd.formatting import count

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_FOLDER: Final = re.compile(r"[0-9a-f]{2}")
_TEMPORARY: Final = ".tmp-*"


class LooseFiles:
    """The files below one folder, each ``ab/abcd…`` with the bytes of that address. Calls block."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, ref: str) -> Path:
        """Return the place of the artifact ``ref``, there or not."""
        return self._root / ref[:2] / ref

    def size(self, ref: str) -> int | None:
        """The size of ``ref`` in bytes; None if it has no file."""
        try:
            return self.path(ref).stat().st_size
        except FileNotFoundError:
            return None

    def names(self) -> Iterator[str]:
        """The names of all there are, in order."""
        for folder in self._folders():
            yield from sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))

    def _folders(self) -> list[Path]:
        if not self._root.is_dir():
            return []
        return sorted(path for path in self._root.iterdir() if _FOLDER.fullmatch(path.name) and path.is_dir())

    def pack(self, keep: Callable[[bytes], None]) -> dbfile.DiskFull | None:
        """Hand the bytes of each file to ``keep``, which puts them on the disk elsewhere, then remove the file.

        Returns: the want of room for which the others stay where they are, to be moved by the next start; None if all
        are moved. Raises: OSError; ``dbfile``'s other errors.
        """
        for folder in self._folders():
            for path in folder.glob(_TEMPORARY):
                erase(path)
        names = list(self.names())
        for at, ref in enumerate(names):
            path = self.path(ref)
            data = path.read_bytes()
            # A damaged one stays where it is, so that what refers to it is reported with it.
            if blake3(data).hexdigest() == ref:
                try:
                    with dbfile.faults():
                        keep(data)
                except dbfile.DiskFull as error:
                    left = count(len(names) - at, "artifact")
                    message = f"{left} of an earlier version stay in files of their own until the next start: {error}"
                    full = dbfile.DiskFull(message)
                    full.hint = error.hint
                    return full
                erase(path)
        for folder in self._folders():
            with suppress(OSError):
                folder.rmdir()
        return None
