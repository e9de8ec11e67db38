"""The file of the search index: places and words of texts, which can be rebuilt from the journal at any time.

The FTS5 tables with the words have no texts: those stay in the store. ``doc`` locates each text by the store's number
of its entity. ``meta`` has the watermark: the journal row up to which everything is indexed, written in the same
transaction as that row's texts. Writes are not flushed: a power cut removes the newest ones, watermark and texts
together.

Purged texts are first hidden; then ``rewrite_shard`` erases their words (see ``word_shards.py``), and ``empty_log``
removes them from the write-ahead log. A flag in the file records that this is due, so that it survives a kill.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from ctxd import sqlite_file
from ctxd.failpoints import hit
from ctxd.search import word_shards
from ctxd.search.searchable_texts import FoundText
from ctxd.search.word_shards import WordShards
from ctxd_protocol.methods.search import SearchKind

NAME: Final = "search.db"
"""The file's name in the folder of the index."""

SCHEMA_VERSION: Final = 3

_TABLES: Final = f"""
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE doc(
    id INTEGER PRIMARY KEY, entity INTEGER NOT NULL, nth INTEGER NOT NULL, session INTEGER NOT NULL,
    at INTEGER NOT NULL, turn INTEGER NOT NULL, kind INTEGER NOT NULL, tool INTEGER NOT NULL
);
CREATE INDEX doc_of_entity ON doc(entity);
CREATE TABLE tool(n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE session(n INTEGER PRIMARY KEY, turns INTEGER NOT NULL, check_sum INTEGER NOT NULL);
{word_shards.TABLES}
"""
"""``doc.entity`` and ``doc.session`` are numbers of the store's entities, 0 for no session; ``kind`` is twice the index
in ``KINDS``, plus one for the output of a failed call; ``tool`` is 0 for none. ``session`` holds ``SessionRow``."""

KINDS: Final[tuple[SearchKind, ...]] = get_args(SearchKind)
"""Kinds by their number in the file; append new ones."""

_LOG_PAGES: Final = 1_000
"""Pages of the write-ahead log after which SQLite checkpoints it."""

_LOG_BYTES_IDLE: Final = 1024 * 1024
"""Bytes of the log that may remain while there is nothing to index."""

_SHARDS_OPEN_MAX: Final = 16
"""Shards whose tables are open at most, about 1 MB of memory."""


class IndexedText(NamedTuple):
    """A text to index, with the number of its entity, and that of its session, 0 for none."""

    entity: int
    session: int
    at: int
    turn: int
    found: FoundText


class SessionRow(NamedTuple):
    """State of a session in the index: the turns so far, and a checksum of its own text (title and labels)."""

    turns: int
    check_sum: int


class TextPlace(NamedTuple):
    """The number of the session of an indexed text, and its turn."""

    session: int
    turn: int


class Doc(NamedTuple):
    """The place of an indexed text. ``score``: higher is better."""

    id: int
    entity: int
    nth: int
    session: int
    at: int
    turn: int
    kind: SearchKind
    failed: bool
    tool: str | None
    score: float


class Conditions(NamedTuple):
    """Conditions on a text; all must hold. ``sessions``: numbers of the sessions it may belong to. ``last``: the
    greatest ``Doc.id``."""

    sessions: tuple[int, ...] | None = None
    tool: str | None = None
    kind: SearchKind | None = None
    failed: bool = False
    since: int | None = None
    until: int | None = None
    last: int | None = None


