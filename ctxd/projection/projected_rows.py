"""Reads of journal rows for the projection: on a separate connection, in portions, on a thread.

Blocks. Rows are verified before they are returned, so that damage is not copied to another store.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, WHOLE_BYTES_MAX, content_docs, content_ref, to_doc
from ctxd.backends.xtdb.messages import Delete, Op, PutDoc
from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf, Content, HistoryPage, Stored
from ctxd.store import journal
from ctxd.store.journal import read_versions
from ctxd.store.purge import KIND as PURGE
from ctxd.store.version_reads import Reader, all_stored, read_errors

PORTION_ROWS: Final = 2_000
PORTION_BYTES: Final = 4 * 1024 * 1024
"""Maximum rows, and their bytes, read ahead: enough for several transactions."""

REFS_KEPT: Final = 100_000
"""Maximum texts remembered as known to the node. A forgotten one is put again, without visible effect."""

_SAMPLED: Final = 500
_ROW_BYTES: Final = 128


_GROWING: Final = ("segment:", "assembly:")


def projected(versions: Iterable[Version]) -> list[Version]:
    """Return ``versions`` without deletions of segments and records.

    An import deletes this journal's earlier copy of the session. At the node, that would hide the versions of the host
    that owns the session, which only grows there.
    """
    return [version for version in versions if version.body is not None or not version.id.startswith(_GROWING)]


class ProjectedRow(msgspec.Struct, frozen=True, gc=False):
    """One journal row, ready to be projected. ``chain`` is in hex; ``size`` is its share of a batch, in bytes.

    ``fault``: the reason why it cannot be projected, empty if it can. ``purged``: the entities that the row purged;
    ``reclaims``: only to free space.
    """

    seq: int
    chain: str
    session: str | None
    versions: tuple[Version, ...]
    size: int
    fault: str = ""
    purged: tuple[str, ...] = ()
    reclaims: bool = False

    @property
    def alone(self) -> bool:
        """True if it must be a batch of its own."""
        return bool(self.fault or self.purged)


def wanted(pieces: Sequence[ProjectedRow], projected: Container[bytes]) -> list[bytes]:
    """Distinct texts that ``pieces`` refer to and the node may lack."""
    refs = dict.fromkeys(v.content for piece in pieces for v in piece.versions if v.content is not None)
    return [ref for ref in refs if ref not in projected]


def documents(
    pieces: Sequence[ProjectedRow], texts: Mapping[bytes, Content], writer: str, *, put: str = "", again: bool = False
) -> list[Op]:
    """Operations that put ``pieces``, with ``texts`` before the documents that refer to them.

    ``put`` names the newest eviction, which may have covered one of the texts; ``again``: also one of the versions.
    """
    # Two texts may share a part, which is put once.
    parts = {doc["xt/id"]: doc for ref, text in texts.items() for doc in content_docs(ref, text, put=put)}
    ops: list[Op] = [PutDoc(doc, FIXED_VALID_TIME) for doc in parts.values()]
    for piece in pieces:
        for version in piece.versions:
            if version.body is None:
                ops.append(Delete(version.id, version.valid_time))
            else:
                ops.append(PutDoc(to_doc(version, writer, put=put if again else ""), version.valid_time))
    return ops


class KnownTexts:
    """Texts known to be at the node, by their BLAKE3; the least recently used are forgotten first."""

    def __init__(self) -> None:
        self._refs: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, ref: object) -> bool:
        return ref in self._refs

    def __len__(self) -> int:
        return len(self._refs)

    def add(self, refs: Iterable[bytes]) -> None:
        """Record that the node has ``refs``, or will have them before anything sent later."""
        for ref in refs:
            self._refs[ref] = None
            self._refs.move_to_end(ref)
        while len(self._refs) > REFS_KEPT:
            self._refs.popitem(last=False)

    def forget(self) -> None:
        """Forget all texts."""
        self._refs.clear()


class Rows:
    """Reads of one journal, from any row on. Not for two threads at a time."""

    def __init__(self, database: Path, artifacts: ArtifactStore) -> None:
        self._reader = Reader(database, artifacts)
        self.writer = journal.writer_id(self._reader.connection)

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def chain(self, seq: int) -> str | None:
        """Chain hash of row ``seq``, in hex; of the start for 0; ``None`` if there is no such row.

        Raises: CtxdError ``corrupt``, ``store_failed``.
        """
        with read_errors():
            found = journal.chain_at(self._reader.connection, seq)
            return None if found is None else found.hex()

    def head(self) -> int:
        """Newest row's sequence, 0 without any. Raises: as ``chain``."""
        with read_errors():
            found = self._reader.connection.execute("SELECT max(seq) FROM journal").fetchone()
            return 0 if found is None or found[0] is None else int(found[0])

    def bytes_each(self, after: int) -> float:
        """Average bytes of the rows after ``after``, estimated from the first and last few.

        Raises: as ``chain``.
        """
        query = """SELECT avg(size) FROM (SELECT length(body) AS size FROM (SELECT body FROM journal WHERE seq>:after
            ORDER BY seq LIMIT :n) UNION ALL SELECT length(body) FROM (SELECT body FROM journal WHERE seq>:after
            ORDER BY seq DESC LIMIT :n))"""
        with read_errors():
            found = self._reader.connection.execute(query, {"after": after, "n": _SAMPLED}).fetchone()
            return 0.0 if found is None or found[0] is None else 2.0 * float(found[0])

    def pieces(self, after: int, limit: int = PORTION_ROWS) -> list[ProjectedRow]:
        """The rows after ``after``, up to a portion; at least one if there is any.

        Raises: CtxdError ``corrupt`` if one does not follow from the one before, ``store_failed``.
        """
        with read_errors():
            chain = journal.chain_at(self._reader.connection, after)
            found: list[ProjectedRow] = []
            size, last = 0, after
            for row in journal.read_rows(self._reader.connection, after=after, limit=limit):
                fault = journal.first_fault((row,), self._reader.rewritten, after=last, chain=chain or b"")
                if fault is not None:
                    raise CtxdError("corrupt", fault)
                piece = self._piece(row)
                found.append(piece)
                size, last, chain = size + piece.size, row.seq, row.chain
                if size >= PORTION_BYTES:
                    break
            return found

    def _piece(self, row: journal.Row) -> ProjectedRow:
        versions = tuple(projected(read_versions(row)))
        refs = {version.content for version in versions if version.content is not None}
        size = len(row.body) + _ROW_BYTES + sum(map(self._size, refs))
        record = journal.decode_body(row.body).purged if row.kind == PURGE else None
        purged, reclaims = ((), False) if record is None else (record.ids, record.reclaims)
        return ProjectedRow(row.seq, row.chain.hex(), row.session, versions, size, purged=purged, reclaims=reclaims)

    def _size(self, ref: bytes) -> int:
        found = self._reader.connection.execute("SELECT size FROM content WHERE hash=?", (ref,)).fetchone()
        return 0 if found is None else int(found[0])

    def operations(self, pieces: list[ProjectedRow], known: KnownTexts, put: str) -> tuple[list[Op], list[bytes]]:
        """Operations that put ``pieces``, and the refs of the texts that they put, which are not ``known``. ``put``:
        see ``documents``.

        Raises: CtxdError ``corrupt`` if a text is damaged, ``store_failed``; ValueError for an unsupported value.
        """
        refs = wanted(pieces, known)
        with read_errors():
            texts = self._reader.contents(ref.hex() for ref in refs)
        return documents(pieces, {ref: texts[ref.hex()] for ref in refs}, self.writer, put=put), refs

    # --- for a purge ---

    def newest_purge(self) -> int:
        """Last row that records a purge of earlier rows; 0 without any. Raises: as ``chain``."""
        query = "SELECT max(value) FROM meta WHERE name GLOB 'purged:*'"
        with read_errors():
            found = self._reader.connection.execute(query).fetchone()
            return 0 if found is None or found[0] is None else int.from_bytes(found[0], "big")

    def versions_of(self, ids: Sequence[str], tx: int) -> list[Version]:
        """Every version of ``ids`` up to row ``tx``, by entity and time. Raises: as ``chain``."""
        with read_errors():
            read = self._reader.versions.history
            return [row for id in ids for row in projected(read(id, AsOf(tx=tx), corrections=True))]

    def text(self, ref: bytes) -> Content:
        """The content ``ref``. Raises: as ``operations``."""
        with read_errors():
            return self._reader.contents([ref.hex()])[ref.hex()]

    def kept(self, entities: frozenset[str]) -> frozenset[str]:
        """Those of ``entities`` that the node needs for an existing text, as its document or one of its parts.

        Raises: CtxdError ``corrupt`` if a text is damaged, ``store_failed``. Cost: reads every text that has parts.
        """
        with read_errors():
            found = {id for id in entities if self._is_kept(id)}
            query = "SELECT hash FROM content WHERE size>?"
            large = self._reader.connection.execute(query, (WHOLE_BYTES_MAX,)) if entities - found else ()
            for ref in [bytes(ref) for (ref,) in large]:
                text = self._reader.contents([ref.hex()])[ref.hex()]
                found.update(entities.intersection(doc["xt/id"] for doc in content_docs(ref, text)))
            return frozenset(found)

    def _is_kept(self, entity: str) -> bool:
        query = "SELECT 1 FROM content WHERE hash=?"
        return self._reader.connection.execute(query, (content_ref(entity),)).fetchone() is not None

    def scan(self, prefix: str) -> list[Stored]:
        """Newest versions of the entities with ``prefix``. Raises: as ``chain``."""
        with read_errors():
            return all_stored(self._reader.versions.scan(prefix))

    # --- for a comparison ---

    def histories(self, after: int, limit: int) -> list[tuple[int, str, list[Version]]]:
        """Entities by number after ``after``: number, id, and all versions by time; none if the entity is only referred
        to. Raises: CtxdError ``corrupt``, ``store_failed``."""
        with read_errors():
            entities = self._reader.entity_ids(after, limit)
            return [(n, id, projected(self._reader.versions.history(id, corrections=True))) for n, id in entities]

    def unknown(self, ids: Sequence[str]) -> list[str]:
        """Those of ``ids`` that the journal never put. Raises: as ``histories``."""
        with read_errors():
            return [id for id in ids if not self._reader.versions.history(id, page=HistoryPage(limit=1))]
