"""A kind of source that is no file: one member, one adapter and one row, and its objects are indexed like files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.mounts.mapping import UNMOUNTED, MountTable
from ctxd.objects.document import SOURCE_TYPES, AsOf, Document, decode_document, encode_document, file_stub
from ctxd.objects.generated_ids import file_id
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.objects.version_state import state_of
from ctxd.sources.source_interface import Reading
from ctxd.store.verify import verify
from ctxd.store.write_types import Write
from ctxd_protocol.object_types import FilesystemSource, source_label
from ctxd_protocol.session_types import Mount
from tests.fakes.memory_source import MemoryBlobs, MemorySource, blob
from tests.fakes.source import FakeFiles
from tests.unit.store.running import running

pytestmark = pytest.mark.anyio

HOST = "f" * 64
ON_HOST = MountTable([], filesystem_id=HOST, host_filesystem_id=HOST)
IN_BOX = MountTable([Mount(agent_prefix="/w", canonical_prefix="/src")], filesystem_id="box", host_filesystem_id=HOST)


class FilesAndBlobs(FakeFiles):
    """Files and blobs, each binding read by its kind. ``blob_reads`` counts the blobs that were read."""

    def __init__(self) -> None:
        super().__init__()
        self._memory = MemoryBlobs()
        self.blobs = self._memory.blobs

    @property
    def blob_reads(self) -> int:
        return self._memory.reads

    async def read(self, binding: Any) -> Reading:
        kind: Any = self._memory if isinstance(binding, MemorySource) else super()
        reading: Reading = await kind.read(binding)
        return reading

    async def read_many(self, bindings: Sequence[Any]) -> list[Reading]:
        return [await self.read(binding) for binding in bindings]

    async def fingerprint(self, bindings: Sequence[Any]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for binding in bindings:
            kind: Any = self._memory if isinstance(binding, MemorySource) else super()
            found += await kind.fingerprint([binding])
        return found


NOTES = blob("docs/notes.md")
ID = file_id(NOTES)


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCE_TYPES, "memory", MemorySource)


def test_its_identity_is_computed_from_its_members() -> None:
    assert ID == content_hash(
        {"source": {"type": "memory", "bucketName": "b1", "key": "docs/notes.md"}, "type": "file"}, None
    )
    assert ID != file_id(FilesystemSource("b1", "docs/notes.md")) != file_id(blob("docs/other.md"))


def test_its_stored_form_is_read_back_and_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = file_stub(ID, NOTES)
    body = encode_document(stub)
    assert decode_document(ID, body) == stub
    assert stub.payload["file_type"] == "md"
    monkeypatch.delitem(SOURCE_TYPES, "memory")
    with pytest.raises(ValueError, match="'memory' is unknown"):
        decode_document(ID, body)


def test_it_has_a_label_and_no_path() -> None:
    assert source_label(NOTES) == ON_HOST.display(NOTES) == "memory:b1/docs/notes.md"
    assert ON_HOST.agent_path(NOTES) is None
    assert IN_BOX.display(NOTES) == UNMOUNTED


async def test_it_is_read_refreshed_and_deleted_and_its_history_kept(tmp_path: Path) -> None:
    blobs = FilesAndBlobs()
    blobs.blobs["docs/notes.md"] = b"one"
    async with running(tmp_path) as store:
        indexer = Indexer(store, blobs, HOST)

        async def put(documents: tuple[Document, ...], floor_vt: int, signatures: dict[str, bytes]) -> None:
            write = Write(kind="test", principal="host", puts=documents, floor_vt=floor_vt, signatures=signatures)
            await store.submit(write).wait()

        await put((file_stub(ID, NOTES),), 0, {})
        read = await indexer.index_object(ON_HOST, ID, cause="read")
        assert (read.outcome, read.kind, read.source, read.char_count) == ("updated", "text", NOTES, 3)
        await put(read.puts, read.floor_vt, read.signatures)

        reads = blobs.blob_reads
        same = await indexer.stale_files.compare(ON_HOST, [ID])
        assert (same.unchanged, same.slices, blobs.blob_reads) == (1, (), reads)
        blobs.blobs["docs/notes.md"] = b"second"
        changed = await indexer.stale_files.compare(ON_HOST, [ID])
        assert changed.slices == ((ID,),)
        fresh = await indexer.stale_files.read_slice(changed.slices[0])
        assert fresh.updated == (ID,)
        await put(fresh.documents, fresh.floor_vt, fresh.signatures)
        assert await indexer.confirms(ON_HOST, fresh.documents[0])

        del blobs.blobs["docs/notes.md"]
        gone = await indexer.index_object(ON_HOST, ID)
        assert gone.outcome == "deleted"
        await put(gone.puts, gone.floor_vt, gone.signatures)

        history = await store.history(ID)
        assert [state_of(one.document) for one in history] == ["unread", "present", "present", "deleted"]
        assert {one.document.source for one in history} == {NOTES}
        assert {identity_hash("file", one.document.source, ID) for one in history} == {ID}
        then = await store.get(ID, AsOf(tx=history[1].tx), content=True)
        assert then is not None
        assert then.document.content == "one"
        await store.drain()
    async with running(tmp_path) as store:
        again = await store.get(ID, AsOf(tx=history[2].tx), content=True)
        assert again is not None
        assert (again.document.source, again.document.content) == (NOTES, "second")
    assert [problem for report in verify(tmp_path) for problem in report.problems] == []


async def test_files_and_other_kinds_are_compared_in_one_call_and_a_sandbox_reads_none_of_the_others(
    tmp_path: Path,
) -> None:
    files = blobs = FilesAndBlobs()
    files.write("/src/a", b"file")
    blobs.blobs["docs/notes.md"] = b"blob"
    async with running(tmp_path) as store:
        indexer = Indexer(store, files, HOST)
        file = await indexer.index(ON_HOST, "/", "/src/a")
        await store.submit(Write(kind="test", principal="host", puts=(*file.puts, file_stub(ID, NOTES)))).wait()
        read = await indexer.index_object(ON_HOST, ID)
        write = Write(kind="test", principal="host", puts=read.puts, floor_vt=read.floor_vt)
        await store.submit(write).wait()
        files.write("/src/a", b"changed")
        blobs.blobs["docs/notes.md"] = b"changed as well"
        (ids,) = (await indexer.stale_files.compare(ON_HOST, [ID, file.object])).slices
        fresh = await indexer.stale_files.read_slice(ids)
        assert {one.id: one.content for one in fresh.documents} == {ID: "changed as well", file.object: "changed"}

        boxed = await indexer.stale_files.compare(IN_BOX, [ID, file.object])
        assert (boxed.orphaned, boxed.slices) == ((ID,), ((file.object,),))
        reads = blobs.blob_reads
        with pytest.raises(CtxdError, match="not a file in a mount"):
            await indexer.index_object(IN_BOX, ID, cause="read")
        assert blobs.blob_reads == reads
