"""One connection to the daemon, which may reply to calls in any order.

It has the stream, the table of pending calls, and one task each for reading and writing. Only the writer sends, so a
cancelled call never leaves half a line on the stream: it sends a cancel request, and its late reply is discarded. When
the stream ends, every waiting call fails. ``reconnecting_connection`` connects again.
"""

import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, Final, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup, UNIXSocketStream
from anyio.lowlevel import EventLoopToken, current_token

from ctxd_client import wire
from ctxd_client.errors import CallFailed, Closed, ConnectionLost, from_wire
from ctxd_client.wire import Call, Events
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.declaration import WriteResult
from ctxd_protocol.methods.events import NoticeEvent, UnsubscribeParams

RECEIVE_BYTES: Final = 256 * 1024
"""Bytes per read of the socket. Larger reads save wake-ups on large replies; the kernel buffers no more than this."""

OUTBOX_BYTES_MAX: Final = 1024 * 1024
"""Bytes of queued lines above which further calls wait. A single line may exceed it: otherwise it could not be sent."""

CLOSE_S_MAX: Final = 1.0
"""Seconds that closing the socket may take before it is abandoned."""

UNSUBSCRIBE_S_MAX: Final = 1.0
"""Seconds allowed for unsubscribing; the daemon also ends subscriptions when their connection ends."""

R = TypeVar("R")


class Runner(NamedTuple):
    """The task group that runs connections, with its process and event loop."""

    group: TaskGroup
    process: int
    loop: EventLoopToken


now = anyio.current_time
sleep = anyio.sleep


@asynccontextmanager
async def running() -> AsyncIterator[Runner]:
    """A task group for connections, cancelled at the end. An exception from the body passes through unwrapped."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        try:
            yield Runner(group, os.getpid(), current_token())
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - kept out of the task group, which would wrap it
            failure = error
        finally:
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def require_here(runner: Runner) -> None:
    """Raises: ``Closed`` in another process or event loop than that of ``runner``, where no reply would arrive."""
    if os.getpid() != runner.process:
        raise Closed(
            f"the client belongs to process {runner.process}, of which this one is a fork",
            hint="connect in the child, or use a client of connect_sync",
        )
    if current_token() != runner.loop:
        raise Closed(
            "the client belongs to another event loop",
            hint="connect in the loop that makes the calls, or use a client of connect_sync",
        )


class AsyncLock:
    """A lock that is acquired under a deadline."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    @asynccontextmanager
    async def held(self, deadline: float) -> AsyncIterator[None]:
        """Hold the lock. Raises: ``TimeoutError`` if it is not free by ``deadline``. Cancel: safe."""
        with anyio.fail_after(deadline - now()):
            await self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()


async def open_connection(path: str, runner: Runner, deadline: float) -> "AsyncConnection":
    """Connect to the socket at ``path``. Raises: ``OSError``, ``TimeoutError``. Cancel: safe."""
    with anyio.fail_after(deadline - now()):
        connection = AsyncConnection(await anyio.connect_unix(path))
    runner.group.start_soon(connection.run)
    return connection


class _Waiting:
    """One pending call."""

    __slots__ = ("answer", "answered", "content", "error", "method", "sent")

    def __init__(self, method: str) -> None:
        self.method = method
        self.answered = anyio.Event()
        self.answer: wire.IncomingLine | None = None
        self.content: bytes | None = None
        self.error: CallFailed | None = None
        self.sent = False


