"""Background compression of journal rows and texts that were stored as they came: those of busy moments, and those of
earlier versions.

Walks both tables once, in order, a few rows a step. Each value is replaced by a shorter one in its place, so no other
row is moved within the file, and ``secure_delete`` zeroes what that leaves: a purge finds no copies. Pages that become
free are used again by later writes. Where it is, is kept in ``meta``; a step that is lost is made again.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ctxd import dbfile, limits

_ROWS: Final = 256
"""Rows of a step at most."""

_PLACE_MAX: Final = 2**63

_UNKEPT_MAX: Final = 1_000
"""Rows that are looked at again after a kill, where nothing was compressed."""


class Table(NamedTuple):
    """A table whose values are compressed. ``looks`` finds the number and the length of the next values, 0 for one that
    is compressed or elsewhere; ``name`` is that of the place in ``meta``, a number of 8 bytes."""

    name: str
    looks: str
    reads: str
    writes: str
    pack: Callable[[bytes], bytes]


_TABLES: Final = (
    Table(
        "compressed:journal",
        "SELECT seq, length(body) FROM journal WHERE seq>? ORDER BY seq LIMIT ?",
        "SELECT body FROM journal WHERE seq=?",
        "UPDATE journal SET body=? WHERE seq=?",
        dbfile.pack_body,
    ),
    Table(
        "compressed:content",
        "SELECT rowid, iif(length(bytes)=size, size, 0) FROM content WHERE rowid>? ORDER BY rowid LIMIT ?",
        "SELECT bytes FROM content WHERE rowid=?",
        "UPDATE content SET bytes=? WHERE rowid=?",
        dbfile.pack_content,
    ),
)


class PackedRows(NamedTuple):
    """Values of one step that are shorter now, each with its row, and the last row of ``table`` that was looked at."""

    table: Table
    last: int
    shorter: list[tuple[bytes, int]]


class Compression:
    """The walk over both tables, on the connection that writes."""

    def __init__(self, connection: dbfile.Connection) -> None:
        self._connection = connection
        self._places = {table.name: self._place(table) for table in _TABLES}
        self._kept = dict(self._places)

    def _place(self, table: Table) -> int:
        found = self._connection.execute("SELECT CAST(value AS BLOB) FROM meta WHERE name=?", (table.name,)).fetchone()
        place = 0 if found is None else int.from_bytes(found[0], "big")
        # A place that was damaged is begun again.
        return place if place < _PLACE_MAX else 0

    def behind(self, seq: int) -> int:
        """The journal rows up to ``seq`` that were not looked at."""
        return seq - self._places[_TABLES[0].name]

    def next(self) -> PackedRows | None:
        """Compress the next values, in memory. Returns: None at the end of both tables."""
        for table in _TABLES:
            last, size = 0, 0
            shorter: list[tuple[bytes, int]] = []
            rows: list[Any] = self._connection.execute(table.looks, (self._places[table.name], _ROWS)).fetchall()
            for last, length in rows:
                if not limits.COMPRESSED_BYTES_MIN <= (length or 0) <= limits.COMPRESSED_BYTES_MAX:
                    continue
                ((stored,),) = self._connection.execute(table.reads, (last,)).fetchall()
                # Anything but bytes is damage, which the scrub reports.
                if isinstance(stored, bytes) and len(packed := table.pack(stored)) < len(stored):
                    shorter.append((packed, last))
                size += length
                if size >= limits.COMPRESSED_STEP_BYTES:
                    break
            if last:
                return PackedRows(table, last, shorter)
        return None

    def replace(self, step: PackedRows) -> None:
        """Replace the values of ``step``, in the transaction that is open."""
        for value in step.shorter:
            self._connection.execute(step.table.writes, value).fetchall()
        self._keep(step.table.name, step.last)

    def went_on(self, step: PackedRows) -> None:
        """Go on behind ``step``, which is done."""
        self._places[step.table.name] = step.last

    def must_keep(self) -> bool:
        """True if the places have to be kept with ``keep``."""
        return any(place - self._kept[name] > _UNKEPT_MAX for name, place in self._places.items())

    def keep(self) -> None:
        """Keep the places, in the transaction that is open."""
        for name, place in self._places.items():
            self._keep(name, place)

    def _keep(self, name: str, place: int) -> None:
        query = "INSERT OR REPLACE INTO meta(name, value) VALUES (?,?)"
        self._connection.execute(query, (name, place.to_bytes(8, "big"))).fetchall()
        self._kept[name] = place
