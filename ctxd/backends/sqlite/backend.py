"""Versions in tables of a SQLite file that somebody else opened.

Runs inside the caller's transaction, on the caller's connection: so a version and the journal row that tells of it
become durable together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from ctxd import dbfile
from ctxd.backends.port import LATEST, Change, DamagedVersion, Version
from ctxd.backends.sqlite import rows, schema
from ctxd.backends.sqlite.numbers import Numbers

_VISIBLE = """SELECT rowid FROM version WHERE entity=e.n AND vt<=:vt AND tx<=:tx ORDER BY vt DESC, tx DESC LIMIT 1"""

_CORRECTED = "SELECT 1 FROM version AS w WHERE w.entity=v.entity AND w.vt=v.vt AND w.tx>v.tx AND w.tx<=:tx"


def _beyond(prefix: str) -> str | None:
    """The least text above every text that starts with ``prefix``; null if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at])
        if code < 0x10FFFF:
            # Surrogates are not text: the next character after U+D7FF is U+E000.
            return prefix[:at] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None


class SqliteBackend:
    """See ``EmbeddedBackend``. Reads also work on a ``query_only`` connection."""

    def __init__(self, connection: dbfile.Connection) -> None:
        self._connection = connection
        self._numbers = Numbers(connection)

    def create(self) -> None:
        """See ``EmbeddedBackend.create``."""
        self._connection.execute(schema.TABLES).fetchall()

    def clear(self) -> None:
        """See ``EmbeddedBackend.clear``."""
        self._connection.execute("DELETE FROM version").fetchall()
        self._connection.execute("DELETE FROM entity").fetchall()
        self._numbers.forget()

    def rolled_back(self) -> None:
        """See ``EmbeddedBackend.rolled_back``."""
        self._numbers.forget()

    def number(self, ids: Iterable[str]) -> dict[str, int]:
        """See ``EmbeddedBackend.number``."""
        return self._numbers.of(ids)

    def append(self, versions: Sequence[Version]) -> None:
        """See ``EmbeddedBackend.append``."""
        numbers = self._numbers.of([version.id for version in versions])
        head = "INSERT OR REPLACE INTO version(entity, vt, tx, tx_time, body, content, crc)"
        values = [rows.of_version(numbers[version.id], version) for version in versions]
        dbfile.insert_rows(self._connection, head, rows.ROW, values)

    def apply(self, tx: int, tx_time: int, changes: Sequence[Change]) -> None:
        """See ``VersionBackend.apply``."""
        for change in changes:
            if change.end is None:
                self.append(self._open_ended(tx, tx_time, change))
            elif change.start < change.end:
                self.append(self._bounded(tx, tx_time, change, change.end))

    def _open_ended(self, tx: int, tx_time: int, change: Change) -> list[Version]:
        written = [Version(change.id, change.start, tx, tx_time, change.body, change.content)]
        seen = self.history(change.id, ascending=False, corrections=True, valid_time=change.start, tx=tx, limit=1)
        if seen and seen[0].body is not None:
            shown = (seen[0].tx, seen[0].body, seen[0].content)
            # One below any tx at the start: the row there, if there is one, is looked at as well.
            for row in self.history(change.id, after=(change.start, -1)):
                if (row.tx, row.body, row.content) != shown:
                    break
                written.append(Version(change.id, row.valid_time, tx, tx_time, change.body, change.content))
        return list({version.valid_time: version for version in written}.values())

    def _bounded(self, tx: int, tx_time: int, change: Change, end: int) -> list[Version]:
        earlier = self.history(change.id, ascending=False, valid_time=end)
        starts = {change.start, *(row.valid_time for row in earlier if change.start < row.valid_time < end)}
        written = [Version(change.id, start, tx, tx_time, change.body, change.content) for start in starts]
        if earlier:
            was = earlier[0]
            written.append(Version(change.id, end, was.tx, was.tx_time, was.body, was.content))
        else:
            written.append(Version(change.id, end, tx, tx_time, None))
        return written

    def as_of(self, ids: Sequence[str], *, valid_time: int = LATEST, tx: int = LATEST) -> list[Version]:
        """See ``VersionBackend.as_of``."""
        query = f"""SELECT {rows.COLUMNS} FROM json_each(:ids) AS wanted JOIN entity AS e ON e.id=wanted.value
            JOIN version AS v ON v.rowid=({_VISIBLE}) WHERE v.body IS NOT NULL"""
        wanted = list(dict.fromkeys(ids))
        bindings = {"ids": msgspec.json.encode(wanted).decode(), "vt": valid_time, "tx": tx}
        found = rows.to_versions(self._connection.execute(query, bindings))
        if len(found) < len(wanted):
            self._require_versions({*wanted}.difference(version.id for version in found))
        return found

    def _require_versions(self, ids: Iterable[str]) -> None:
        """Raises: DamagedVersion if one of ``ids`` is known and has no version: a number is given with the first."""
        query = """SELECT e.id FROM json_each(?) AS wanted JOIN entity AS e ON e.id=wanted.value
            WHERE NOT EXISTS(SELECT 1 FROM version AS v WHERE v.entity=e.n) LIMIT 1"""
        lost = self._connection.execute(query, (msgspec.json.encode(list(ids)).decode(),)).fetchone()
        if lost is not None:
            raise DamagedVersion(f"no version of {lost[0]} is found, though it is known: an index is damaged")

    def history(
        self,
        id: str,
        *,
        ascending: bool = True,
        corrections: bool = False,
        valid_time: int = LATEST,
        tx: int = LATEST,
        after: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> list[Version]:
        """See ``VersionBackend.history``."""
        compare, order = (">", "ASC") if ascending else ("<", "DESC")
        where = ["v.vt<=:vt", "v.tx<=:tx"]
        if after is not None:
            where.append(f"(v.vt, v.tx) {compare} (:after_vt, :after_tx)")
        if not corrections:
            where.append(f"NOT EXISTS({_CORRECTED})")
        query = f"""SELECT {rows.COLUMNS} FROM entity AS e JOIN version AS v ON v.entity=e.n
            WHERE e.id=:id AND {" AND ".join(where)} ORDER BY v.vt {order}, v.tx {order} LIMIT :limit"""
        bindings = {"id": id, "vt": valid_time, "tx": tx, "limit": -1 if limit is None else limit}
        if after is not None:
            bindings |= {"after_vt": after[0], "after_tx": after[1]}
        found = rows.to_versions(self._connection.execute(query, bindings))
        if not found and after is None:
            self._require_versions((id,))
        return found

    def scan(
        self,
        prefix: str,
        *,
        ascending: bool = True,
        after: str | None = None,
        limit: int | None = None,
        valid_time: int = LATEST,
        tx: int = LATEST,
    ) -> list[Version]:
        """See ``VersionBackend.scan``."""
        first, beyond, above = prefix, _beyond(prefix), ">="
        # One bound on each side: of two, SQLite would seek to the first and walk to the other.
        if after is not None and ascending and after >= first:
            first, above = after, ">"
        elif after is not None and not ascending and (beyond is None or after < beyond):
            beyond = after
        where = [f"e.id{above}:first", "v.body IS NOT NULL"]
        bindings: dict[str, str | int | None] = {"first": first, "vt": valid_time, "tx": tx}
        if beyond is not None:
            where.append("e.id<:beyond")
            bindings["beyond"] = beyond
        query = f"""SELECT {rows.COLUMNS} FROM entity AS e JOIN version AS v ON v.rowid=({_VISIBLE})
            WHERE {" AND ".join(where)} ORDER BY e.id {"ASC" if ascending else "DESC"} LIMIT :limit"""
        bindings["limit"] = -1 if limit is None else limit
        return rows.to_versions(self._connection.execute(query, bindings))

    def with_content(self, refs: Iterable[bytes]) -> list[Version]:
        """See ``EmbeddedBackend.with_content``."""
        query = f"""SELECT {rows.COLUMNS} FROM version AS v LEFT JOIN entity AS e ON e.n=v.entity WHERE v.content=?"""
        return [version for ref in refs for version in rows.to_versions(self._connection.execute(query, (ref,)))]

    def everything(self, damaged: Callable[[DamagedVersion], None]) -> Iterator[Version]:
        """See ``VersionBackend.everything``."""
        query = f"SELECT {rows.COLUMNS} FROM version AS v LEFT JOIN entity AS e ON e.n=v.entity"
        for row in self._connection.execute(query):
            try:
                yield rows.to_version(row)
            except DamagedVersion as error:
                damaged(error)
