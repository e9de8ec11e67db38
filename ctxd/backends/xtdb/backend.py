"""Versions in an XTDB node: one journal's share of it.

The port's tx is the journal's sequence. The node's own transaction may hold several journal rows, of one entity only
one; a read as of a row in the middle of one looks at that transaction and at the one before. What other journals keep
in the same node is shown as well, under their own tx.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import anyio

from ctxd.backends.port import LATEST, Change, DamagedVersion, Version
from ctxd.backends.xtdb import form
from ctxd.backends.xtdb.answers import HistoryRow, said_valid_time
from ctxd.backends.xtdb.apart import apart
from ctxd.backends.xtdb.basis import NEWEST, NOTHING, Bases, Basis
from ctxd.backends.xtdb.client import VALID_TIME_MAX, XtdbClient
from ctxd.backends.xtdb.errors import Refused
from ctxd.backends.xtdb.operations import Delete, Doc, Op, Put

_COMMIT_S: Final = 60.0
_SCANNED: Final = 2_000
"""Entities of a scan that are read at once."""

_CONVERTED_HERE: Final = 100
"""Documents that become versions on the loop, in two milliseconds at most; more are for a thread."""

_HISTORIES: Final = 200
"""Entities whose histories are read together, some at a time."""

_AT_ONCE: Final = 8
_TRANSACTIONS_KEPT: Final = 10_000


class XtdbBackend:
    """See ``AwaitedBackend``: the versions that the journal of ``writer`` has projected to the node of ``client``.

    Everything raises what the client does, and ``DamagedVersion`` for a document that is none of ctxd's. Cancel: safe,
    but of ``apply`` the outcome is then unknown.
    """

    def __init__(self, client: XtdbClient, writer: str) -> None:
        self._client = client
        self._writer = writer
        self.bases = Bases(client, writer)
        self._converters = anyio.CapacityLimiter(1)
        self._deletions: dict[int, tuple[int, dict[str, tuple[int, int]]]] = {}

    def forget(self) -> None:
        """The node may be another one: nothing that was seen of it holds."""
        self.bases.forget()
        self._deletions.clear()

    # --- writing ---

    async def apply(self, tx: int, tx_time: int, changes: Sequence[Change]) -> None:
        """See ``AwaitedBackend.apply``. Waits until the node shows it."""
        ops: list[Op] = []
        ending: dict[str, tuple[int, int]] = {}
        for change in changes:
            if change.start == change.end:
                continue
            if change.body is None:
                ops.append(Delete(change.id, change.start, change.end))
            else:
                version = Version(change.id, change.start, tx, tx_time, change.body, change.content)
                ops.append(Put(form.to_doc(version, self._writer, moves=True), change.start, change.end))
            if change.body is None or change.end is not None:
                ending[change.id] = (tx, tx_time)
        if ending:
            ops.append(Put(form.deletions_doc(self._writer, tx, ending), form.deletions_time(tx)))
        payload = {"incarnation": 0, "run": "", "seq": tx, "chain": "", "quarantined": []}
        cursor: Doc = {"xt/id": form.cursor_id(self._writer), "type": "cursor", "payload": payload}
        tx_id = await self._client.submit([*ops, Put(cursor, form.FIXED_VALID_TIME)])
        if not await self._client.committed(tx_id, timeout_s=_COMMIT_S):
            raise Refused(f"transaction {tx_id} was aborted")
        self.bases.note(tx_id, tx)

    # --- reading ---

    async def as_of(self, ids: Sequence[str], *, valid_time: int = LATEST, tx: int = LATEST) -> list[Version]:
        """See ``AwaitedBackend.as_of``."""
        return await self._visible(ids, valid_time, tx, await self._basis(tx))

    async def _basis(self, tx: int) -> Basis:
        return NEWEST if tx == LATEST else await self.bases.find(tx)

    async def _visible(self, ids: Iterable[str], valid_time: int, tx: int, basis: Basis) -> list[Version]:
        wanted = [id for id in dict.fromkeys(ids) if not id.startswith(form.RESERVED)]
        visible = {} if basis.lower == NOTHING else await self._read(wanted, valid_time, basis.lower)
        if basis.upper is not None:
            later = await self._read(wanted, valid_time, basis.upper)
            _, deleted = await self._deleted_in(basis.upper)
            for id in wanted:
                found = later.get(id)
                if found is None:
                    if deleted.get(id, (LATEST, 0))[0] <= tx:
                        visible.pop(id, None)
                elif self._within(found, tx):
                    visible[id] = found
        return [visible[id][0] for id in wanted if id in visible]

    async def _read(self, ids: Sequence[str], valid_time: int, tx_id: int | None) -> dict[str, tuple[Version, str]]:
        docs = await self._client.entities(ids, valid_time=valid_time, tx_id=tx_id)
        times = {id: said_valid_time(doc) for id, doc in docs.items()}
        silent = [id for id, time in times.items() if time is None]
        if silent and tx_id is None:
            # Documents and times are two questions: they have to be of one moment.
            completed = await self._client.latest_completed()
            return {} if completed is None else await self._read(ids, valid_time, completed)
        times |= await self._times(silent, valid_time, tx_id)

        def convert() -> dict[str, tuple[Version, str]]:
            return {id: _from_doc(docs[id], time) for id, time in times.items() if time is not None}

        return convert() if len(docs) <= _CONVERTED_HERE else await apart(convert, self._converters)

    async def _times(self, ids: Sequence[str], valid_time: int, tx_id: int | None) -> dict[str, int]:
        times: dict[str, int] = {}

        async def ask(id: str) -> None:
            row = await self._client.row(id, valid_time=valid_time, tx_id=tx_id)
            if row is not None and row.present:
                times[id] = row.valid_time

        await _each(ids, ask)
        return times

    def _within(self, found: tuple[Version, str], tx: int) -> bool:
        version, writer = found
        return writer != self._writer or version.tx <= tx

    async def history(
        self,
        id: str,
        *,
        ascending: bool = True,
        corrections: bool = False,
        valid_time: int = LATEST,
        tx: int = LATEST,
        after: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> list[Version]:
        """See ``AwaitedBackend.history``."""
        basis = await self._basis(tx)
        if basis.lower == NOTHING and basis.upper is None:
            return []
        reading: dict[str, Any] = {
            "ascending": ascending,
            "corrections": True,
            "valid_time": valid_time,
            "tx_id": basis.lower if basis.upper is None else basis.upper,
        }
        if after is not None:
            reading["first" if ascending else "last"] = after[0]
        if limit is not None:
            page = await self._page(id, reading, limit)
            if page is None:
                return []
            reading |= page
        found = []
        for row in await self._client.history(id, **reading):
            version, writer = await self._from_row(id, row)
            if self._within((version, writer), tx):
                found.append(version)
        found.sort(key=_place, reverse=not ascending)
        if not corrections:
            newest = {row.valid_time: row for row in (found if ascending else found[::-1])}
            found = [row for row in found if newest[row.valid_time] is row]
        if after is not None:
            found = [row for row in found if (_place(row) > after if ascending else _place(row) < after)]
        return found[:limit]

    async def _page(self, id: str, reading: dict[str, Any], limit: int) -> dict[str, int] | None:
        """Between which valid times the next ``limit`` rows lie; null if there are none. Reads no documents."""
        rows = await self._client.history(id, docs=False, **reading)
        # One for those at the time of the last row seen, one for what a later journal row of one transaction put.
        times = list(dict.fromkeys(row.valid_time for row in rows))[: limit + 2]
        return {"first": min(times), "last": max(times)} if times else None

    async def _from_row(self, id: str, row: HistoryRow) -> tuple[Version, str]:
        if row.doc is not None:
            return _from_doc(row.doc, row.valid_time)
        seq, deleted = await self._deleted_in(row.tx_id)
        # Without a word about it, it was done by what moved the cursor there.
        tx, tx_time = deleted.get(id, (seq, row.tx_time))
        return Version(id, row.valid_time, tx, tx_time, None), self._writer

    async def _deleted_in(self, tx_id: int) -> tuple[int, dict[str, tuple[int, int]]]:
        """The journal row that transaction ``tx_id`` came to, and what it deleted: tx and tx time by id."""
        known = self._deletions.get(tx_id)
        if known is None:
            seq = await self.bases.seq_at(tx_id)
            entity = form.deletions_id(self._writer)
            doc = await self._client.entity(entity, valid_time=form.NEWEST_VALID_TIME, tx_id=tx_id)
            told, deleted = (0, {}) if doc is None else _deletions_in(doc)
            # What it says may be of an earlier transaction.
            known = (seq, deleted if told == seq else {})
            if len(self._deletions) >= _TRANSACTIONS_KEPT:
                self._deletions.clear()
            self._deletions[tx_id] = known
        return known

    async def scan(
        self,
        prefix: str,
        *,
        ascending: bool = True,
        after: str | None = None,
        limit: int | None = None,
        valid_time: int = LATEST,
        tx: int = LATEST,
    ) -> list[Version]:
        """See ``AwaitedBackend.scan``."""
        basis = await self._basis(tx)
        ids = await self._ids(prefix, valid_time, basis)
        if after is not None:
            ids = {id for id in ids if (id > after if ascending else id < after)}
        wanted = sorted(ids, reverse=not ascending)
        found: list[Version] = []
        size = _SCANNED if limit is None else max(1, min(limit, _SCANNED))
        for first in range(0, len(wanted), size):
            if limit is not None and len(found) >= limit:
                break
            found += await self._visible(wanted[first : first + size], valid_time, tx, basis)
        return found[:limit]

    async def _ids(self, prefix: str, valid_time: int, basis: Basis) -> set[str]:
        ids: set[str] = set()
        for tx_id in {basis.lower, *(() if basis.upper is None else (basis.upper,))} - {NOTHING}:
            ids.update(await self._client.ids(prefix, valid_time=valid_time, tx_id=tx_id))
        return {id for id in ids if not id.startswith(form.RESERVED)}

    async def everything(
        self, damaged: Callable[[DamagedVersion], None], *, prefix: str = ""
    ) -> AsyncIterator[Version]:
        """See ``AwaitedBackend.everything``; of the entities that start with ``prefix``.

        A request an entity: it is for comparing, not for serving.
        """
        ids = await self._ids(prefix, VALID_TIME_MAX, NEWEST)
        log = await self._client.history(form.deletions_id(self._writer), corrections=True)
        for row in log:
            if row.doc is not None:
                ids.update(_deletions_in(row.doc)[1])
        wanted = sorted(id for id in ids if id.startswith(prefix))
        for first in range(0, len(wanted), _HISTORIES):
            for id, rows in await self._histories(wanted[first : first + _HISTORIES]):
                for row in rows:
                    try:
                        version, _ = await self._from_row(id, row)
                    except DamagedVersion as error:
                        damaged(error)
                    else:
                        yield version

    async def _histories(self, ids: Sequence[str]) -> list[tuple[str, list[HistoryRow]]]:
        found: list[tuple[str, list[HistoryRow]]] = []

        async def read(id: str) -> None:
            found.append((id, await self._client.history(id, corrections=True)))

        await _each(ids, read)
        return found


async def _each(ids: Iterable[str], ask: Callable[[str], Awaitable[None]]) -> None:
    """Ask of each of ``ids``, some at a time. Raises: the first failure."""
    slots = anyio.Semaphore(_AT_ONCE)

    async def turn(id: str) -> None:
        async with slots:
            await ask(id)

    try:
        async with anyio.create_task_group() as group:
            for id in ids:
                group.start_soon(turn, id)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _place(version: Version) -> tuple[int, int]:
    return version.valid_time, version.tx


def _from_doc(doc: Doc, valid_time: int) -> tuple[Version, str]:
    try:
        return form.from_doc(doc, valid_time)
    except ValueError as error:
        raise DamagedVersion(str(error)) from error


def _deletions_in(doc: Doc) -> tuple[int, dict[str, tuple[int, int]]]:
    try:
        return form.deletions_in(doc)
    except ValueError as error:
        raise DamagedVersion(str(error)) from error
