"""Round-robin scheduler over the connections that have received work: one bounded slice each.

Between two slices the loop polls its sockets and timers, so a connection with one call waits for at most one slice of
each of the others, however much they have sent. The connections of one sandbox are one member of the round.
"""

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, Protocol

SLICE_LINES: Final = 256
"""Cost of one slice: a line costs 1, and 1 more for each ``LINE_BYTES``; blank and malformed lines included."""

LINE_BYTES: Final = 16 * 1024
"""Bytes of received text that cost as much as one short line."""

SLICE_S: Final = 0.0005
"""Seconds after which a slice ends even if lines are left: some calls take as long as a hundred others."""


class Runnable(Protocol):
    """A member of the round: a connection, or a group of them."""

    def run_slice(self) -> bool:
        """Process one slice of the received work. True if another slice could process more."""


class EventLoop(Protocol):
    """The part of an event loop that the scheduler needs."""

    def call_soon(self, callback: Callable[[], None]) -> Any:  # noqa: ANN401 - a handle that is not used
        """Call ``callback`` in the next iteration."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:  # noqa: ANN401 - as above
        """Call ``callback`` in ``delay`` seconds."""


class RoundRobin:
    """The ready members in the order of their slices; one slice per iteration of the loop."""

    __slots__ = ("_due", "_loop", "_ready")

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._ready: deque[Runnable] = deque()
        self._due = False

    def run(self, member: Runnable) -> None:
        """Run a slice of ``member`` now if no other is ready, else after those. Called by the transport only."""
        if self._ready or member.run_slice():
            self.add(member)

    def add(self, member: Runnable) -> None:
        """Run a slice of ``member`` after those that are ready. Not to be called while it is ready."""
        self._ready.append(member)
        self._schedule()

    def close(self) -> None:
        """Run no slice more."""
        self._ready.clear()

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        if not self._ready:
            return
        member = self._ready.popleft()
        if member.run_slice():
            self._ready.append(member)
        if self._ready:
            self._schedule()


class ConnectionGroup:
    """Connections that share one place in the round: opening more of them gains a sandbox nothing.

    ``delay_s`` returns the seconds for which no slice may run, because the group's quota of lines is used up.
    """

    __slots__ = ("_delay_s", "_loop", "_queued", "_ready", "_round")

    def __init__(self, round_robin: RoundRobin, loop: EventLoop, delay_s: Callable[[], float]) -> None:
        self._round = round_robin
        self._loop = loop
        self._delay_s = delay_s
        self._ready: deque[Runnable] = deque()
        self._queued = False

    def run(self, member: Runnable) -> None:
        """As ``add``: no slice runs outside the round."""
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
            # It stays queued meanwhile, so that nothing else puts it back into the round.
            self._loop.call_later(delay_s, self._resume)
            return False
        member = self._ready.popleft()
        if member.run_slice():
            self._ready.append(member)
        self._queued = bool(self._ready)
        return self._queued

    def _resume(self) -> None:
        self._round.add(self)


class Slice:
    """The lines that are left of one slice, and its end by ``perf_counter``: it is over with either."""

    __slots__ = ("ends", "lines")

    def __init__(self) -> None:
        self.ends = perf_counter() + SLICE_S
        self.lines = SLICE_LINES
