"""Cursor of a projection: one document at the node, replaced by each transaction of the projection.

Pure. The cursor names the last row that the node has and the journal's chain hash there, so that it fits one journal
only. It is read and matched at one valid time above all others, so its value does not depend on the node's clock. Each
move puts it at a valid time of its own, slightly later than the one before: to put a version of an entity, a node walks
through all versions at that valid time.
"""

from typing import Any, Final, Literal

import msgspec

from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, NEWEST_VALID_TIME, cursor_id
from ctxd.backends.xtdb.messages import Doc, Match, Op, PutDoc

QUARANTINED_MAX: Final = 1_000
"""Rows that a cursor may list as quarantined. Beyond that, the projection stops."""


class Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node has every row up to ``seq`` except those ``quarantined``; ``chain`` is the journal's hash there, in hex.

    ``incarnation`` rises with each fence, and ``run`` names the projecting run: transactions of an earlier one match
    another cursor and do nothing.
    """

    incarnation: int
    run: str
    seq: int
    chain: str
    quarantined: tuple[int, ...] = ()


def to_doc(cursor: Cursor, writer: str) -> Doc:
    """Document of ``cursor``."""
    payload: dict[str, Any] = {
        "incarnation": cursor.incarnation,
        "run": cursor.run,
        "seq": cursor.seq,
        "chain": cursor.chain,
        "quarantined": list(cursor.quarantined),
    }
    return {"xt/id": cursor_id(writer), "type": "cursor", "payload": payload}


def valid_time(cursor: Cursor) -> int:
    """Valid time (ms) of ``cursor``: later than any before it, as each move raises the row or the incarnation."""
    return FIXED_VALID_TIME + cursor.seq + cursor.incarnation


def from_doc(doc: Doc | None) -> Cursor | None:
    """Cursor in a document, ``None`` for ``None``.

    Raises: ValueError for a document of another form.
    """
    if doc is None:
        return None
    return msgspec.convert(doc.get("payload"), Cursor)


def moved(before: Cursor | None, after: Cursor, writer: str) -> list[Op]:
    """Operations that move the cursor from ``before`` (``None``: none) to ``after``, and fail at any other cursor."""
    was = None if before is None else to_doc(before, writer)
    return [Match(cursor_id(writer), was, NEWEST_VALID_TIME), PutDoc(to_doc(after, writer), valid_time(after))]


def fence(found: Cursor | None, known: Cursor | None, *, run: str, genesis: str) -> Cursor:
    """Cursor with which ``run`` takes over from ``found``. ``genesis``: the chain hash before the first row.

    Its incarnation is above every one that ``run`` has seen, even if the node has lost that.
    """
    seen = max(0 if found is None else found.incarnation, 0 if known is None else known.incarnation)
    if found is None:
        return Cursor(seen + 1, run, 0, genesis)
    return msgspec.structs.replace(found, incarnation=seen + 1, run=run)


def advance(cursor: Cursor, seq: int, chain: str, *, leaving_out: bool = False) -> Cursor:
    """``cursor`` after row ``seq``, which is put, or left out."""
    quarantined = (*cursor.quarantined, seq) if leaving_out else cursor.quarantined
    return msgspec.structs.replace(cursor, seq=seq, chain=chain, quarantined=quarantined)


def requeued(cursor: Cursor, seq: int) -> Cursor:
    """``cursor`` once the quarantined row ``seq`` is there after all."""
    left = tuple(each for each in cursor.quarantined if each != seq)
    return msgspec.structs.replace(cursor, incarnation=cursor.incarnation + 1, quarantined=left)


class Resume(msgspec.Struct, frozen=True):
    """Go on from the cursor. ``lost``: number of rows that the node once had and has no longer."""

    lost: int = 0


class Halt(msgspec.Struct, frozen=True):
    """Do not write to the node, for ``reason``. ``final``: a later attempt will not help."""

    reason: str
    final: bool = False


def judge(found: Cursor | None, known: Cursor | None, *, run: str, chain: str | None, head_seq: int) -> Resume | Halt:
    """Decide whether ``run`` may go on from the cursor ``found``, having last ``known`` another one.

    ``chain``: the journal's hash at the row that the cursor names, ``None`` if the journal has no such row.
    """
    if found is None:
        return Resume(lost=0 if known is None else known.seq)
    if known is not None and known.run == run != found.run and found.incarnation > known.incarnation:
        return Halt("another daemon projects the same journal: one of the two is a copy", final=True)
    if chain is None:
        return Halt(f"the node has row {found.seq} of this journal, which ends at {head_seq}" + _REMEDY)
    if chain != found.chain:
        return Halt(f"row {found.seq} at the node is not the journal's" + _REMEDY)
    return Resume(lost=0 if known is None else max(0, known.seq - found.seq))


_REMEDY: Final = ": run ctxd rebuild-xtdb, or restore what is newer"

Found = Literal["moved", "unmoved"]


def explains(found: Cursor | None, expected: Cursor | None) -> Found:
    """Decide whether the cursor ``found`` after an aborted transaction explains the abort: it ``expected`` another."""
    if found is None or expected is None:
        return "unmoved" if found is expected else "moved"
    same = (found.incarnation, found.run, found.seq) == (expected.incarnation, expected.run, expected.seq)
    return "unmoved" if same else "moved"
