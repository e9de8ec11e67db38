"""Documents of other hosts are read strictly: one that ctxd does not write is corrupt, and fails nothing else."""

from typing import Any

import anyio
import pytest
from blake3 import blake3

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, content_docs, content_id, to_doc
from ctxd.backends.xtdb.messages import Delete, Doc, Op, PutDoc
from ctxd.errors import CtxdError
from ctxd.objects.document import encode_document
from ctxd.objects.generated_ids import entry_id
from ctxd.projection.purge_at_node import purged_mark
from ctxd.sharing.remote_session import RemoteSession
from ctxd.sharing.session_import import HISTORIES_AT_ONCE, read_history
from ctxd_protocol.ids import session_object_id
from tests.fakes.node import MemoryNode
from tests.unit.sessions.world import world
from tests.unit.store.documents import document

pytestmark = pytest.mark.anyio

TEXT = "a text"
REF = blake3(TEXT.encode()).digest()


async def origin_of(*ops: Op) -> RemoteSession:
    """Return the remote session of the writer ``w`` at a node that holds ``ops``."""
    node: Any = MemoryNode()
    return RemoteSession(node, "w", await node.submit(list(ops)))


def mine(id: str) -> Doc:
    """A version of the writer ``w`` that cannot be read."""
    return to_doc(Version(id, 5, 1, 1, b"\x00no document"), "w")


@pytest.mark.parametrize("payload", ["text", ["w"], 5, None, {"writer": "w"}, {"writer": "w", "tx": "1", "tx_time": 1}])
async def test_a_document_not_written_by_ctxd_is_corrupt(payload):
    id = "segment:a#0000000000"
    origin = await origin_of(PutDoc({"xt/id": id, "type": "t", "payload": payload}, 5))
    for call in (lambda: origin.newest([id]), lambda: origin.scan("segment:a#"), lambda: origin.history(id)):
        with pytest.raises(CtxdError) as error:
            await call()
        assert error.value.code == "corrupt"


@pytest.mark.requirement("HST-4")
async def test_segments_that_another_host_deleted_are_read_in_full():
    ids = [f"segment:s1#{number:010d}" for number in range(6)]
    body = encode_document(document("any", type="segment"))
    puts = [PutDoc(to_doc(Version(id, 5, 1, 1, body), "w"), 5) for id in ids]
    for deleted in ((2,), (4, 5), (0, 1, 2, 3, 4, 5)):
        origin = await origin_of(*puts, *(Delete(ids[number], 9) for number in deleted))
        assert [stored.document.id for stored in await origin.scan("segment:s1#", first=0)] == ids


async def test_a_version_whose_document_is_damaged_is_corrupt():
    origin = await origin_of(PutDoc(mine("a"), 5))
    with pytest.raises(CtxdError) as error:
        await origin.history("a")
    assert error.value.code == "corrupt"


async def test_a_text_is_read_and_one_that_is_not_there_is_left_out():
    (doc,) = content_docs(REF, TEXT)
    origin = await origin_of(PutDoc(doc, FIXED_VALID_TIME))
    assert await origin.contents([REF.hex(), "00" * 32]) == {REF.hex(): TEXT}


@pytest.mark.parametrize("payload", ["text", {}, {"text": 5}, {"text": "another"}, {"parts": "x"}, {"parts": [5]}])
async def test_a_text_that_is_damaged_is_corrupt(payload):
    doc: Doc = {"xt/id": content_id(REF), "type": "content", "payload": payload}
    origin = await origin_of(PutDoc(doc, FIXED_VALID_TIME))
    with pytest.raises(CtxdError) as error:
        await origin.contents([REF.hex()])
    assert error.value.code == "corrupt"


async def test_versions_below_those_of_another_host_are_read_at_once():
    """After a session went there and back, each of its commits has a newer version of the other host."""
    ids = [f"commit:ctx-{number:08x}" for number in range(64)]
    body = encode_document(document("any", type="commit"))
    puts = [
        PutDoc(to_doc(Version(id, at, at, at, body), writer), at) for at, writer in ((5, "w"), (9, "x")) for id in ids
    ]
    node: Any = MemoryNode()
    origin = RemoteSession(node, "w", await node.submit(puts))
    waiting, most = 0, 0
    history = node.history

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await anyio.lowlevel.checkpoint()
        waiting -= 1
        return await history(*args, **options)

    node.history = counted
    assert {stored.valid_time for stored in (await origin.newest(ids)).values()} == {5}
    assert most == HISTORIES_AT_ONCE


async def test_an_object_being_purged_by_another_host_is_read_later():
    origin = await origin_of(PutDoc(purged_mark("a"), FIXED_VALID_TIME))
    with pytest.raises(CtxdError) as error:
        await origin.newest(["a"])
    assert error.value.code == "store_unavailable"
    assert await origin.newest(["b"]) == {}


@pytest.mark.requirement("HST-1")
async def test_entries_are_read_also_if_their_ids_are_too_long_to_be_listed(tmp_path):
    session, key = "s" * 120, "k" * 120
    async with world(tmp_path) as w:
        await w.call("session.create", agent="a", session=session)
        for each in (key, "short"):
            await w.call("session.set_entry", session=session, key=each, value="v")
        await w.store.wait_for_writes()
        ids = [str(session_object_id(session)), entry_id(session, key), entry_id(session, "short")]
        versions = [version for id in ids for version in await w.store.embedded.history(id)]
    assert len(versions) == 5
    puts = [PutDoc(to_doc(version, "w"), version.valid_time) for version in versions]
    history = await read_history(await origin_of(*puts), session)
    assert history is not None
    assert sorted(stored.document.id for stored in history.parts) == sorted(ids[1:])
