"""Scheduling on the loop: round robin over slices of received work, and eager tasks for calls that suspend.

Between two slices the loop polls its sockets and timers, so a connection with one call waits for at most one slice of
each other connection, however much those have sent. The connections of one sandbox are one member of the round.

A coroutine's first step runs in the slice, and only a coroutine that suspends occupies a task. Python 3.12 has this as
``eager_start``. Here the first step runs as an idle task of a pool, because cancel scopes and locks belong to the task
that enters them. If the coroutine suspends, that task runs the rest of it.
"""

import asyncio
import time
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskStatus

SLICE_LINES: Final = 256
"""Cost of one slice: a line costs 1, and 1 more for each ``LINE_BYTES``; blank and malformed lines included."""

LINE_BYTES: Final = 16 * 1024
"""Bytes of received text that cost as much as one short line."""

SLICE_S: Final = 0.0005
"""Seconds after which a slice ends even if lines are left: some calls take a hundred times as long as others."""

CALLS_BESIDE_INTERACTIVE: Final = 4
"""Calls per slice while a connection is interactive: its next call waits for a slice of each of the others."""

CALLS_BESIDE_WRITES: Final = 1
"""The same while writes are undecided: the commit thread and the loop take turns with the interpreter lock."""

ROUNDS_BESIDE_WRITES: Final = 3
"""Iterations of the loop between two slices then. A write takes about eight iterations to its reply."""

YIELD_S: Final = 0.00002
"""Seconds that the loop sleeps after a slice then. Releasing the interpreter lock is not enough if the loop and the
commit thread share a processor: the loop takes it back before the thread has woken up."""

INTERACTIVE_S: Final = 1.0
"""Seconds for which a connection counts as interactive after its last call."""

GROWTH: Final = 8
"""Tasks started when none is idle; they are usable one iteration of the loop later."""

IDLE_MAX: Final = 64
"""Maximum idle tasks; further ones end. Each takes about 3 KB."""


class Runnable(Protocol):
    """A member of the round: a connection, or a group of them."""

    def run_slice(self) -> bool:
        """Process one slice of the received work. Returns: True if another slice could process more."""


