"""Reconciliation of a session's files with their sources, and attribution of changes that a tracker found first.

``refresh`` finds which files changed, before an assembly and at resume (spec 1 §3.6); set membership is unchanged, and
at most one slice of new versions that are not durable is in memory. ``attribute`` attributes a version that a tracker
stored to the session that reports it as its edit: it is stored again under that session's name, so the other readers
get a notice with the author, and the author gets none. The first session to report a change is its author.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexed, Indexer
from ctxd.indexing.stale_files import RefreshResult
from ctxd.indexing.stub_discovery import FoundFile
from ctxd.objects.document import Document, Stored
from ctxd.objects.version_state import is_deleted, is_purged
from ctxd.sessions.live_session import LiveSession, Transaction, WriteRequest
from ctxd.sessions.session_state import SessionState
from ctxd.sessions.session_tracking import KIND
from ctxd.store.version_store import VersionStore
from ctxd_protocol.session_types import Reconciled

PUTS_MAX: Final = 500
"""Versions in one write. More are split over several, so that no single write delays others in its group commit."""


def reconciled(found: RefreshResult) -> Reconciled:
    """Convert ``found`` to the report of a resume."""
    return Reconciled(
        unchanged=found.unchanged,
        unread=found.unread,
        updated=found.updated,
        deleted=found.deleted,
        orphaned=found.orphaned,
    )


async def refresh(live: LiveSession, indexer: Indexer, ids: Iterable[str], call: WriteRequest) -> RefreshResult:
    """Bring the files among ``ids`` up to date, under the lock of ``live``: write all changed slices but the last.

    The caller must write ``documents``, the last slice, before it awaits anything. The counts include all slices.
    Each slice is durable before the next is read, so that only one is in memory. Raises: CtxdError of the store and of
    ``live.submit``. Cancel: safe; some of the files may have new versions then.
    """
    compared = await indexer.stale_files.compare(live.mounts, ids, live.settings.secrets)
    found = RefreshResult(orphaned=compared.orphaned, unchanged=compared.unchanged, unread=compared.unread)
    bare = call.without_id()
    for slice_ids in compared.slices:
        if found.documents:
            pending = live.submit(bare, puts=found.documents, signatures=found.signatures, floor_vt=found.floor_vt)
            found = msgspec.structs.replace(found, documents=(), signatures={})
            await pending.wait()
        found = (await indexer.stale_files.read_slice(slice_ids, live.settings.secrets)).after(found)
    return found


def write_batches(documents: Sequence[Document]) -> Iterator[Sequence[Document]]:
    """Yield ``documents`` in portions that each fit one write; at least one portion, perhaps empty."""
    for start in range(0, max(1, len(documents)), PUTS_MAX):
        yield documents[start : start + PUTS_MAX]


async def attribute(store: VersionStore, indexed: Indexed) -> Indexed:
    """Re-attribute ``indexed``, an edit whose version is already stored, to the reporting session, as a new version.

    Returned unchanged unless a tracker stored that version and it is still the newest. As with ``Indexer.index``,
    submit the result before awaiting anything else.
    Raises: CtxdError store_failed, corrupt. Cancel: safe; nothing is written here.
    """
    await until_durable(store, indexed.basis)
    (change,) = await store.changes(after=indexed.basis - 1, limit=1)
    if change.kind != KIND:
        return indexed
    found = await store.get(indexed.object, content=True)
    if found is None:
        return indexed
    document = await store.keep(found.document)
    newest = store.peek(indexed.object)
    # No await from here to the return: if there is a newer version, another writer has changed the file.
    if not isinstance(newest, Stored) or not indexed.basis == found.tx == newest.tx:
        return indexed
    if is_purged(found.document) or is_deleted(found.document) != (indexed.kind == "missing"):
        return indexed
    return msgspec.structs.replace(
        indexed,
        outcome="deleted" if indexed.kind == "missing" else "updated",
        document=document,
        floor_vt=max(indexed.floor_vt, found.valid_time + 1),
    )


async def until_durable(store: VersionStore, basis: int) -> None:
    """Return once the version of sequence ``basis``, which may be another session's, is durable.

    Raises: CtxdError store_failed if it was. Cancel: safe.
    """
    durable = store.head()
    if durable is not None and durable.seq >= basis:
        return
    await store.wait_for_writes()
    durable = store.head()
    if durable is None or durable.seq < basis:
        raise CtxdError(
            "store_failed",
            "the version that this write depends on was lost",
            hint="Send it again.",
            outcome="not_applied",
        )


async def found_for(
    tx: Transaction, indexer: Indexer, find: Callable[[], Coroutine[Any, Any, Sequence[FoundFile]]]
) -> Sequence[FoundFile]:
    """Return the result of ``find``, with no await after it.

    For a sandbox, each file that only other sessions know is first compared with the disk, under the sandbox's mounts
    and rights, so that its newest version is one that the sandbox may see. Raises: as ``refresh``. Cancel: safe.
    """
    found = await find()
    if not tx.is_confined:
        return found
    live, request = tx.live, tx.request.without_id()
    compared: set[str] = set()
    unreachable: set[str] = set()
    while foreign := [
        one.object
        for one in found
        if one.object is not None
        and one.document is None
        and not (one.object in live.state.index or one.object in compared)
    ]:
        compared.update(foreign)
        fresh = await refresh(live, indexer, foreign, request)
        if fresh.documents:
            live.submit(request, puts=fresh.documents, signatures=fresh.signatures, floor_vt=fresh.floor_vt)
        unreachable.update(fresh.orphaned)
        found = await find()
    return [_found_inside(one, live.state, unreachable) for one in found]


def _found_inside(one: FoundFile, state: SessionState, unreachable: set[str]) -> FoundFile:
    """Return ``one`` in the form for a sandbox; ``unreachable``: the files that it cannot read."""
    if one.object is None or one.object in state.index or one.document is not None:
        return one
    if one.object in unreachable:
        return FoundFile(path=one.path, outcome="ignored", reason="cannot be looked at")
    return msgspec.structs.replace(one, outcome="created")
