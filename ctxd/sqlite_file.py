"""Access to one SQLite file: opening it, bulk inserts, translated errors, its write-ahead log, and compressed values.

Sets the pragmas that durability depends on: write-ahead log, ``synchronous=FULL``, no automatic checkpoint (only the
writing connection checkpoints), no memory map. Knows no table.
"""

import errno
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import apsw

from ctxd import limits
from ctxd.failpoints import hit
from ctxd.worker_threads import background
from ctxd.zstandard import zstd

Connection = apsw.Connection
"""A connection. One thread at a time may use it."""

CHUNKS: Final = (256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Rows per INSERT. Powers of two, so that few statements take any number of rows, and all stay prepared; large ones, so
that the interpreter lock is rarely released: a thread that releases it once per row waits for the event loop once per
row."""

BUSY_MS: Final = 10_000
"""Milliseconds that a statement waits for another process's lock."""

_USER_VERSION_OFFSET: Final = 60
_SQLITE_MAGIC: Final = b"SQLite format 3\0"


class DiskFull(Exception):
    """The disk, or another resource that a transaction needs, is exhausted. The transaction was rolled back completely;
    a copy of the write-ahead log has to be repeated.

    ``hint`` is the remedy; empty: free space.
    """

    def __init__(self, message: str, number: int | None = None) -> None:
        """``number`` is the system's errno, if there is one."""
        super().__init__(message)
        self.hint = _REMEDIES.get(number, "")


class DiskFailed(Exception):
    """A disk operation failed. The content of the disk is unknown until it is read again."""


class CannotOpen(DiskFailed):
    """A file cannot be opened: the user may not read or write it, or its write-ahead log is on a read-only disk."""


class FileDamaged(Exception):
    """The file is damaged: SQLite did not write it so."""


class SqlFailed(Exception):
    """SQLite rejected a statement: a table is not as this program creates it, or this program has a bug."""


ConstraintFailed = apsw.ConstraintError
"""A row contradicts another one, such as by a value that has to be unique."""

FAULTS: Final = (apsw.Error, OSError, DiskFull, DiskFailed, FileDamaged, SqlFailed)
"""Exceptions that ``faults`` translates, and those into which it does."""

_FULL: Final = "database or disk is full"

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of calls that had no effect and may succeed once there is room again: on the disk, in a quota or file, for a
descriptor, in memory."""

_DESCRIPTORS: Final = (
    "Raise the limit of open files (LimitNOFILE= of the unit, or ulimit -n); writes then resume automatically."
)
_REMEDIES: Final[dict[int | None, str]] = {
    errno.EDQUOT: "Raise the disk quota of the daemon's user, or free some of it; writes then resume automatically.",
    errno.EFBIG: "Raise the limit of a file's size (LimitFSIZE=, or ulimit -f); writes then resume automatically.",
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: "Raise fs.file-max, or close files of other programs; writes then resume automatically.",
    errno.ENOMEM: "Free memory; writes then resume automatically.",
}

_DID_NOTHING: Final = frozenset({apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMOPEN})
"""Extended codes of failures that leave the database unchanged. A failed flush is not one of them: whatever its errno,
the state of the disk is unknown."""


@contextmanager
def faults(connection: Connection | None = None) -> Iterator[None]:
    """Translate exceptions of SQLite and the system into ``DiskFull``, ``DiskFailed``, ``FileDamaged``, ``SqlFailed``.

    With the ``connection`` in use, a write that SQLite reports as an I/O error is ``DiskFull`` if the cause was any
    lack of room: SQLite itself recognises only ENOSPC.
    """
    try:
        yield
    except apsw.FullError as error:
        # A copy reports the error of the other connection, whose text is "not an error" here.
        raise DiskFull(_FULL if str(error) == "not an error" else str(error)) from error
    except apsw.NoMemError as error:
        raise DiskFull(str(error), errno.ENOMEM) from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise FileDamaged(str(error)) from error
    except (apsw.IOError, apsw.CantOpenError) as error:
        if connection is not None and (number := _want_of_room(connection, error)):
            raise DiskFull(f"{error}: {os.strerror(number)}", number) from error
        raise _disk_failed(error) from error
    except (apsw.ReadOnlyError, apsw.BusyError) as error:
        raise _disk_failed(error) from error
    except apsw.Error as error:
        raise SqlFailed(str(error)) from error
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DiskFull(str(error), error.errno) from error
        raise _disk_failed(error) from error


def _disk_failed(error: Exception) -> DiskFailed:
    is_closed = isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError, PermissionError))
    return (CannotOpen if is_closed else DiskFailed)(str(error))


def _want_of_room(connection: Connection, error: apsw.IOError | apsw.CantOpenError) -> int:
    """Return the errno if ``error`` changed nothing and the call may succeed once there is room, else 0."""
    number = connection.system_errno
    opened, code = isinstance(error, apsw.CantOpenError), getattr(error, "extendedresult", 0)
    return number if number in _NO_ROOM and (opened or code in _DID_NOTHING) else 0


def open_writer(path: Path) -> Connection:
    """Open the connection that writes and checkpoints; create the file if missing. There must be only one.

    Closing it does not checkpoint: that would write to a disk that may have failed.
    """
    connection = Connection(str(path))
    connection.set_busy_timeout(BUSY_MS)
    # The page size takes effect only before the first table is created; the journal mode is stored in the file.
    for pragma in (
        "page_size=4096",
        "journal_mode=WAL",
        "synchronous=FULL",
        "mmap_size=0",
        # A larger cache is slower: a transaction that rebalanced an index page walks the whole cache at its end.
        "cache_size=-12288",
        "temp_store=MEMORY",
        # Overwrite deleted and replaced data: a purge must leave nothing in a free page.
        "secure_delete=ON",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.wal_autocheckpoint(0)
    return connection


def open_reader(path: Path, *, reads_once: bool = False) -> Connection:
    """Open a connection that only reads and never checkpoints, not even when it is the last to close. With
    ``reads_once`` it caches few pages.

    Raises: apsw.CantOpenError if there is no such file, or it has a write-ahead log on a read-only disk;
    DiskFull for lack of room for the log's index.
    """
    if _is_unchanging(path):
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = Connection(f"file:{quote(os.fsencode(path))}?immutable=1", flags=flags)
    else:
        connection = Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(BUSY_MS)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.wal_autocheckpoint(0)
    cache_kib = 1024 if reads_once else 8192
    try:
        for pragma in ("query_only=1", "mmap_size=0", f"cache_size=-{cache_kib}", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except apsw.IOError as error:
        # The first pragma creates the index of the log.
        if number := _want_of_room(connection, error):
            raise DiskFull(f"{error}: {os.strerror(number)}", number) from error
        raise
    return connection


def _is_unchanging(path: Path) -> bool:
    """True if SQLite could create no file beside the database, such as on read-only media, and needs none to read it:
    the log is empty, and no process has it open, which would have created its index."""
    return not os.access(path.parent, os.W_OK) and not log_size(path) and not os.path.lexists(f"{path}-shm")


def in_memory() -> Connection:
    """Open a new in-memory database, which lasts until it is closed."""
    return Connection(":memory:")


def open_copy(path: Path) -> Connection:
    """Create a file to copy a database into."""
    connection = Connection(str(path))
    connection.execute("PRAGMA synchronous=FULL").fetchall()
    return connection


def copy(source: Connection, target: Connection, *, pages: int, step: Callable[[], None]) -> None:
    """Copy a snapshot of ``source`` into ``target``; ``step`` is called before every ``pages`` pages.

    Concurrent writers are not delayed, and their writes are not in the copy.
    """
    source.execute("BEGIN")
    try:
        # The first read takes the snapshot to copy.
        source.execute("SELECT count(*) FROM sqlite_master").fetchall()
        with target.backup("main", source, "main") as running:
            while not running.done:
                step()
                running.step(pages)
    finally:
        source.execute("COMMIT")


def user_version(path: Path) -> int | None:
    """The schema number of a database; None if the file is missing or empty.

    Reads the file's header, or opens the database if there is a log: the log may hold a newer header, or the first one.
    Writes nothing.
    Raises: FileDamaged if the file is not a database; DiskFull, DiskFailed, SqlFailed.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_USER_VERSION_OFFSET + 4)
    except FileNotFoundError:
        return None
    if not header:
        return None
    if not header.startswith(_SQLITE_MAGIC):
        raise FileDamaged(f"{path} is no SQLite database")
    if not log_size(path):
        return int.from_bytes(header[_USER_VERSION_OFFSET:], "big")
    with faults():
        connection = open_reader(path)
        try:
            return int(connection.pragma("user_version"))
        finally:
            connection.close()


