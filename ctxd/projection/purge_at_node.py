"""Eviction: performs a purge at the node.

The node evicts the entities with all their versions, and those of their texts that the journal no longer has. Then the
versions are put again as they are in the journal now: marked as purged, or with the rest. Each step raises the cursor's
incarnation, but only the last one its row, so an interrupted purge starts again; no step removes anything that a later
one would have to restore from the node.

An eviction removes the versions of all hosts. So rows of a session that another host owned by then are not evicted:
this host's versions are corrected, and the owner purges its own. For other entities a mark remains, which explains the
missing versions to the other hosts. A purge that only frees space keeps everything that other hosts have: entities with
versions of theirs, and all texts, because the node has no index of references to texts.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Final

import msgspec

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, RESERVED, content_id, evictions_doc, parts_of
from ctxd.backends.xtdb.messages import Doc, Evict, Op, PutDoc
from ctxd.projection.node_connection import Node
from ctxd.projection.ownership_checks import Fences
from ctxd.projection.progress import Cursor, advance
from ctxd.projection.projected_rows import ProjectedRow, Rows, documents
from ctxd.worker_threads import in_thread

VERSIONS_MAX: Final = 500
"""Maximum versions per transaction."""


def purged_mark(entity: str) -> Doc:
    """Return the mark of an ``entity`` that a host purged: the versions of all hosts are evicted."""
    return {"xt/id": f"{RESERVED}purged/{entity}", "type": "purged"}


class EvictionStep(msgspec.Struct, frozen=True):
    """One transaction: its operations, and the cursor after it. Submit the next one only after its commit."""

    ops: list[Op]
    after: Cursor


async def steps(
    node: Node, rows: Rows, tip: Cursor, piece: ProjectedRow, fences: Fences | None, *, is_shared: bool
) -> AsyncGenerator[EvictionStep, None]:
    """The transactions that perform the purge recorded in ``piece``, starting at the cursor ``tip``. ``is_shared``:
    other hosts share the log.

    Raises: XtdbFailure; CtxdError ``corrupt``, ``store_failed``; ValueError. Cancel: safe.
    """
    evicted = [id for id in piece.purged if fences is None or not fences.skips(id, piece.seq)]
    if piece.reclaims and is_shared:
        evicted, texts = [id for id in evicted if await _is_sole(node, id, rows.writer)], []
    else:
        texts = await _texts(node, evicted)
    kept = await in_thread(rows.kept, frozenset(texts))
    tip = _moved(tip)
    # Unique for this attempt: an earlier one may have put documents that are evicted now.
    put = f"{rows.writer}.{tip.run}.{tip.incarnation}"
    gone = (*evicted, *(text for text in texts if text not in kept))
    marks = [PutDoc(purged_mark(id), FIXED_VALID_TIME) for id in gone]
    yield EvictionStep([*map(Evict, gone), *marks, PutDoc(evictions_doc(put), FIXED_VALID_TIME)], tip)
    versions = await in_thread(rows.versions_of, piece.purged, piece.seq)
    if fences is not None:
        versions = list(fences.kept(tuple(versions)))
    versions = [version for version in versions if version.tx not in tip.quarantined]
    # A rewritten version has a new text, which the node lacks.
    for ref in dict.fromkeys(version.content for version in versions if version.content is not None):
        tip = _moved(tip)
        text = await in_thread(rows.text, ref)
        yield EvictionStep(documents([], {ref: text}, rows.writer, put=put), tip)
    for some in _rounds(versions):
        tip = _moved(tip)
        rewritten = [ProjectedRow(piece.seq, piece.chain, None, tuple(some), 0)]
        yield EvictionStep(documents(rewritten, {}, rows.writer, put=put, again=True), tip)
    yield EvictionStep([], advance(tip, piece.seq, piece.chain))


def _moved(cursor: Cursor) -> Cursor:
    return msgspec.structs.replace(cursor, incarnation=cursor.incarnation + 1)


async def _is_sole(node: Node, id: str, writer: str) -> bool:
    """True if all versions of ``id`` at the node are of ``writer``."""
    docs = [row.doc for row in await node.history(id)]
    return all(doc is not None and doc.get("writer") == writer for doc in docs)


async def _texts(node: Node, ids: Iterable[str]) -> list[str]:
    """The entities of the texts that versions of ``ids`` at the node refer to, and of their parts."""
    found: dict[str, None] = {}
    for id in ids:
        for row in await node.history(id):
            payload = {} if row.doc is None else row.doc.get("payload")
            ref = payload.get("content") if isinstance(payload, dict) else None
            if isinstance(ref, str) and len(ref) == 64:
                found[content_id(bytes.fromhex(ref))] = None
    docs = await node.entities(found, valid_time=FIXED_VALID_TIME)
    for doc in docs.values():
        found.update(dict.fromkeys(parts_of(doc) or ()))
    return list(found)


def _rounds(versions: Iterable[Version]) -> list[list[Version]]:
    """Split ``versions`` into rounds with each entity at most once, and its versions in order."""
    by_id: dict[str, list[Version]] = {}
    for version in versions:
        by_id.setdefault(version.id, []).append(version)
    longest = max(map(len, by_id.values()), default=0)
    rounds: list[Sequence[Version]] = [[each[n] for each in by_id.values() if n < len(each)] for n in range(longest)]
    return [list(one[first : first + VERSIONS_MAX]) for one in rounds for first in range(0, len(one), VERSIONS_MAX)]
