"""Reads of the past: answered by the node, merged with what it lacks, and by the read model when it does not answer."""

import anyio
import pytest

from ctxd.projection import past
from tests.unit.projection.projecting import compared, fill, level, projecting
from tests.unit.store.documents import document, write

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]


class TestPast:
    async def test_the_node_answers_about_the_past_and_says_what_the_read_model_says(self, root, node):
        async with projecting(root, node.connect) as store:
            for n in range(20):
                store.submit(write(document("t", f"v{n}", tool="x", n=n), document(f"u{n:02d}", tool="y")))
            await level(store)
            model, from_node = store._model, store._past
            for tx in (0, 1, 7, 20, 99):
                mine = await model.as_of(["t", "u03", "none"], tx=tx)
                assert await from_node.as_of(["t", "u03", "none"], tx=tx) == mine
                assert await from_node.scan("u", tx=tx, limit=5) == await model.scan("u", tx=tx, limit=5)
                for ascending in (True, False):
                    mine = await model.history("t", ascending=ascending, tx=tx, limit=3)
                    assert await from_node.history("t", ascending=ascending, tx=tx, limit=3) == mine
                    if mine:
                        after = (mine[0].valid_time, mine[0].tx)
                        mine = await model.history("t", ascending=ascending, tx=tx, after=after)
                        assert await from_node.history("t", ascending=ascending, tx=tx, after=after) == mine
            assert from_node.answered > 20 and from_node.fallen_back == 0

    @pytest.mark.requirement("PRJ-7")
    async def test_what_the_node_lacks_comes_from_the_read_model(self, root, node):
        async with projecting(root, node.connect) as store:
            for n in range(5):
                store.submit(write(document("t", f"v{n}", tool="x"), document(f"u{n}", tool="y")))
            await level(store)
            node.hold = anyio.Event()
            for n in range(5, 8):
                await store.submit(write(document("t", f"v{n}", tool="x"), document(f"u{n}", tool="y"))).wait()
            assert [one.tx for one in await store.history("t")] == list(range(1, 9))
            assert [one.tx for one in await store.history("t", order="desc", limit=4)] == [8, 7, 6, 5]
            assert [one.document.id for one in await store.scan("u", tx=7)] == [f"u{n}" for n in range(7)]
            assert (await store.get("t", tx=6)).tx == 6 and (await store.get("t", tx=3)).tx == 3
            assert store._past.answered == 5
            node.hold.set()

    async def test_another_journals_versions_of_the_same_entity_are_not_shown(self, root, node, tmp_path):
        async with projecting(tmp_path / "other", node.connect) as other:
            other.submit(write(document("t", "theirs", tool="x"), document("u9", tool="x")))
            await level(other)
            async with projecting(root, node.connect) as store:
                store.submit(write(document("t", "ours", tool="x")))
                store.submit(write(document("u1", tool="x")))
                await level(store)
                other.submit(write(document("t", "theirs again", tool="x")))
                await level(other)
                assert (await store.get("t", tx=2, content=True)).document.content == "ours"
                assert [one.tx for one in await store.history("t")] == [1]
                assert [one.document.id for one in await store.scan("u", tx=2)] == ["u1"]
                assert store._past.fallen_back == 0
        assert (await compared(root, node.connect)).equal
        assert (await compared(tmp_path / "other", node.connect)).equal

    @pytest.mark.requirement("PRJ-7")
    async def test_a_node_that_does_not_answer_is_not_waited_for_again_and_again(self, root, node, monkeypatch):
        monkeypatch.setattr(past, "ANSWER_S", 0.05)
        async with projecting(root, node.connect) as store:
            fill(store, 3)
            await level(store)
            node.answers = False
            for _ in range(5):
                assert (await store.get("t1", tx=3)).tx == 2
            assert (store._past.answered, store._past.fallen_back) == (0, 1)

    async def test_a_node_that_lost_its_data_is_not_believed(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 3)
            await level(store)
            node.wipe()
            assert (await store.get("t1", tx=3)).tx == 2
            assert [one.tx for one in await store.history("t1")] == [2]
            assert store._past.answered == 0