def log_size(path: Path) -> int:
    """The size of the write-ahead log of the database in ``path``, in bytes; 0 without one."""
    return _size(f"{path}-wal")


def _size(path: str) -> int:
    """The size of a file in bytes; 0 if it does not exist."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def forget_cached_pages(path: Path) -> None:
    """Drop a database and its log from the page cache, so that the next reads come from the disk."""
    for name in (str(path), f"{path}-wal"):
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def insert_rows(connection: Connection, head: str, values: str, rows: Sequence[Sequence[Any]]) -> None:
    """Run ``head VALUES values, values, …`` over ``rows``, many rows per statement."""
    at = 0
    for size in CHUNKS:
        while len(rows) - at >= size:
            flat = tuple(chain.from_iterable(rows[at : at + size]))
            connection.execute(_insert(head, values, size), flat)
            at += size


@lru_cache(maxsize=256)
def _insert(head: str, values: str, size: int) -> str:
    return f"{head} VALUES {','.join([values] * size)}"


def checkpoint(connection: Connection, *, truncate: bool) -> None:
    """Copy the write-ahead log into the database; with ``truncate`` also truncate it, unless a reader is using it."""
    mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if truncate else apsw.SQLITE_CHECKPOINT_PASSIVE
    # Writes wait for this call, so it must not wait for a long-lived snapshot, such as a verification's.
    connection.set_busy_timeout(0)
    try:
        connection.wal_checkpoint(mode=mode)
    except apsw.BusyError:
        return
    finally:
        connection.set_busy_timeout(BUSY_MS)


_PAGE_BYTES: Final = 4096


class WriteAheadLog:
    """The write-ahead log of one writing connection: copies it into the database, and restarts it.

    A copy takes milliseconds, mostly waiting for the disk, and writes do not need it, so it runs on a thread of its
    own, concurrently with the writer. A concurrent copy cannot restart the log, because the writer has appended
    meanwhile. Restarting takes a copy that the writer waits for, which has little left to copy after a concurrent one.

    Called only from the thread that writes.

    Its methods raise ``DiskFull`` and ``DiskFailed``, also for a copy started earlier; write nothing after the latter.
    """

    def __init__(self, path: Path, writer: Connection, copied: Callable[[], None]) -> None:
        """``path`` is the database; ``copied`` is called after each copy, on its thread."""
        self._path = path
        self._writer = writer
        self._notify_copied = copied
        self._copier = open_reader(path)
        self._copier.execute("PRAGMA synchronous=FULL").fetchall()
        self._copying: Future[None] | None = None
        self._pages = 0
        self._copied = 0
        self.shorten_due = False
        """True if ``shorten`` has to be called: the log has grown, or a copy was started."""
        writer.set_wal_hook(self._note)

    @property
    def is_copied(self) -> bool:
        """True if the whole log was copied and no copy is running."""
        return self._pages <= self._copied and self._copying is None

    @property
    def size(self) -> int:
        """The size of the log's file in bytes."""
        return log_size(self._path)

    def beside(self, work: Callable[[], None]) -> None:
        """Call ``work`` on the copying thread, then copy the log there; requires ``is_idle``. ``work`` may raise."""
        assert self._copying is None, "one copy at a time"
        self._copied = self._pages
        self._copying = background(partial(self._copy, work))

    def is_idle(self) -> bool:
        """True if no copy is running. Raises the error of a copy that has ended."""
        if self._copying is not None and self._copying.done():
            self.wait()
        return self._copying is None

    def shorten(self) -> None:
        """Start a concurrent copy if the log has grown; restart the log if it is long and mostly copied."""
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
        """Copy the log while the writer waits, so that it restarts; with ``truncate`` also truncate its file."""
        self.wait()
        hit("checkpoint.start")
        with faults(self._writer):
            checkpoint(self._writer, truncate=truncate)
        # If a reader kept the log from restarting, the next attempt comes after as many more pages.
        self._copied = self._pages
        hit("checkpoint.end")

    def close(self) -> None:
        """Wait for a running copy, ignoring its result, and close its connection."""
        if self._copying is not None:
            wait([self._copying])
        self._copier.close()

    def wait(self) -> None:
        """Wait for a running copy. Raises its error."""
        if self._copying is not None:
            copying, self._copying = self._copying, None
            copying.result()

    def _copy(self, before: Callable[[], None] = lambda: None) -> None:
        with faults():
            before()
        hit("checkpoint.start")
        # A copy that fails changes nothing: the log counts as copied only once all of it is.
        with faults(self._copier):
            checkpoint(self._copier, truncate=False)
            hit("checkpoint.end")
            self._notify_copied()

    def _note(self, connection: Connection, name: str, pages: int) -> int:
        # Every commit adds pages to the log.
        if pages <= self._copied:
            # The log restarted.
            self._copied = 0
        self._pages = pages
        self.shorten_due = self._copying is not None or (pages - self._copied) * _PAGE_BYTES >= limits.CHECKPOINT_BYTES
        return 0


