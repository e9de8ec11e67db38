"""Where a version becomes a row of the ``version`` table and a row a version."""

from typing import Any, Final

from ctxd.backends.port import Version

COLUMNS: Final = "e.id, v.vt, v.tx, v.tx_time, v.body, v.content"
"""What a query must select, in order, for ``to_version``."""


def to_version(row: Any) -> Version:  # noqa: ANN401  # a row of SQLite values
    """The version that a row of ``COLUMNS`` holds."""
    id, valid_time, tx, tx_time, body, content = row
    return Version(id, valid_time, tx, tx_time, body, content)


def of_version(version: Version) -> tuple[str, int, int, int, bytes | None, bytes | None]:
    """The values that ``ROW`` takes."""
    return (version.id, version.valid_time, version.tx, version.tx_time, version.body, version.content)


ROW: Final = "((SELECT n FROM entity WHERE id=?),?,?,?,?,?)"
"""A row of ``version`` in an INSERT: its id first, looked up."""
