"""Progress of a projection: its cursor at the node, the backlog, and the watermark file.

The cursor is one document at the node, replaced by each transaction of the projection. It contains the last row that
the node has and the journal's chain hash there, so it fits only one journal. It is read and matched at one valid time
above all others, so its value does not depend on the node's clock. Each move puts it at a valid time of its own,
slightly later than the one before: to put a version of an entity, a node walks through all versions at that valid time.

While a node is unavailable, the journal keeps the rows, for hours, on disk. Near the limit, writes are throttled to the
drain rate; at the limit they are refused. Nothing is dropped.
"""

import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, NEWEST_VALID_TIME, cursor_id
from ctxd.backends.xtdb.messages import Doc, Match, Op, PutDoc
from ctxd.errors import CtxdError
from ctxd.projection.node_connection import Node

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


def cursor_doc(cursor: Cursor, writer: str) -> Doc:
    """Document of ``cursor``."""
    payload: dict[str, Any] = {
        "incarnation": cursor.incarnation,
        "run": cursor.run,
        "seq": cursor.seq,
        "chain": cursor.chain,
        "quarantined": list(cursor.quarantined),
    }
    return {"xt/id": cursor_id(writer), "type": "cursor", "payload": payload}


def cursor_valid_time(cursor: Cursor) -> int:
    """Valid time (ms) of ``cursor``: later than any before it, as each move raises the row or the incarnation."""
    return FIXED_VALID_TIME + cursor.seq + cursor.incarnation


def cursor_from_doc(doc: Doc | None) -> Cursor | None:
    """The cursor in a document; ``None`` for ``None``.

    Raises: ValueError for any other document.
    """
    if doc is None:
        return None
    return msgspec.convert(doc.get("payload"), Cursor)


def move_cursor(before: Cursor | None, after: Cursor, writer: str) -> list[Op]:
    """Operations that move the cursor from ``before`` (``None``: none) to ``after``, and fail at any other cursor."""
    was = None if before is None else cursor_doc(before, writer)
    put = PutDoc(cursor_doc(after, writer), cursor_valid_time(after))
    return [Match(cursor_id(writer), was, NEWEST_VALID_TIME), put]


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
    """``cursor`` without the quarantined row ``seq``, which is now at the node."""
    left = tuple(each for each in cursor.quarantined if each != seq)
    return msgspec.structs.replace(cursor, incarnation=cursor.incarnation + 1, quarantined=left)


class Resume(msgspec.Struct, frozen=True):
    """Continue from the cursor. ``lost``: number of rows that the node had and has lost."""

    lost: int = 0


class Halt(msgspec.Struct, frozen=True):
    """Do not write to the node, for ``reason``. ``final``: a later attempt will not help."""

    reason: str
    remedy: str = ""
    final: bool = False

    @property
    def message(self) -> str:
        """The reason, with the remedy if there is one."""
        return f"{self.reason}: {self.remedy}" if self.remedy else self.reason


def check_cursor(
    found: Cursor | None, known: Cursor | None, *, run: str, chain: str | None, head_seq: int
) -> Resume | Halt:
    """Decide whether ``run`` may continue from the cursor ``found``; ``known`` is the last one that it knew.

    ``chain``: the journal's hash at the row of the cursor, ``None`` if the journal has no such row.
    """
    if found is None:
        return Resume(lost=0 if known is None else known.seq)
    if known is not None and known.run == run != found.run and found.incarnation > known.incarnation:
        return Halt("another daemon projects the same journal: one of the two is a copy", final=True)
    if chain is None:
        return Halt(f"the node has row {found.seq} of this journal, which ends at {head_seq}", _REMEDY)
    if chain != found.chain:
        return Halt(f"row {found.seq} at the node is not the journal's", _REMEDY)
    return Resume(lost=0 if known is None else max(0, known.seq - found.seq))


_REMEDY: Final = "restore the newer journal, or stop the daemon and run ctxd rebuild-xtdb --force"


