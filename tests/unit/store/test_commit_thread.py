"""The thread that writes: one call after another, each begun only once it was told how the last one ended."""

import threading
from contextlib import asynccontextmanager

import anyio
import pytest

from ctxd.store.group_commit import CommitThread

pytestmark = pytest.mark.anyio


class Heard:
    """Notes what it is told."""

    def __init__(self):
        self.ends, self.loop = [], threading.get_ident()
        self.changed = anyio.Event()

    def __call__(self, result, raised):
        assert threading.get_ident() == self.loop
        self.ends.append(result if raised is None else raised)
        self.changed.set()

    async def until(self, count):
        with anyio.fail_after(5):
            while len(self.ends) < count:
                await self.changed.wait()
                self.changed = anyio.Event()
        return self.ends


@asynccontextmanager
async def running(thread):
    async with anyio.create_task_group() as group:
        group.start_soon(thread.run)
        try:
            yield
        finally:
            thread.stop()


async def test_all_calls_are_made_on_one_thread_that_is_not_the_loops():
    heard = Heard()
    thread = CommitThread(heard)
    async with running(thread):
        for count in (1, 2, 3):
            thread.give(threading.get_ident)
            await heard.until(count)
    assert set(heard.ends) != {threading.get_ident()}
    assert len(set(heard.ends)) == 1


async def test_what_a_call_raised_is_told_and_the_next_one_is_made():
    heard = Heard()
    thread = CommitThread(heard)
    async with running(thread):
        thread.give(lambda: 1 // 0)
        (raised,) = await heard.until(1)
        assert isinstance(raised, ZeroDivisionError)
        thread.give(lambda: "next")
        assert (await heard.until(2))[1] == "next"


async def test_what_was_not_begun_can_be_taken_back_and_what_was_begun_cannot():
    heard = Heard()
    thread = CommitThread(heard)
    thread.give(lambda: "never")
    assert thread.take_back()
    assert not thread.take_back()
    entered, go_on = threading.Event(), threading.Event()

    def work():
        entered.set()
        return go_on.wait(5)

    async with running(thread):
        thread.give(work)
        assert await anyio.to_thread.run_sync(entered.wait, 5)
        assert not thread.take_back()
        go_on.set()
        assert await heard.until(1) == [True]


async def test_a_cancelled_thread_sees_its_call_through():
    heard = Heard()
    thread = CommitThread(heard)
    async with anyio.create_task_group() as group:
        thread.give(lambda: "done")
        thread.stop()
        group.start_soon(thread.run)
        group.cancel_scope.cancel()
    assert heard.ends == ["done"]
