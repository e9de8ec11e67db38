"""One blocking connection to the daemon, for the synchronous client.

Owns the socket: a line goes out, lines come in until the answer is among them, one call at a time. Notifications that
come in between are kept, up to a bound. Any failure but an answered error ends it: its owner closes it and makes
another.
"""

import socket
import time
from collections import deque
from contextlib import suppress
from typing import Final, TypeVar

from ctxd_client import wire
from ctxd_client.errors import ConnectionLost
from ctxd_client.wire import Call
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.events import NoticeEvent

RECEIVE_BYTES: Final = 256 * 1024
"""Bytes taken from the socket at once."""

EVENTS_MAX: Final = 1000
"""Notifications kept for a reader. Further ones are dropped and counted as a gap."""

CANCEL_S_MAX: Final = 0.2
"""Seconds for telling the daemon that a call was given up; it is a courtesy."""

R = TypeVar("R")


class Channel:
    """A connected socket, and what was read from it so far."""

    def __init__(self, path: str, timeout_s: float | None) -> None:
        """Connect to ``path``. Raises: ``OSError``."""
        self.limits = Limits()
        self.gap = False
        self._events: deque[NoticeEvent] = deque()
        self._lines = wire.Lines()
        self._ready: deque[bytes] = deque()
        self._next_id = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise

    def call(self, call: Call[R], deadline: float | None) -> R:
        """The result of ``call``; ``deadline`` is on the monotonic clock, in seconds, null for none.

        Raises: what the daemon answered, ``TooLarge`` before sending, ``ConnectionLost``; ``TimeoutError`` after asking
        the daemon to give up.
        """
        self._next_id += 1
        line = wire.request_line(self._next_id, call, bytes_max=self.limits.frame_bytes)
        self._send(line, deadline)
        try:
            answer = self._answer(self._next_id, deadline)
        except TimeoutError:
            with suppress(OSError):
                self._send(wire.cancel_line(self._next_id), time.monotonic() + CANCEL_S_MAX)
            raise
        if answer.error is not None:
            raise wire.failure(answer.error, call)
        return call.decode(answer.result)

    def event(self, timeout_s: float | None = None) -> NoticeEvent:
        """The next notification. Raises: ``TimeoutError``, ``ConnectionLost``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._events:
            self._keep(wire.parse(self._line(deadline)))
        return self._events.popleft()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _answer(self, id: int, deadline: float | None) -> wire.Answer:
        while True:
            answer = wire.parse(self._line(deadline))
            if answer.method is None and answer.id == id:
                return answer
            self._keep(answer)

    def _keep(self, answer: wire.Answer) -> None:
        event = wire.event(answer)
        if event is None:
            return
        if len(self._events) >= EVENTS_MAX:
            self.gap = True
        else:
            self._events.append(event)

    def _line(self, deadline: float | None) -> bytes:
        while not self._ready:
            try:
                self._arm(deadline)
                data = self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                raise
            except OSError as error:
                raise ConnectionLost(f"the connection to the daemon broke: {error}") from error
            if not data:
                raise ConnectionLost("the connection to the daemon ended")
            self._ready.extend(self._lines.feed(data))
        return self._ready.popleft()

    def _send(self, line: bytes, deadline: float | None) -> None:
        try:
            self._arm(deadline)
            self._socket.sendall(line)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLost(f"the connection to the daemon broke: {error}") from error

    def _arm(self, deadline: float | None) -> None:
        if deadline is None:
            self._socket.settimeout(None)
            return
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
