"""A row that the node refuses is found, left out alone, and reported."""

import time

import pytest

from ctxd.backends.xtdb.messages import PutDoc
from ctxd.objects.document import AsOf
from ctxd.projection import projection_loop
from tests.fakes.no_threads import no_threads
from tests.unit.projection.projecting import compared, fill, level, projecting
from tests.unit.store.documents import document, write
from tests.unit.store.running import damage_artifacts, put
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]


class TestPoison:
    @pytest.mark.requirement("PRJ-4")
    async def test_one_refused_row_is_quarantined_and_reported_and_the_rest_is_projected(self, root, node):
        node.refuses = lambda op: isinstance(op, PutDoc) and op.doc["xt/id"] in ("t137", "t200")
        async with projecting(root, node.connect) as store:
            fill(store, 300)
            await level(store)
            assert store.status().projection.quarantined == (138, 201)
            assert "2 rows quarantined: 138 (invalid tx-op)" in store.status().projection.reason
            assert [said["seq"] for said in store.heard("projection.quarantined")] == [138, 201]
            assert (await store.get("t137", AsOf(tx=300))).tx == 138
        found = await compared(root, node.connect)
        assert found.equal and found.worst == "warning"
        assert [problem.severity for problem in found.problems] == ["warning"] * 2

    async def test_the_reason_is_still_reported_after_a_restart(self, root, node):
        node.refuses = lambda op: isinstance(op, PutDoc) and op.doc["xt/id"] == "t1"
        async with projecting(root, node.connect) as store:
            fill(store, 3)
            await level(store)
        async with projecting(root, node.connect) as store:
            await level(store)
            assert "2 (invalid tx-op)" in store.status().projection.reason

    async def test_rows_may_be_quarantined_while_the_reasons_are_saved(self, root, node, monkeypatch):
        class SlowlyRead(dict[int, str]):
            def items(self):
                for item in super().items():
                    time.sleep(0.002)
                    yield item

        monkeypatch.setattr(projection_loop, "RECORD_S", 0.01)
        node.refuses = lambda op: isinstance(op, PutDoc) and op.doc["xt/id"].startswith("t")
        async with projecting(root, node.connect) as store:
            store.projection._progress.reasons = SlowlyRead()
            fill(store, 20)
            await level(store)
            assert len(store.status().projection.quarantined) == 20

    async def test_a_node_that_refuses_everything_quarantines_no_row(self, root, node):
        async with projecting(root, node.connect) as store:
            await level(store)
            node.refuses = lambda op: True
            fill(store, 5)
            await until(lambda: store.status().projection.reason == "invalid tx-op")
            node.refuses = lambda op: False
            await level(store)
            assert store.status().projection.quarantined == ()
        assert (await compared(root, node.connect)).equal

    async def test_an_accidental_refusal_quarantines_nothing(self, root, node):
        chances = iter([True])
        node.refuses = lambda op: isinstance(op, PutDoc) and op.doc["xt/id"] == "t1" and next(chances, False)
        async with projecting(root, node.connect) as store:
            fill(store, 1)
            await level(store)
            fill(store, 1, first=1)
            await level(store)
            assert store.status().projection.quarantined == ()

    async def test_an_abort_that_the_cursor_does_not_explain_is_narrowed_down_to_a_row(self, root, node):
        async with projecting(root, node.connect) as store:
            await level(store)
            taken = node._take

            def take(ops):
                node.abort = int(any(isinstance(op, PutDoc) and op.doc["xt/id"] == "t5" for op in ops))
                return taken(ops)

            node._take = take
            fill(store, 20)
            await level(store)
            assert store.status().projection.quarantined == (6,)
        assert (await compared(root, node.connect)).equal

    async def test_a_row_alone_that_is_aborted_by_accident_is_not_left_out(self, root, node):
        async with projecting(root, node.connect) as store:
            await level(store)
            taken, accidents = node._take, iter(range(projection_loop.DOUBTS_MAX - 1))

            def take(ops):
                strikes = any(isinstance(op, PutDoc) and op.doc["xt/id"] == "t0" for op in ops)
                node.abort = int(strikes and next(accidents, None) is not None)
                return taken(ops)

            node._take = take
            fill(store, 1)
            await level(store)
            assert store.status().projection.quarantined == ()
        assert (await compared(root, node.connect)).equal

    async def test_a_text_that_is_damaged_leaves_its_row_out(self, root, node):
        node.down = True
        async with projecting(root, node.connect) as store:
            store.submit(write(document("good", "fine", tool="x")))
            await (await put(store, document("bad", "x" * 1_500_000, tool="x"))).wait()
            damage_artifacts(root)
            node.down = False
            await level(store)
            assert store.status().projection.quarantined == (2,)

    async def test_rows_without_a_free_thread_are_sent_later(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 1)
            await level(store)
            with no_threads() as refused:
                fill(store, 3, first=1)
                await until(lambda: len(refused) > 20)
            await level(store)
            assert store.status().projection.quarantined == ()
        assert (await compared(root, node.connect)).equal
