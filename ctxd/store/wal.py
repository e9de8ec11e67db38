"""SQLite's write-ahead log: when it is copied into the database, and when it begins again from its start.

A copy takes milliseconds, most of them waiting for the disk, and no write needs it: it is made beside the writer, on a
thread of its own. Beside the writer the log cannot begin again, for the writer has always gone on meanwhile: that takes
a copy that the writer waits for, and finds little to copy after one of the others.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Final

from ctxd import dbfile, limits
from ctxd.failpoints import hit
from ctxd.offload import background
from ctxd.store.witness import WitnessFile

_PAGE_BYTES: Final = 4096


class WriteAheadLog:
    """The log of one writing connection. Called from one thread at a time, the one that writes.

    Its methods raise ``dbfile.DiskFull`` and ``dbfile.DiskFailed``, also for a copy that was begun earlier; after the
    latter nothing may be written.
    """

    def __init__(self, path: Path, writer: dbfile.Connection, witness: WitnessFile) -> None:
        """``path`` is the database; ``witness`` is put on the disk after each copy."""
        self._path = path
        self._writer = writer
        self._witness = witness
        self._copier = dbfile.open_reader(path)
        self._copier.execute("PRAGMA synchronous=FULL").fetchall()
        self._copying: Future[None] | None = None
        self._pages = 0
        self._copied = 0
        writer.set_wal_hook(self._note)

    @property
    def is_copied(self) -> bool:
        """True if all of it was copied, and nothing is being copied."""
        return self._pages <= self._copied and self._copying is None

    @property
    def size(self) -> int:
        """Bytes of its file."""
        try:
            return os.stat(f"{self._path}-wal").st_size
        except FileNotFoundError:
            return 0

    def beside(self, work: Callable[[], None]) -> None:
        """Call ``work`` on the copying thread, then copy the log there; requires ``is_idle``. May raise there."""
        assert self._copying is None, "one copy at a time"
        self._copied = self._pages
        self._copying = background(partial(self._copy, work))

    def is_idle(self) -> bool:
        """True if nothing is being copied. Raises what a copy that has ended raised."""
        if self._copying is not None and self._copying.done():
            self.wait()
        return self._copying is None

    def shorten(self) -> None:
        """Start a copy beside the writer if the log has grown; restart the log if it is long and mostly copied."""
        grown = (self._pages - self._copied) * _PAGE_BYTES
        if self._copying is not None and self._copying.done():
            self.wait()
            if self._pages * _PAGE_BYTES >= limits.LOG_BYTES:
                self.copy(truncate=False)
        elif self._copying is None and grown >= limits.CHECKPOINT_BYTES:
            self._copied = self._pages
            self._copying = background(self._copy)
        elif grown >= limits.LOG_BYTES:
            self.copy(truncate=False)

    def copy(self, *, truncate: bool) -> None:
        """Copy it while the writer waits, so that it begins again; with ``truncate`` also empty its file."""
        self.wait()
        hit("checkpoint.start")
        with dbfile.faults():
            dbfile.checkpoint(self._writer, truncate=truncate)
        # A reader may have kept the log from being begun again: then the next turn comes as many pages later.
        self._copied = self._pages
        hit("checkpoint.end")

    def close(self) -> None:
        """Wait for the copy that is made, whatever comes of it, and copy no more."""
        if self._copying is not None:
            wait([self._copying])
        self._copier.close()

    def wait(self) -> None:
        """Wait for the copy that is being made. Raises what it raised."""
        if self._copying is not None:
            copying, self._copying = self._copying, None
            copying.result()

    def _copy(self, before: Callable[[], None] = lambda: None) -> None:
        with dbfile.faults():
            before()
        hit("checkpoint.start")
        with dbfile.faults():
            dbfile.checkpoint(self._copier, truncate=False)
            hit("checkpoint.end")
            self._witness.sync()

    def _note(self, connection: dbfile.Connection, name: str, pages: int) -> int:
        if pages < self._copied:
            # The log began again from its start.
            self._copied = 0
        self._pages = pages
        return 0
