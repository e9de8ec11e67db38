"""Where a version becomes a row of the ``version`` table and a row a version.

SQLite has no check sums: a flipped bit in a row would be read as if it had been written. So each row carries a
CRC-32 over everything it says, and a row that does not match is an error, never an answer.
"""

import zlib
from typing import Any, Final

from ctxd.backends.port import DamagedVersion, Version

COLUMNS: Final = "e.id, v.vt, v.tx, v.tx_time, v.body, v.content, v.crc"
"""What a query must select, in order, for ``to_version``."""

ROW: Final = "((SELECT n FROM entity WHERE id=?),?,?,?,?,?,?)"
"""A row of ``version`` in an INSERT: its id first, looked up."""


def to_version(row: Any) -> Version:  # noqa: ANN401  # a row of SQLite values
    """The version that a row of ``COLUMNS`` holds.

    Raises: DamagedVersion if it is not as it was written.
    """
    id, valid_time, tx, tx_time, body, content, crc = row
    try:
        damaged = crc != _check(id, valid_time, tx, tx_time, body, content)
    except (TypeError, ValueError):
        damaged = True
    if damaged:
        raise DamagedVersion(f"the version of {id} at {valid_time}, written by {tx}, is damaged")
    return Version(id, valid_time, tx, tx_time, body, content)


def of_version(version: Version) -> tuple[str, int, int, int, bytes | None, bytes | None, int]:
    """The values that ``ROW`` takes."""
    fields = (version.id, version.valid_time, version.tx, version.tx_time, version.body, version.content)
    return (*fields, _check(*fields))


def _check(id: str, valid_time: int, tx: int, tx_time: int, body: bytes | None, content: bytes | None) -> int:
    head = f"{id} {valid_time} {tx} {tx_time} {body is None} {content is None}"
    return zlib.crc32(content or b"", zlib.crc32(body or b"", zlib.crc32(head.encode())))
