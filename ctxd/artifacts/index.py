"""The index of the packs: where each artifact and each chunk is, and how many uses a chunk has.

It is derived: ``store.ArtifactStore`` rebuilds it from the packs if it is missing or damaged. So a commit of it is not
flushed; a power cut may undo the newest ones, and the packs behind them are read again at the next start.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from ctxd import dbfile
from ctxd.artifacts.packs import DamagedRecord, Location, PackRecord, Packs, parts_of, records

VERSION: Final = 1
"""``PRAGMA user_version``. Another one is rebuilt."""

_LOG_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the write-ahead log from which on it is copied into the database."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS artifact(
    hash BLOB PRIMARY KEY, size INTEGER NOT NULL, pack INTEGER NOT NULL, at INTEGER NOT NULL, length INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunk(
    hash BLOB PRIMARY KEY, pack INTEGER NOT NULL, at INTEGER NOT NULL, length INTEGER NOT NULL, uses INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chunk_unused ON chunk(hash) WHERE uses=0;
CREATE TABLE IF NOT EXISTS pack(number INTEGER PRIMARY KEY, size INTEGER NOT NULL);
"""


_LOOKED_UP: Final = 256
"""Artifacts that are looked up at a time."""


class IndexEntry(NamedTuple):
    """An artifact: its size in bytes, and where its record is."""

    size: int
    location: Location


class Index:
    """One connection to the index. Not for two threads at a time. Methods raise ``apsw``'s errors."""

    def __init__(self, path: Path, *, write: bool) -> None:
        """Open the index in ``path``, which is made if missing by the one that writes."""
        self.path = path
        self._connection = dbfile.open_writer(path) if write else dbfile.open_reader(path)
        if write:
            self._connection.execute("PRAGMA synchronous=NORMAL").fetchall()
            # An index that is there is not written: the disk may be full.
            if self._connection.pragma("user_version") != VERSION:
                self._connection.execute(f"{_TABLES}PRAGMA user_version={VERSION}").fetchall()

    def close(self, *, tidy: bool = False) -> None:
        """Close the connection; with ``tidy`` the log is empty afterwards."""
        if tidy:
            dbfile.checkpoint(self._connection, truncate=True)
        self._connection.close()

    @contextmanager
    def transaction(self, *, synced: bool = False) -> Iterator[None]:
        """Commit what is written inside, all or nothing; on the disk at the end if ``synced``."""
        # Before and not behind it: what raises was not committed.
        if dbfile.log_size(self.path) > _LOG_BYTES:
            dbfile.checkpoint(self._connection, truncate=False)
        if synced:
            self._connection.execute("PRAGMA synchronous=FULL").fetchall()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        finally:
            if synced:
                self._connection.execute("PRAGMA synchronous=NORMAL").fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything inside as it is at the first read."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def empty_log(self) -> None:
        """Copy the log into the database and empty it: no older page is left in it."""
        dbfile.checkpoint(self._connection, truncate=True)

    def artifact(self, hash: bytes) -> IndexEntry | None:
        """Return the artifact ``hash``; None if it is not there."""
        query = "SELECT size, pack, at, length FROM artifact WHERE hash=?"
        found = self._connection.execute(query, (hash,)).fetchone()
        return None if found is None else IndexEntry(found[0], Location(*found[1:]))

    def artifacts(self, after: bytes, limit: int, *, inclusive: bool = False) -> list[bytes]:
        """Return at most ``limit`` hashes of artifacts beyond ``after``, with it if ``inclusive``, in order."""
        query = f"SELECT hash FROM artifact WHERE hash{'>=' if inclusive else '>'}? ORDER BY hash LIMIT ?"
        return [hash for (hash,) in self._connection.execute(query, (after, limit))]

    def chunks(self, hashes: Iterable[bytes]) -> dict[bytes, Location]:
        """Return where those of the chunks ``hashes`` are that are there."""
        found = {}
        for hash in hashes:
            row = self._connection.execute("SELECT pack, at, length FROM chunk WHERE hash=?", (hash,)).fetchone()
            if row is not None:
                found[hash] = Location(*row)
        return found

    def unused_chunks(self, hashes: Iterable[bytes] | None = None) -> dict[bytes, Location]:
        """Return where the chunks without a use are, of all or of ``hashes``."""
        query = "SELECT hash, pack, at, length FROM chunk WHERE uses=0"
        if hashes is None:
            return {hash: Location(*place) for hash, *place in self._connection.execute(query)}
        rows = (self._connection.execute(f"{query} AND hash=?", (hash,)).fetchone() for hash in hashes)
        return {row[0]: Location(*row[1:]) for row in rows if row is not None}

    def pack_sizes(self) -> dict[int, int]:
        """Return the bytes of each pack that the index knows of."""
        return dict(self._connection.execute("SELECT number, size FROM pack"))

    def put_chunks(self, chunks: Sequence[tuple[bytes, Location]]) -> None:
        """Note where ``chunks`` are, which keep their uses."""
        statement = """INSERT INTO chunk VALUES (?,?,?,?,0)
            ON CONFLICT(hash) DO UPDATE SET pack=excluded.pack, at=excluded.at, length=excluded.length"""
        self._connection.executemany(statement, [(hash, *location) for hash, location in chunks])
        self._grow(location for _, location in chunks)

    def put_artifact(self, hash: bytes, entry: IndexEntry, uses: Collection[bytes]) -> None:
        """Note an artifact, and its ``uses`` of chunks if it is new."""
        is_new = self.artifact(hash) is None
        self._connection.execute(
            "INSERT OR REPLACE INTO artifact VALUES (?,?,?,?,?)", (hash, entry.size, *entry.location)
        )
        self._grow((entry.location,))
        if is_new:
            self._add_uses(uses, 1)

    def _grow(self, locations: Iterable[Location]) -> None:
        ends: dict[int, int] = {}
        for location in locations:
            ends[location.pack] = max(ends.get(location.pack, 0), location.end)
        statement = "INSERT INTO pack VALUES (?,?) ON CONFLICT(number) DO UPDATE SET size=max(size, excluded.size)"
        self._connection.executemany(statement, ends.items())

    def set_pack_size(self, pack: int, size: int) -> None:
        """Note that ``pack`` has ``size`` bytes, and that everything in them is in the index."""
        # One that is right is not written: the disk may be full.
        statement = "INSERT INTO pack VALUES (?,?) ON CONFLICT(number) DO UPDATE SET size=excluded.size WHERE size<>?"
        self._connection.execute(statement, (pack, size, size))

    def remove_pack(self, pack: int) -> None:
        """Forget a pack that was removed."""
        self._connection.execute("DELETE FROM pack WHERE number=?", (pack,))

    def live_bytes(self) -> dict[int, int]:
        """Return the bytes of each pack that artifacts and chunks take. Cost: a look at every one."""
        query = """SELECT pack, sum(length) FROM
            (SELECT pack, length FROM artifact UNION ALL SELECT pack, length FROM chunk) GROUP BY pack"""
        return dict(self._connection.execute(query))

    def remove_artifact(self, hash: bytes, uses: Collection[bytes]) -> None:
        """Remove an artifact and its ``uses`` of chunks."""
        self._connection.execute("DELETE FROM artifact WHERE hash=?", (hash,))
        self._add_uses(uses, -1)

    def _add_uses(self, hashes: Collection[bytes], count: int) -> None:
        statement = "UPDATE chunk SET uses=max(0, uses+?) WHERE hash=?"
        self._connection.executemany(statement, [(count, hash) for hash in hashes])

    def remove_chunks(self, hashes: Iterable[bytes]) -> None:
        """Remove those of the chunks ``hashes`` that have no use."""
        self._connection.executemany("DELETE FROM chunk WHERE hash=? AND uses=0", [(hash,) for hash in hashes])

    def set_uses(self, uses: dict[bytes, int]) -> None:
        """Note the number of uses of chunks."""
        self._connection.executemany("UPDATE chunk SET uses=? WHERE hash=?", [(n, hash) for hash, n in uses.items()])

    def is_sound(self) -> bool:
        """True if the structure of the file is as SQLite writes it. Cost: a look at every page."""
        return bool(self._connection.pragma("quick_check(1)") == "ok")

    def integrity(self) -> Iterator[str]:
        """Check the structure of the file. Yields: a sentence for each fault."""
        for (line,) in self._connection.execute("PRAGMA integrity_check(100)"):
            if line != "ok":
                yield f"the index of artifacts: {line}"

    def chunk_uses(self) -> dict[bytes, int]:
        """Return the number of uses of each chunk."""
        return dict(self._connection.execute("SELECT hash, uses FROM chunk"))