_RAW: Final = -zlib.MAX_WBITS
_RATIO_MAX: Final = 1_032
"""Maximum expansion of deflate: bounds the memory that a damaged size can take."""

_MARK: Final = b"\0"
"""First byte of a compressed body. The others are MessagePack arrays, which never begin with it."""

_HEAD: Final = 5
"""Bytes before the compressed data: the mark, and the size as 4 bytes, big-endian."""

_DEFLATED_MAX: Final = 8_192
"""Size of the longest value that is deflated: for about a kilobyte, raw deflate compresses better than Zstandard and is
decompressed in a third of the time. For longer values, Zstandard compresses as well in a third of the time."""

_ZSTD: Final = b"\x28\xb5\x2f\xfd"
"""First bytes of Zstandard data. As raw deflate they would be a stored block whose length contradicts itself."""

_ZSTD_LEVEL: Final = 3


def _packed(data: bytes) -> bytes:
    if len(data) > _DEFLATED_MAX:
        return zstd.compress(data, _ZSTD_LEVEL)
    # Most of the time goes into tables as large as the window, so a short text gets a small window.
    packing = zlib.compressobj(6, zlib.DEFLATED, *((-12, 5) if len(data) <= 4_096 else (-13, 6)))
    return packing.compress(data) + packing.flush()


