"""What resuming a session writes: files that changed while nobody looked (spec 1 §3.6).

Decides no membership: a resume finds what became of the objects, and every one stays in the sets it was in. Promise:
however much changed, no more than a slice of it is held in memory that is not on the disk.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from ctxd.indexing.freshen import Freshened
from ctxd.indexing.index import Indexer
from ctxd.objects.document import Document
from ctxd.objects.identity import is_file_id
from ctxd.sessions.session import LiveSession, WriteRequest
from ctxd.sessions.state import SessionState
from ctxd_protocol.methods.sessions import Reconciled

PUTS_MAX: Final = 500
"""Versions of one write. More go in several writes, so that no single one holds up its neighbours' commit."""


def to_check(state: SessionState) -> list[str]:
    """The objects whose sources a resume looks at: every file; tool calls have none."""
    return [id for id in state.index if is_file_id(id)]


def reconciled(found: Freshened) -> Reconciled:
    """``found`` as a client is told."""
    return Reconciled(
        unchanged=found.unchanged,
        unread=found.unread,
        updated=found.updated,
        deleted=found.deleted,
        orphaned=found.orphaned,
    )


async def freshen(live: LiveSession, indexer: Indexer, ids: Iterable[str], call: WriteRequest) -> Freshened:
    """Bring the files among ``ids`` up to date, under the lock of ``live``: write all slices that changed but the last.

    That one is left to the caller, who puts ``documents`` before it awaits anything. The figures are those of all.
    One slice waits for nothing but its reading; of several, each is durable before the next one is read, so that no
    more than one is in memory. Raises: CtxdError of the store and of ``live.commit``. Cancel: safe; some of the files
    may have new versions then.
    """
    compared = await indexer.compare(live.mounts, ids, live.settings.secrets)
    found = Freshened(orphaned=compared.orphaned, unchanged=compared.unchanged, unread=compared.unread)
    bare = WriteRequest(call.kind, call.principal)
    for slice_ids in compared.slices:
        if found.documents:
            pending = live.commit(bare, puts=found.documents, signatures=found.signatures, floor_vt=found.floor_vt)
            found = msgspec.structs.replace(found, documents=(), signatures={})
            await pending.wait()
        found = (await indexer.freshen(slice_ids, live.settings.secrets)).after(found)
    return found


def portions(documents: Sequence[Document]) -> Iterator[Sequence[Document]]:
    """``documents`` in runs that each fit a write, at least one run."""
    for start in range(0, max(1, len(documents)), PUTS_MAX):
        yield documents[start : start + PUTS_MAX]
