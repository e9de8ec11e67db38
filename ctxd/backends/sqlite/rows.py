"""Where a version becomes a row of the ``version`` table and a row a version.

SQLite has no check sums: a flipped bit in a row would be read as if it had been written. So each row carries a
CRC-32 over everything it says, and a row that does not match is an error, never an answer.
"""

from collections.abc import Iterable
from typing import Any, Final
from zlib import crc32

import msgspec

from ctxd.backends.port import DamagedVersion, Version

COLUMNS: Final = "e.id, v.vt, v.tx, v.tx_time, v.body, v.content, v.crc"
"""What a query must select, in order, for ``to_version``."""

ROW: Final = "(?,?,?,?,?,?,?)"
"""A row of ``version`` in an INSERT: the number of its entity first."""

_encode: Final = msgspec.msgpack.Encoder().encode
"""What a check sum is made of: the row as a MessagePack array, which says of each value its type and its length."""


def to_version(row: Any) -> Version:  # noqa: ANN401  # a row of SQLite values
    """The version that a row of ``COLUMNS`` holds.

    Raises: DamagedVersion if it is not as it was written.
    """
    return to_versions((row,))[0]


def to_versions(rows: Iterable[Any]) -> list[Version]:
    """As ``to_version``, of many rows: a call for each would take as long as the check."""
    versions = []
    for row in rows:
        fields = row[:-1]
        if crc32(_encode(fields)) != row[-1]:
            id, valid_time, tx = row[:3]
            raise DamagedVersion(f"the version of {id} at {valid_time}, written by {tx}, is damaged")
        versions.append(Version(*fields))
    return versions


def of_version(number: int, version: Version) -> tuple[int, int, int, int, bytes | None, bytes | None, int]:
    """The values that ``ROW`` takes of ``version``, whose entity has ``number``."""
    said = (version.valid_time, version.tx, version.tx_time, version.body, version.content)
    return (number, *said, crc32(_encode((version.id, *said))))