def _unpacked(size: int, packed: bytes) -> bytes:
    is_deflated = not packed.startswith(_ZSTD)
    if is_deflated and size > _RATIO_MAX * len(packed):
        raise ValueError(f"compressed data is damaged: {len(packed)} bytes cannot hold {size}")
    # Ignore data after the stream: a purge pads a shorter value with zeros.
    try:
        if is_deflated:
            data = zlib.decompressobj(_RAW).decompress(packed, size + 1)
        else:
            data = zstd.ZstdDecompressor().decompress(packed, size + 1)
    except (zlib.error, zstd.ZstdError, MemoryError, OverflowError) as error:
        raise ValueError(f"compressed data is damaged: {error}") from error
    if len(data) != size:
        raise ValueError(f"compressed data is damaged: it does not hold {size} bytes")
    return data


_PAGE: Final = 4_096
_WHOLE_MAX: Final = _PAGE - 35
"""Bytes of the longest row that is wholly in its page."""

_PART_MIN: Final = (_PAGE - 12) * 32 // 255 - 23
_PART_STEP: Final = _PAGE - 4
"""A longer row has at least ``_PART_MIN`` bytes in its page, and ``_PART_STEP`` bytes in each overflow page but the
last."""


StoredValue = None | int | float | str | bytes


def shortened_length(row: Sequence[StoredValue], column: int, wanted: int) -> int:
    """Return the least length, from ``wanted`` bytes on, to which the blob in ``column`` can be shortened without
    moving other rows. ``row``: all its stored values, None for a row number.

    The page of a row that has overflow pages has only the beginning of it. A shorter row may have more bytes in the
    page: SQLite would move other rows then, and ``secure_delete`` does not overwrite their old places. Source: SQLite's
    database file format, sections 1.6 and 2.1.
    """
    sizes = [_stored_size(value) for value in row]
    longest = sizes[column][1]
    before = _bytes_in_page(_row_size(sizes))
    while wanted < longest:
        sizes[column] = _varint_size(12 + 2 * wanted), wanted
        size = _row_size(sizes)
        if _bytes_in_page(size) <= before:
            return wanted
        # The next longer row that has the least in its page.
        rest = (size - _PART_MIN) % _PART_STEP
        wanted += _WHOLE_MAX + 1 - (size if size <= _WHOLE_MAX else rest + _PART_MIN)
    return longest


