"""Snapshots of chains: each file holds the joined contents of consecutive commits, so that building the context of a
long chain takes only a few reads.

They are a cache beside the database. Files are verified when read, and a missing or damaged file is a cache miss, so
none is flushed. The least recently used files are removed when their total size exceeds a bound. No index records which
texts a file holds, so a purge of commits drops all of them: from lookups before the purge is acknowledged, from the
disk afterwards.
"""

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from blake3 import blake3

from ctxd.failpoints import hit
from ctxd.file_writes import erase
from ctxd.zstandard import zstd

FOLDER: Final = "snapshots"
SUFFIX: Final = ".snapshot"
BYTES_MAX: Final = 256 * 1024 * 1024
"""Limit on the total size of the files, in bytes, compressed."""

_LEVEL: Final = 6
_HASH_BYTES: Final = 32
_LENGTH_BYTES: Final = 4


class SnapshotGone(Exception):
    """The file of a snapshot is missing or damaged."""


class SnapshotPart(msgspec.Struct, frozen=True, array_like=True):
    """Joined deltas of one format: the sums of their counts, and their size in bytes."""

    format: str
    messages: int
    tokens: int
    size: int


class ChainSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The contents of consecutive commits of a chain, oldest first, except those of compactions and snapshots.

    ``newest``, ``oldest`` and ``parent`` are entity ids; ``oldest`` is not a boundary, and ``parent`` is its parent,
    empty at the root. ``boundaries``: the number of commits left out. ``messages``: the sum of all message counts of
    the commits. ``digest``: the BLAKE3 of the compressed contents.
    """

    newest: str
    oldest: str
    parent: str
    commits: int
    boundaries: int
    messages: int
    parts: tuple[SnapshotPart, ...]
    digest: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the contents."""
        return sum(part.size for part in self.parts)


class ChainSnapshots:
    """The snapshots of one state directory. Any thread may call it; it blocks for reads and writes of a few MiB."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] | None = None
        self.drops = 0
        """Number of calls of ``drop``."""

    def load(self) -> None:
        """List the files now, so that the first walk along a chain need not. Raises: OSError."""
        with self._lock:
            self._known()

    def find(self, newest: str, *, across: bool) -> ChainSnapshot | None:
        """The snapshot that ends with the commit ``newest``; ``across``: preferably one without boundaries."""
        with self._lock:
            for crosses in (True, False) if across else (False,):
                name = _name(newest, crosses)
                if name in self._known():
                    try:
                        with (self._folder / name).open("rb") as file:
                            # The walk will soon read the whole file.
                            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
                            return _head(file)
                    except (OSError, ValueError):
                        self._forget(name)
        return None

    def read(self, snapshot: ChainSnapshot) -> bytes:
        """The contents of a snapshot. Raises: SnapshotGone."""
        name = _name(snapshot.newest, bool(snapshot.boundaries))
        try:
            with (self._folder / name).open("rb") as file:
                found, packed = _head(file), file.read()
            if found != snapshot or blake3(packed).digest() != snapshot.digest:
                raise SnapshotGone(f"{self._folder / name} is another one or damaged")
            content = zstd.decompress(packed)
        except (OSError, ValueError, zstd.ZstdError) as error:
            with self._lock:
                self._forget(name)
            raise SnapshotGone(f"{self._folder / name} cannot be read: {error}") from error
        with self._lock:
            if name in self._known():
                self._known().move_to_end(name)
        return content

    def keep(self, snapshot: ChainSnapshot, content: bytes, drops: int) -> None:
        """Write a snapshot, unless ``self.drops`` is no longer ``drops``: then its contents were read before a purge.

        Raises: OSError; then nothing is kept.
        """
        packed = zstd.compress(content, _LEVEL)
        head = msgspec.msgpack.encode(msgspec.structs.replace(snapshot, digest=blake3(packed).digest()))
        data = blake3(head).digest() + len(head).to_bytes(_LENGTH_BYTES, "big") + head + packed
        path = self._folder / _name(snapshot.newest, bool(snapshot.boundaries))
        with self._lock:
            known = self._known()
            if drops != self.drops:
                return
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if path.name not in known:
                # Do not replace a dropped file: its content has to be overwritten.
                erase(path)
            partial = path.with_suffix(".partial")
            try:
                with open(partial, "wb", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
                    file.write(data)
                partial.replace(path)
            except OSError:
                partial.unlink(missing_ok=True)
                raise
            known[path.name] = len(data)
            known.move_to_end(path.name)
            while sum(known.values()) > BYTES_MAX and len(known) > 1:
                self._forget(next(iter(known)))

    def discard(self, snapshot: ChainSnapshot) -> None:
        """Remove a snapshot whose contents are now part of another one."""
        with self._lock:
            self._forget(_name(snapshot.newest, bool(snapshot.boundaries)))

    def drop(self) -> None:
        """Forget all snapshots; ``erase`` removes their files. A read that is under way may still return one."""
        with self._lock:
            self._sizes = OrderedDict()
            self.drops += 1

    def erase(self) -> None:
        """Overwrite and remove the files of snapshots that were dropped. Raises: OSError."""
        # Without the lock, so that reads continue. It is harmless if a snapshot kept again under such a name is lost.
        for path in self.dropped():
            hit("purge.snapshot")
            erase(path)

    def dropped(self) -> list[Path]:
        """The files that ``erase`` would remove. Raises: OSError."""
        with self._lock:
            known = self._known()
            return [path for path in self._files() if path.name not in known]

    def _known(self) -> OrderedDict[str, int]:
        """The bytes of each file, least recently used first."""
        if self._sizes is None:
            found = []
            for path in self._files():
                if path.suffix == SUFFIX and not path.is_symlink():
                    stat = path.stat()
                    found.append((stat.st_mtime_ns, path.name, stat.st_size))
                else:
                    path.unlink()
            self._sizes = OrderedDict((name, size) for _, name, size in sorted(found))
        return self._sizes

    def _files(self) -> list[Path]:
        """Everything in the folder except subfolders."""
        found = self._folder.glob("*") if self._folder.is_dir() else ()
        return [path for path in found if path.is_symlink() or not path.is_dir()]

    def _forget(self, name: str) -> None:
        if self._known().pop(name, None) is not None:
            (self._folder / name).unlink(missing_ok=True)


def contents(path: Path) -> bytes:
    """The uncompressed contents of the file ``path``; empty if it is damaged. Raises: OSError."""
    with path.open("rb") as file:
        try:
            _head(file)
            return zstd.decompress(file.read())
        except (ValueError, zstd.ZstdError):
            return b""


def _name(newest: str, crosses: bool) -> str:
    kind = "across" if crosses else "plain"
    return f"{newest.partition(':')[2]}.{kind}{SUFFIX}"


def _head(file: BinaryIO) -> ChainSnapshot:
    """Read the description of a snapshot; its compressed contents follow. Raises: OSError, ValueError."""
    start = file.read(_HASH_BYTES + _LENGTH_BYTES)
    head = file.read(int.from_bytes(start[_HASH_BYTES:], "big"))
    if blake3(head).digest() != start[:_HASH_BYTES]:
        raise ValueError("the file of a snapshot is damaged")
    return msgspec.msgpack.decode(head, type=ChainSnapshot)
