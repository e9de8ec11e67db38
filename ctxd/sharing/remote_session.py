"""A session of another host: one writer's versions at the node, as of one transaction.

Other writers' versions of the same entities, earlier or later, are skipped: tool calls of two hosts may share an id,
and two hosts may see one file. A purge is the exception, as it evicts every writer's versions at all times: its mark is
read from the current state.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec
from blake3 import blake3

from ctxd.backends.xtdb import documents as xtdb_documents
from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.documents import NEWEST_VALID_TIME
from ctxd.backends.xtdb.messages import Doc, XtdbFailure
from ctxd.errors import CtxdError
from ctxd.objects.document import Content, Stored, decode_content, select_visible_versions
from ctxd.objects.generated_ids import COMMIT_PREFIX, NUMBER_DIGITS, number_of
from ctxd.objects.version_state import is_purged
from ctxd.projection.purge_at_node import purged_mark
from ctxd.sharing.session_import import histories
from ctxd.store.version_reads import to_stored

_REMEDY: Final = "Run ctxd verify --store, which compares this host's journal with the node."

T = TypeVar("T")


class RemoteSession:
    """The versions that ``writer`` had projected by the node's transaction ``tx_id``.

    All methods raise CtxdError store_unavailable if the node does not respond, corrupt for a document that no version
    of this program projects.
    """

    def __init__(self, client: XtdbClient, writer: str, tx_id: int) -> None:
        self._client = client
        self._writer = writer
        self._tx_id = tx_id

    async def newest(self, ids: Sequence[str]) -> dict[str, Stored]:
        """See ``SessionSource.newest``."""
        docs = await _requested(self._client.entities(ids, valid_time=NEWEST_VALID_TIME, tx_id=self._tx_id))
        found: dict[str, Stored] = {}
        for id, doc in docs.items():
            stored = self._mine(doc, None)
            if stored is not None:
                found[id] = stored
        # Another writer's version may be newer than this writer's, or the entity was evicted.
        for id, history in (await histories(self, set(ids) - found.keys())).items():
            if history:
                found[id] = history[-1]
            elif await self._is_being_purged(id):
                message = f"another host is purging {id}: its versions are erased, the record of it is not here yet"
                raise CtxdError("store_unavailable", message, retry_after_ms=1_000, outcome="not_applied")
        return {id: found[id] for id in ids if id in found}

    async def _is_being_purged(self, id: str) -> bool:
        mark = purged_mark(id)["xt/id"]
        return bool(await _requested(self._client.entities([mark], valid_time=xtdb_documents.FIXED_VALID_TIME)))

    async def commits_of(self, session: str) -> list[str]:
        """See ``SessionSource.commits_of``."""
        asking = self._client.ids(COMMIT_PREFIX, session=session, valid_time=NEWEST_VALID_TIME, tx_id=self._tx_id)
        return await _requested(asking)

    async def scan(self, prefix: str, *, first: int | None = None) -> list[Stored]:
        """See ``SessionSource.scan``."""
        ids = await _requested(self._client.ids(prefix, valid_time=NEWEST_VALID_TIME, tx_id=self._tx_id))
        if first is None:
            found = await self.newest(ids)
            return [found[id] for id in sorted(found)]
        numbers = [number_of(id) for id in ids]
        count = max(numbers, default=first) + 1
        # An earlier version of this program deleted its own versions at the node, and with them all writers'.
        ids += [_numbered(prefix, number) for number in sorted({*range(first, count)} - {*numbers})]
        found = await self.newest(ids)
        while further := await self.newest([_numbered(prefix, count)]):
            found |= further
            count += 1
        return [found[id] for id in sorted(found)]

    async def history(self, id: str) -> list[Stored]:
        """See ``SessionSource.history``."""
        rows = await _requested(self._client.history(id, valid_time=NEWEST_VALID_TIME, tx_id=self._tx_id))
        by_tx: dict[int, Stored] = {}
        for row in rows:
            if row.doc is not None and (stored := self._mine(row.doc, row.valid_time)) is not None:
                # A later row of the same write repeats it at another valid time.
                by_tx.setdefault(stored.tx, stored)
        return select_visible_versions(by_tx.values()) or await self._purged(id)

    async def _purged(self, id: str) -> list[Stored]:
        """Return the versions with which a purge replaced those of ``id``. One by another host has no time in this
        writer's journal: it counts as older than all others."""
        rows = await _requested(self._client.history(id, valid_time=NEWEST_VALID_TIME))
        found = [(row.doc, row.valid_time) for row in rows if row.doc is not None]
        mine = [stored for doc, at in found if (stored := self._mine(doc, at)) is not None]
        anybody = [_stored(doc, at) for doc, at in found]
        purged = {stored.tx: stored for stored in mine if is_purged(stored.document)}
        others = [msgspec.structs.replace(stored, tx=0) for stored in anybody if is_purged(stored.document)]
        return [purged[tx] for tx in sorted(purged)] or others[-1:]

    async def contents(self, refs: Iterable[str]) -> dict[str, Content]:
        """See ``SessionSource.contents``."""
        wanted = {ref: xtdb_documents.content_id(bytes.fromhex(ref)) for ref in refs}
        docs = await self._texts(wanted.values())
        parts = {id: _read(partial(xtdb_documents.parts_of, doc)) for id, doc in docs.items()}
        docs |= await self._texts([part for some in parts.values() for part in some or ()])
        found: dict[str, Content] = {}
        for ref, id in wanted.items():
            needed = parts.get(id) or (id,)
            if not docs.keys() >= set(needed):
                continue
            try:
                data = xtdb_documents.content_of(docs[part] for part in needed)
            except ValueError as error:
                raise CtxdError("corrupt", f"content {ref} at the node cannot be read", hint=_REMEDY) from error
            if blake3(data).hexdigest() != ref:
                raise CtxdError("corrupt", f"content {ref} at the node does not match its hash", hint=_REMEDY)
            found[ref] = decode_content(data)
        return found

    async def _texts(self, ids: Iterable[str]) -> dict[str, Doc]:
        return await _requested(
            self._client.entities(ids, valid_time=xtdb_documents.FIXED_VALID_TIME, tx_id=self._tx_id)
        )

    def _mine(self, doc: Doc, valid_time: int | None) -> Stored | None:
        """Return the version in ``doc``, ``None`` if it is another writer's."""
        payload = doc.get("payload")
        # Earlier versions of this program kept the writer in the payload.
        writer = doc["writer"] if "writer" in doc else payload.get("writer") if isinstance(payload, dict) else None
        if writer != self._writer:
            return None
        return _stored(doc, valid_time)


async def _requested(request: Awaitable[T]) -> T:
    try:
        return await request
    except XtdbFailure as error:
        message = f"cannot read the rows of another host from the XTDB node: {error}"
        raise CtxdError("store_unavailable", message, retry_after_ms=1_000, outcome="not_applied") from error


def _numbered(prefix: str, number: int) -> str:
    return f"{prefix}{number:0{NUMBER_DIGITS}d}"


def _read(read: Callable[[], T]) -> T:
    try:
        return read()
    except ValueError as error:
        raise CtxdError("corrupt", f"a document at the node cannot be read: {error}", hint=_REMEDY) from error


def _stored(doc: Doc, valid_time: int | None) -> Stored:
    stored = to_stored(_read(lambda: xtdb_documents.from_doc(doc, valid_time)[0]))
    assert stored is not None, "a version with a document is no deletion"
    return stored
