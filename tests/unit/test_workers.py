"""Threads that work for the loop: each piece of work at once, and its end told on the loop."""

import threading
import time
import weakref
from collections.abc import Callable

import anyio
import anyio.to_thread
import pytest

from ctxd import workers
from ctxd.workers import Loop, Workers

pytestmark = pytest.mark.anyio


async def test_its_end_is_told_on_the_loop_and_the_thread_is_used_again() -> None:
    made, ran = Workers(), []
    for _ in range(3):
        ended = made.give(lambda: ran.append(threading.get_ident()))
        with anyio.fail_after(5):
            await ended.wait()
    assert len(ran) == 3
    assert len(set(ran)) == 1
    assert ran[0] != threading.get_ident()


async def test_work_waits_for_no_other_work() -> None:
    made, go_on, together = Workers(), threading.Event(), threading.Barrier(21)
    ends = [made.give(lambda: (together.wait(5), go_on.wait(5))) for _ in range(20)]
    await anyio.to_thread.run_sync(together.wait, 5)
    assert not any(ended.is_set() for ended in ends)
    go_on.set()
    with anyio.fail_after(5):
        for ended in ends:
            await ended.wait()


async def test_a_thread_without_work_keeps_nothing_of_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "IDLE_S", 60.0)

    class Kept:
        def __call__(self) -> None:
            pass

    def given(made: Workers) -> tuple[Callable[[], object], anyio.Event]:
        kept = Kept()
        return weakref.ref(kept), made.give(kept)

    kept, ended = given(made := Workers())
    with anyio.fail_after(5):
        await ended.wait()
        while kept() is not None:
            await anyio.sleep(0.01)
        await _let_go(made, monkeypatch)


async def test_a_thread_without_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Workers()
    with anyio.fail_after(5):
        first = await _let_go(made, monkeypatch)
        assert await _let_go(made, monkeypatch) is not first


async def _let_go(made: Workers, monkeypatch: pytest.MonkeyPatch) -> threading.Thread:
    """The thread that works for ``made`` next, once it has ended."""
    ran: list[threading.Thread] = []
    monkeypatch.setattr(workers, "IDLE_S", 0.05)
    await made.give(lambda: ran.append(threading.current_thread())).wait()
    while ran[0].is_alive():
        await anyio.sleep(0.01)
    return ran[0]


async def test_work_given_while_threads_end_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "IDLE_S", 0.001)
    made = Workers()
    with anyio.fail_after(20):
        for number in range(500):
            await made.give(lambda: None).wait()
            # Around the moment at which the thread gives up waiting.
            time.sleep(0.0008 + 0.00001 * (number % 40))


def test_work_that_outlives_its_loop_disturbs_nobody() -> None:
    made, go_on, ran = Workers(), threading.Event(), threading.Event()

    async def give() -> None:
        made.give(lambda: go_on.wait(5))

    async def give_again() -> None:
        with anyio.fail_after(5):
            await made.give(ran.set).wait()

    anyio.run(give)
    go_on.set()
    anyio.run(give_again)
    assert ran.is_set()


async def test_what_a_thread_says_is_heard_in_order() -> None:
    heard: list[int] = []
    loop, done = Loop(), anyio.Event()

    def say() -> None:
        for number in range(1000):
            loop.soon(heard.append, number)
        loop.soon(done.set)

    Workers().give(say)
    with anyio.fail_after(5):
        await done.wait()
    assert heard == list(range(1000))
