"""Comparison of a node with the journal: version by version, text by text, and by one digest each.

It covers rows up to the node's cursor at its start, so a daemon may project meanwhile. It ignores quarantined rows, and
fenced rows of sessions owned by other hosts.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import anyio
from blake3 import blake3

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.documents import (
    FIXED_VALID_TIME,
    NEWEST_VALID_TIME,
    content_id,
    content_of,
    cursor_id,
    from_doc,
    parts_of,
)
from ctxd.backends.xtdb.messages import Doc, Unknown
from ctxd.formatting import count
from ctxd.projection.node_connection import Node
from ctxd.projection.ownership_checks import FENCES, Fences
from ctxd.projection.progress import Cursor, Halt, check_cursor, cursor_from_doc
from ctxd.projection.projected_rows import Rows
from ctxd.projection.purge_at_node import purged_mark
from ctxd.store.verify import LogicalDigest, Problems
from ctxd.task_groups import task_group
from ctxd.worker_threads import in_thread

SYNC_S: Final = 10.0
"""Seconds for the node to index its log; then it is compared as it is."""

AT_ONCE: Final = 8
"""Concurrent requests to the node."""

_STEP: Final = 400
_PAGE: Final = 5_000
"""Ids at the node per look-up in the journal."""


@dataclass
class Comparison(Problems):
    """Problems so far. ``phase``: the part under comparison; ``done``: its count.

    The three digests cover the rows that the node should have, and are equal if it does.
    """

    phase: str = ""
    done: int = 0
    head_seq: int = 0
    seq: int = 0
    quarantined: tuple[int, ...] = ()
    entities: int = 0
    texts: int = 0
    journal_digest: str = ""
    embedded_digest: str = ""
    node_digest: str = ""

    @property
    def equal(self) -> bool:
        """True if all three digests are equal."""
        return self.journal_digest == self.embedded_digest == self.node_digest != ""


async def compare(node: Node, rows: Rows, step: Callable[[Comparison], None]) -> Comparison:
    """Compare the share of ``node`` that belongs to the journal behind ``rows``. ``step`` receives the progress.

    Raises: XtdbFailure if the node does not respond; CtxdError ``corrupt``, ``store_failed`` if the journal cannot be
    read. Cancel: safe.
    """
    report = Comparison(head_seq=await in_thread(rows.head))
    # An eviction by another host removes documents before this node has its row. A node that lags is compared
    # in its current state.
    with suppress(Unknown):
        await node.sync(SYNC_S)
    cursor = await _cursor(node, rows, report)
    if cursor is not None:
        await _Comparing(node, rows, cursor, Fences(await in_thread(rows.scan, FENCES)), report, step).run()
    return report


async def journal_cursor(node: Node, rows: Rows) -> Cursor | Halt | None:
    """Return the cursor at ``node`` of the journal behind ``rows``; a ``Halt`` if it is not on the journal's chain.

    Raises: ValueError if the cursor cannot be read; XtdbFailure; CtxdError of the journal. Cancel: safe.
    """
    cursor = cursor_from_doc(await node.entity(cursor_id(rows.writer), valid_time=NEWEST_VALID_TIME))
    chain = None if cursor is None else await in_thread(rows.chain, cursor.seq)
    verdict = check_cursor(cursor, None, run="", chain=chain, head_seq=await in_thread(rows.head))
    return verdict if isinstance(verdict, Halt) else cursor


async def _cursor(node: Node, rows: Rows, report: Comparison) -> Cursor | None:
    """The node's cursor, if it is one of this journal."""
    try:
        cursor = await journal_cursor(node, rows)
    except ValueError as error:
        report.note("damage", f"the cursor at the node cannot be read: {error}")
        return None
    if isinstance(cursor, Halt):
        report.note("data_loss", cursor.message)
        return None
    if cursor is None:
        if report.head_seq:
            report.note("warning", f"the node has nothing of this journal, which has {count(report.head_seq, 'row')}")
        return None
    report.seq, report.quarantined = cursor.seq, cursor.quarantined
    if cursor.seq < report.head_seq:
        report.note("warning", f"the node lacks the newest {count(report.head_seq - cursor.seq, 'row')}")
    for seq in cursor.quarantined:
        report.note("warning", f"row {seq} is quarantined: ctxd requeue retries it")
    return cursor