def has_moved(found: Cursor | None, expected: Cursor | None) -> bool:
    """True if the cursor ``found`` after an aborted transaction explains the abort: it is not ``expected``."""
    if found is None or expected is None:
        return found is not expected
    return (found.incarnation, found.run, found.seq) != (expected.incarnation, expected.run, expected.seq)


# --- the backlog ---

BACKLOG_ROWS_MAX: Final = 5_000_000
BACKLOG_BYTES_MAX: Final = 4 * 1024**3
"""Maximum backlog in rows and bytes: eight hours of 50 writes of 2 KiB per second are 1.4 million rows and 3 GiB."""

WARN_AT: Final = 0.5
THROTTLE_AT: Final = 0.8

DRAIN_LEAST: Final = 20.0
"""Minimum writes per second while throttling, even if nothing drains."""

RETRY_FULL_MS: Final = 5_000
_BUCKET_BYTES: Final = 1024 * 1024
_BUCKET_S: Final = 1.0
_BURST_S: Final = 1.0

Level = Literal["open", "warn", "throttle", "full"]


class Room(msgspec.Struct, frozen=True):
    """Limits of the backlog in ``rows`` and ``bytes``."""

    rows: int = BACKLOG_ROWS_MAX
    bytes: int = BACKLOG_BYTES_MAX


def fullness(room: Room, rows: int, size: int) -> float:
    """Share of ``room`` in use: 0 is empty, 1 is full."""
    return max(rows / room.rows, size / room.bytes)


def level(full: float) -> Level:
    """The backlog level for a share in use."""
    if full >= 1:
        return "full"
    return "throttle" if full >= THROTTLE_AT else "warn" if full >= WARN_AT else "open"


