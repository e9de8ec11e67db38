"""Work in threads, off the event loop.

All lanes share one pool of daemon threads: a thread that never returns blocks neither the loop nor the end of the
process. Starting work and reporting its end take one iteration of the loop each; anyio's own threads take four
iterations and two limiters per call, several times the cost of a stat.
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
from weakref import WeakValueDictionary

import anyio
from anyio.lowlevel import checkpoint, current_token

from ctxd.errors import CtxdError

IDLE_S: Final = 10.0
"""Seconds after which a thread without work ends."""

BULK_TURN_S: Final = 0.0005
"""Seconds after which a thread that waits for the interpreter lock gets it while bulk work is running."""

BULK_PAUSE_S: Final = 0.00005
"""Seconds for which bulk work pauses: enough for another thread to wake up and take the interpreter lock."""

Args = TypeVarTuple("Args")
T = TypeVar("T")


class LoopHandle:
    """Handle for other threads on the event loop that it is created on. Works on asyncio and on trio."""

    def __init__(self) -> None:
        running: Any = current_token().native_token
        self.schedule: Callable[..., object] = getattr(running, "call_soon_threadsafe", None) or running.run_sync_soon
        """As ``soon``, for callers that must notice an ended loop. Raises: RuntimeError if the loop has ended."""

    def soon(self, function: Callable[[Unpack[Args]], object], *args: *Args) -> None:
        """Schedule ``function`` on the loop, in order, without waiting; dropped if the loop has ended."""
        with suppress(RuntimeError):
            self.schedule(function, *args)


class NoThread(CtxdError):
    """The system cannot start another thread for this process: a shortage that may end, as of descriptors or memory."""

    def __init__(self) -> None:
        message = "no thread can be started: raise TasksMax= of the unit, or ulimit -u"
        super().__init__("disk_full", message, hint="Repeat the call a little later.")


class ThreadPool:
    """Daemon threads, as many as there is concurrent work; idle ones are reused."""

    def __init__(self) -> None:
        # Each change of the list is atomic under the interpreter lock, so a thread is either taken or ended.
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
                raise NoThread from error
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
        """The result of the call; only once ``ended`` is set. Raises: as the call."""
        return self._future.result(timeout=0)


def complete(future: "Future[T]", work: Callable[[], T]) -> None:
    """Call ``work`` and set its result or its exception in ``future``."""
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised where the result is taken
        future.set_exception(error)


def background(work: Callable[[], T]) -> "Future[T]":
    """Call ``work`` in a thread of the shared pool, or in the calling thread if none can be started; for callers that
    are not on a loop."""
    future: Future[T] = Future()
    try:
        _POOL.start(lambda: complete(future, work), lambda: None)
    except NoThread:
        complete(future, work)
    return future


async def in_thread(work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
    """Return the result of ``work``, called in a thread: for rare calls, as at a start, which need no limit.

    Raises: as ``work``, NoThread. Cancel: at once before it has begun, afterwards once it has ended.
    """
    await checkpoint()
    return await _ended(Job(partial(work, *args)), abandon=False)


class _BulkWork:
    """Count of the bulk work in progress. While there is any, a thread that waits for the interpreter lock gets it
    after ``BULK_TURN_S`` instead of Python's default of 5 ms, which would delay each hand-over of a small call. Using
    the shorter interval all the time would cost writes 8 % more processor time."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._running = 0
        self._turn = threading.local()
        self._usual_s = sys.getswitchinterval()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the block as bulk work. May be used on any thread."""
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

    def yield_to_other_threads(self) -> None:
        """See the function of the same name."""
        if self._running and perf_counter() >= getattr(self._turn, "ends", 0.0):
            sleep(BULK_PAUSE_S)
            self._turn.ends = perf_counter() + BULK_TURN_S


_BULK: Final = _BulkWork()


def yield_to_other_threads() -> None:
    """Pause for ``BULK_PAUSE_S`` if bulk work is in progress and this thread has not paused for ``BULK_TURN_S``.

    For bulk work with many short reads and writes. Each of them releases the interpreter lock, and takes it again
    before a waiting thread has woken up. That thread requests the lock only after ``BULK_TURN_S`` without any release,
    and so waits for about 5 ms. Do not call this while holding a lock that other threads need.
    """
    _BULK.yield_to_other_threads()


class Lane:
    """Limit on concurrent calls of one kind in threads: ``threads``.

    ``inline``: maximum size of work that is done on the loop. ``bulk``: calls may compute for long, and other threads
    get the interpreter lock sooner meanwhile. ``name``: that of its threads while they work.
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
        """Return the result of ``work``, called in a thread unless ``size`` is at most ``inline``.

        Raises: as ``work``, NoThread. Cancel: at once before it has begun, afterwards once it has ended; with
        ``abandon`` at once in any case: the call continues in its thread, and counts until it ends.
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


class OwnTurns:
    """A lock for each user, kept while it is in use.

    Where many users share threads or processes in the order of their calls, each call takes its user's turn first: so
    a user's further calls wait for its own, and another user waits for one call of each.
    """

    def __init__(self) -> None:
        self._locks = WeakValueDictionary[str, anyio.Lock]()

    def of(self, user: str) -> anyio.Lock:
        """The lock of ``user``, for ``async with``."""
        lock = self._locks.get(user)
        if lock is None:
            lock = self._locks[user] = anyio.Lock(fast_acquire=True)
        return lock


class SharedLane(Lane):
    """A lane for many users, each of which has one call in it at most: see ``OwnTurns``."""

    def __init__(self, name: str, threads: int = 1, *, inline: int = -1, bulk: bool = False) -> None:
        super().__init__(name, threads, inline=inline, bulk=bulk)
        self._own = OwnTurns()

    async def run_for(
        self, user: str, work: Callable[[Unpack[Args]], T], *args: *Args, size: int | None = None, abandon: bool = False
    ) -> T:
        """As ``run``, once the earlier calls of ``user`` have ended."""
        if size is not None and size <= self.inline:
            return work(*args)
        async with self._own.of(user):
            return await self.run(work, *args, abandon=abandon)


async def _ended(job: Job[T], *, abandon: bool) -> T:
    with anyio.CancelScope(shield=not abandon):
        await job.ended.wait()
    return job.result()
