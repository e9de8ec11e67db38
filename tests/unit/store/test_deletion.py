"""A write may delete: what it names is no more from then on, and stays as it was before."""

import pytest

from ctxd import limits
from ctxd.objects.document import AsOf
from ctxd.store import verify
from tests.unit.store.documents import document, write
from tests.unit.store.running import running

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


async def test_an_entity_deleted_by_a_write_is_gone_immediately_and_after_a_restart(root):
    async with running(root) as store:
        first = await store.submit(write(document("a", "text"), document("b"))).wait()
        pending = store.submit(write(document("c"), deletes=("a", "a")))
        assert store.peek("a") is None
        assert await store.get("a") is None
        await pending.wait()
        assert (await store.get("a", AsOf(tx=first.seq))).document.id == "a"
    async with running(root) as store:
        assert [id for id, head in (await store.heads(["a", "b", "c"])).items() if head is None] == ["a"]
        assert [stored.document.id for stored in await store.scan("")] == ["b", "c"]
        assert len(await store.history("a")) == 1


async def test_a_deleted_entity_can_be_written_again(root):
    async with running(root) as store:
        store.submit(write(document("a", n=1)))
        store.submit(write(deletes=("a",)))
        store.submit(write(document("a", n=2)))
        await store.wait_for_writes()
        assert (await store.get("a")).document.payload == {"n": 2}
        assert [stored.document.payload["n"] for stored in await store.history("a")] == [1, 2]


async def test_a_deleted_logged_entity_can_be_written_again(root):
    segment = document("segment:s1#0000000000", "a bundle", type="segment")
    async with running(root) as store:
        store.submit(write(segment))
        store.submit(write(deletes=(segment.id,)))
        assert await store.get(segment.id) is None
        store.submit(write(segment))
        assert (await store.get(segment.id, content=True)).document == segment


async def test_a_deletion_is_in_the_journal_s_fold(root):
    async with running(root) as store:
        store.submit(write(document("a")))
        await store.submit(write(deletes=("a",))).wait()
        assert (await store.changes(after=1, limit=9))[0].puts[0][0] == "a"
    *_, report = verify.verify(root)
    assert report.problems == []
    assert report.versions == 2


async def test_a_deletion_that_is_not_durable_is_never_dropped_from_memory(root, monkeypatch):
    monkeypatch.setattr(limits, "HEADS_CACHED_MAX", 1)
    async with running(root) as store:
        await store.submit(write(document("a"))).wait()
        pending = store.submit(write(deletes=("a",)))
        store.submit(write(document("b")))
        store.submit(write(document("c")))
        assert store.peek("a") is None
        await pending.wait()
        await store.wait_for_writes()
        assert (await store.heads(["a"]))["a"] is None
