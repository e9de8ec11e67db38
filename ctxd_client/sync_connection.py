"""One blocking connection to the daemon: the synchronous counterpart of ``connection``.

It makes one call at a time: it sends a line, and reads lines until the reply arrives. Calls of other threads wait under
their own deadlines. Notifications that arrive meanwhile are queued, up to a bound. Any failure other than an error
reply ends the connection.

A forked child leaves the connections that it inherits to its parent, as both would read each other's replies: it closes
its copies of their sockets, and connects again on first use.
"""

import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar, Final, TypeAlias, TypeVar
from weakref import WeakSet

from ctxd_client import wire
from ctxd_client.errors import CallFailed, ConnectionLost
from ctxd_client.wire import Call, Events
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.events import NoticeEvent

RECEIVE_BYTES: Final = 256 * 1024
"""Bytes per read of the socket."""

CANCEL_S_MAX: Final = 0.2
"""Seconds allowed for sending a cancel request, which is best effort."""

R = TypeVar("R")

Runner: TypeAlias = None
"""Unused: callers drive a blocking connection."""

now = time.monotonic
sleep = time.sleep


@contextmanager
def running() -> Iterator[Runner]:
    """Context without background tasks: the counterpart of the task group of ``connection``."""
    yield None


def require_here(_: Runner) -> None:
    """Any thread may make calls, and so may a forked child."""


class BlockingLock:
    """A lock that is acquired under a deadline."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _INHERITED.add(self)

    @contextmanager
    def held(self, deadline: float) -> Iterator[None]:
        """Hold the lock. Raises: ``TimeoutError`` if it is not free by ``deadline``."""
        left = max(0.0, deadline - now())
        lock = self._lock
        if not lock.acquire(timeout=-1 if math.isinf(left) else min(left, threading.TIMEOUT_MAX)):
            raise TimeoutError
        try:
            yield
        finally:
            lock.release()

    def leave(self) -> None:
        """In a forked child: free the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()


def open_connection(path: str, _: Runner, deadline: float) -> "BlockingConnection":
    """Connect to the socket at ``path``. Raises: ``OSError``, of these ``BlockingIOError`` if too many connections wait
    there; ``TimeoutError``."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection = BlockingConnection(stream)
    try:
        connection.arm(deadline)
        stream.setblocking(False)
        stream.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


class BlockingConnection:
    """A connected socket, and the lines and notifications read from it but not yet consumed."""

    SHARED: ClassVar = False
    """No calls can be made while the connection waits for a notification."""

    def __init__(self, stream: socket.socket) -> None:
        self.limits = Limits()
        self.usable = True
        self._events = Events()
        self._files = wire.PassedFiles()
        self._takes_files = False
        self._lines = wire.LineDecoder()
        self._ready: deque[bytes] = deque()
        self._next_id = 0
        self._turn = BlockingLock()  # held over a whole call: the connection carries one at a time
        self._socket = stream
        _INHERITED.add(self)

    def __del__(self) -> None:
        """Close the socket, which an abandoned iterator leaves open."""
        self._socket.close()

    def call(self, call: Call[R], deadline: float) -> R:
        """Make ``call`` and return its result; ``deadline`` is on the clock of ``now``.

        Raises: the error that the daemon returns; ``InvalidCall`` or ``TooLarge`` before sending; ``ConnectionLost``;
        ``TimeoutError`` after sending a cancel request.
        """
        with self._turn.held(deadline):
            if not self.usable:
                raise ConnectionLost("the connection to the daemon ended", outcome="not_applied")
            if self._takes_files:
                with suppress(wire.FileLost):
                    return self._result(call.with_descriptor(), deadline)
            return self._result(call, deadline)

    def adopt(self, limits: Limits, *, descriptors: bool) -> None:
        """Observe the ``limits`` that the daemon announced, and request long contents as files if it passes
        ``descriptors``."""
        self.limits = limits
        self._takes_files = descriptors

    def listen(self, subscription: int) -> None:
        """Keep the notifications of ``subscription`` for ``event``."""
        self._events.listen(subscription)

    def unlisten(self, subscription: int) -> None:
        """End the subscription by closing this connection, which serves nothing else."""
        self.close()

    def event(self, subscription: int) -> NoticeEvent:
        """The next notification of ``subscription``. Raises: ``ConnectionLost``."""
        while (event := self._events.next(subscription)) is None:
            if not self.usable:
                raise ConnectionLost("the connection to the daemon ended")
            try:
                self._events.keep(wire.parse(self._line(math.inf)))
            except CallFailed:
                self.close()
                raise
        return event

    def retire(self) -> None:
        """Take no new calls."""
        self.close()

    def close(self) -> None:
        """Close the socket. A thread that waits for it raises ``ConnectionLost``."""
        with suppress(OSError):  # not connected yet, or closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self.leave()

    def leave(self) -> None:
        """Close this process's copy of the socket. In a forked child, the parent's connection stays open."""
        self.usable = False
        self._socket.close()
        self._files.close()

    def arm(self, deadline: float) -> None:
        """Bound the next operation on the socket. Raises: ``TimeoutError`` if ``deadline`` has passed."""
        left = deadline - now()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(None if math.isinf(left) else left)

    def _result(self, call: Call[R], deadline: float) -> R:
        self._next_id += 1
        line = wire.request_line(self._next_id, call, self.limits)
        try:
            answer = self._exchange(line, deadline)
        except BaseException:
            self.close()  # a line may be half sent, or a reply half read
            raise
        if answer.error is not None:
            raise wire.failure(answer.error, call)
        return wire.completed(call.decode(answer.result), self._files.content(answer))

    def _exchange(self, line: bytes, deadline: float) -> wire.IncomingLine:
        self._send(line, deadline)
        try:
            while True:
                answer = wire.parse(self._line(deadline))
                # An error without id belongs to the only request in flight.
                if answer.method is None and (answer.id == self._next_id or (answer.id is None and answer.error)):
                    return answer
                self._events.keep(answer)
        except TimeoutError:
            with suppress(OSError, CallFailed):
                self._send(wire.cancel_line(self._next_id), now() + CANCEL_S_MAX)
            raise

    def _line(self, deadline: float) -> bytes:
        while not self._ready:
            try:
                self.arm(deadline)
                data, descriptors, _, _ = socket.recv_fds(self._socket, RECEIVE_BYTES, 1)
                self._files.keep(descriptors)
            except TimeoutError:
                raise
            except OSError as error:
                raise ConnectionLost(f"the connection to the daemon broke: {error}") from error
            if not data:
                raise ConnectionLost("the connection to the daemon ended")
            self._ready.extend(self._lines.feed(data))
        return self._ready.popleft()

    def _send(self, line: bytes, deadline: float) -> None:
        try:
            self.arm(deadline)
            self._socket.sendall(line)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLost(f"the connection to the daemon broke: {error}") from error


_INHERITED: Final[WeakSet[BlockingLock | BlockingConnection]] = WeakSet()
"""What a forked child must not share with its parent."""


def _leave_to_parent() -> None:
    for each in list(_INHERITED):
        each.leave()


os.register_at_fork(after_in_child=_leave_to_parent)
