"""The journal gets to the node in order and once, whatever happens on the way, and no write waits for it."""

import anyio
import pytest

from ctxd.backends.xtdb.documents import content_id, cursor_id
from ctxd.backends.xtdb.messages import Match, PutDoc
from ctxd.errors import CtxdError
from ctxd.projection import progress
from ctxd.projection.node_transactions import OUTSTANDING_MAX
from ctxd.projection.progress import Room
from tests.unit.projection.projecting import compared, fill, level, projecting
from tests.unit.store.documents import document, sourced, write
from tests.unit.store.running import put
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]


def versions_put(node):
    """Number of committed transactions that put each version."""
    done = [ops for ops, committed in zip(node.log, node._committed, strict=True) if committed]
    puts = [op for ops in done for op in ops if isinstance(op, PutDoc) and "tx" in op.doc["payload"]]
    return [(op.doc["xt/id"], op.doc["payload"]["tx"]) for op in puts]


async def test_every_version_and_every_text_gets_to_the_node_once(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 300)
        store.submit(write(sourced("/a.py", "one"), document("segment:s1#0000000001", type="segment", z=1, a={"b": 2})))
        store.submit(write(sourced("/a.py", "two")))
        await level(store)
    assert sorted(versions_put(node)) == sorted(set(versions_put(node)))
    assert len(versions_put(node)) == 303
    found = await compared(root, node.connect)
    assert found.problems == [] and found.equal and found.seq == 302
    assert found.texts == 9


@pytest.mark.requirement("PRJ-11")
async def test_rows_of_one_entity_share_transactions_each_of_which_moves_the_cursor(root, node):
    async with projecting(root, node.connect) as store:
        node.hold = anyio.Event()
        for n in range(200):
            store.submit(write(document("same", f"v{n}", tool="bash"), document(f"u{n}", tool="bash")))
        await store.wait_for_writes()
        node.hold.set()
        await level(store)
    assert len(node.log) <= 10, "200 rows took a transaction each when an entity was put once in one"
    for ops in node.log[1:]:
        places = [(op.doc["xt/id"], op.valid_time) for op in ops if isinstance(op, PutDoc)]
        assert len(places) == len(set(places)), "of two versions at one valid time a transaction keeps the later"
        assert isinstance(ops[0], Match) and ops[0].id == places[-1][0] == cursor_id(store.writer)
    assert (await compared(root, node.connect)).equal


async def test_a_text_that_is_known_to_be_there_is_not_put_again(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 7)
        await level(store)
        fill(store, 70, first=100)
        await level(store)
    puts = [op.doc["xt/id"] for ops in node.log for op in ops if isinstance(op, PutDoc)]
    assert len([id for id in puts if id.startswith(content_id(b"")[:-1])]) == 7


async def test_a_text_above_a_mebibyte_is_kept_in_parts(root, node):
    async with projecting(root, node.connect) as store:
        await put(store, document("big", "ab\u00e9" * 900_000, tool="cat"))
        await level(store)
    assert (await compared(root, node.connect)).problems == []


@pytest.mark.requirement("FS-10")
async def test_binary_content_is_kept_at_the_node_too(root, node):
    async with projecting(root, node.connect) as store:
        for id, raw in (("image", b"\x89PNG\xff"), ("large", b"\xff\0" * 700_000)):
            await put(store, document(id, raw, tool="cat", encoding="base64", media_type="image/png"))
        await level(store)
    assert (await compared(root, node.connect)).problems == []


async def test_a_restart_continues_from_the_cursor_with_a_higher_incarnation(root, node):
    seen = []
    for start in range(3):
        async with projecting(root, node.connect) as store:
            fill(store, 50, first=50 * start)
            await level(store)
            seen.append(store.projection._progress.cursor)
    assert [cursor.seq for cursor in seen] == [50, 100, 150]
    assert seen[0].incarnation < seen[1].incarnation < seen[2].incarnation
    assert len(versions_put(node)) == len(set(versions_put(node))) == 150
    assert (await compared(root, node.connect)).equal


