"""The index of the packs: the location of each artifact and chunk, and the chunks of each artifact.

It is derived: ``artifact_store.ArtifactStore`` rebuilds it from the packs if it is missing or damaged. So its commits
are not flushed; a power cut may undo the newest ones, and the next start reads those parts of the packs again.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from ctxd import sqlite_file
from ctxd.artifacts.packs import Location, PackRecord, parts_of

VERSION: Final = 3
"""``PRAGMA user_version``. An index with a different one is rebuilt."""

_LOG_PAGES: Final = 1024
"""Pages of growth of the write-ahead log after which it is copied into the database."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS artifact(
    n INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, size INTEGER NOT NULL, pack INTEGER NOT NULL, at INTEGER NOT NULL,
    length INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS chunk(
    n INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, pack INTEGER NOT NULL, at INTEGER NOT NULL,
    length INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS part(
    artifact INTEGER NOT NULL, chunk INTEGER NOT NULL, PRIMARY KEY(artifact, chunk)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS part_chunk ON part(chunk);
CREATE TABLE IF NOT EXISTS last_use(artifact INTEGER PRIMARY KEY, at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS pack(number INTEGER PRIMARY KEY, size INTEGER NOT NULL);
"""
"""``part``: the distinct chunks of an artifact, by their numbers ``n``. ``last_use``: milliseconds since 1970, lost
when the index is rebuilt."""

TABLES: Final = ("artifact", "chunk", "part", "pack", "last_use")

_NUMBERS: Final = 20_000
"""Chunks that one query checks for use."""


class IndexEntry(NamedTuple):
    """An artifact: its size in bytes, and the location of its record."""

    size: int
    location: Location


class Index:
    """One connection to the index. Not for two threads at a time. Methods raise ``apsw``'s errors."""

    def __init__(self, path: Path, *, write: bool) -> None:
        """Open the index in ``path``; with ``write``, create it if missing."""
        self.path = path
        self._connection = sqlite_file.open_writer(path) if write else sqlite_file.open_reader(path)
        # Sizes of the log, not of its file, which does not shrink when the log restarts.
        self._log_pages, self._copied_at = 0, _LOG_PAGES
        if write:
            self._connection.set_wal_hook(self._note_log)
            self._connection.execute("PRAGMA synchronous=NORMAL").fetchall()
            # Do not write to an existing index: the disk may be full.
            if self._connection.pragma("user_version") != VERSION:
                self._connection.execute(f"{_TABLES}PRAGMA user_version={VERSION}").fetchall()

    def _note_log(self, _: object, __: str, pages: int) -> int:
        if pages < self._log_pages:
            # The log restarted.
            self._copied_at = _LOG_PAGES
        self._log_pages = pages
        return 0

    def close(self, *, tidy: bool = False) -> None:
        """Close the connection; with ``tidy``, empty the log first."""
        if tidy:
            sqlite_file.checkpoint(self._connection, truncate=True)
        self._connection.close()

    @contextmanager
    def transaction(self, *, synced: bool = False) -> Iterator[None]:
        """Commit the writes inside, all or none; flush them if ``synced``."""
        # Checkpoint before the transaction, so that an error means that nothing was committed.
        if self._log_pages >= self._copied_at:
            self._copied_at = self._log_pages + _LOG_PAGES
            sqlite_file.checkpoint(self._connection, truncate=False)
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
        """Make all reads inside see the state of the first one."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def empty_log(self) -> None:
        """Copy the log into the database and empty it, so that it holds no older pages."""
        sqlite_file.checkpoint(self._connection, truncate=True)

    def artifact(self, hash: bytes) -> IndexEntry | None:
        """Return the entry of the artifact ``hash``; None if there is no such artifact."""
        query = "SELECT size, pack, at, length FROM artifact WHERE hash=?"
        found = self._connection.execute(query, (hash,)).fetchone()
        return None if found is None else IndexEntry(found[0], Location(*found[1:]))

    def artifacts(self, after: bytes, limit: int, *, inclusive: bool = False) -> list[bytes]:
        """Return at most ``limit`` hashes of artifacts after ``after``, or from it on if ``inclusive``, in order."""
        query = f"SELECT hash FROM artifact WHERE hash{'>=' if inclusive else '>'}? ORDER BY hash LIMIT ?"
        return [hash for (hash,) in self._connection.execute(query, (after, limit))]

    def chunks(self, hashes: Iterable[bytes]) -> dict[bytes, Location]:
        """Return the locations of those of the chunks ``hashes`` that exist."""
        found = {}
        for hash in hashes:
            row = self._connection.execute("SELECT pack, at, length FROM chunk WHERE hash=?", (hash,)).fetchone()
            if row is not None:
                found[hash] = Location(*row)
        return found

    def parts(self, artifact: bytes) -> set[bytes]:
        """Return the chunks of ``artifact``."""
        query = """SELECT c.hash FROM artifact AS a JOIN part AS p ON p.artifact=a.n JOIN chunk AS c ON c.n=p.chunk
            WHERE a.hash=?"""
        return {hash for (hash,) in self._connection.execute(query, (artifact,))}

    def sole_parts(self, artifact: bytes) -> dict[bytes, Location]:
        """Return the locations of the chunks of ``artifact`` that no other artifact has."""
        query = """SELECT c.hash, c.pack, c.at, c.length FROM artifact AS a JOIN part AS p ON p.artifact=a.n
            JOIN chunk AS c ON c.n=p.chunk WHERE a.hash=?
            AND NOT EXISTS(SELECT 1 FROM part WHERE part.chunk=c.n AND part.artifact<>a.n)"""
        return {hash: Location(*place) for hash, *place in self._connection.execute(query, (artifact,))}

    def unused_chunks(self, hashes: Iterable[bytes] | None = None) -> dict[bytes, Location]:
        """Return the locations of the chunks that no artifact has, among all or ``hashes``. Cost: linear in these."""
        query = """SELECT hash, pack, at, length FROM chunk AS c
            WHERE NOT EXISTS(SELECT 1 FROM part WHERE part.chunk=c.n) AND"""
        if hashes is not None:
            rows = (self._connection.execute(f"{query} hash=?", (hash,)).fetchone() for hash in hashes)
            return {row[0]: Location(*row[1:]) for row in rows if row is not None}
        (last,) = self._connection.execute("SELECT coalesce(max(n), 0) FROM chunk").fetchone() or (0,)
        found = {}
        for first in range(0, last, _NUMBERS):
            # Use several short statements: a long one keeps the log from being emptied.
            for hash, *place in self._connection.execute(f"{query} n>? AND n<=?", (first, first + _NUMBERS)):
                found[hash] = Location(*place)
        return found

    def pack_sizes(self) -> dict[int, int]:
        """Return the size in bytes of each pack in the index."""
        return dict(self._connection.execute("SELECT number, size FROM pack"))

    def put_chunks(self, chunks: Sequence[tuple[bytes, Location]]) -> None:
        """Store the locations of ``chunks``."""
        statement = """INSERT INTO chunk(hash, pack, at, length) VALUES (?,?,?,?)
            ON CONFLICT(hash) DO UPDATE SET pack=excluded.pack, at=excluded.at, length=excluded.length"""
        self._connection.executemany(statement, [(hash, *location) for hash, location in chunks])
        self._grow(location for _, location in chunks)

    def put_artifact(self, hash: bytes, entry: IndexEntry, parts: Collection[bytes]) -> None:
        """Store an artifact and its ``parts``, which are chunks; an existing artifact also keeps its earlier parts."""
        statement = """INSERT INTO artifact(hash, size, pack, at, length) VALUES (?,?,?,?,?)
            ON CONFLICT(hash) DO UPDATE SET size=excluded.size, pack=excluded.pack, at=excluded.at,
            length=excluded.length RETURNING n"""
        ((number,),) = self._connection.execute(statement, (hash, entry.size, *entry.location)).fetchall()
        self._grow((entry.location,))
        statement = "INSERT OR IGNORE INTO part SELECT ?, n FROM chunk WHERE hash=?"
        self._connection.executemany(statement, [(number, part) for part in parts])

    def _grow(self, locations: Iterable[Location]) -> None:
        ends: dict[int, int] = {}
        for location in locations:
            ends[location.pack] = max(ends.get(location.pack, 0), location.end)
        statement = "INSERT INTO pack VALUES (?,?) ON CONFLICT(number) DO UPDATE SET size=max(size, excluded.size)"
        self._connection.executemany(statement, ends.items())

    def set_pack_size(self, pack: int, size: int) -> None:
        """Store that the first ``size`` bytes of ``pack`` are indexed."""
        # Do not write an unchanged size: the disk may be full.
        statement = "INSERT INTO pack VALUES (?,?) ON CONFLICT(number) DO UPDATE SET size=excluded.size WHERE size<>?"
        self._connection.execute(statement, (pack, size, size))

    def remove_pack(self, pack: int) -> None:
        """Remove a pack from the index."""
        self._connection.execute("DELETE FROM pack WHERE number=?", (pack,))

    def live_bytes(self) -> dict[int, int]:
        """Return the bytes that artifacts and chunks take in each pack. Cost: linear in artifacts and chunks."""
        query = """SELECT pack, sum(length) FROM
            (SELECT pack, length FROM artifact UNION ALL SELECT pack, length FROM chunk) GROUP BY pack"""
        return dict(self._connection.execute(query))

    def remove_artifact(self, hash: bytes) -> None:
        """Remove an artifact; its chunks stay."""
        for table in ("part", "last_use"):
            statement = f"DELETE FROM {table} WHERE artifact=(SELECT n FROM artifact WHERE hash=?)"
            self._connection.execute(statement, (hash,))
        self._connection.execute("DELETE FROM artifact WHERE hash=?", (hash,))

    def note_uses(self, uses: Mapping[bytes, int]) -> None:
        """Store when artifacts were last used."""
        statement = "INSERT OR REPLACE INTO last_use SELECT n, ? FROM artifact WHERE hash=?"
        self._connection.executemany(statement, [(at, hash) for hash, at in uses.items()])

    def last_uses(self) -> dict[bytes, int]:
        """Return when artifacts were last used, without those that have no record of it."""
        query = "SELECT a.hash, u.at FROM last_use AS u JOIN artifact AS a ON a.n=u.artifact"
        return dict(self._connection.execute(query))

    def remove_chunks(self, hashes: Iterable[bytes]) -> None:
        """Remove those of the chunks ``hashes`` that no artifact has."""
        statement = "DELETE FROM chunk WHERE hash=? AND NOT EXISTS(SELECT 1 FROM part WHERE part.chunk=chunk.n)"
        self._connection.executemany(statement, [(hash,) for hash in hashes])

    def is_sound(self) -> bool:
        """True if SQLite's quick check finds no fault. Cost: linear in the pages."""
        return bool(self._connection.pragma("quick_check", 1) == "ok")

    def integrity(self, table: str) -> Iterator[str]:
        """Check the structure of a table and its indexes. Yields: a sentence for each fault."""
        for (line,) in self._connection.execute(f"PRAGMA integrity_check({table})"):
            if line != "ok":
                yield f"the index of artifacts: {line}"


def entry_of(record: PackRecord) -> IndexEntry:
    """Return the entry of the artifact in ``record``."""
    parts = parts_of(record)
    return IndexEntry(sum(size for _, size in parts) if parts else len(record.data), record.location)
