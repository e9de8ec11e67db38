"""Threads that work for the loop, and the limits on them."""

import sys
import threading
import time
import weakref
from collections.abc import Callable

import anyio
import pytest

from ctxd import worker_threads
from ctxd.errors import CtxdError
from ctxd.worker_threads import Job, Lane, LoopHandle, OwnTurns, SharedLane, ThreadPool, background, in_thread
from ctxd_protocol.errors import ERRORS
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def ran(pool: ThreadPool, work: Callable[[], object]) -> None:
    """Run ``work`` in ``pool`` and wait for its report."""
    ended, loop = anyio.Event(), LoopHandle()
    pool.start(work, lambda: loop.soon(ended.set))
    with anyio.fail_after(30):
        await ended.wait()


def _refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_without_a_thread_every_call_fails_with_an_error_that_a_client_may_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_threads, "_POOL", ThreadPool())
    lane = Lane("test")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _refuse)
        for call in (lane.run, in_thread):
            with pytest.raises(CtxdError, match="no thread can be started") as caught:
                await call(threading.get_ident)
            assert ERRORS[caught.value.code].retryable and "ulimit" in caught.value.message
    assert await lane.run(threading.get_ident) != threading.get_ident()


async def test_a_thread_that_reported_is_used_again() -> None:
    pool, threads = ThreadPool(), set[int]()
    for _ in range(3):
        await ran(pool, lambda: threads.add(threading.get_ident()))
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


async def test_work_waits_for_no_other_work() -> None:
    go_on, together = threading.Event(), threading.Barrier(21)
    jobs = [Job(lambda: (together.wait(30), go_on.wait(30))) for _ in range(20)]
    await in_thread(together.wait, 30)
    assert not any(job.ended.is_set() for job in jobs)
    go_on.set()
    with anyio.fail_after(30):
        for job in jobs:
            await job.ended.wait()


async def test_a_lane_limits_concurrent_work_and_raises_its_exceptions() -> None:
    lane, running, most = Lane("test", 2), 0, 0
    counting, both = threading.Lock(), threading.Barrier(2)

    def work() -> None:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        both.wait(20)
        with counting:
            running -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(lane.run, work)
    assert most == 2
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 / 0)


async def test_small_work_stays_on_the_loop() -> None:
    lane = Lane("test", inline=10)
    assert await lane.run(threading.get_ident, size=10) == threading.get_ident()
    assert await lane.run(threading.get_ident, size=11) != threading.get_ident()


@pytest.mark.parametrize("abandon", [False, True])
async def test_a_cancelled_call_waits_for_its_thread_unless_it_may_be_abandoned(*, abandon: bool) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(30)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: Lane("test").run(work, abandon=abandon))
        await in_thread(begun.wait, 5)
        tasks.cancel_scope.cancel()
        if not abandon:
            go_on.set()
    assert ended.is_set() is not abandon
    go_on.set()


async def test_an_abandoned_call_counts_until_it_ends() -> None:
    lane, begun, go_on = Lane("test"), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(30)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: lane.run(work, abandon=True))
        await in_thread(begun.wait, 5)
        tasks.cancel_scope.cancel()
    order: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lane.run, lambda: order.append("next"))
        await anyio.wait_all_tasks_blocked()
        order.append("ended")
        go_on.set()
    assert order == ["ended", "next"]


@pytest.mark.requirement("BOX-5")
async def test_a_user_of_a_shared_lane_waits_for_one_call_of_another() -> None:
    lane, order = SharedLane("test"), list[str]()
    begun, go_on = threading.Event(), threading.Event()

    def work(name: str) -> None:
        begun.set()
        go_on.wait(30)
        order.append(name)

    async with anyio.create_task_group() as tasks:
        for name in ("a1", "a2", "a3"):
            tasks.start_soon(lane.run_for, "a", work, name)
            await anyio.wait_all_tasks_blocked()
        tasks.start_soon(lane.run_for, "b", work, "b")
        await anyio.wait_all_tasks_blocked()
        await in_thread(begun.wait, 5)
        go_on.set()
    assert order == ["a1", "b", "a2", "a3"]
    small = SharedLane("test", inline=10)
    assert await small.run_for("a", threading.get_ident, size=10) == threading.get_ident()
    assert await small.run_for("a", threading.get_ident, size=11) != threading.get_ident()


async def test_the_lock_of_a_user_is_kept_only_while_it_is_in_use() -> None:
    turns = OwnTurns()
    async with turns.of("a"):
        assert turns.of("a").locked() and not turns.of("b").locked()
    gone = weakref.ref(turns.of("a"))
    assert gone() is None


