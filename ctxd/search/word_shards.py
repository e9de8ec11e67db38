"""Words of indexed texts, in shards: FTS5 tables that each hold a range of texts of about ``SHARD_BYTES``.

A purge rewrites only the shards that had its texts, so its cost does not depend on the size of the index. FTS5 keeps
the words of a removed text until it merges the segments of its table, and SQLite keeps copies of moved rows in pages of
that table. So ``rewrite`` merges the segments, copies the rows to a new table, and drops the old one, whose pages
``secure_delete`` overwrites. ``removed`` lists the shards that may still have words of an entity's earlier texts.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from ctxd import sqlite_file

SHARD_BYTES: Final = 8 * 1024 * 1024
"""Size at which the next shard begins: the characters of its texts, and ``_TEXT_BYTES`` for each. A query looks up each
word in every shard, and its memory grows with the texts of one."""

_TEXT_BYTES: Final = 64
"""Bytes that a short text takes in the file; 59 were measured."""

TOKENIZER: Final = "unicode61 remove_diacritics 2"
_PARTS: Final = ("data", "idx", "docsize")
"""Tables in which FTS5 keeps the content of a table without texts of its own."""

TABLES: Final = """
CREATE TABLE shard(
    n INTEGER PRIMARY KEY, first INTEGER NOT NULL UNIQUE, bytes INTEGER NOT NULL, texts INTEGER NOT NULL
);
CREATE TABLE removed(entity INTEGER NOT NULL, shard INTEGER NOT NULL, PRIMARY KEY(entity, shard)) WITHOUT ROWID;
CREATE INDEX removed_of_shard ON removed(shard);
CREATE TABLE rewrite_due(shard INTEGER PRIMARY KEY);
"""


class Shard(NamedTuple):
    """A shard: the number in its table's name, the least id of its texts, their size, and how many there are."""

    number: int
    first: int
    bytes: int
    texts: int

    @property
    def table(self) -> str:
        """Name of the FTS5 table."""
        return _table(self.number)


def _table(number: int) -> str:
    return f"words_{number}"


def shards(connection: sqlite_file.Connection) -> list[Shard]:
    """Return the shards in the order of their texts."""
    return [Shard(*row) for row in connection.execute("SELECT n, first, bytes, texts FROM shard ORDER BY first")]


class WordShards:
    """The shards as their only writer changes them, within its transactions. After one that failed, call ``reload``.

    ``used``: the shards whose tables the connection has open, each of which takes 60 KB of memory until it is closed.
    Its methods raise SQLite's errors.
    """

    def __init__(self, connection: sqlite_file.Connection) -> None:
        self._connection = connection
        self.used: set[int] = set()
        self.reload()

    def reload(self) -> None:
        """Read the list of shards again."""
        self._shards = shards(self._connection)

    def add(self, texts: Sequence[tuple[int, str, str]]) -> None:
        """Add ``texts``, each with an id greater than all before, its text and the arguments of its call."""
        if not texts:
            return
        if not self._shards or self._shards[-1].bytes >= SHARD_BYTES:
            self._begin(texts[0][0])
        shard = self._shards[-1]
        head = f"INSERT INTO {shard.table}(rowid, text, call)"
        sqlite_file.insert_rows(self._connection, head, "(?,?,?)", texts)
        size = sum(len(text) + len(call) + _TEXT_BYTES for _, text, call in texts)
        self._change(len(self._shards) - 1, shard._replace(bytes=shard.bytes + size, texts=shard.texts + len(texts)))

    def _begin(self, first: int) -> None:
        if self._shards:
            # A query looks up each word in every segment.
            self._merge(self._shards[-1].table)
        number = self._create()
        self._connection.execute(
            "INSERT INTO shard(n, first, bytes, texts) VALUES (?,?,0,0)", (number, first)
        ).fetchall()
        self._shards.append(Shard(number, first, 0, 0))

    def _create(self) -> int:
        number = max((shard.number for shard in self._shards), default=0) + 1
        self._connection.execute(
            f"CREATE VIRTUAL TABLE {_table(number)} USING fts5("
            f"text, call, content='', contentless_delete=1, tokenize='{TOKENIZER}')"
        ).fetchall()
        return number

    def _merge(self, table: str) -> None:
        self._connection.execute(f"INSERT INTO {table}({table}) VALUES ('optimize')").fetchall()

    def _change(self, place: int, shard: Shard) -> None:
        self._shards[place] = shard
        self.used.add(shard.number)
        self._connection.execute(
            "UPDATE shard SET n=?, bytes=?, texts=? WHERE first=?",
            (shard.number, shard.bytes, shard.texts, shard.first),
        ).fetchall()

    def remove(self, entity: int, ids: Iterable[int]) -> None:
        """Remove the texts ``ids`` of ``entity``. Their words stay until their shard is rewritten."""
        removed = Counter[int]()
        for id in ids:
            place = bisect_right(self._shards, id, key=lambda shard: shard.first) - 1
            self._connection.execute(f"DELETE FROM {self._shards[place].table} WHERE rowid=?", (id,)).fetchall()
            removed[place] += 1
        for place, count in removed.items():
            shard = self._shards[place]
            self._connection.execute("INSERT OR IGNORE INTO removed VALUES (?,?)", (entity, shard.number)).fetchall()
            self._change(place, shard._replace(texts=shard.texts - count))

    # --- purges

    def erase(self, entities: Collection[int]) -> bool:
        """Note that shards with removed texts of ``entities`` have to be rewritten. Returns: whether any shard has."""
        for entity in entities:
            self._connection.execute(
                "INSERT OR IGNORE INTO rewrite_due SELECT shard FROM removed WHERE entity=?", (entity,)
            ).fetchall()
        return self.due() is not None

    def due(self) -> int | None:
        """Return the number of a shard that has to be rewritten; None without one."""
        number = self._connection.execute("SELECT shard FROM rewrite_due LIMIT 1").get
        return number if isinstance(number, int) else None

    def rewrite(self, number: int) -> None:
        """Move the rest of shard ``number`` to a new table. The connection has to be reopened afterwards: FTS5
        may have cached the new table's state."""
        place = next(place for place, shard in enumerate(self._shards) if shard.number == number)
        self._merge(_table(number))
        new = self._create()
        for part in _PARTS:
            self._connection.execute(f"DELETE FROM {_table(new)}_{part}").fetchall()
            self._connection.execute(
                f"INSERT INTO {_table(new)}_{part} SELECT * FROM {_table(number)}_{part}"
            ).fetchall()
        self._connection.execute(f"DROP TABLE {_table(number)}").fetchall()
        for table in ("removed", "rewrite_due"):
            self._connection.execute(f"DELETE FROM {table} WHERE shard=?", (number,)).fetchall()
        self._change(place, self._shards[place]._replace(number=new))
