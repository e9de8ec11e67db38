"""Whoever many wait for a node, one request waits, and it wakes them all."""

import anyio
import anyio.lowlevel
import pytest

from ctxd.backends.xtdb.client import Awaiter
from ctxd.backends.xtdb.messages import Unknown

pytestmark = pytest.mark.anyio


class Node:
    """A node that completes chosen transactions, and counts concurrent requests."""

    def __init__(self) -> None:
        self.completed = -1
        self.failing: list[Exception] = []
        self.asked: list[int] = []
        self.busiest = 0
        self._busy = 0
        self._moved = anyio.Event()

    def complete(self, tx_id: int) -> None:
        self.completed = tx_id
        self._moved.set()
        self._moved = anyio.Event()

    async def ask(self, tx_id: int, timeout_s: float) -> int:
        self.asked.append(tx_id)
        self._busy += 1
        self.busiest = max(self.busiest, self._busy)
        try:
            await anyio.lowlevel.checkpoint()
            if self.failing:
                raise self.failing.pop()
            with anyio.move_on_after(timeout_s):
                while self.completed < tx_id:
                    await self._moved.wait()
            return self.completed
        finally:
            self._busy -= 1


async def test_many_waits_are_one_request_for_the_highest():
    node = Node()
    awaiter = Awaiter(node.ask)
    reached = []

    async def wait(tx_id: int) -> None:
        assert await awaiter.wait_until_completed(tx_id, timeout_s=10)
        reached.append(tx_id)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(wait, 3)
            await anyio.wait_all_tasks_blocked()
            for tx_id in (1, 2, *range(4, 50)):
                group.start_soon(wait, tx_id)
            await anyio.wait_all_tasks_blocked()
            node.complete(3)
            await anyio.wait_all_tasks_blocked()
            assert sorted(reached) == [1, 2, 3]
            node.complete(60)
    assert node.busiest == 1
    assert node.asked == [3, 49]
    assert len(reached) == 49


async def test_a_completed_transaction_is_not_queried_again():
    node = Node()
    node.complete(5)
    awaiter = Awaiter(node.ask)
    assert await awaiter.wait_until_completed(4, timeout_s=1)
    assert await awaiter.wait_until_completed(5, timeout_s=1)
    assert node.asked == [4]
    awaiter.forget()
    assert await awaiter.wait_until_completed(4, timeout_s=1)
    assert node.asked == [4, 4]


async def test_a_wait_ends_at_its_timeout():
    assert not await Awaiter(Node().ask).wait_until_completed(1, timeout_s=0.05)


async def test_a_cancelled_querying_waiter_is_replaced_by_another():
    node = Node()
    awaiter = Awaiter(node.ask)
    reached = anyio.Event()

    async def wait() -> None:
        assert await awaiter.wait_until_completed(7, timeout_s=10)
        reached.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as others:
            async with anyio.create_task_group() as first:
                first.start_soon(lambda: awaiter.wait_until_completed(7, timeout_s=10))
                await anyio.wait_all_tasks_blocked()
                others.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                first.cancel_scope.cancel()
            await anyio.wait_all_tasks_blocked()
            node.complete(7)
            await reached.wait()
    assert node.asked == [7, 7]


async def test_a_failure_reaches_only_the_waiter_whose_query_failed():
    node = Node()
    node.failing = [Unknown("lost")]
    node.complete(9)
    awaiter = Awaiter(node.ask)
    ends = []

    async def wait() -> None:
        try:
            ends.append(await awaiter.wait_until_completed(9, timeout_s=10))
        except Unknown:
            ends.append("failed")

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        group.start_soon(wait)
    assert sorted(map(str, ends)) == ["True", "failed"]
