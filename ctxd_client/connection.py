"""One connection to the daemon, which may reply to calls in any order.

It has the stream, the table of pending calls, and one task each for reading and writing. Only the writer sends, and as
many calls as the daemon accepts at a time; the rest wait in order, and a cancelled one is taken back. A cancelled call
that was sent never leaves half a line on the stream: a cancel request follows, and the late reply is discarded. When
the stream ends, every waiting call fails. ``reconnecting_connection`` connects again.
"""

import os
import socket
from collections import OrderedDict
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

SEND_BYTES_MAX: Final = 1024 * 1024
"""Bytes after which the writer adds no more lines to those that it sends together. A single line may exceed it."""

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
    """Connect to the socket at ``path``. Raises: ``OSError``, of these ``BlockingIOError`` if too many connections wait
    there; ``TimeoutError``. Cancel: safe."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        connecting.connect(path)
        with anyio.fail_after(deadline - now()):
            connection = AsyncConnection(await UNIXSocketStream.from_socket(connecting))
    except BaseException:
        connecting.close()
        raise
    runner.group.start_soon(connection.run)
    return connection


class _Waiting:
    """One pending call."""

    __slots__ = ("answer", "answered", "content", "error", "method")

    def __init__(self, method: str) -> None:
        self.method = method
        self.answered = anyio.Event()
        self.answer: wire.IncomingLine | None = None
        self.content: bytes | None = None
        self.error: CallFailed | None = None


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
        self._unsent: OrderedDict[int, bytes] = OrderedDict()
        """Lines of the waiting calls that were not sent yet, by id."""
        self._abandoned: set[int] = set()
        """Cancelled calls that were sent, and that the daemon has yet to answer."""
        self._cancels: list[bytes] = []
        self._changed = anyio.Event()
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
        """Number of sent calls without a reply, abandoned ones included."""
        return len(self._waiting) - len(self._unsent) + len(self._abandoned)

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

        Waits while as many calls are in flight as the daemon allows.
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
        if not self.usable:
            raise self._unsent_error()
        waiting = self._waiting[id] = _Waiting(call.method.name)
        self._unsent[id] = line
        self._changed.set()
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

    def retire(self) -> None:
        """Send no more calls, and close once those that were sent have their replies."""
        self._retired = True
        for id in list(self._unsent):
            self._settle(id, error=self._unsent_error())
        self._end_if_idle()

    def close(self) -> None:
        """Close at once; pending calls raise ``ConnectionLost``."""
        self._end(ConnectionLost("the client closed the connection"))
        self._scope.cancel()

    def _unsent_error(self) -> CallFailed:
        reason = "the daemon is stopping" if self._lost is None else self._lost.message
        return ConnectionLost(reason, outcome="not_applied")

    def _give_up(self, id: int) -> None:
        if self._waiting.pop(id, None) is None:
            return
        if self._unsent.pop(id, None) is None:
            self._abandoned.add(id)
            self._cancels.append(wire.cancel_line(id))
            self._changed.set()
        else:
            self._end_if_idle()

    def _settle(
        self,
        id: int,
        answer: wire.IncomingLine | None = None,
        content: bytes | None = None,
        error: CallFailed | None = None,
    ) -> None:
        """End the call ``id``: its caller continues, unless it has given up, and one more call may be sent."""
        self._abandoned.discard(id)
        self._unsent.pop(id, None)
        waiting = self._waiting.pop(id, None)
        if waiting is not None:
            waiting.answer, waiting.content, waiting.error = answer, content, error
            waiting.answered.set()
        if self._unsent:
            self._changed.set()

    async def _write(self) -> None:
        while True:
            while not (lines := self._due()):
                self._changed = anyio.Event()
                await self._changed.wait()
            try:
                await self._stream.send(b"".join(lines))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the reader still takes the replies that arrived before, then sees the end of the stream

    def _due(self) -> list[bytes]:
        """Take the lines to be sent together, which count as sent: the cancel requests, and as many calls as the daemon
        accepts."""
        lines, self._cancels = self._cancels, []
        size = 0
        while self._unsent and self.unanswered < self.limits.in_flight and size < SEND_BYTES_MAX:
            line = self._unsent.popitem(last=False)[1]
            lines.append(line)
            size += len(line)
        return lines

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
            self._settle(answer.id, answer, self._files.content(answer))
        self._end_if_idle()

    def _fail_unidentified(self, error: ErrorObject) -> None:
        """Fail the call whose id the daemon could not read, with its ``error``.

        If several calls are in flight, it may be any of them: all fail, and the connection ends, because later replies
        can no longer be matched to calls.
        """
        sent = [id for id in self._waiting if id not in self._unsent]
        is_known = len(sent) == 1 and not self._abandoned
        for id in sent:
            failure = from_wire(error, self._waiting[id].method)
            failure.outcome = failure.outcome if is_known else "unknown"
            self._settle(id, error=failure)
        if not is_known:
            self.close()

    def _end_if_idle(self) -> None:
        if self._retired and not self._waiting:
            self.close()

    def _end(self, reason: CallFailed) -> None:
        if self._lost is None:
            self._lost = reason
        for id in list(self._waiting):
            if id in self._unsent:
                self._settle(id, error=self._unsent_error())
            elif isinstance(self._lost, ConnectionLost):
                self._settle(id, error=ConnectionLost(self._lost.message))
            else:
                self._settle(id, error=self._lost)
        self._abandoned.clear()
        self._arrived.set()