class IndexFile:
    """The only connection that writes to the index. Blocks; one thread at a time may use it.

    Its methods raise ``sqlite_file``'s errors; after ``FileDamaged`` and ``SqlFailed`` the file has to be rebuilt.
    """

    def __init__(self, path: Path, connection: sqlite_file.Connection) -> None:
        self._path = path
        self._connection = connection
        self._words = WordShards(connection)
        self.seq, self.chain = self._mark()
        self._last = last_id(connection)
        self._tools: dict[str, int] = {str(name): int(n) for n, name in connection.execute("SELECT n, name FROM tool")}
        self.rewrite_due = self._meta("rewrite") is not None
        """True while the file may hold words of a purged text."""

    @classmethod
    def open(cls, path: Path, journal: str, *, fits: Callable[[int, bytes], bool]) -> "IndexFile":
        """Open the index in ``path`` for the journal with the id ``journal``. Starts an empty one if the file is
        missing, damaged, of another schema or journal, or ``fits(seq, chain)`` rejects its watermark."""
        with sqlite_file.faults():
            if path.exists():
                with suppress(sqlite_file.FileDamaged, sqlite_file.SqlFailed):
                    if sqlite_file.user_version(path) == SCHEMA_VERSION:
                        found = cls(path, _opened(path))
                        if found._meta("journal") == journal and fits(found.seq, found.chain):
                            return found
                        found.close()
            remove(path)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            connection = _opened(path)
            with connection:
                connection.execute(_TABLES).fetchall()
                connection.execute(
                    "INSERT INTO meta(name, value) VALUES ('seq',0),('chain',x''),('journal',?)", (journal,)
                )
                connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}").fetchall()
            return cls(path, connection)

    def _mark(self) -> tuple[int, bytes]:
        return int(self._meta("seq") or 0), bytes(self._meta("chain") or b"")

    def _meta(self, name: str) -> Any:  # noqa: ANN401 - a value of SQLite
        found = self._connection.execute("SELECT value FROM meta WHERE name=?", (name,)).fetchone()
        return None if found is None else found[0]

    def close(self) -> None:
        """Close the file, without touching its log."""
        self._connection.close()

    @property
    def size(self) -> int:
        """Size of the file and its log in bytes."""
        with suppress(FileNotFoundError):
            return os.stat(self._path).st_size + sqlite_file.log_size(self._path)
        return 0

    # --- content

    def session(self, number: int) -> SessionRow | None:
        """State of the session ``number``; None if it is unknown."""
        found = self._connection.execute("SELECT turns, check_sum FROM session WHERE n=?", (number,)).fetchone()
        return None if found is None else SessionRow(*found)

    def places(self, entity: int) -> dict[int, TextPlace]:
        """The places of the texts of ``entity``, by their number in it."""
        rows = self._connection.execute("SELECT nth, session, turn FROM doc WHERE entity=?", (entity,))
        return {nth: TextPlace(session, turn) for nth, session, turn in rows}

    def holds(self, entity: int, *, beyond: int = -1) -> bool:
        """True if a text of ``entity`` at a place after ``beyond`` is indexed."""
        query = "SELECT 1 FROM doc WHERE entity=? AND nth>? LIMIT 1"
        return self._connection.execute(query, (entity, beyond)).fetchone() is not None

    def apply(
        self,
        texts: Sequence[IndexedText],
        *,
        replaced: Iterable[tuple[int, int]] = (),
        sessions: Mapping[int, SessionRow] = {},
        mark: tuple[int, bytes] | None = None,
        purged: Collection[int] = (),
    ) -> None:
        """Add ``texts``, in one transaction.

        ``replaced``: entities whose texts are removed first, each up to a place. ``sessions``: those that changed.
        ``mark``: the new watermark, a journal row with its chain hash. ``purged``: entities of which no word of a
        removed text may be left, see ``rewrite_shard``.
        """
        is_due = False
        with sqlite_file.faults(self._connection):
            last = self._last
            try:
                with self._connection:
                    for entity, most in replaced:
                        self._remove(entity, most)
                    last = self._add(texts)
                    rows = [(number, *row) for number, row in sessions.items()]
                    head = "INSERT OR REPLACE INTO session(n, turns, check_sum)"
                    sqlite_file.insert_rows(self._connection, head, "(?,?,?)", rows)
                    if mark is not None:
                        self._connection.execute("UPDATE meta SET value=? WHERE name='seq'", mark[:1]).fetchall()
                        self._connection.execute("UPDATE meta SET value=? WHERE name='chain'", mark[1:]).fetchall()
                    if is_due := bool(purged) and self._words.erase(purged):
                        self._connection.execute("INSERT OR REPLACE INTO meta(name, value) VALUES ('rewrite',1)")
            except BaseException:
                self._words.reload()
                # Drop tool numbers assigned in the failed transaction.
                self._tools.clear()
                self._tools.update((name, n) for n, name in self._connection.execute("SELECT n, name FROM tool"))
                raise
            if len(self._words.used) > _SHARDS_OPEN_MAX:
                self._reopen()
        self._last = last
        self.rewrite_due = self.rewrite_due or is_due
        if mark is not None:
            self.seq, self.chain = mark

    def _remove(self, entity: int, most: int) -> None:
        query = "DELETE FROM doc WHERE entity=? AND nth<=? RETURNING id"
        ids: list[tuple[int]] = self._connection.execute(query, (entity, most)).fetchall()  # type: ignore[assignment]
        self._words.remove(entity, (id for (id,) in ids))

    def _add(self, texts: Sequence[IndexedText]) -> int:
        docs, words, id = [], [], self._last
        for id, (entity, session, at, turn, found) in enumerate(texts, self._last + 1):
            kind = 2 * KINDS.index(found.kind) + found.failed
            docs.append((id, entity, found.nth, session, at, turn, kind, self._tool(found.tool)))
            words.append((id, found.text, found.call))
        head = "INSERT INTO doc(id, entity, nth, session, at, turn, kind, tool)"
        sqlite_file.insert_rows(self._connection, head, "(?,?,?,?,?,?,?,?)", docs)
        self._words.add(words)
        return id

    def _tool(self, name: str) -> int:
        if not name:
            return 0
        if name not in self._tools:
            self._connection.execute("INSERT INTO tool(name) VALUES (?)", (name,)).fetchall()
            self._tools[name] = self._connection.last_insert_rowid()
        return self._tools[name]

    def empty_log(self, *, beyond: int = _LOG_BYTES_IDLE) -> None:
        """Empty the log if it has more than ``beyond`` bytes, unless a search is reading it."""
        if sqlite_file.log_size(self._path) > beyond:
            with sqlite_file.faults(self._connection):
                sqlite_file.checkpoint(self._connection, truncate=True)

    # --- purges

    def rewrite_shard(self) -> bool:
        """Rewrite one of the shards that may have words of purged texts; takes some 0.1 s. Returns: False if none is
        left: then call ``finish_rewrite``."""
        with sqlite_file.faults(self._connection):
            if (number := self._words.due()) is None:
                return False
            hit("search.rewrite")
            try:
                with self._connection:
                    self._words.rewrite(number)
            except BaseException:
                self._words.reload()
                raise
            self._reopen()
            return True

    def _reopen(self) -> None:
        self._connection.close()
        self._connection = _opened(self._path)
        self._words = WordShards(self._connection)

    def finish_rewrite(self) -> bool:
        """Empty the log. Returns: False if a reader kept it from being emptied: then call this again."""
        with sqlite_file.faults(self._connection):
            sqlite_file.checkpoint(self._connection, truncate=True)
            if sqlite_file.log_size(self._path):
                return False
            hit("search.rewritten")
            self._connection.execute("DELETE FROM meta WHERE name='rewrite'").fetchall()
            self.rewrite_due = False
            return True


def _opened(path: Path) -> sqlite_file.Connection:
    connection = sqlite_file.open_writer(path)
    connection.execute("PRAGMA synchronous=NORMAL").fetchall()
    # Words are collected in memory and appended, so few pages are written twice.
    connection.execute("PRAGMA cache_size=-4096").fetchall()
    connection.wal_autocheckpoint(_LOG_PAGES)
    return connection


def remove(path: Path) -> None:
    """Remove the index in ``path``, with its log."""
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def last_id(connection: sqlite_file.Connection) -> int:
    """The greatest ``Doc.id``; 0 in an empty index."""
    found = connection.execute("SELECT max(id) FROM doc").get
    return found if isinstance(found, int) else 0


def by_entity(docs: Iterable[Doc]) -> dict[int, list[Doc]]:
    """``docs`` by their entity."""
    return {entity: list(some) for entity, some in groupby(sorted(docs, key=lambda d: d.entity), lambda d: d.entity)}
