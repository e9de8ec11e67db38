"""The lock of a session: calls take effect in the order in which they took their tickets.

A ticket is taken without awaiting, so a call may look things up while it queues and still keeps its place.
"""

from collections import deque
from types import TracebackType

import anyio


class Ticket:
    """A place in the queue; given up by leaving ``with``."""

    __slots__ = ("_queue", "_reached")

    def __init__(self, queue: "deque[Ticket]") -> None:
        self._queue = queue
        self._reached: anyio.Event | None = None

    async def reached(self) -> None:
        """Return once nobody is before this. Cancel: safe, the place is kept until it is given up."""
        if self._queue[0] is not self:
            self._reached = anyio.Event()
            await self._reached.wait()

    def leave(self) -> None:
        """Give the place up; the next in line is let in."""
        if self._queue[0] is not self:
            self._queue.remove(self)
            return
        self._queue.popleft()
        if self._queue and (waiting := self._queue[0]._reached) is not None:
            waiting.set()

    def __enter__(self) -> "Ticket":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class SessionLock:
    """``async with lock`` is held by one at a time, first come, first served; ``ticket()`` queues without awaiting."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[Ticket] = deque()

    @property
    def free(self) -> bool:
        """Whether nobody holds it or waits for it."""
        return not self._queue

    def ticket(self) -> Ticket:
        """A place at the end of the queue."""
        ticket = Ticket(self._queue)
        self._queue.append(ticket)
        return ticket

    async def __aenter__(self) -> None:
        ticket = self.ticket()
        try:
            await ticket.reached()
        except BaseException:
            ticket.leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue[0].leave()
