"""Whose calls are begun next: connections that hold received work take turns, a few calls each.

Owns the order of turns and how long one is; knows no call. Promise: between two turns the loop looks at its sockets and
timers, so that who has one call waits for one short turn, however much the others have sent. Who is alone has longer
turns: then looking costs more than it gives.
"""

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

CALLS_SHARED: Final = 8
"""Calls of one turn while others wait for theirs, and of what is begun as soon as it is received."""

CALLS_ALONE_MAX: Final = 512
"""Calls of one turn of a connection that has long been the only one with work."""

TURN_S: Final = 0.0005
"""Seconds after which a turn ends whatever is left of it: some calls take as long as a hundred others."""

SWITCH_S: Final = 0.0001
"""Seconds that a thread waits for the interpreter while connections hold work. The thread that commits waits a dozen
times for each transaction, and each time as long as this if the loop never rests."""

CALM_S: Final = 1.0
"""Seconds without work held after which threads wait as long as they always do."""


class Taker(Protocol):
    """Who takes turns."""

    def take_turn(self, calls: int) -> bool:
        """Begin at most ``calls`` calls within ``TURN_S``. Returns: whether another turn could begin more."""


class Loop(Protocol):
    """The part of an event loop that turns are given by."""

    def call_soon(self, callback: Callable[[], None]) -> Any:  # noqa: ANN401 - a handle that is not used
        """Have ``callback`` called in the loop's next turn."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:  # noqa: ANN401 - as above
        """Have ``callback`` called in ``delay`` seconds."""


class Turns:
    """The takers that have work, in the order of their turns: one a turn of the loop."""

    __slots__ = ("_busy", "_calls", "_due", "_last", "_loop", "_switch_s", "_waiting")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[Taker] = deque()
        self._last: Taker | None = None
        self._calls = CALLS_SHARED
        self._switch_s: float | None = None
        self._busy = False
        self._due = False

    def want(self, taker: Taker) -> None:
        """Give ``taker`` a turn after those that wait already. Not to be called while it waits for one or has it."""
        self._hurry()
        self._put(taker)

    def _put(self, taker: Taker) -> None:
        self._waiting.append(taker)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._give)

    def _give(self) -> None:
        self._due = False
        taker = self._waiting.popleft()
        alone = not self._waiting and taker is self._last
        self._calls = min(2 * self._calls, CALLS_ALONE_MAX) if alone else CALLS_SHARED
        self._last = taker
        if self._waiting:
            self._due = True
            self._loop.call_soon(self._give)
        if taker.take_turn(self._calls):
            self._put(taker)

    # --- threads

    def _hurry(self) -> None:
        self._busy = True
        if self._switch_s is None:
            self._switch_s = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_S)
            self._loop.call_later(CALM_S, self._calm)

    def _calm(self) -> None:
        """Have threads wait as before, once no work was held for a while."""
        if self._busy or self._waiting:
            self._busy = bool(self._waiting)
            self._loop.call_later(CALM_S, self._calm)
        elif self._switch_s is not None:
            sys.setswitchinterval(self._switch_s)
            self._switch_s = None
