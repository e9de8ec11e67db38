"""Snapshots of chains: files that each hold the joined contents of consecutive commits, so that a context of a long
chain takes a few reads.

They are a cache beside the database. A file is verified when it is read; one that is missing or damaged is as if it had
never been made, so none is flushed. The least recently used ones go above a bound. A purge of commits drops all of
them, before it is acknowledged from what is found and then from the disk: which texts a file holds is not indexed.
"""

import os
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from blake3 import blake3

from ctxd.artifacts.disk import erase
from ctxd.failpoints import hit

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FOLDER: Final = "snapshots"
SUFFIX: Final = ".snapshot"
BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of all files, compressed."""

_LEVEL: Final = 6
_HASH_BYTES: Final = 32
_LENGTH_BYTES: Final = 4


class SnapshotGone(Exception):
    """The file of a snapshot is missing or damaged."""


class SnapshotPart(msgspec.Struct, frozen=True, array_like=True):
    """Joined deltas of one format: the sums of their counts, and the number of bytes."""

    format: str
    messages: int
    tokens: int
    size: int


class ChainSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The contents of consecutive commits of a chain, oldest first, without those of compactions and snapshots.

    ``newest``, ``oldest`` and ``parent`` are entity ids, the last one that of the commit before the oldest, which is no
    boundary; empty at the root. ``boundaries``: the number of commits that are left out. ``messages``: the sum of all
    message counts of the commits. ``digest``: the BLAKE3 of the compressed contents.
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
        """Number of times that all were dropped."""

    def load(self) -> None:
        """Find out which files there are, which otherwise the first walk along a chain does. Raises: OSError."""
        with self._lock:
            self._known()

    def find(self, newest: str, *, across: bool) -> ChainSnapshot | None:
        """The snapshot that ends with the commit ``newest``; with ``across`` one that leaves out boundaries, if there
        is one."""
        with self._lock:
            for crosses in (True, False) if across else (False,):
                name = _name(newest, crosses)
                if name in self._known():
                    try:
                        with (self._folder / name).open("rb") as file:
                            # A walk that finds it reads all of it soon.
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
        """Write a snapshot unless all were dropped since there were ``drops``: its contents were read before that.

        Raises: OSError; nothing is kept.
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
                # One that was dropped is not replaced: what it holds has to be overwritten.
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
        """Remove a snapshot that another one has taken in."""
        with self._lock:
            self._forget(_name(snapshot.newest, bool(snapshot.boundaries)))

    def drop(self) -> None:
        """Forget all snapshots; ``erase`` removes their files. A read that is under way may still return one."""
        with self._lock:
            self._sizes = OrderedDict()
            self.drops += 1

    def erase(self) -> None:
        """Overwrite and remove the files of snapshots that were dropped. Raises: OSError."""
        with self._lock:
            known = self._known()
            dropped = [path for path in self._files() if path.name not in known]
        # Without the lock: others read meanwhile. One that is kept again under such a name may be lost, as any may.
        for path in dropped:
            hit("purge.snapshot")
            erase(path)

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
        """All that lies in the folder, but for folders, which no snapshot is."""
        found = self._folder.glob("*") if self._folder.is_dir() else ()
        return [path for path in found if path.is_symlink() or not path.is_dir()]

    def _forget(self, name: str) -> None:
        if self._known().pop(name, None) is not None:
            (self._folder / name).unlink(missing_ok=True)


def contents(path: Path) -> bytes:
    """The uncompressed contents in the file ``path``; nothing of a damaged one. Raises: OSError."""
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
    """Read the description of a snapshot, after which its compressed contents follow. Raises: OSError, ValueError."""
    start = file.read(_HASH_BYTES + _LENGTH_BYTES)
    head = file.read(int.from_bytes(start[_HASH_BYTES:], "big"))
    if blake3(head).digest() != start[:_HASH_BYTES]:
        raise ValueError("the file of a snapshot is damaged")
    return msgspec.msgpack.decode(head, type=ChainSnapshot)
