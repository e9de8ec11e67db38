"""The numbers that tables know entities by, given out as they are first asked for.

A row of another table takes a number and not its entity's name: so the names are looked up here, many at once, and
those of this hour from memory.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ctxd import dbfile

_KNOWN_MAX: Final = 16_384
"""Numbers kept in memory, some 3 MiB with their names. What is written again is mostly written again soon."""


class Numbers:
    """The numbers in the table ``entity`` of one connection, which is the only one that adds to it."""

    def __init__(self, connection: dbfile.Connection) -> None:
        self._connection = connection
        self._known: dict[str, int] = {}

    def of(self, ids: Iterable[str]) -> dict[str, int]:
        """The number of each of ``ids``, given to it now if it has none. Part of the caller's transaction.

        Raises: SqlFailed if the table does not say what it was told.
        """
        known = self._known
        numbers = {id: known.get(id, 0) for id in ids}
        if unknown := [id for id, number in numbers.items() if number == 0]:
            found = self._given(unknown) or self._found(unknown)
            numbers |= found
            if len(known) + len(found) > _KNOWN_MAX:
                known.clear()
            known |= found
        return numbers

    def forget(self) -> None:
        """Believe nothing that is in memory: a transaction that gave numbers was rolled back, or all were removed."""
        self._known.clear()

    def _given(self, ids: Sequence[str]) -> dict[str, int]:
        """Give each of ``ids`` a number that has none. Returns: those of all, nothing if some had theirs already."""
        before = self._connection.total_changes()
        dbfile.insert_rows(self._connection, "INSERT OR IGNORE INTO entity(id)", "(?)", [(id,) for id in ids])
        if self._connection.total_changes() - before < len(ids):
            return {}
        # Each new row has the number behind the greatest there is.
        last = self._connection.last_insert_rowid()
        return dict(zip(ids, range(last - len(ids) + 1, last + 1), strict=True))

    def _found(self, ids: Sequence[str]) -> dict[str, int]:
        query = "SELECT e.id, e.n FROM json_each(?) AS wanted JOIN entity AS e ON e.id=wanted.value"
        rows: list[Any] = self._connection.execute(query, (msgspec.json.encode(ids).decode(),)).fetchall()
        found: dict[str, int] = dict(rows)
        if len(found) < len(ids):
            raise dbfile.SqlFailed(f"{len(ids) - len(found)} entities have no number though all were given one")
        return found