class EventLoop(Protocol):
    """The part of an event loop that the scheduler needs."""

    def call_soon(self, callback: Callable[[], None]) -> Any:  # noqa: ANN401 - a handle that is not used
        """Call ``callback`` in the next iteration."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:  # noqa: ANN401 - as above
        """Call ``callback`` in ``delay`` seconds."""


class RoundRobin:
    """The ready members in the order of their slices; one slice per iteration of the loop.

    While a connection is interactive, its call runs ``first``, slices have few calls, and during undecided writes the
    loop yields to the commit thread. Otherwise bulk clients get long slices. ``writers`` counts the connections with an
    undecided write, ``sandbox_writers`` those of them that are a sandbox's. ``interactive_until``: the time until which
    a connection of the host counts as interactive, that is, sends each call only after the reply to the last one; in
    seconds of ``time.perf_counter``. A sandbox's connection never does: by polling, it would cost the host's bulk
    clients two thirds of their writes.
    """

    __slots__ = ("_due", "_loop", "_ready", "_rounds", "interactive_until", "sandbox_writers", "writers")

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._ready: deque[Runnable] = deque()
        self._due = False
        self._rounds = 1
        self.interactive_until = 0.0
        self.writers = 0
        self.sandbox_writers = 0

    def run(self, member: Runnable, *, first: bool = False) -> None:
        """Run a slice of ``member`` now if no other is ready, or with ``first``; else after the ready ones. Only the
        transport calls this."""
        if (self._ready and not first) or member.run_slice():
            self.add(member)

    def add(self, member: Runnable) -> None:
        """Run a slice of ``member`` after those that are ready. Not to be called while it is ready."""
        self._ready.append(member)
        self._schedule()

    def close(self) -> None:
        """Run no more slices."""
        self._ready.clear()

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self._rounds > 1:
            self._rounds -= 1
            self._loop.call_soon(self._turn)
            return
        self._due = False
        if not self._ready:
            return
        member = self._ready.popleft()
        if member.run_slice():
            self._ready.append(member)
        if self._ready:
            self._schedule()
        if self.writers and time.perf_counter() < self.interactive_until:
            self._rounds = ROUNDS_BESIDE_WRITES
            time.sleep(YIELD_S)


class ConnectionGroup:
    """Connections that share one place in the round, so that a sandbox gains nothing by opening more.

    ``delay_s`` returns the seconds for which no slice may run, because the group's quota of lines is used up.
    """

    __slots__ = ("_delay_s", "_loop", "_queued", "_ready", "_round")

    def __init__(self, round_robin: RoundRobin, loop: EventLoop, delay_s: Callable[[], float]) -> None:
        self._round = round_robin
        self._loop = loop
        self._delay_s = delay_s
        self._ready: deque[Runnable] = deque()
        self._queued = False

    def run(self, member: Runnable, *, first: bool = False) -> None:
        """Same as ``add``; ``first`` is ignored."""
        self.add(member)

    def add(self, member: Runnable) -> None:
        """Run a slice of ``member`` after those that are ready. Not to be called while it is ready."""
        self._ready.append(member)
        if not self._queued:
            self._queued = True
            self._round.add(self)

    def run_slice(self) -> bool:
        """Run a slice of the next member, unless the quota delays it. True if more is ready now."""
        if delay_s := self._delay_s():
            # It stays marked as queued, so that nothing else puts it back into the round.
            self._loop.call_later(delay_s, self._resume)
            return False
        member = self._ready.popleft()
        if member.run_slice():
            self._ready.append(member)
        self._queued = bool(self._ready)
        return self._queued

    def _resume(self) -> None:
        self._round.add(self)


class Suspended:
    """Awaitable rest of a coroutine whose first step has run and returned ``awaited``, the future it waits for."""

    __slots__ = ("_awaited", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], awaited: Any) -> None:  # noqa: ANN401 - any future
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, awaited = self._coroutine, self._awaited
        try:
            while True:
                try:
                    sent = yield awaited
                except BaseException as exc:  # noqa: BLE001 - cancellation too is the coroutine's to handle
                    awaited = coroutine.throw(exc)
                else:
                    awaited = coroutine.send(sent)
        except StopIteration as done:
            return done.value


class PooledTask:
    """A task of the pool. ``scope`` cancels the coroutine that it continues."""

    __slots__ = ("rest", "scope", "task")

    def __init__(self, task: "asyncio.Task[Any]", rest: "asyncio.Future[Coroutine[Any, Any, None]]") -> None:
        self.task = task
        self.scope = anyio.CancelScope()
        self.rest = rest


class TaskPool:
    """The tasks of one listener; ``spawn`` starts one in the listener's group.

    Before each first step a task must be idle; if not, call ``grow`` and wait for an iteration.
    """

    __slots__ = ("_closed", "_entered", "_loop", "_spawn", "_starting", "idle")

    def __init__(self, loop: asyncio.AbstractEventLoop, spawn: Callable[..., Any]) -> None:
        self._loop = loop
        self._spawn = spawn
        self._starting = 0
        self._closed = False
        self._entered: asyncio.Task[Any] | None = None
        self.idle: list[PooledTask] = []

    def grow(self) -> None:
        """Start more tasks, unless some are starting; they are idle one iteration of the loop later."""
        if not self._starting and not self._closed:
            self._starting = GROWTH
            for _ in range(GROWTH):
                self._spawn(self.serve)

    def close(self) -> None:
        """Start no more tasks. Required once the group is cancelled: a task that starts later may never be cancelled,
        as it waits for a bare future, and the group would wait for it."""
        self._closed = True

    def enter(self) -> None:
        """Become the next idle task until ``leave``, if not done yet: first steps run as this task."""
        if self._entered is None:
            self._entered = self.idle[-1].task
            _enter_task(self._loop, self._entered)

    def leave(self) -> None:
        """Undo ``enter``, if it was called."""
        if self._entered is not None:
            _leave_task(self._loop, self._entered)
            self._entered = None

    def run_rest(self, rest: Coroutine[Any, Any, None]) -> anyio.CancelScope:
        """Leave the entered task, and make it run ``rest``, the rest of a suspended coroutine.

        Returns the scope that cancels ``rest``.
        """
        self.leave()
        pooled = self.idle.pop()
        pooled.rest.set_result(rest)
        return pooled.scope

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Continue one coroutine after the other, until there are enough idle tasks. Cancel: ends the coroutine."""
        task = asyncio.current_task()
        assert task is not None, "runs in a task"
        self._starting = max(0, self._starting - 1)
        task_status.started()
        while len(self.idle) < IDLE_MAX:
            pooled = PooledTask(task, self._loop.create_future())
            with pooled.scope:
                self.idle.append(pooled)
                try:
                    rest = await pooled.rest
                except BaseException:
                    self.idle.remove(pooled)
                    raise
                await rest
