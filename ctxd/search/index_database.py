"""The file of the search index: SQLite FTS5 tables, which can be rebuilt from the journal at any time.

The FTS5 table is contentless: the texts stay in the store. ``doc`` locates each text by the store's number of its
entity. ``meta`` has the watermark: the journal row up to which everything is indexed, written in the same transaction
as that row's texts. Writes are not flushed: a power cut removes the newest ones, watermark and texts together.

FTS5 keeps the words of a removed text until its segments are merged, and SQLite keeps copies of moved data. So purged
texts are first hidden; then ``rewrite`` merges all segments, rewrites the file and empties its log. A flag in the file
records that this is due, so that it survives a kill.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from ctxd import sqlite_file
from ctxd.failpoints import hit
from ctxd.search.searchable_texts import FoundText
from ctxd_protocol.methods.search import SearchKind

NAME: Final = "search.db"
"""The file's name in the folder of the index."""

SCHEMA_VERSION: Final = 1

TOKENIZER: Final = "unicode61 remove_diacritics 2"

_TABLES: Final = f"""
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE doc(
    id INTEGER PRIMARY KEY, entity INTEGER NOT NULL, nth INTEGER NOT NULL, session INTEGER NOT NULL,
    at INTEGER NOT NULL, turn INTEGER NOT NULL, kind INTEGER NOT NULL, tool INTEGER NOT NULL
);
CREATE INDEX doc_of_entity ON doc(entity);
CREATE TABLE tool(n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE session(n INTEGER PRIMARY KEY, turns INTEGER NOT NULL, check_sum INTEGER NOT NULL);
CREATE VIRTUAL TABLE words USING fts5(
    text, call, content='', contentless_delete=1, tokenize='{TOKENIZER}'
);
"""
"""``doc.entity`` and ``doc.session`` are numbers of the store's entities, 0 for no session; ``kind`` is twice the index
in ``KINDS``, plus one for the output of a failed call; ``tool`` is 0 for none. ``session`` holds ``SessionRow``."""

KINDS: Final[tuple[SearchKind, ...]] = get_args(SearchKind)
"""Kinds by their number in the file; append new ones."""

_SPACE_FREE_MIN: Final = 64 * 1024 * 1024
"""Size of the file in bytes above which it is rewritten through a copy on disk, not in memory."""

_LOG_PAGES: Final = 1_000
"""Pages of the write-ahead log after which SQLite checkpoints it."""

_LOG_BYTES_IDLE: Final = 1024 * 1024
"""Bytes of the log that may remain while there is nothing to index."""

_DOC: Final = "d.id, d.entity, d.nth, d.session, d.at, d.turn, d.kind, t.name"


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

    sessions: Sequence[int] | None = None
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
        erases: bool = False,
    ) -> int:
        """Add ``texts``, in one transaction.

        ``replaced``: entities whose texts are removed first, each up to a place. ``sessions``: those that changed.
        ``mark``: the new watermark, a journal row with its chain hash. ``erases``: the removed texts were purged, see
        ``rewrite``. Returns: the number of texts removed.
        """
        removed = 0
        with sqlite_file.faults(self._connection):
            last = self._last
            try:
                with self._connection:
                    for entity, most in replaced:
                        removed += self._remove(entity, most)
                    last = self._add(texts)
                    rows = [(number, *row) for number, row in sessions.items()]
                    head = "INSERT OR REPLACE INTO session(n, turns, check_sum)"
                    sqlite_file.insert_rows(self._connection, head, "(?,?,?)", rows)
                    if mark is not None:
                        self._connection.execute("UPDATE meta SET value=? WHERE name='seq'", mark[:1]).fetchall()
                        self._connection.execute("UPDATE meta SET value=? WHERE name='chain'", mark[1:]).fetchall()
                    if erases and removed:
                        self._connection.execute("INSERT OR REPLACE INTO meta(name, value) VALUES ('rewrite',1)")
            except BaseException:
                # Drop tool numbers assigned in the failed transaction.
                self._tools.clear()
                self._tools.update((name, n) for n, name in self._connection.execute("SELECT n, name FROM tool"))
                raise
        self._last = last
        self.rewrite_due = self.rewrite_due or (erases and removed > 0)
        if mark is not None:
            self.seq, self.chain = mark
        return removed

    def _remove(self, entity: int, most: int) -> int:
        query = "SELECT id FROM doc WHERE entity=? AND nth<=?"
        ids = self._connection.execute(query, (entity, most)).fetchall()
        for id in ids:
            self._connection.execute("DELETE FROM words WHERE rowid=?", id).fetchall()
            self._connection.execute("DELETE FROM doc WHERE id=?", id).fetchall()
        return len(ids)

    def _add(self, texts: Sequence[IndexedText]) -> int:
        docs, words, id = [], [], self._last
        for id, (entity, session, at, turn, found) in enumerate(texts, self._last + 1):
            kind = 2 * KINDS.index(found.kind) + found.failed
            docs.append((id, entity, found.nth, session, at, turn, kind, self._tool(found.tool)))
            words.append((id, found.text, found.call))
        head = "INSERT INTO doc(id, entity, nth, session, at, turn, kind, tool)"
        sqlite_file.insert_rows(self._connection, head, "(?,?,?,?,?,?,?,?)", docs)
        sqlite_file.insert_rows(self._connection, "INSERT INTO words(rowid, text, call)", "(?,?,?)", words)
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

    def rewrite(self) -> bool:
        """Merge all segments, which drops removed words, rewrite the file, and empty its log. Takes seconds for a large
        index. Returns: False if a reader kept the log from being emptied: then call ``finish_rewrite``."""
        with sqlite_file.faults(self._connection):
            hit("search.rewrite")
            self._connection.execute("INSERT INTO words(words) VALUES ('optimize')").fetchall()
            kept_in = "FILE" if os.stat(self._path).st_size > _SPACE_FREE_MIN else "MEMORY"
            self._connection.execute(f"PRAGMA temp_store={kept_in}").fetchall()
            self._connection.execute("VACUUM").fetchall()
            return self.finish_rewrite()

    def finish_rewrite(self) -> bool:
        """Empty the log of a rewritten file. Returns: as ``rewrite``."""
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


