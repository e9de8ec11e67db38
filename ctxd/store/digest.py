"""One number for everything a store says: equal for two stores if and only if they hold the same versions.

The sum of the hashes of all versions, so the order in which they are met does not matter: a fold of the journal and
a scan of the tables must agree.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
from blake3 import blake3

from ctxd.backends.port import Version
from ctxd.store import journal

_MODULUS: Final = 2**256
_encoder: Final = msgspec.msgpack.Encoder()


class LogicalDigest:
    """A digest that versions are added to one by one."""

    def __init__(self) -> None:
        self._sum = 0
        self.count = 0

    def add(self, version: Version) -> None:
        """Count ``version`` in."""
        row = (version.id, version.valid_time, version.tx, version.tx_time, version.body, version.content)
        self._sum = (self._sum + int.from_bytes(blake3(_encoder.encode(row)).digest(), "big")) % _MODULUS
        self.count += 1

    def hex(self) -> str:
        """The digest so far: 64 hex digits."""
        return f"{self._sum:064x}"


def digest(versions: Iterable[Version]) -> str:
    """The digest of ``versions``, in whatever order."""
    total = LogicalDigest()
    for version in versions:
        total.add(version)
    return total.hex()


def fold(row: journal.Row) -> list[Version]:
    """The versions that a journal row says there are.

    Raises: ValueError if its body is damaged.
    """
    return [
        Version(put.id, row.vt, row.seq, row.tx_time, put.document or None, put.content)
        for put in journal.decode_body(row.body).puts
    ]
