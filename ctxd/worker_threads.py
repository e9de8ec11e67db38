"""Work in threads, off the event loop.

Every lane shares one pool of daemon threads: a thread that never returns keeps neither the loop nor the process.
Handing work over and reporting its end each take one turn of the loop; anyio's own threads take four turns and two
limiters a call, several times what a stat costs.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter, sleep
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, Unpack

import anyio
from anyio.lowlevel import checkpoint, current_token

IDLE_S: Final = 10.0
"""Seconds after which a thread without work ends."""

BULK_TURN_S: Final = 0.0005
"""Seconds after which a thread that waits for the interpreter gets it while bulk work is under way."""

BULK_PAUSE_S: Final = 0.00005
"""Seconds for which bulk work pauses: enough for another thread to wake up and take the interpreter."""

Args = TypeVarTuple("Args")
T = TypeVar("T")


class LoopHandle:
    """Handle on the event loop it is made on, for other threads. Works on asyncio and on trio."""

    def __init__(self) -> None:
        running: Any = current_token().native_token
        self.schedule: Callable[..., object] = getattr(running, "call_soon_threadsafe", None) or running.run_sync_soon
        """As ``soon``, for a thread that the loop waits for. Raises: RuntimeError if the loop has ended."""

    def soon(self, function: Callable[[Unpack[Args]], object], *args: *Args) -> None:
        """Schedule ``function`` on the loop, in order, without waiting; dropped if the loop has ended."""
        with suppress(RuntimeError):
            self.schedule(function, *args)


class NoThread(RuntimeError):
    """The system starts no further thread for this process."""


class ThreadPool:
    """Daemon threads, as many as there is work at once; idle ones are used again."""

    def __init__(self) -> None:
        # Lists are changed in one step each under the interpreter's lock, so that a thread is either taken or ended.
        self._idle: list[SimpleQueue[tuple[Callable[[], object], Callable[[], object]]]] = []

    def start(self, work: Callable[[], object], report: Callable[[], object]) -> None:
        """Call ``work`` in a thread at once, then ``report``, once the thread is free again. Neither raises.

        Raises: NoThread.
        """
        try:
            queue = self._idle.pop()
        except IndexError:
            queue = SimpleQueue()
            try:
                threading.Thread(target=self._run, args=(queue,), name="ctxd-worker", daemon=True).start()
            except RuntimeError as error:
                raise NoThread("no thread can be started: raise TasksMax= of the unit, or ulimit -u") from error
        queue.put((work, report))

    def _run(self, queue: SimpleQueue[tuple[Callable[[], object], Callable[[], object]]]) -> None:
        while True:
            try:
                work, report = queue.get(timeout=IDLE_S)
            except Empty:
                try:
                    self._idle.remove(queue)
                except ValueError:
                    continue  # It was taken just now: work is on its way.
                return
            work()
            self._idle.append(queue)
            report()
            del work, report


_POOL: Final = ThreadPool()


class Job(Generic[T]):
    """One call in a thread of the shared pool. Once it has ended, ``ended`` is set on the loop that made it, and
    ``then`` is called there."""

    def __init__(self, work: Callable[[], T], then: Callable[[], object] | None = None) -> None:
        self.ended = anyio.Event()
        self._future: Future[T] = Future()
        loop, future = LoopHandle(), self._future
        self._then = then
        _POOL.start(lambda: complete(future, work), lambda: loop.soon(self._end))

    def _end(self) -> None:
        self.ended.set()
        if self._then is not None:
            self._then()

    def result(self) -> T:
        """The result of the call; only once ``ended`` is set. Raises: what the call raised."""
        return self._future.result(timeout=0)


def complete(future: "Future[T]", work: Callable[[], T]) -> None:
    """Call ``work`` and set its result, or what it raises, in ``future``."""
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised where the result is taken
        future.set_exception(error)


def background(work: Callable[[], T]) -> "Future[T]":
    """Call ``work`` in a thread of the shared pool, or at once if none can be started; for callers that are not on a
    loop."""
    future: Future[T] = Future()
    try:
        _POOL.start(lambda: complete(future, work), lambda: None)
    except NoThread:
        complete(future, work)
    return future


async def in_thread(work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
    """Return what ``work`` returns, from a thread: for calls that come once, as at a start, and need no limit.

    Raises: what ``work`` raises. Cancel: before it has begun at once, then once it has ended.
    """
    await checkpoint()
    return await _ended(Job(partial(work, *args)), abandon=False)


class _BulkWork:
    """Count of the bulk work under way. While there is any, a thread that waits for the interpreter gets it after
    ``BULK_TURN_S`` instead of the 5 ms of Python's default, which each hand-over of a small call would cost. Shorter
    turns all the time would cost writes 8 % more processor time."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._running = 0
        self._turn = threading.local()
        self._usual_s = sys.getswitchinterval()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the work inside. For any thread."""
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    def _add(self, change: int) -> None:
        with self._changing:
            if not self._running:
                self._usual_s = sys.getswitchinterval()
            self._running += change
            sys.setswitchinterval(BULK_TURN_S if self._running else self._usual_s)

    def let_others_run(self) -> None:
        """See the function."""
        if self._running and perf_counter() >= getattr(self._turn, "ends", 0.0):
            sleep(BULK_PAUSE_S)
            self._turn.ends = perf_counter() + BULK_TURN_S


_BULK: Final = _BulkWork()


def let_others_run() -> None:
    """Pause for ``BULK_PAUSE_S`` if bulk work is under way and this thread has not paused for ``BULK_TURN_S``.

    For bulk work of many short reads and writes. Each of them releases the interpreter, and takes it again before a
    thread that waits for it is awake. That thread requests it only after ``BULK_TURN_S`` in which it was never
    released, and so waits for some 5 ms. Not to be called with a lock held that others need.
    """
    _BULK.let_others_run()


class Lane:
    """Limit on the calls of one kind in threads at once: ``threads``.

    ``inline``: the greatest size of work that stays on the loop. ``bulk``: calls may compute for long, and others get
    the interpreter sooner meanwhile. ``name`` is that of its threads while they work.
    """

    def __init__(self, name: str, threads: int = 1, *, inline: int = -1, bulk: bool = False) -> None:
        self.name = name
        self.inline = inline
        self._bulk = bulk
        self._turns = anyio.Semaphore(threads, fast_acquire=True)

    async def run(
        self,
        work: Callable[[Unpack[Args]], T],
        *args: *Args,
        size: int | None = None,
        abandon: bool = False,
    ) -> T:
        """Return what ``work`` returns, from a thread unless ``size`` is at most ``inline``.

        Raises: what ``work`` raises, NoThread. Cancel: before it has begun at once, then once it has ended; with
        ``abandon`` at once, the call going on by itself, and counting until it ends.
        """
        if size is not None and size <= self.inline:
            return work(*args)
        await checkpoint()
        await self._turns.acquire()
        try:
            job = Job(partial(self._named, work, args), self._turns.release)
        except NoThread:
            self._turns.release()
            raise
        return await _ended(job, abandon=abandon)

    def _named(self, work: Callable[..., T], args: tuple[object, ...]) -> T:
        threading.current_thread().name = f"ctxd-{self.name}"
        if not self._bulk:
            return work(*args)
        with _BULK.running():
            return work(*args)


async def _ended(job: Job[T], *, abandon: bool) -> T:
    with anyio.CancelScope(shield=not abandon):
        await job.ended.wait()
    return job.result()
