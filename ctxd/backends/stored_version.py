"""Values that pass between the store and its backends: versions.

``valid_time`` is when a version holds; ``tx`` is the write that made it. A backend keeps encoded documents and does not
look inside.
"""

import msgspec


class DamagedVersion(Exception):
    """A row is not what was written: it must not be served."""


class Version(msgspec.Struct, frozen=True, gc=False):
    """One row: what entity ``id`` is from ``valid_time`` on, as written by ``tx`` at ``tx_time`` (ms since 1970).

    ``body`` is the encoded document, None for a deletion. ``content`` is the BLAKE3 of its text, 32 bytes, None
    without.
    """

    id: str
    valid_time: int
    tx: int
    tx_time: int
    body: bytes | None
    content: bytes | None = None