def _stored_size(value: StoredValue) -> tuple[int, int]:
    """Return the bytes of a value's type in the header of its row, and of the value."""
    match value:
        case None | 0 | 1:
            return 1, 0
        case int():
            bits = (value if value >= 0 else ~value).bit_length() + 1
            return 1, next(size for size in (1, 2, 3, 4, 6, 8) if bits <= 8 * size)
        case float():
            return 1, 8
        case _:
            size = len(value.encode() if isinstance(value, str) else value)
            return _varint_size(13 + 2 * size), size


def _row_size(sizes: Sequence[tuple[int, int]]) -> int:
    header = sum(size for size, _ in sizes) + 1
    return header + (header > 127) + sum(size for _, size in sizes)


def _varint_size(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def _bytes_in_page(size: int) -> int:
    if size <= _WHOLE_MAX:
        return size
    part = _PART_MIN + (size - _PART_MIN) % _PART_STEP
    return 4 + (part if part <= _WHOLE_MAX else _PART_MIN)


def pack_content(data: bytes) -> bytes:
    """Return ``data`` as stored in a row of ``content``: compressed if that is shorter."""
    packed = _packed(data)
    return packed if len(packed) < len(data) else data


def unpack_content(size: int, stored: bytes) -> bytes:
    """Return the ``size`` bytes of a row of ``content`` from ``stored``. Raises: ValueError if the row is damaged."""
    return stored if len(stored) == size else _unpacked(size, stored)


def pack_body(body: bytes) -> bytes:
    """Return the ``body`` of a journal row as stored: compressed if that is shorter; unchanged if it already is."""
    if body[:1] == _MARK:
        return body
    packed = _MARK + len(body).to_bytes(4, "big") + _packed(body)
    return packed if len(packed) < len(body) else body


def unpack_body(stored: bytes) -> bytes:
    """Return the body of a journal row from ``stored``. Raises: ValueError if it is damaged."""
    if stored[:1] != _MARK:
        return stored
    return _unpacked(int.from_bytes(stored[1:_HEAD], "big"), stored[_HEAD:])
