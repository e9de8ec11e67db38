"""Whose a version is that a tracker found first: the session's that reports the change as its edit afterwards.

Who wrote a file cannot be told from the file, so such a version is nobody's until somebody says. Then it is stored
again as it is, by that session: everybody else who read the file is told of it once more, under its author's name, and
the author's notices hold neither. The first to report a change has it.
"""

import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.index import Indexed
from ctxd.objects.document import Stored
from ctxd.objects.kinds import is_deleted, is_purged
from ctxd.sessions.tracking import KIND
from ctxd.store.versions import VersionStore


async def claimed(store: VersionStore, indexed: Indexed) -> Indexed:
    """``indexed``, an edit that was found stored already, as a version of the session that reports it; as it is if that
    version is somebody's already.

    As with ``Indexer.index``, submit it before awaiting anything else. Raises: CtxdError store_failed, corrupt. Cancel:
    safe; nothing is written here.
    """
    await until_durable(store, indexed.basis)
    (change,) = await store.changes(after=indexed.basis - 1, limit=1)
    if change.kind != KIND:
        return indexed
    found = await store.get(indexed.object, content=True)
    newest = store.peek(indexed.object)
    # From here to the return nothing awaits: a version that came in since is another's word on the file.
    if found is None or not isinstance(newest, Stored) or not indexed.basis == found.tx == newest.tx:
        return indexed
    if is_purged(found.document) or is_deleted(found.document) != (indexed.kind == "missing"):
        return indexed
    return msgspec.structs.replace(
        indexed,
        outcome="deleted" if indexed.kind == "missing" else "updated",
        document=found.document,
        floor_vt=max(indexed.floor_vt, found.valid_time + 1),
    )


async def until_durable(store: VersionStore, basis: int) -> None:
    """Return once the version of sequence ``basis``, which may be another session's, can no longer be lost.

    Raises: CtxdError store_failed if it was. Cancel: safe.
    """
    durable = store.head()
    if durable is not None and durable.seq >= basis:
        return
    await store.settled()
    durable = store.head()
    if durable is None or durable.seq < basis:
        raise CtxdError(
            "store_failed", "the version this rests on was lost", hint="Send it again.", outcome="not_applied"
        )