def entry_of(record: PackRecord) -> IndexEntry:
    """Return the entry of the artifact whose ``record`` this is."""
    parts = parts_of(record)
    return IndexEntry(sum(size for _, size in parts) if parts else len(record.data), record.location)


def record_faults(packs: Packs, index: Index) -> Iterator[str]:
    """Yield a sentence for each place of a pack that holds no record. Blocks. Raises: OSError; ``apsw``'s errors."""
    for number, size in index.pack_sizes().items():
        path = packs.path(number)
        try:
            damaged, end = _scan(path)
            # A record may have been overwritten while it was read: damage is what both looks find.
            again = set(_scan(path)[0]) if damaged else set()
        except FileNotFoundError:
            if number in index.pack_sizes():
                yield f"pack {path.name} is missing"
            continue
        for location, fault in damaged.items():
            if location in again and location.at < size:
                yield f"{path.name}, offset {location.at}: {fault}"
        if end < size:
            yield f"the index says that {path.name} has {size} bytes, but its records end at {end}"


def _scan(path: Path) -> tuple[dict[Location, str], int]:
    """Return the damage of a pack, and the end of its last record. Raises: OSError."""
    damaged, end = dict[Location, str](), 0
    for record in records(path):
        if isinstance(record, DamagedRecord):
            damaged[record.location] = str(record)
        else:
            end = record.location.end
    return damaged, end


def count_uses(packs: Packs, index: Index) -> Counter[bytes]:
    """Return the uses of each chunk as the manifests have them. Blocks. Raises: OSError; ``apsw``'s errors."""
    counted: Counter[bytes] = Counter()
    after = b""
    while batch := index.artifacts(after, _LOOKED_UP):
        after = batch[-1]
        for hash in batch:
            # What cannot be read is named by the pass over all artifacts.
            with suppress(DamagedRecord, FileNotFoundError):
                entry = index.artifact(hash)
                assert entry is not None, "nothing else writes meanwhile"
                counted.update({part for part, _ in parts_of(packs.read(entry.location))})
    return counted


def use_faults(packs: Packs, index: Index) -> Iterator[str]:
    """Yield a sentence for each chunk whose uses are miscounted. Blocks. Raises: OSError; ``apsw``'s errors."""
    with index.snapshot():
        counted = count_uses(packs, index)
        for hash, uses in index.chunk_uses().items():
            if uses != counted[hash]:
                yield f"the index counts {uses} uses of chunk {hash.hex()}, not {counted[hash]}"
