"""The thread that writes: one call after another, each made to its end."""

import threading
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from ctxd.store.group_commit import CommitThread

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(thread):
    async with anyio.create_task_group() as group:
        group.start_soon(thread.run)
        try:
            yield
        finally:
            thread.stop()


async def test_all_calls_are_made_on_one_thread_that_is_not_the_loops():
    thread = CommitThread()
    async with running(thread):
        made_on = {await thread.call(threading.get_ident) for _ in range(3)}
    assert len(made_on) == 1
    assert made_on != {threading.get_ident()}


async def test_an_exception_of_a_call_is_raised_and_the_next_call_succeeds():
    thread = CommitThread()
    async with running(thread):
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 // 0)
        assert await thread.call(lambda: "next") == "next"


async def test_a_cancelled_call_is_completed():
    thread, entered, go_on, results = CommitThread(), threading.Event(), threading.Event(), []

    def work():
        entered.set()
        return go_on.wait(5)

    async def call():
        results.append(await thread.call(work))

    async with running(thread):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            assert await anyio.to_thread.run_sync(entered.wait, 5)
            group.cancel_scope.cancel()
            go_on.set()
        assert results == [True]


async def test_a_cancelled_thread_makes_the_call_that_waits():
    thread, results = CommitThread(), []

    async def call():
        results.append(await thread.call(lambda: "done"))
        thread.stop()

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        group.start_soon(thread.run)
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert results == ["done"]
