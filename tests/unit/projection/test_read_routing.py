"""As-of reads: the node answers what its cursor covers, the embedded tables answer the rest, and both alike."""

import anyio
import pytest

from ctxd.backends.xtdb.documents import FIXED_VALID_TIME
from ctxd.backends.xtdb.messages import Evict, PutDoc
from ctxd.objects.document import AsOf, Page
from ctxd.projection import read_routing
from ctxd.projection.purge_at_node import purged_mark
from tests.unit.projection.projecting import compared, fill, level, projecting
from tests.unit.store.documents import document, write

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]


async def fill_and_level(store, versions):
    """One row per version: entity ``t`` again and again, and an entity of its own."""
    for n in versions:
        await store.submit(write(document("t", f"v{n}", tool="x"), document(f"u{n:02d}", tool="y"))).wait()
        # Rows of one millisecond cannot be distinguished at the node.
        await anyio.sleep(0.002)
    await level(store)


async def test_the_node_answers_as_the_embedded_tables_do(root, node):
    async with projecting(root, node.connect) as store:
        await fill_and_level(store, range(20))
        reads, embedded = store._as_of_reads, store.embedded
        for tx in (1, 7, 20, 99):
            expected = await embedded.as_of(["t", "u03", "none"], AsOf(tx=tx))
            assert await reads.as_of(["t", "u03", "none"], AsOf(tx=tx)) == expected
        assert (reads.answered, reads.fallen_back) == (4, 0)


@pytest.mark.requirement("PRJ-7")
async def test_the_pages_of_a_history_are_read_without_the_node(root, node):
    async with projecting(root, node.connect) as store:
        await fill_and_level(store, range(20))
        node.answers = False
        page = Page(limit=3)
        found = []
        while versions := await store.history("t", AsOf(tx=17), page):
            found += versions
            page = Page(after=(versions[-1].valid_time, versions[-1].tx), limit=3)
        assert [one.tx for one in found] == list(range(1, 18))
        assert (store._as_of_reads.answered, store._as_of_reads.fallen_back) == (0, 0)


@pytest.mark.requirement("PRJ-7")
async def test_reads_beyond_the_cursor_use_the_embedded_tables(root, node):
    async with projecting(root, node.connect) as store:
        await fill_and_level(store, range(5))
        node.hold = anyio.Event()
        for n in range(5, 8):
            await store.submit(write(document("t", f"v{n}", tool="x"), document(f"u{n:02d}", tool="y"))).wait()
            await anyio.sleep(0.002)
        reads = store._as_of_reads
        assert [one.document.id for one in await store.scan("u", AsOf(tx=7))] == [f"u{n:02d}" for n in range(7)]
        assert (await store.get("t", AsOf(tx=6))).tx == 6
        assert reads.answered == 0
        assert (await store.get("t", AsOf(tx=3))).tx == 3
        assert (reads.answered, reads.fallen_back) == (1, 0)
        node.hold.set()


async def test_versions_of_other_journals_are_left_to_the_embedded_tables(root, node, tmp_path):
    async with projecting(tmp_path / "other", node.connect) as other:
        other.submit(write(document("t", "theirs", tool="x"), document("u9", tool="x")))
        await level(other)
        async with projecting(root, node.connect) as store:
            store.submit(write(document("t", "ours", tool="x")))
            store.submit(write(document("u1", tool="x")))
            await level(store)
            other.submit(write(document("t", "theirs again", tool="x")))
            await level(other)
            assert (await store.get("t", AsOf(tx=2), content=True)).document.content == "ours"
            (ours,) = await store._as_of_reads.as_of(["t"], AsOf(tx=2))
            assert ours.tx == 1
            assert await store._as_of_reads.as_of(["t"], AsOf(valid_time=ours.valid_time - 1)) == []
            assert [one.document.id for one in await store.scan("u", AsOf(tx=2))] == ["u1"]
            assert store._as_of_reads.fallen_back == 1
    assert (await compared(root, node.connect)).equal
    assert (await compared(tmp_path / "other", node.connect)).equal


@pytest.mark.requirement("HST-9")
async def test_objects_purged_by_another_host_are_read_from_the_embedded_tables(root, node):
    async with projecting(root, node.connect) as store:
        await fill_and_level(store, range(5))
        marked = PutDoc(purged_mark("u01"), FIXED_VALID_TIME)
        await node.submit([Evict("u01"), marked])
        assert (await store.get("u01", AsOf(tx=4))).tx == 2
        assert (store._as_of_reads.answered, store._as_of_reads.fallen_back) == (0, 1)
    assert (await compared(root, node.connect)).equal


async def test_a_deleted_entity_is_read_from_the_node(root, node):
    async with projecting(root, node.connect) as store:
        await fill_and_level(store, range(2))
        await store.submit(write(deletes=("t",))).wait()
        await level(store)
        assert await store.get("t", AsOf(tx=3)) is None and store._as_of_reads.answered == 1
        assert store._as_of_reads.fallen_back == 0


@pytest.mark.requirement("PRJ-7")
async def test_a_node_that_failed_to_answer_is_not_read_for_a_while(root, node, monkeypatch):
    monkeypatch.setattr(read_routing, "READ_S", 0.05)
    async with projecting(root, node.connect) as store:
        fill(store, 3)
        await level(store)
        node.answers = False
        for _ in range(5):
            assert (await store.get("t1", AsOf(tx=3))).tx == 2
        assert (store._as_of_reads.answered, store._as_of_reads.fallen_back) == (0, 1)


async def test_a_node_that_lost_its_data_is_not_trusted(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 3)
        await level(store)
        node.wipe()
        assert (await store.get("t1", AsOf(tx=3))).tx == 2
        assert store._as_of_reads.answered == 0
