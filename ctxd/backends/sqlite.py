"""Versions in tables of a SQLite file.

Runs inside the caller's transaction, on the caller's connection, so that a version and the journal row that records it
become durable together. ``version`` is a rowid table with a narrow index, not WITHOUT ROWID: a document of more than a
quarter of a page would take an overflow page of its own there. SQLite has no checksums, so each row has a CRC-32 over
all its values; a row that does not match raises, and is never returned.

A document is stored once: in the journal row that wrote it, with its position in the version, or in the version's row
if the journal row is far larger. In both cases the checksum covers the document.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from ctxd import sqlite_file
from ctxd.backends.stored_version import DamagedVersion, Version
from ctxd.formatting import count
from ctxd.objects.document import ALL, NOW, AsOf, HistoryPage, IdPage

TABLES: Final = """
CREATE TABLE IF NOT EXISTS entity(n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS version(
    entity INTEGER NOT NULL, vt INTEGER NOT NULL, tx INTEGER NOT NULL, tx_time INTEGER NOT NULL, body BLOB, content
    BLOB, crc INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS version_at ON version(entity, vt, tx);
CREATE INDEX IF NOT EXISTS version_content ON version(content) WHERE content IS NOT NULL;
CREATE INDEX IF NOT EXISTS version_past ON version(tx, vt) WHERE vt<tx_time;
"""
"""Entities by number and by id; versions by entity, valid time and tx, by the hash of their text, so that a purge finds
other versions with it, and versions written at a past valid time. ``body`` is the document, or an integer: its place
among the puts in the body of journal row ``tx``; NULL for a deletion. ``crc``: see ``SqliteBackend.append``."""


_VALUES: Final = """v.vt, v.tx, v.tx_time, v.body, v.content, v.crc,
    CASE WHEN typeof(v.body)='integer' THEN (SELECT j.body FROM journal AS j WHERE j.seq=v.tx) END"""

COLUMNS: Final = f"e.id, {_VALUES}"
"""The columns that a query must select, in order, for ``to_version``."""

ROW: Final = "(?,?,?,?,?,?,?)"
"""A row of ``version`` in an INSERT: the number of its entity first."""

_encode: Final = msgspec.msgpack.Encoder().encode
"""Encoder for checksums: the row as a MessagePack array, which includes type and length of each value."""

_decode: Final = msgspec.msgpack.Decoder(list[Any]).decode
_PUTS: Final = 4
_DOCUMENT: Final = 1
"""Positions in the body of a journal row: of its puts, and of the document in each. See
``ctxd.store.journal.encode_body``."""


def to_version(row: Any) -> Version:  # noqa: ANN401  # a row of SQLite values
    """The version that a row of ``COLUMNS`` holds.

    Raises: DamagedVersion if it does not match its checksum.
    """
    return to_versions((row,))[0]


def to_versions(rows: Iterable[Any], ids: Sequence[str] | None = None, size: int | None = None) -> list[Version]:
    """As ``to_version``, for many rows: one call each would take as long as the check itself.

    With ``ids``, a row has the index of its id in ``ids`` instead of the id, which saves creating the strings again.
    With ``size``, reading stops after the row with which the documents reach so many bytes.
    """
    versions = []
    left = 0 if size is None else size
    for id, valid_time, tx, tx_time, body, content, check_sum, written in rows:
        if ids is not None:
            id = ids[id]
        if written is not None:
            body = _document(written, body)
        if crc32(_encode((id, valid_time, tx, tx_time, body, content))) != check_sum:
            if tx is None:
                raise _no_version(id)
            raise DamagedVersion(f"the version of {id} at {valid_time}, written by {tx}, is damaged")
        versions.append(Version(id, valid_time, tx, tx_time, body, content))
        if size is not None and (left := left - len(body or b"")) <= 0:
            break
    return versions


def _document(written: bytes, place: int) -> bytes | None:
    """The document at ``place`` in the journal row body ``written``; None, which matches no checksum, if it is
    damaged."""
    try:
        found = _decode(sqlite_file.unpack_body(written))[_PUTS][place][_DOCUMENT]
    except (ValueError, TypeError, LookupError):
        return None
    return found if isinstance(found, bytes) else None


def _no_version(id: str) -> DamagedVersion:
    return DamagedVersion(f"no version of {id} is found, though it is known: an index is damaged")


_KNOWN_MAX: Final = 16_384
"""Maximum cached numbers, about 3 MiB with their ids. Entities that are rewritten are mostly rewritten soon."""


_VISIBLE = """SELECT rowid FROM version WHERE entity=e.n AND vt<=:vt AND tx<=:tx ORDER BY vt DESC, tx DESC LIMIT 1"""

_ANY = "SELECT 1 FROM version AS w WHERE w.entity=e.n"

_CORRECTED = "SELECT 1 FROM version AS w WHERE w.entity=v.entity AND w.vt=v.vt AND w.tx>v.tx AND w.tx<=:tx"


def _beyond(prefix: str) -> str | None:
    """Return the least text greater than every text that starts with ``prefix``; None if no text is."""
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at])
        if code < 0x10FFFF:
            # Surrogates are not text: the next character after U+D7FF is U+E000.
            return prefix[:at] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None


class SqliteBackend:
    """A bitemporal map from entity to versions, in the tables of one connection.

    As of ``(v, t)`` an entity is its row with the greatest ``(valid_time, tx)`` at or below ``v`` and ``t``: a row is
    valid from its valid time to the next one, and of two with the same valid time the later counts. A row with equal
    entity, valid time and tx is replaced.

    Other tables refer to an entity by its number in the table ``entity(n, id)``, see ``number``. Methods block; call
    one at a time. Reads also work on a ``query_only`` connection.
    """

    def __init__(self, connection: sqlite_file.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}

    def create(self) -> None:
        """Create missing tables and indexes."""
        self._connection.execute(TABLES).fetchall()

    def clear(self) -> None:
        """Remove all versions and numbers. Rows of other tables that refer to a number must be removed first."""
        self._connection.execute("DELETE FROM version").fetchall()
        self._connection.execute("DELETE FROM entity").fetchall()
        self._numbers.clear()

    def rolled_back(self) -> None:
        """Forget cached numbers, after a rollback of the enclosing transaction."""
        self._numbers.clear()

    def number(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the number of each of ``ids``, assigned now if it has none, as ``append`` also does.

        Part of the caller's transaction, on the only connection that adds to the table. Raises: SqlFailed if the table
        lacks a number that was inserted.
        """
        known = self._numbers
        numbers = {id: known.get(id, 0) for id in ids}
        if unknown := [id for id, number in numbers.items() if number == 0]:
            before = self._connection.total_changes()
            sqlite_file.insert_rows(
                self._connection, "INSERT OR IGNORE INTO entity(id)", "(?)", [(id,) for id in unknown]
            )
            if self._connection.total_changes() - before == len(unknown):
                # All are new. Each new row gets the number after the greatest one.
                last = self._connection.last_insert_rowid()
                found = dict(zip(unknown, range(last - len(unknown) + 1, last + 1), strict=True))
            else:
                found = self._found(unknown)
            numbers |= found
            if len(known) + len(found) > _KNOWN_MAX:
                known.clear()
            known |= found
        return numbers

    def _found(self, ids: Sequence[str]) -> dict[str, int]:
        query = "SELECT e.id, e.n FROM json_each(?) AS wanted JOIN entity AS e ON e.id=wanted.value"
        rows: list[Any] = self._connection.execute(query, (msgspec.json.encode(ids).decode(),)).fetchall()
        found: dict[str, int] = dict(rows)
        if len(found) < len(ids):
            raise sqlite_file.SqlFailed(
                f"{count(len(ids) - len(found), 'entity')} without a number though all were given one"
            )
        return found

    def append(self, versions: Sequence[Version], places: Sequence[int | None] | None = None) -> None:
        """Add rows, in any order of valid times.

        ``places``: the positions of the documents in their journal rows, None for a document that is stored with its
        version; without ``places`` all are. The checksum of a row covers the id of its entity and all values, including
        the document.
        """
        numbers = self.number([version.id for version in versions])
        head = "INSERT OR REPLACE INTO version(entity, vt, tx, tx_time, body, content, crc)"
        values = []
        for number, version in enumerate(versions):
            place = None if places is None else places[number]
            stored = version.body if place is None else place
            key = numbers[version.id], version.valid_time, version.tx, version.tx_time
            values.append((*key, stored, version.content, crc32(_encode(version))))
        sqlite_file.insert_rows(self._connection, head, ROW, values)

    def rewrite(self, versions: Sequence[Version], places: Sequence[int]) -> None:
        """Replace rows by ``versions`` with the same entity, valid time and tx, in place: none may be longer than
        before. ``places``: as in ``append``, also for versions that were stored with their document."""
        where = "WHERE entity=(SELECT n FROM entity WHERE id=?) AND vt=? AND tx=?"
        statement = f"UPDATE version SET body=?, content=?, crc=? {where}"
        for version, place in zip(versions, places, strict=True):
            key = version.id, version.valid_time, version.tx
            self._connection.execute(statement, (place, version.content, crc32(_encode(version)), *key)).fetchall()

    def as_of(self, ids: Sequence[str], at: AsOf = NOW) -> list[Version]:
        """Return the versions of ``ids`` as of ``at``, without entities that are unknown or deleted there.

        Raises: DamagedVersion for a damaged row.
        """
        query = f"""SELECT wanted.key, {_VALUES} FROM json_each(:ids) AS wanted JOIN entity AS e ON e.id=wanted.value
            JOIN version AS v ON v.rowid=({_VISIBLE}) WHERE v.body IS NOT NULL"""
        wanted = list(dict.fromkeys(ids))
        bindings = {"ids": msgspec.json.encode(wanted).decode(), "vt": at.valid_time, "tx": at.tx}
        return to_versions(self._connection.execute(query, bindings), wanted)

    def require_versions(self, ids: Iterable[str]) -> None:
        """Raises: DamagedVersion if one of ``ids`` has a number but no version: the first version assigns the
        number."""
        query = f"""SELECT e.id FROM json_each(?) AS wanted JOIN entity AS e ON e.id=wanted.value
            WHERE NOT EXISTS({_ANY}) LIMIT 1"""
        lost = self._connection.execute(query, (msgspec.json.encode(list(ids)).decode(),)).fetchone()
        if lost is not None:
            raise _no_version(lost[0])

    def history(self, id: str, at: AsOf = NOW, page: HistoryPage = ALL, *, corrections: bool = False) -> list[Version]:
        """Return ``page`` of the rows of ``id`` up to ``at``, deletions included.

        Without ``corrections``, only the row with the greatest ``tx`` for each valid time. Raises: as ``as_of``.
        """
        compare, order = (">", "ASC") if page.ascending else ("<", "DESC")
        where = ["v.vt<=:vt", "v.tx<=:tx"]
        if page.after is not None:
            where.append(f"(v.vt, v.tx) {compare} (:after_vt, :after_tx)")
        if not corrections:
            where.append(f"NOT EXISTS({_CORRECTED})")
        query = f"""SELECT {COLUMNS} FROM entity AS e JOIN version AS v ON v.entity=e.n
            WHERE e.id=:id AND {" AND ".join(where)} ORDER BY v.vt {order}, v.tx {order} LIMIT :limit"""
        bindings = {"id": id, "vt": at.valid_time, "tx": at.tx, "limit": -1 if page.limit is None else page.limit}
        if page.after is not None:
            bindings |= {"after_vt": page.after[0], "after_tx": page.after[1]}
        return to_versions(self._connection.execute(query, bindings))

    def scan(self, prefix: str, at: AsOf = NOW, page: IdPage = ALL, *, size: int | None = None) -> list[Version]:
        """Return the versions as of ``at`` of ``page`` of the entities whose id starts with ``prefix``, by id, up to
        the one with which their documents reach ``size`` bytes.

        Raises: DamagedVersion for a damaged row, and for an entity with a number but no version.
        """
        first, beyond, above, after, ascending = prefix, _beyond(prefix), ">=", page.after, page.ascending
        # Only one bound per side: with two, SQLite would seek to the first and scan to the other.
        if after is not None and ascending and after >= first:
            first, above = after, ">"
        elif after is not None and not ascending and (beyond is None or after < beyond):
            beyond = after
        # Also select entities without any version, which are damaged: an entity gets its number with its first version.
        where = [f"e.id{above}:first", f"(v.body IS NOT NULL OR NOT EXISTS({_ANY}))"]
        bindings: dict[str, str | int | None] = {"first": first, "vt": at.valid_time, "tx": at.tx}
        if beyond is not None:
            where.append("e.id<:beyond")
            bindings["beyond"] = beyond
        query = f"""SELECT {COLUMNS} FROM entity AS e LEFT JOIN version AS v ON v.rowid=({_VISIBLE})
            WHERE {" AND ".join(where)} ORDER BY e.id {"ASC" if ascending else "DESC"} LIMIT :limit"""
        bindings["limit"] = -1 if page.limit is None else page.limit
        rows = self._connection.execute(query, bindings)
        return to_versions(rows, size=size)

    def wrote_past(self, valid_time: int, after: int) -> int:
        """Return the last write after ``after`` of a backdated version valid from ``valid_time`` or before; 0 without
        one."""
        query = "SELECT max(tx) FROM version WHERE vt<tx_time AND tx>? AND vt<=?"
        (found,) = self._connection.execute(query, (after, valid_time)).fetchone() or (None,)
        return found or 0

    def with_content(self, refs: Iterable[bytes]) -> list[Version]:
        """Return every version whose text has one of the hashes ``refs``, by index. Cost: linear in the result."""
        query = f"""SELECT {COLUMNS} FROM version AS v LEFT JOIN entity AS e ON e.n=v.entity WHERE v.content=?"""
        return [version for ref in refs for version in to_versions(self._connection.execute(query, (ref,)))]

    def everything(self, damaged: Callable[[DamagedVersion], None]) -> Iterator[Version]:
        """Iterate over all rows, unordered; ``damaged`` is called for each unreadable one."""
        query = f"SELECT {COLUMNS} FROM version AS v LEFT JOIN entity AS e ON e.n=v.entity"
        for row in self._connection.execute(query):
            try:
                yield to_version(row)
            except DamagedVersion as error:
                damaged(error)