class Waiting:
    """The backlog: rows that were never at the node, their approximate bytes, and their age, which is exact since the
    start, and estimated for earlier rows."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int, float]] = deque()
        self._size = 0
        self._older_bytes_each = 0.0
        self._older_end = 0
        self._older_since = 0.0
        self._reached = 0
        self._head = 0

    def begin(self, reached: int, head: int, bytes_each: float, now: float) -> None:
        """Start with the rows after ``reached`` up to ``head``, of ``bytes_each`` on average; keep later rows."""
        self._older_bytes_each, self._older_end, self._older_since = bytes_each, head, now
        self._head = max(self._head, head)
        self.record_progress(reached)

    def add(self, seq: int, size: int, now: float) -> None:
        """Add rows up to ``seq``, of ``size`` bytes together, at ``now`` in seconds."""
        self._head = seq
        self._size += size
        since = now
        if self._buckets and self._buckets[-1][1] < _BUCKET_BYTES and now - self._buckets[-1][2] < _BUCKET_S:
            _, before, since = self._buckets.pop()
            size += before
        self._buckets.append((seq, size, since))

    def record_progress(self, seq: int) -> None:
        """Record that the node has had every row up to ``seq``, even if it has lost some since."""
        self._reached = max(self._reached, seq)
        while self._buckets and self._buckets[0][0] <= seq:
            self._size -= self._buckets.popleft()[1]

    @property
    def reached(self) -> int:
        """Newest row that the node has had."""
        return self._reached

    @property
    def rows(self) -> int:
        """Number of waiting rows."""
        return max(0, self._head - self._reached)

    @property
    def bytes(self) -> int:
        """Bytes of the waiting rows."""
        older = max(0, self._older_end - self._reached)
        return self._size + round(older * self._older_bytes_each)

    def age_s(self, now: float) -> float:
        """Known age of the oldest waiting row, in seconds."""
        if self._reached < self._older_end:
            return now - self._older_since
        return now - self._buckets[0][2] if self._buckets else 0.0


class Throttle:
    """Token bucket that passes writes at the drain rate, with bursts of one second."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._at: float | None = None

    def wait_s(self, now: float, rate: float) -> float:
        """Seconds until the next write may pass; 0 if it passes now and is counted. ``rate`` is per second."""
        rate = max(rate, DRAIN_LEAST)
        most = max(1.0, rate * _BURST_S)
        self._tokens = most if self._at is None else min(most, self._tokens + (now - self._at) * rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / rate


def refusal(kind: Level, full: float, reason: str, wait_s: float) -> CtxdError:
    """The error for a write for which the backlog has no room."""
    share = f"backlog of the XTDB node at {full:.0%}: {reason or 'it is slower than the writes'}"
    if kind == "full":
        hint = "Start the node (ctxd doctor reports the fault), or run with store=sqlite; then send it again."
        return CtxdError("store_backlog_full", share, hint=hint, retry_after_ms=RETRY_FULL_MS, outcome="not_applied")
    wait_ms = max(1, round(wait_s * 1_000))
    return CtxdError("rate_limited", share, retry_after_ms=wait_ms, outcome="not_applied")


class Watermark(msgspec.Struct, frozen=True):
    """The newest cursor known to be committed, the newest row that ``reached`` the node, and by sequence why rows were
    left out. Rows from before the first projection count as having reached it."""

    cursor: Cursor | None = None
    reached: int | None = None
    reasons: dict[int, str] = {}


def load_watermark(path: Path) -> Watermark:
    """Watermark at ``path``; an empty one if it is missing or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Watermark)
    except (OSError, msgspec.DecodeError):
        return Watermark()


def save_watermark(path: Path, record: Watermark) -> None:
    """Write ``record`` to ``path`` atomically.

    Raises: OSError.
    """
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(record))
    os.replace(fresh, path)


class Sent(msgspec.Struct, frozen=True):
    """Batch that was submitted as ``tx_id`` at ``at`` (seconds). ``left_out``: why its only row is not in it; ``full``:
    large enough to measure the node by.

    ``matched``: the documents that it expects of entities beside the cursor.
    """

    before: Cursor
    after: Cursor
    tx_id: int
    at: float
    rows: int
    versions: int
    left_out: str = ""
    full: bool = False
    matched: Mapping[str, Doc | None] = {}


State = Literal["connecting", "projecting", "unreachable", "failed", "stopped"]

_RATE_S: Final = 5.0
"""Seconds over which the drain rate is measured."""


class Progress:
    """Progress of a projection. ``cursor`` is the newest known to be committed, by the node's transaction ``tx_id``;
    ``None`` before the first fence.

    ``node`` serves reads that rely on the cursor; ``None`` while disconnected. ``reasons``: by sequence, of quarantine.
    """

    def __init__(self, cursor: Cursor | None, reasons: dict[int, str]) -> None:
        self.state: State = "connecting"
        self.reason = ""
        self.cursor = cursor
        self.tx_id = -1
        self.node: Node | None = None
        self.reasons = dict(reasons)
        self.waiting = Waiting()
        self.purged = 0
        """The last purge's row: until the node has it, the node shows erased content."""
        self.changes = 0
        self._drained: deque[tuple[float, int]] = deque()

    @property
    def seq(self) -> int:
        """Newest row at the node."""
        return 0 if self.cursor is None else self.cursor.seq

    @property
    def quarantined(self) -> tuple[int, ...]:
        """Rows that the node refused."""
        return () if self.cursor is None else self.cursor.quarantined

    def begin(self, node: Node, cursor: Cursor, tx_id: int) -> None:
        """Record that ``node`` has ``cursor`` since its transaction ``tx_id``, and that only this run moves it."""
        self.node, self.cursor, self.tx_id = node, cursor, tx_id
        self.waiting.record_progress(cursor.seq)
        self._drained.clear()
        self.changes += 1

    def confirm(self, sent: Sent, now: float) -> None:
        """Note that the batch ``sent`` is committed."""
        self.cursor, self.tx_id = sent.after, sent.tx_id
        self.waiting.record_progress(sent.after.seq)
        self._drained.append((now, sent.after.seq))
        while now - self._drained[0][0] > _RATE_S:
            self._drained.popleft()
        if sent.left_out:
            self.reasons[sent.after.seq] = sent.left_out
        self.changes += 1

    def rate(self, now: float) -> float:
        """Rows per second that the node took recently."""
        if not self._drained or now - self._drained[-1][0] > _RATE_S:
            return 0.0
        first_at, first = self._drained[0]
        span = self._drained[-1][0] - first_at
        return (self._drained[-1][1] - first) / span if span > 0 else 0.0
