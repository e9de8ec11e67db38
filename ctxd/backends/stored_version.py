"""Versions, as exchanged between the store and its backends.

``valid_time`` is the time from which a version is valid; ``tx`` is the write that made it. Backends treat encoded
documents as opaque.
"""

import msgspec


class DamagedVersion(Exception):
    """A row differs from the version that was written, and must not be returned."""


class Version(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row: the value of entity ``id`` from ``valid_time`` on, as written by ``tx`` at ``tx_time`` (ms since 1970).

    ``body`` is the encoded document, None for a deletion. ``content`` is the BLAKE3 of its text, 32 bytes, None
    without. The checksum of a row is over its MessagePack array of these fields.
    """

    id: str
    valid_time: int
    tx: int
    tx_time: int
    body: bytes | None
    content: bytes | None = None