def matches(
    connection: sqlite_file.Connection, expression: str, wanted: Conditions, *, best: bool, skip: int
) -> Iterator[Doc]:
    """The texts that match the FTS5 ``expression`` and ``wanted``, without the first ``skip``, best or newest first."""
    where, values = _conditions(wanted)
    if best and not where:
        bound = "" if wanted.last is None else "AND rowid<=:last"
        query = f"SELECT rowid, rank FROM words WHERE words MATCH :query {bound} ORDER BY rank LIMIT -1 OFFSET :skip"
        of_doc = f"SELECT {_DOC}, :score FROM doc AS d LEFT JOIN tool AS t ON t.n=d.tool WHERE d.id=:id"
        for id, score in connection.execute(query, {"query": expression, "last": wanted.last, "skip": skip}):
            for row in connection.execute(of_doc, {"id": id, "score": score}):
                yield _doc(row)
        return
    if wanted.last is not None:
        where.append("d.id<=:last")
    order = "score" if best else "d.at DESC, d.id DESC"
    query = f"""SELECT {_DOC}, bm25(words) AS score FROM words AS w CROSS JOIN doc AS d ON d.id=w.rowid
        LEFT JOIN tool AS t ON t.n=d.tool WHERE words MATCH :query {"".join(f" AND {each}" for each in where)}
        ORDER BY {order} LIMIT -1 OFFSET :skip"""
    for row in connection.execute(query, {**values, "query": expression, "last": wanted.last, "skip": skip}):
        yield _doc(row)


def sessions(connection: sqlite_file.Connection, expression: str) -> set[int]:
    """The numbers of the sessions with a text that matches the FTS5 ``expression``. Cost: linear in the matches."""
    query = "SELECT DISTINCT d.session FROM words AS w CROSS JOIN doc AS d ON d.id=w.rowid WHERE words MATCH ?"
    return {session for (session,) in connection.execute(query, (expression,)) if session}


def _conditions(wanted: Conditions) -> tuple[list[str], dict[str, Any]]:
    where, values = [], dict[str, Any]()
    conditions = (
        (
            "d.session IN (SELECT value FROM json_each(:sessions))",
            "sessions",
            None if wanted.sessions is None else json.dumps(list(wanted.sessions)),
        ),
        ("d.tool=(SELECT n FROM tool WHERE name=:tool)", "tool", wanted.tool),
        ("d.kind/2=:kind", "kind", None if wanted.kind is None else KINDS.index(wanted.kind)),
        ("d.kind%2=:failed", "failed", 1 if wanted.failed else None),
        ("d.at>=:since", "since", wanted.since),
        ("d.at<=:until", "until", wanted.until),
    )
    for condition, name, value in conditions:
        if value is not None:
            where.append(condition)
            values[name] = value
    return where, values


def last_id(connection: sqlite_file.Connection) -> int:
    """The greatest ``Doc.id``; 0 in an empty index."""
    found = connection.execute("SELECT max(id) FROM doc").get
    return found if isinstance(found, int) else 0


def _doc(row: Sequence[Any]) -> Doc:
    id, entity, nth, session, at, turn, kind, tool, score = row
    return Doc(id, entity, nth, session, at, turn, KINDS[kind // 2], bool(kind % 2), tool, -score)


def by_entity(docs: Iterable[Doc]) -> dict[int, list[Doc]]:
    """``docs`` by their entity."""
    return {entity: list(some) for entity, some in groupby(sorted(docs, key=lambda d: d.entity), lambda d: d.entity)}
