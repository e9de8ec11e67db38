"""Eager tasks: a coroutine's first step runs at once, and only a coroutine that suspends occupies a task.

Python 3.12 has this as ``eager_start``. Here an idle task of a pool lends its identity to the first step, because
cancel scopes and locks belong to the task that enters them, and goes on with the coroutine if that suspends.
"""

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus

GROWTH: Final = 8
"""Tasks started when none is idle: they can be used one iteration of the loop later."""

IDLE_MAX: Final = 64
"""Idle tasks kept; further ones end. Each takes some 3 KB."""


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
    """A task of the pool. ``scope`` cancels the coroutine that it goes on with."""

    __slots__ = ("rest", "scope", "task")

    def __init__(self, task: "asyncio.Task[Any]", rest: "asyncio.Future[Coroutine[Any, Any, None]]") -> None:
        self.task = task
        self.scope = anyio.CancelScope()
        self.rest = rest


class TaskPool:
    """The tasks of one listener; ``spawn`` starts one in the listener's group.

    Before ``enter`` and before each first step a task must be idle; where none is, ``grow`` and wait for an iteration.
    """

    __slots__ = ("_entered", "_loop", "_spawn", "_starting", "idle")

    def __init__(self, loop: asyncio.AbstractEventLoop, spawn: Callable[..., Any]) -> None:
        self._loop = loop
        self._spawn = spawn
        self._starting = 0
        self._entered: asyncio.Task[Any] | None = None
        self.idle: list[PooledTask] = []

    def grow(self) -> None:
        """Start more tasks, unless some start already; they are idle one iteration of the loop later."""
        if not self._starting:
            self._starting = GROWTH
            for _ in range(GROWTH):
                self._spawn(self.serve)

    def enter(self) -> None:
        """Become the next idle task, until ``leave``: first steps run as this task."""
        self._entered = self.idle[-1].task
        _enter_task(self._loop, self._entered)

    def leave(self) -> None:
        """End what ``enter`` began."""
        if self._entered is not None:
            _leave_task(self._loop, self._entered)
            self._entered = None

    def go_on(self, rest: Coroutine[Any, Any, None]) -> anyio.CancelScope:
        """Run ``rest``, of a coroutine that has suspended, in the entered task, and become the next idle one.

        Returns the scope that cancels ``rest``.
        """
        self.leave()
        pooled = self.idle.pop()
        pooled.rest.set_result(rest)
        if self.idle:
            self.enter()
        return pooled.scope

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Go on with one coroutine after the other, until there are idle tasks enough. Cancel: ends the coroutine."""
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
