"""How large transactions are, and how long rows wait for company: as the node's answers take time.

Pure. Few large transactions cost a node less than many small ones; but what one that is too large holds up is the
next, and the reading of what it brings.
"""

from typing import Final

import msgspec

from ctxd.projection.batches import Bounds

VERSIONS_MIN: Final = 32
VERSIONS_MAX: Final = 1_000
"""Versions of one transaction. A node indexes no faster beyond that."""

ROWS_MAX: Final = 1_000
BYTES_MAX: Final = 2 * 1024 * 1024
"""Rows and bytes of one transaction, whatever it is like: what is in memory, several times over, at both ends."""

BUSY_S: Final = 0.3
"""Seconds that a transaction may keep a node busy: above it they shrink; below half of it they grow."""

LINGER_MIN_S: Final = 0.005
LINGER_MAX_S: Final = 0.05
"""Seconds that a row waits for company while nothing is behind."""


class Pace(msgspec.Struct, frozen=True):
    """``versions`` of one transaction at most; ``busy_s``: how long one keeps the node busy, smoothed."""

    versions: int = 250
    busy_s: float = 0.02


def bounds(pace: Pace, *, rows: int = ROWS_MAX) -> Bounds:
    """The bounds of the next transaction; of ``rows`` at most."""
    return Bounds(rows, pace.versions, BYTES_MAX)


def linger_s(pace: Pace) -> float:
    """How long rows may wait for company: as long as a transaction takes, within bounds."""
    return min(LINGER_MAX_S, max(LINGER_MIN_S, pace.busy_s))


def adapted(pace: Pace, busy_s: float, versions: int, *, full: bool) -> Pace:
    """The pace after a transaction of so many ``versions`` kept the node busy for ``busy_s``: counted from when it was
    submitted or the one before it was committed, whichever was later. One that was not ``full`` tells nothing of size:
    a node may have stood still over it."""
    smooth = 0.7 * pace.busy_s + 0.3 * busy_s
    size = pace.versions
    if full and busy_s > BUSY_S:
        size = max(VERSIONS_MIN, min(size, versions) // 2)
    elif 2 * versions > size and busy_s < BUSY_S / 2:
        size = min(VERSIONS_MAX, size + size // 2)
    return Pace(size, smooth)


def is_full(bounds: Bounds, versions: int, size: int) -> bool:
    """Whether so many versions and bytes are more than half of what ``bounds`` allow."""
    return 2 * versions > bounds.versions or 2 * size > bounds.bytes
