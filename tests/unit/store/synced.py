"""Folders whose entries a power cut could remove.

Stands alone because the tests of several programs that write a state directory use it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Synced:
    """``seen``: the folders that were synced, in order, each with its entries at that time; ``entries``: the last."""

    def __init__(self) -> None:
        self.seen: list[tuple[Path, set[str]]] = []

    @property
    def entries(self) -> dict[Path, set[str]]:
        return dict(self.seen)

    def lost(self, *folders: Path) -> list[Path]:
        """The entries of ``folders`` and of those in them that were never synced."""
        entries = self.entries
        inside = [each for folder in folders for each in folder.rglob("*") if each.is_dir()]
        return sorted(
            folder / name
            for folder in (*folders, *inside)
            for name in set(os.listdir(folder)) - entries.get(folder, set())
        )


@contextmanager
def noting_syncs() -> Iterator[Synced]:
    """Note the folders that Python code syncs inside; SQLite's own syncs are not seen."""
    synced, fsync = Synced(), os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            synced.seen.append((path, set(os.listdir(path))))

    os.fsync = noted  # type: ignore[assignment]
    try:
        yield synced
    finally:
        os.fsync = fsync
