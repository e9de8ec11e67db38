"""Versions in memory, and the values that indexing tests share."""

from collections.abc import Iterable, Sequence

import msgspec

from ctxd.indexing.file_indexer import Indexed, Indexer
from ctxd.indexing.stale_files import RefreshResult
from ctxd.mounts.mapping import MountTable
from ctxd.objects.document import Artifact, Document, Stored, is_large
from ctxd.store.write_types import NOT_CACHED, NotCached
from ctxd_protocol.session_types import Mount
from tests.fakes.source import DEVICE, FakeFiles

HOST, BOX = "host", "box"
MOUNTS = MountTable([Mount(agent_prefix="/w", canonical_prefix="/src")], filesystem_id=BOX, host_filesystem_id=HOST)
ON_HOST = MountTable([], filesystem_id=HOST, host_filesystem_id=HOST)


class MemoryVersions:
    """Stands in for ``VersionStore``. ``lookups`` and ``writes`` count; ``forget`` empties the cache only."""

    def __init__(self) -> None:
        self._heads: dict[str, Stored] = {}
        self._cached: set[str] = set()
        self._signatures: dict[str, bytes] = {}
        self.lookups = 0
        self.asked_signatures = 0
        self.writes = 0

    def put(self, document: Document, signature: bytes | None = None, floor_vt: int = 0) -> None:
        self.writes += 1
        before = self._heads.get(document.id)
        assert before is None or floor_vt > before.valid_time, "two versions of one object at one time"
        self._heads[document.id] = Stored(
            document=document, content_ref=None, valid_time=max(floor_vt, self.writes), tx=self.writes, tx_time=0
        )
        self._cached.add(document.id)
        if signature is not None:
            self._signatures[document.id] = signature

    async def keep(self, document: Document) -> Document:
        if not is_large(document.content):
            return document
        return msgspec.structs.replace(document, artifact=Artifact("0" * 64, len(document.content), lambda _: None))

    def take(self, indexed: Indexed) -> Indexed:
        """Write what ``indexed`` asks for, as a session would."""
        if indexed.document is not None:
            self.put(indexed.document, indexed.signature, indexed.floor_vt)
        return indexed

    def forget(self) -> None:
        self._cached.clear()

    def head(self, id: str) -> Document:
        return self._heads[id].document

    def peek(self, id: str) -> Stored | None | NotCached:
        return self._heads.get(id) if id in self._cached else NOT_CACHED

    async def heads(self, ids: Iterable[str]) -> dict[str, Stored | None]:
        self.lookups += 1
        heads = {id: self._heads.get(id) for id in ids}
        self._cached |= heads.keys()
        return heads

    async def newest(self, id: str) -> Stored | None:
        head = self.peek(id)
        return (await self.heads([id]))[id] if isinstance(head, NotCached) else head

    async def signatures(self, ids: Sequence[str]) -> dict[str, bytes]:
        self.asked_signatures += 1
        return {id: self._signatures[id] for id in ids if id in self._signatures}


class World:
    """An indexer over files and versions in memory."""

    def __init__(self) -> None:
        self.files = FakeFiles()
        self.versions = MemoryVersions()
        self.indexer = Indexer(self.versions, self.files, HOST, host_devices=frozenset({DEVICE}))

    def restart(self) -> None:
        """Forget what a daemon that starts again does not know."""
        self.indexer = Indexer(self.versions, self.files, HOST, host_devices=frozenset({DEVICE}))
        self.versions.forget()

    async def read(self, path: str, content: bytes | None = None) -> Indexed:
        """Index ``path`` as an agent's read, and write what is due."""
        return self.versions.take(await self.indexer.index(MOUNTS, "/w", path, content=content))

    async def refresh(self, mounts: MountTable, ids: Iterable[str]) -> RefreshResult:
        """Bring ``ids`` up to date, and write each slice before the next; ``documents`` are those of all."""
        compared = await self.indexer.stale_files.compare(mounts, ids)
        found = RefreshResult(orphaned=compared.orphaned, unchanged=compared.unchanged, unread=compared.unread)
        documents: tuple[Document, ...] = ()
        signatures: dict[str, bytes] = {}
        for slice_ids in compared.slices:
            fresh = await self.indexer.stale_files.read_slice(slice_ids)
            for document in fresh.documents:
                self.versions.put(document, fresh.signatures.get(document.id), fresh.floor_vt)
            documents += fresh.documents
            signatures |= fresh.signatures
            found = fresh.after(found)
        return msgspec.structs.replace(found, documents=documents, signatures=signatures, floor_vt=0)
