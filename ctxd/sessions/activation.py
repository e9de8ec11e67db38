"""What activating an object takes: its text, which for a file that only its name is known of has to be read first.

``transitions.activate`` decides the change of the sets; here is found out whether there is anything to show. Nothing is
written here.
"""

import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.index import Indexer
from ctxd.objects.document import Document, Stored
from ctxd.objects.kinds import is_deleted, is_unread
from ctxd.sessions import transitions
from ctxd.sessions.segments import NOTHING, SessionDelta
from ctxd.sessions.session import LiveSession
from ctxd.store.versions import VersionStore


class Activation(msgspec.Struct, frozen=True):
    """What one write says: the change of the sets, and the version of the file if it was read for this."""

    delta: SessionDelta
    puts: tuple[Document, ...] = ()
    signatures: dict[str, bytes] = {}
    floor_vt: int = 0


async def activation(store: VersionStore, indexer: Indexer, live: LiveSession, id: str) -> Activation:
    """What makes ``id``, in the index of ``live``, active. Under its lock, and to be written before the next await.

    Raises: CtxdError content_unavailable if there is no text to show; file_not_found if the file is gone;
    source_unreachable if it cannot be read now; path_escapes_mount, corrupt, store_failed. Cancel: safe.
    """
    delta = transitions.activate(live.state, id)
    if delta is NOTHING or id in live.state.active:
        return Activation(delta)
    head = (await store.heads((id,)))[id]
    if head is None:
        raise CtxdError("corrupt", f"object {id} is in the index of {live.session} but not in the store")
    if is_unread(head.document) or is_deleted(head.document):
        return await _read(store, indexer, live, delta, head)
    if head.content_ref is None:
        raise _unavailable(head)
    return Activation(delta)


async def _read(
    store: VersionStore, indexer: Indexer, live: LiveSession, delta: SessionDelta, known: Stored
) -> Activation:
    """Read the file of which only the name is known, or that was gone, so that it is activated in one write."""
    id = known.document.id
    try:
        indexed = await indexer.index_object(live.mounts, id, cause="read", policy=live.settings.secrets)
    except CtxdError as error:
        if is_deleted(known.document) and error.code != "path_escapes_mount":
            raise _unavailable(known) from error
        if error.code == "unsupported":
            raise _without_text(id, error.message) from error
        raise
    # No await from here to the write: another session's version cannot come between.
    head = store.peek(id)
    if indexed.document is None:
        if not isinstance(head, Stored) or head.content_ref is None:
            raise _without_text(id, "it has none")
    elif indexed.document.content is None:
        raise _without_text(id, f"the file is {indexed.kind}")
    return Activation(delta, indexed.puts, indexed.signatures, indexed.floor_vt)


def _unavailable(head: Stored) -> CtxdError:
    payload = head.document.payload
    why = "it is deleted" if payload.get("deleted") else f"the file is {payload.get('kind', 'not text')}"
    return _without_text(head.document.id, why)


def _without_text(id: str, why: str) -> CtxdError:
    hint = "Its metadata line stays; index the file again once it holds text."
    return CtxdError("content_unavailable", f"{id} has no text: {why}", hint=hint, outcome="not_applied")
