"""First come, first served, whoever is slow or gives up."""

import anyio
import pytest

from ctxd.sessions.live_session import SessionLock, Ticket

pytestmark = pytest.mark.anyio


async def test_turns_come_in_the_order_of_tickets_not_of_readiness() -> None:
    lock, order = SessionLock(), []
    tickets = [Ticket(lock.queue).__enter__() for _ in range(5)]
    gates = [anyio.Event() for _ in range(5)]

    async def work(n: int) -> None:
        await gates[n].wait()
        await tickets[n].reached()
        order.append(n)
        tickets[n].leave()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for n in (3, 1, 4, 0, 2):
                group.start_soon(work, n)
            for n in (4, 2, 3, 1, 0):
                gates[n].set()
                await anyio.wait_all_tasks_blocked()
    assert order == [0, 1, 2, 3, 4]
    assert lock.free


@pytest.mark.parametrize("given_up", [0, 1, 2])
async def test_a_cancelled_call_anywhere_in_the_queue_does_not_block_the_others(given_up: int) -> None:
    lock, order = SessionLock(), []
    holding = Ticket(lock.queue).__enter__()
    scopes = [anyio.CancelScope() for _ in range(3)]

    async def work(n: int) -> None:
        with scopes[n]:
            async with lock:
                order.append(n)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(work, n)
                await anyio.wait_all_tasks_blocked()
            scopes[given_up].cancel()
            await anyio.wait_all_tasks_blocked()
            holding.leave()
    assert order == [n for n in range(3) if n != given_up]
    assert lock.free


async def test_only_one_is_inside_at_a_time() -> None:
    lock, inside = SessionLock(), 0

    async def work() -> None:
        nonlocal inside
        async with lock:
            inside += 1
            assert inside == 1
            await anyio.wait_all_tasks_blocked()
            inside -= 1

    async def enter() -> None:
        async with lock:
            assert inside == 0

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        for _ in range(4):
            group.start_soon(enter)