class _Comparing:
    def __init__(
        self,
        node: Node,
        rows: Rows,
        cursor: Cursor,
        fences: Fences,
        report: Comparison,
        step: Callable[[Comparison], None],
    ) -> None:
        self._node = node
        self._rows = rows
        self._cursor = cursor
        self._fences = fences
        self._report = report
        self._step = step
        self._left_out = frozenset(cursor.quarantined)
        self._node_digest = LogicalDigest()
        self._embedded = LogicalDigest()
        self._refs: set[bytes] = set()

    async def run(self) -> None:
        await self._journal()
        await self._entities()
        await self._strangers()
        await self._texts()
        report = self._report
        report.embedded_digest, report.node_digest = self._embedded.hex(), self._node_digest.hex()
        if report.embedded_digest != report.journal_digest:
            report.note("damage", "the embedded versions differ from the journal: see ctxd verify")

    def _counts(self, tx: int) -> bool:
        return tx <= self._cursor.seq and tx not in self._left_out

    def _report_progress(self, phase: str, done: int) -> None:
        self._report.phase, self._report.done = phase, done
        self._step(self._report)

    async def _journal(self) -> None:
        digest, after = LogicalDigest(), 0
        while after < self._cursor.seq:
            pieces = await in_thread(self._rows.pieces, after)
            for piece in pieces:
                if self._counts(piece.seq):
                    for version in self._fences.kept(piece.versions):
                        digest.add(version)
                        if version.content is not None:
                            self._refs.add(version.content)
            after = pieces[-1].seq if pieces else self._cursor.seq
            self._report_progress("journal", min(after, self._cursor.seq))
        self._report.journal_digest = digest.hex()

    async def _entities(self) -> None:
        after = 0
        while True:
            portion = await in_thread(self._rows.histories, after, _STEP)
            if not portion:
                return
            after = portion[-1][0]
            slots = anyio.Semaphore(AT_ONCE)
            async with task_group() as group:
                for _, id, versions in portion:
                    group.start_soon(self._entity, slots, id, versions)
            self._report.entities += sum(bool(versions) for _, _, versions in portion)
            self._report_progress("entities", self._report.entities)

    async def _entity(self, slots: anyio.Semaphore, id: str, versions: list[Version]) -> None:
        mine = [version for version in self._fences.kept(versions) if self._counts(version.tx)]
        for version in mine:
            self._embedded.add(version)
        theirs = await self._at_node(slots, id, mine)
        if theirs != mine and set(theirs) < set(mine) and await self._is_purged(id):
            # Another host has purged it since, so versions are missing on purpose.
            theirs = mine
        for version in theirs:
            self._node_digest.add(version)
        if theirs == mine:
            return
        newest = "the newest version" if mine[-1:] != theirs[-1:] else "an older version"
        counts = f"{count(len(theirs), 'version')} there, {len(mine):,} here"
        self._report.note("damage", f"{newest} of {id} differs at the node: {counts}")

    async def _at_node(self, slots: anyio.Semaphore, id: str, mine: list[Version]) -> list[Version]:
        """Versions of ``id`` from this journal at the node, by time. A deletion there does not identify its journal: it
        counts as ours if we have one at that time."""
        deletions = {version.valid_time: version for version in mine if version.body is None}
        async with slots:
            rows = await self._node.history(id)
        found: dict[tuple[int, int], Version] = {}
        for row in rows:
            if row.doc is None:
                version = deletions.get(row.valid_time)
                if version is None:
                    continue
            else:
                try:
                    version, writer = from_doc(row.doc, row.valid_time)
                except ValueError as error:
                    self._report.note("damage", f"{id} at the node cannot be read: {error}")
                    found = {place: version for place, version in found.items() if place[0] != row.valid_time}
                    continue
                if writer != self._rows.writer or not self._counts(version.tx):
                    continue
            # If a version was put again, after a purge or a fence, the later one counts.
            found[version.valid_time, version.tx] = version
        return [found[place] for place in sorted(found)]

    async def _is_purged(self, entity: str) -> bool:
        mark = purged_mark(entity)
        return await self._node.entity(mark["xt/id"], valid_time=FIXED_VALID_TIME) == mark

    async def _strangers(self) -> None:
        """Report entities at the node that claim to be of this journal, but are not in it."""
        writer, after, counted = self._rows.writer, "", 0
        while True:
            # Other journals may have many more entities there.
            ids = await self._node.ids("", after=after, limit=_PAGE, writer=writer, valid_time=NEWEST_VALID_TIME)
            for id, doc in (await self._strange(ids)).items():
                try:
                    version, _ = from_doc(doc)
                except ValueError as error:
                    self._report.note("damage", f"{id} at the node cannot be read: {error}")
                    continue
                if version.tx <= self._cursor.seq:
                    self._node_digest.add(version)
                    self._report.note("damage", f"{id} is at the node, but not in the journal")
            counted += len(ids)
            self._report_progress("node", counted)
            if len(ids) < _PAGE:
                return
            after = ids[-1]

    async def _strange(self, ids: list[str]) -> dict[str, Doc]:
        """Documents of those of ``ids`` that the journal does not know."""
        unknown = await in_thread(self._rows.unknown, ids)
        return await self._node.entities(unknown, valid_time=NEWEST_VALID_TIME)

    async def _texts(self) -> None:
        refs = sorted(self._refs)
        for first in range(0, len(refs), _STEP):
            some = refs[first : first + _STEP]
            docs = await self._node.entities(map(content_id, some), valid_time=FIXED_VALID_TIME)
            parts = {part for doc in docs.values() for part in _parts(doc)}
            docs |= await self._node.entities(parts, valid_time=FIXED_VALID_TIME)
            for ref in some:
                if not _matches(ref, docs) and not await self._is_purged(content_id(ref)):
                    self._report.note("damage", f"the text {ref.hex()} at the node is missing, or another")
            self._report.texts += len(some)
            self._report_progress("texts", self._report.texts)


def _parts(doc: Doc) -> list[str]:
    try:
        return parts_of(doc) or []
    except ValueError:
        return []


def _matches(ref: bytes, docs: dict[str, Doc]) -> bool:
    """True if ``docs`` hold the text whose BLAKE3 is ``ref``."""
    doc = docs.get(content_id(ref))
    if doc is None:
        return False
    try:
        parts = parts_of(doc)
        held = content_of([doc] if parts is None else [docs[part] for part in parts])
        return blake3(held).digest() == ref
    except (ValueError, KeyError):
        return False