async def test_a_lost_response_is_looked_up_before_anything_is_sent_again(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 10)
        await level(store)
        node.lose_reply = 3
        fill(store, 200, first=10)
        await level(store)
    assert len(versions_put(node)) == len(set(versions_put(node))) == 210
    assert (await compared(root, node.connect)).equal


async def test_a_late_transaction_of_an_earlier_incarnation_has_no_effect(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 20)
        await level(store)
    late = [ops for ops in node.log if len(ops) > 2][0]
    async with projecting(root, node.connect) as store:
        await level(store)
        assert not await node.committed(await node.submit(late), timeout_s=1)
    assert (await compared(root, node.connect)).equal


@pytest.mark.requirement("PRJ-2")
async def test_writes_are_acknowledged_without_a_listener_and_projected_later(root, node):
    node.down = True
    async with projecting(root, node.connect) as store:
        for pending in fill(store, 500):
            await pending.wait()
        status = store.status().projection
        assert (status.state, status.seq, status.lag_rows) == ("unreachable", 0, 500)
        assert "nobody listens" in status.reason and status.lag_s > 0
        node.down = False
        await level(store)
        status = store.status().projection
        assert (status.state, status.reason, status.lag_rows, status.lag_s) == ("projecting", "", 0, 0.0)
    assert (await compared(root, node.connect)).equal


async def test_a_node_that_indexes_nothing_is_given_no_more_than_a_few_transactions(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 1)
        await level(store)
        node.hold = anyio.Event()
        before = len(node.log)
        for sent in range(1, OUTSTANDING_MAX + 1):
            # Rows that a slow stream finds together share a transaction: each lot waits for the one before.
            fill(store, 10, first=10 * sent)
            await until(lambda sent=sent: len(node.log) == before + sent)
        for first in range(100, 400, 10):
            for pending in fill(store, 10, first=first):
                await pending.wait()
        assert len(node.log) == before + OUTSTANDING_MAX
        node.hold.set()
        await level(store)
    assert (await compared(root, node.connect)).equal


async def test_a_failed_ingester_is_reported_and_awaited(root, node):
    node.ingester_failed = True
    async with projecting(root, node.connect) as store:
        fill(store, 5)
        await until(lambda: store.status().projection.state == "failed")
        assert "restart the node" in store.status().projection.reason
        node.ingester_failed = False
        await level(store)


class TestRoomToWait:
    @pytest.mark.requirement("PRJ-8")
    async def test_half_full_warns_nearly_full_slows_down_and_full_refuses(self, root, node):
        async with projecting(root, node.connect, room=Room(rows=1_000)) as store:
            await level(store)
            node.down = True
            fill(store, 500)
            await store.wait_for_writes()
            assert "backlog at 50%" in store.status().projection.reason
            fill(store, 300, first=500)
            await store.wait_for_writes()
            with pytest.raises(CtxdError) as refused:
                fill(store, 100, first=800)
            assert (refused.value.code, refused.value.outcome) == ("rate_limited", "not_applied")
            assert 0 < refused.value.retry_after_ms <= 1_000 / progress.DRAIN_LEAST

    @pytest.mark.requirement("PRJ-8")
    async def test_a_full_backlog_refuses_writes_until_it_drains(self, root, node):
        async with projecting(root, node.connect, room=Room(rows=100)) as store:
            await level(store)
            node.down = True
            fill(store, 100)
            await store.wait_for_writes()
            with pytest.raises(CtxdError) as refused:
                store.submit(write(document("over")))
            assert (refused.value.code, refused.value.outcome) == ("store_backlog_full", "not_applied")
            assert refused.value.retry_after_ms == progress.RETRY_FULL_MS
            node.down = False
            await level(store)
            await store.submit(write(document("again"))).wait()

    async def test_rows_older_than_the_first_projection_do_not_fill_the_backlog(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 200)
            await store.wait_for_writes()
        (root / "projection.json").unlink()
        node.wipe()
        node.down = True
        async with projecting(root, node.connect, room=Room(rows=100)) as store:
            await store.submit(write(document("more"))).wait()
            assert store.status().projection.lag_rows == 201
