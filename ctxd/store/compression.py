"""Background compression of journal rows and texts that were stored uncompressed, under load or by earlier versions.

Walks both tables once, in order, a few rows per step. Each value is replaced in place by a shorter one, padded with
zeros if other rows would move within the file otherwise, and ``secure_delete`` zeroes the rest: no copies escape a
later purge. Later writes reuse pages that become free. The position is kept in ``meta``; a lost step is repeated.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ctxd import limits, sqlite_file
from ctxd.store import journal

_ROWS: Final = 256
"""Maximum rows per step."""

_PLACE_MAX: Final = 2**63

_UNKEPT_MAX: Final = 1_000
"""Maximum rows examined again after a kill if nothing was compressed."""


class Table(NamedTuple):
    """A table whose values are compressed. ``looks`` selects the row number and length of the next values, length 0 if
    already compressed or not in the table; ``reads`` selects all values of a row as they are stored, that in ``column``
    is compressed; ``name`` is the key of the position in ``meta``, an 8-byte number."""

    name: str
    looks: str
    reads: str
    column: int
    writes: str
    pack: Callable[[bytes], bytes]


JOURNAL_WALK: Final = "compressed:journal"
"""Name of the walk over the journal."""

_TABLES: Final = (
    Table(
        JOURNAL_WALK,
        "SELECT seq, length(body) FROM journal WHERE seq>? ORDER BY seq LIMIT ?",
        f"SELECT {journal.STORED} FROM journal WHERE seq=?",
        journal.STORED_BODY,
        "UPDATE journal SET body=? WHERE seq=?",
        sqlite_file.pack_body,
    ),
    Table(
        "compressed:content",
        "SELECT rowid, iif(length(bytes)=size, size, 0) FROM content WHERE rowid>? ORDER BY rowid LIMIT ?",
        "SELECT hash, size, bytes FROM content WHERE rowid=?",
        2,
        "UPDATE content SET bytes=? WHERE rowid=?",
        sqlite_file.pack_content,
    ),
)


class PackedRows(NamedTuple):
    """The values that one step made shorter, each with its row, and the last row of ``table`` that it examined."""

    table: Table
    last: int
    shorter: list[tuple[bytes, int]]


class Compression:
    """The walk over both tables, on the connection that writes. ``places`` has the last row examined of each table."""

    def __init__(self, connection: sqlite_file.Connection) -> None:
        self._connection = connection
        self.places = {table.name: self._place(table) for table in _TABLES}
        self._kept = dict(self.places)

    def _place(self, table: Table) -> int:
        found = self._connection.execute("SELECT CAST(value AS BLOB) FROM meta WHERE name=?", (table.name,)).fetchone()
        place = 0 if found is None else int.from_bytes(found[0], "big")
        # A damaged position starts again at 0.
        return place if place < _PLACE_MAX else 0

    def next(self) -> PackedRows | None:
        """Compress the next values, in memory. Returns: None at the end of both tables."""
        for table in _TABLES:
            last, size = 0, 0
            shorter: list[tuple[bytes, int]] = []
            rows: list[Any] = self._connection.execute(table.looks, (self.places[table.name], _ROWS)).fetchall()
            for last, length in rows:
                if not limits.COMPRESSED_BYTES_MIN <= (length or 0) <= limits.COMPRESSED_BYTES_MAX:
                    continue
                (row,) = self._connection.execute(table.reads, (last,)).fetchall()
                # Anything but bytes is damage, which the scrub reports.
                if isinstance(stored := row[table.column], bytes) and len(packed := table.pack(stored)) < len(stored):
                    fitting = packed.ljust(sqlite_file.shortened_length(row, table.column, len(packed)), b"\0")
                    if len(fitting) < len(stored):
                        shorter.append((fitting, last))
                size += length
                if size >= limits.COMPRESSED_STEP_BYTES:
                    break
            if last:
                return PackedRows(table, last, shorter)
        return None

    def replace(self, step: PackedRows) -> None:
        """Replace the values of ``step``, in the open transaction."""
        for value in step.shorter:
            self._connection.execute(step.table.writes, value).fetchall()
        self._keep(step.table.name, step.last)

    def went_on(self, step: PackedRows) -> None:
        """Move past ``step``, whose transaction is committed."""
        self.places[step.table.name] = step.last

    def must_keep(self) -> bool:
        """True if ``keep`` has to be called."""
        return any(place - self._kept[name] > _UNKEPT_MAX for name, place in self.places.items())

    def keep(self) -> None:
        """Store the positions, in the open transaction."""
        for name, place in self.places.items():
            self._keep(name, place)

    def _keep(self, name: str, place: int) -> None:
        query = "INSERT OR REPLACE INTO meta(name, value) VALUES (?,?)"
        self._connection.execute(query, (name, place.to_bytes(8, "big"))).fetchall()
        self._kept[name] = place
