"""Batches of journal rows, their documents, and the size that suits the node.

Pure. XTDB keeps several versions of an entity in one transaction, but of two at one valid time only the later.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Final

import msgspec

from ctxd.backends.port import Version
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, content_docs, to_doc
from ctxd.backends.xtdb.messages import Delete, Op, PutDoc
from ctxd.projection.cursor import Cursor, moved


class ProjectedRow(msgspec.Struct, frozen=True, gc=False):
    """One journal row, ready to be projected. ``chain`` is in hex; ``size`` is its share of a batch, in bytes.

    ``fault``: the reason why it cannot be projected, empty if it can. ``purged``: the entities that the row purged.
    """

    seq: int
    chain: str
    session: str | None
    versions: tuple[Version, ...]
    size: int
    fault: str = ""
    purged: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """True if it must be a batch of its own."""
        return bool(self.fault or self.purged)


class Bounds(msgspec.Struct, frozen=True):
    """Maximum size of one transaction."""

    rows: int
    versions: int
    bytes: int


def take(pieces: Sequence[ProjectedRow], bounds: Bounds) -> int:
    """Number of ``pieces`` in the next batch: as many as ``bounds`` allow, and at least one.

    A row that cannot be projected, and one that records a purge, is a batch of its own. A transaction keeps several
    versions of one entity, but of two at one valid time only the later: those need two transactions.
    """
    taken: set[tuple[str, int]] = set()
    versions = size = 0
    for count, piece in enumerate(pieces[: bounds.rows]):
        versions += len(piece.versions)
        size += piece.size
        mine = [(version.id, version.valid_time) for version in piece.versions]
        if count and (piece.alone or versions > bounds.versions or size > bounds.bytes or not taken.isdisjoint(mine)):
            return count
        if piece.alone:
            return 1
        taken.update(mine)
    return min(len(pieces), bounds.rows)


def wanted(pieces: Sequence[ProjectedRow], projected: Container[bytes]) -> list[bytes]:
    """Distinct texts that ``pieces`` refer to and the node may lack."""
    refs = dict.fromkeys(v.content for piece in pieces for v in piece.versions if v.content is not None)
    return [ref for ref in refs if ref not in projected]


def documents(
    pieces: Sequence[ProjectedRow], texts: Mapping[bytes, str], writer: str, *, put: str = "", again: bool = False
) -> list[Op]:
    """Operations that put ``pieces``, with ``texts`` before the documents that refer to them.

    ``put`` names the newest eviction, which may have covered one of the texts; ``again``: also one of the versions.
    """
    # Two texts may share a part, which is put once.
    parts = {doc["xt/id"]: doc for ref, text in texts.items() for doc in content_docs(ref, text, put=put)}
    ops: list[Op] = [PutDoc(doc, FIXED_VALID_TIME) for doc in parts.values()]
    for piece in pieces:
        for version in piece.versions:
            if version.body is None:
                ops.append(Delete(version.id, version.valid_time))
            else:
                ops.append(PutDoc(to_doc(version, writer, put=put if again else ""), version.valid_time))
    return ops


def transaction(before: Cursor | None, after: Cursor, puts: Sequence[Op], writer: str) -> list[Op]:
    """``puts`` between the two halves of the cursor's move from ``before`` to ``after``, so that all take place or
    none."""
    match, put = moved(before, after, writer)
    return [match, *puts, put]


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
    """Size and duration of batches: ``versions`` at most in one transaction; ``busy_s``: how long it keeps the node
    busy, smoothed."""

    versions: int = 250
    busy_s: float = 0.02


def bounds(pace: Pace, *, rows: int = ROWS_MAX) -> Bounds:
    """Bounds of the next transaction; at most ``rows``."""
    return Bounds(rows, pace.versions, BYTES_MAX)


def linger_s(pace: Pace) -> float:
    """Seconds that rows may wait for others: as long as a transaction takes, within limits."""
    return min(LINGER_MAX_S, max(LINGER_MIN_S, pace.busy_s))


def adapted(pace: Pace, busy_s: float, versions: int, *, full: bool) -> Pace:
    """Pace after a transaction of ``versions`` kept the node busy for ``busy_s``, counted from its submission or from
    the commit of the one before, whichever was later. A transaction that was not ``full`` does not change the size: the
    node may have been paused."""
    smooth = 0.7 * pace.busy_s + 0.3 * busy_s
    size = pace.versions
    if full and busy_s > BUSY_S:
        size = max(VERSIONS_MIN, min(size, versions) // 2)
    elif 2 * versions > size and busy_s < BUSY_S / 2:
        size = min(VERSIONS_MAX, size + size // 2)
    return Pace(size, smooth)
