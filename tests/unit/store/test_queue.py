"""Writes that wait: told in order, bounded in number and size, and finished or failed when the store ends."""

from collections import Counter

import anyio
import anyio.lowlevel
import pytest

from ctxd import limits
from ctxd.errors import CtxdError
from ctxd.store.write_types import NOT_CACHED
from tests.unit.store.documents import document, write
from tests.unit.store.running import running

pytestmark = pytest.mark.anyio


async def test_callbacks_report_every_durable_write_in_order(root):
    told = []
    async with running(root) as store:
        store.on_durable(lambda landed: told.extend(pending.seq for _, pending in landed))
        for n in range(100):
            store.submit(write(document(f"t{n}")))
        await store.drain()
    assert told == list(range(1, 101))


async def test_a_full_queue_refuses_and_takes_again(root, monkeypatch):
    monkeypatch.setattr(limits, "QUEUE_WRITES_MAX", 10)
    async with running(root) as store:
        accepted = [store.submit(write(document(f"t{n}"))) for n in range(10)]
        with pytest.raises(CtxdError) as caught:
            store.submit(write(document("more")))
        assert (caught.value.code, caught.value.outcome) == ("store_backlog_full", "not_applied")
        assert store.peek("more") in (NOT_CACHED, None)
        await accepted[-1].wait()
        await store.submit(write(document("more"))).wait()


async def test_a_transaction_is_bounded_and_a_large_write_goes_alone(root, monkeypatch):
    monkeypatch.setattr(limits, "COMMIT_WRITES_MAX", 3)
    monkeypatch.setattr(limits, "COMMIT_BYTES_MAX", 10_000)
    async with running(root) as store:
        groups = []
        store.on_durable(lambda landed: groups.append(len(landed)))
        for n in range(6):
            store.submit(write(document(f"t{n}")))
        store.submit(write(document("large", "x" * 50_000)))
        store.submit(write(document("after")))
        await store.drain()
        assert groups == [3, 3, 1, 1]


async def test_waiters_of_a_transaction_are_resumed_in_portions_with_turns_between(root):
    async with running(root) as store:
        told, turns, over = [], [0], anyio.Event()

        async def turn_by_turn():
            while not over.is_set():
                turns[0] += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(turn_by_turn)
            pendings = [store.submit(write(document(f"t{n}"))) for n in range(300)]
            for pending in pendings:
                pending.on_done(lambda pending: told.append((pending.seq, turns[0])))
            for pending in pendings:
                await pending.wait()
                assert store.head().seq >= pending.seq
            over.set()
        assert store.status().commits == 1
        assert [seq for seq, _ in told] == [pending.seq for pending in pendings]
        at_once = Counter(turn for _, turn in told)
        assert max(at_once.values()) < 150


async def test_a_draining_store_finishes_accepted_writes_and_accepts_no_more(root):
    async with running(root) as store:
        pendings = [store.submit(write(document(f"t{n}"))) for n in range(20)]
        await store.drain()
        assert all(pending.receipt is not None for pending in pendings)
        with pytest.raises(CtxdError) as caught:
            store.submit(write(document("late")))
        assert caught.value.code == "draining"
        assert (await store.get("t1")) is not None


async def test_a_cancelled_store_fails_writes_it_had_not_begun(root):
    async with running(root) as store:
        pending = store.submit(write(document("t1")))
        lost = []
        store.on_lost(lost.append)
    with pytest.raises(CtxdError) as caught:
        await pending.wait()
    assert (caught.value.code, caught.value.outcome) == ("draining", "not_applied")
    assert lost == [{"s1"}]
    async with running(root) as store:
        assert await store.get("t1") is None


async def test_a_waiter_that_is_cancelled_leaves_the_write_alone(root):
    async with running(root) as store:
        pending = store.submit(write(document("t1")))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await pending.wait()
        assert (await pending.wait()).seq == 1


async def test_a_write_that_cannot_be_made_fails_with_those_behind_it_and_the_store_continues(root):
    async with running(root) as store:
        faults = []
        store.on_fault(faults.append)
        before = [store.submit(write(document(f"a{n}"))) for n in range(3)]
        bad = store.submit(write(document("bad", op_id="op")))
        store._commits.queue[-1].encoded.puts.append(None)
        behind = [store.submit(write(document(f"b{n}"))) for n in range(3)]
        for pending in before:
            await pending.wait()
        codes = []
        for pending in (bad, *behind):
            with pytest.raises(CtxdError) as caught:
                await pending.wait()
            assert caught.value.outcome == "not_applied" and caught.value.hint
            codes.append(caught.value.code)
        assert codes == ["internal_error", *["store_failed"] * 3]
        assert len(faults) == 1 and isinstance(faults[0].__cause__, AttributeError)
        assert store.status().state == "ok"
        receipt = await store.submit(write(document("b0"))).wait()
        assert receipt.seq == bad.seq == store.next_seq - 1
        for id in ("a2", "b0"):
            assert await store.get(id) is not None
        assert await store.get("bad") is None