async def test_a_thread_has_the_name_of_its_lane() -> None:
    assert await Lane("capture").run(lambda: threading.current_thread().name) == "ctxd-capture"


def test_work_without_a_loop_has_a_future() -> None:
    assert background(lambda: 1).result(5) == 1
    with pytest.raises(ZeroDivisionError):
        background(lambda: 1 / 0).result(5)


async def test_an_idle_thread_keeps_no_reference_to_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_threads, "IDLE_S", 60.0)

    class Kept:
        def __call__(self) -> None:
            pass

    pool, kept = ThreadPool(), Kept()
    gone = weakref.ref(kept)
    await ran(pool, kept)
    del kept
    await until(lambda: gone() is None)
    await _idle_thread(pool, monkeypatch)


async def test_a_thread_without_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ThreadPool()
    with anyio.fail_after(30):
        first = await _idle_thread(pool, monkeypatch)
        assert await _idle_thread(pool, monkeypatch) is not first


async def _idle_thread(pool: ThreadPool, monkeypatch: pytest.MonkeyPatch) -> threading.Thread:
    """The thread that works for ``pool`` next, once it has ended."""
    found: list[threading.Thread] = []
    monkeypatch.setattr(worker_threads, "IDLE_S", 0.05)
    await ran(pool, lambda: found.append(threading.current_thread()))
    await until(lambda: not found[0].is_alive())
    return found[0]


async def test_work_given_while_threads_end_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_threads, "IDLE_S", 0.001)
    pool = ThreadPool()
    for number in range(500):
        await ran(pool, lambda: None)
        # Around the moment at which the thread gives up waiting.
        time.sleep(0.0008 + 0.00001 * (number % 40))


def test_work_that_outlives_its_loop_disturbs_no_other() -> None:
    go_on, done = threading.Event(), threading.Event()

    async def start() -> None:
        Job(lambda: go_on.wait(30))

    async def start_again() -> None:
        with anyio.fail_after(30):
            await Job(done.set).ended.wait()

    anyio.run(start)
    go_on.set()
    anyio.run(start_again)
    assert done.is_set()


async def test_calls_from_a_thread_arrive_in_order() -> None:
    arrived: list[int] = []
    loop, done = LoopHandle(), anyio.Event()

    def call() -> None:
        for number in range(1000):
            loop.soon(arrived.append, number)
        loop.soon(done.set)

    Job(call)
    with anyio.fail_after(30):
        await done.wait()
    assert arrived == list(range(1000))


def test_background_work_is_done_at_once_if_no_thread_can_be_started(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(worker_threads, "_POOL", worker_threads.ThreadPool())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert worker_threads.background(lambda: 7).result(timeout=0) == 7


async def test_others_get_the_interpreter_sooner_while_bulk_work_runs() -> None:
    usual, lane, found = sys.getswitchinterval(), Lane("bulk", 2, bulk=True), list[float]()
    began, may_end = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def work(number: int) -> None:
        began[number].set()
        may_end[number].wait(30)
        found.append(sys.getswitchinterval())

    async with anyio.create_task_group() as group:
        for number in (0, 1):
            group.start_soon(lane.run, work, number)
        await until(lambda: all(event.is_set() for event in began))
        may_end[0].set()
        await until(lambda: len(found) == 1)
        assert await Lane("other").run(sys.getswitchinterval) == pytest.approx(worker_threads.BULK_TURN_S)
        may_end[1].set()
    assert found == pytest.approx([worker_threads.BULK_TURN_S] * 2)
    assert sys.getswitchinterval() == usual


async def test_bulk_work_that_raises_ends_the_shorter_turns() -> None:
    usual, lane = sys.getswitchinterval(), Lane("bulk", bulk=True)
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0)
    assert sys.getswitchinterval() == usual


async def test_bulk_work_pauses_once_a_turn_and_other_work_never(monkeypatch: pytest.MonkeyPatch) -> None:
    # Later than any turn of a thread that an earlier test left behind: threads are used again.
    now, pauses = [worker_threads.perf_counter() + 1], list[float]()
    monkeypatch.setattr(worker_threads, "perf_counter", lambda: now[0])
    monkeypatch.setattr(worker_threads, "sleep", pauses.append)

    def work() -> int:
        pauses.clear()
        for _ in range(100):
            now[0] += worker_threads.BULK_TURN_S / 10
            worker_threads.yield_to_other_threads()
        return len(pauses)

    assert await worker_threads.Lane("usual").run(work) == 0
    assert await worker_threads.Lane("bulk", bulk=True).run(work) in (10, 11)
    assert pauses[0] == worker_threads.BULK_PAUSE_S