class AsyncConnection:
    """A connection over ``stream``. Its owner starts ``run`` in a task group, which lives as long as the connection."""

    SHARED: ClassVar = True
    """Calls can be made while others wait for replies or notifications."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self.limits = Limits()
        self._stream = stream
        self._events = Events()
        self._files = wire.PassedFiles()
        self._takes_files = False
        self._arrived = anyio.Event()
        self._waiting: dict[int, _Waiting] = {}
        self._abandoned: set[int] = set()
        self._outbox: deque[tuple[int | None, bytes]] = deque()
        self._outbox_bytes = 0
        self._changed = anyio.Event()
        self._drained = anyio.Event()
        self._slots = anyio.Semaphore(self.limits.in_flight, fast_acquire=True)
        self._next_id = 0
        self._lost: CallFailed | None = None
        self._retired = False
        self._scope = anyio.CancelScope()

    def __repr__(self) -> str:
        """State and counts of calls."""
        state = "lost" if self._lost else "retired" if self._retired else "open"
        return f"<AsyncConnection {state}, {len(self._waiting)} waiting, {len(self._abandoned)} abandoned>"

    @property
    def usable(self) -> bool:
        """True if a new call may be made."""
        return self._lost is None and not self._retired

    @property
    def unanswered(self) -> int:
        """Number of calls without a reply, abandoned ones included."""
        return len(self._waiting) + len(self._abandoned)

    async def run(self) -> None:
        """Read and write until the stream ends, then fail every waiting call. Raises nothing but cancellation."""
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._write)
                    await self._read()
                    group.cancel_scope.cancel()
        finally:
            self._end(ConnectionLost("the connection to the daemon ended"))
            self._files.close()
            with anyio.move_on_after(CLOSE_S_MAX, shield=True):
                await self._stream.aclose()

    async def call(self, call: Call[R], deadline: float) -> R:
        """Make ``call`` and return its result; ``deadline`` is on the clock of ``now``.

        Waits for a free slot if as many calls are in flight as the daemon allows.
        Raises: the error that the daemon returns; ``InvalidCall`` or ``TooLarge`` before sending; ``ConnectionLost`` if
        the stream ends first; ``TimeoutError``.
        Cancel: a cancel request is sent; whether a write was applied is then unknown.
        """
        with anyio.fail_after(deadline - now()):
            if self._takes_files:
                with suppress(wire.FileLost):
                    return await self._exchange(call.with_descriptor())
            return await self._exchange(call)

    async def _exchange(self, call: Call[R]) -> R:
        self._next_id += 1
        id, line = self._next_id, wire.request_line(self._next_id, call, self.limits)
        await self._room()
        waiting = self._waiting[id] = _Waiting(call.method.name)
        self._post(id, line)
        try:
            await waiting.answered.wait()
        except BaseException:
            self._give_up(id)
            raise
        if waiting.error is not None:
            raise waiting.error
        answer = waiting.answer
        assert answer is not None, "an answered call has an answer or an error"
        if answer.error is not None:
            raise wire.failure(answer.error, call)
        return wire.completed(call.decode(answer.result), waiting.content)

    def listen(self, subscription: int) -> None:
        """Keep the notifications of ``subscription`` for ``event``."""
        self._events.listen(subscription)

    async def unlisten(self, subscription: int) -> None:
        """End a subscription, here and at the daemon. Cancel: delayed by ``UNSUBSCRIBE_S_MAX`` seconds at most."""
        self._events.unlisten(subscription)
        self._arrived.set()
        if not self.usable:
            return
        call = Call("events.unsubscribe", UnsubscribeParams(subscription=subscription), WriteResult)
        with anyio.CancelScope(shield=True), suppress(CallFailed, TimeoutError):
            await self.call(call, now() + UNSUBSCRIBE_S_MAX)

    async def event(self, subscription: int) -> NoticeEvent:
        """The next notification of ``subscription``.

        Raises: ``ConnectionLost``, also after ``unlisten``. Cancel: safe, none is lost.
        """
        while (event := self._events.next(subscription)) is None:
            if self._lost is not None:
                raise ConnectionLost(self._lost.message)
            if not self._events.listens(subscription):
                raise ConnectionLost("the subscription ended")
            self._arrived = anyio.Event() if self._arrived.is_set() else self._arrived
            await self._arrived.wait()
        return event

    def adopt(self, limits: Limits, *, descriptors: bool) -> None:
        """Observe the ``limits`` that the daemon announced, and request long contents as files if it passes
        ``descriptors``. Only while no call is pending."""
        self.limits = limits
        self._takes_files = descriptors
        self._slots = anyio.Semaphore(limits.in_flight, fast_acquire=True)

    def retire(self) -> None:
        """Accept no new calls, and close once the pending ones have their replies."""
        self._retired = True
        self._wake()
        self._end_if_idle()

    def close(self) -> None:
        """Close at once; pending calls raise ``ConnectionLost``."""
        self._end(ConnectionLost("the client closed the connection"))
        self._scope.cancel()

    async def _room(self) -> None:
        """Take a slot and wait for room in the outbox: the daemon accepts a limited number of calls in flight. A reply
        or the end of the connection frees the slot."""
        await self._slots.acquire()
        try:
            while self.usable and self._outbox_bytes >= OUTBOX_BYTES_MAX:
                await self._drained.wait()
            if self._lost is not None:
                raise ConnectionLost(self._lost.message, outcome="not_applied")
            if self._retired:
                raise ConnectionLost("the daemon is stopping", outcome="not_applied")
        except BaseException:
            self._slots.release()
            raise

    def _post(self, id: int | None, line: bytes) -> None:
        self._outbox.append((id, line))
        self._outbox_bytes += len(line)
        self._changed.set()

    def _give_up(self, id: int) -> None:
        waiting = self._waiting.pop(id, None)
        if waiting is None or self._lost is not None:
            return
        if waiting.sent:
            self._abandoned.add(id)
            self._post(None, wire.cancel_line(id))
            return
        self._outbox = deque(entry for entry in self._outbox if entry[0] != id)
        self._outbox_bytes = sum(len(line) for _, line in self._outbox)
        self._slots.release()
        self._end_if_idle()

    async def _write(self) -> None:
        while True:
            while not self._outbox:
                self._changed = anyio.Event()
                await self._changed.wait()
            lines = [line for _, line in self._outbox]
            for id, _ in self._outbox:
                if id in self._waiting:
                    self._waiting[id].sent = True
            self._outbox.clear()
            self._outbox_bytes = 0
            self._wake()
            try:
                await self._stream.send(b"".join(lines))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the reader still takes the replies that arrived before, then sees the end of the stream

    async def _read(self) -> None:
        lines = wire.LineDecoder()
        try:
            while True:
                data, descriptors = await self._stream.receive_fds(RECEIVE_BYTES, 1)
                self._files.keep(descriptors)
                for line in lines.feed(data):
                    self._process(wire.parse(line))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        except CallFailed as error:
            self._end(error)

    def _process(self, answer: wire.IncomingLine) -> None:
        """Keep a notification, or pass a response to its call."""
        if answer.method is not None:
            if self._events.keep(answer):
                self._arrived.set()
            return
        if answer.id is None and answer.error is not None:
            self._fail_unidentified(answer.error)
        if isinstance(answer.id, int):
            content = self._files.content(answer)
            waiting = self._waiting.pop(answer.id, None)
            if waiting is not None:
                waiting.answer = answer
                waiting.content = content
                waiting.answered.set()
                self._slots.release()
            elif answer.id in self._abandoned:
                self._abandoned.remove(answer.id)
                self._slots.release()
        self._end_if_idle()

    def _fail_unidentified(self, error: ErrorObject) -> None:
        """Fail the call whose id the daemon could not read, with its ``error``.

        If several calls are in flight, it may be any of them: all fail, and the connection ends, because later replies
        can no longer be matched to slots.
        """
        sent = [id for id, waiting in self._waiting.items() if waiting.sent]
        if len(sent) == 1 and not self._abandoned:
            waiting = self._waiting.pop(sent[0])
            waiting.error = from_wire(error, waiting.method)
            waiting.answered.set()
            self._slots.release()
            return
        for id in sent:
            waiting = self._waiting.pop(id)
            waiting.error = from_wire(error, waiting.method)
            waiting.error.outcome = "unknown"
            waiting.answered.set()
            self._slots.release()
        self.close()

    def _wake(self) -> None:
        self._drained.set()
        self._drained = anyio.Event()

    def _end_if_idle(self) -> None:
        if self._retired and not self._waiting:
            self.close()

    def _end(self, reason: CallFailed) -> None:
        if self._lost is None:
            self._lost = reason
        for waiting in self._waiting.values():
            waiting.error = (
                ConnectionLost(self._lost.message, outcome="unknown" if waiting.sent else "not_applied")
                if isinstance(self._lost, ConnectionLost)
                else self._lost
            )
            waiting.answered.set()
        for _ in range(self.unanswered):
            self._slots.release()
        self._waiting.clear()
        self._abandoned.clear()
        self._wake()
        self._arrived.set()
