"""Whose calls are begun next: connections that hold received work take turns, a few calls each.

Owns the order of turns and how long one is; knows no call. Promise: between two turns the loop looks at its sockets and
timers, so that who has one call waits for one short turn, however much the others have sent. Who is alone has longer
turns: then looking costs more than it gives. Who sends much has shorter ones while somebody is interactive.
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

CALLS_SHARED: Final = 8
"""InFlight of one turn while others wait for theirs, and of what is begun as soon as it is received."""

CALLS_BESIDE_WRITERS: Final = 4
"""InFlight of one turn while others wait for their writes."""

CALLS_BESIDE_INTERACTIVE: Final = 1
"""The same while somebody is interactive: one waits for each answer, and notices each call that came before its own."""

INTERACTIVE_S: Final = 1.0
"""Seconds for which somebody is interactive after a call that was sent with none before it and none behind it."""

ROUNDS_BESIDE_WRITERS: Final = 3
"""Turns of the loop from one turn to the next while others wait for their writes: a write takes some eight of them."""

CALLS_ALONE_MAX: Final = 512
"""InFlight of one turn of a connection that has long been the only one with work, while nobody is interactive."""

TURN_S: Final = 0.0005
"""Seconds after which a turn ends whatever is left of it: some calls take as long as a hundred others."""

SWITCH_S: Final = 0.00005
"""Seconds that a thread waits for the interpreter while connections hold work. The thread that commits waits a dozen
times for each transaction, and each time as long as this if the loop never rests."""

YIELD_S: Final = 0.00002
"""Seconds that the loop rests after a turn beside writers: the committing thread has the interpreter, and the
processor if there is only one, until then."""

CALM_S: Final = 1.0
"""Seconds without work held after which threads wait as long as they always do."""


class Runnable(Protocol):
    """Who takes turns."""

    def beside_writers(self) -> bool:
        """Whether others wait for writes of theirs."""

    def take_turn(self, calls: int) -> bool:
        """Begin at most ``calls`` calls within ``TURN_S``. Returns: whether another turn could begin more."""


class Loop(Protocol):
    """The part of an event loop that turns are given by."""

    def call_soon(self, callback: Callable[[], None]) -> Any:  # noqa: ANN401 - a handle that is not used
        """Have ``callback`` called in the loop's next turn."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:  # noqa: ANN401 - as above
        """Have ``callback`` called in ``delay`` seconds."""


class RoundRobin:
    """The takers that have work, in the order of their turns: one a turn of the loop."""

    __slots__ = ("_busy", "_calls", "_due", "_hurried", "_interactive_s", "_last", "_loop", "_rounds", "_waiting")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[Runnable] = deque()
        self._last: Runnable | None = None
        self._calls = CALLS_SHARED
        self._hurried = False
        self._busy = False
        self._due = False
        self._rounds = 1
        self._interactive_s = 0.0

    @property
    def beside_interactive(self) -> bool:
        """Whether some connection is interactive now."""
        return time.perf_counter() < self._interactive_s

    def note_interactive(self) -> None:
        """Somebody waits for the answer to each call before sending the next."""
        self._interactive_s = time.perf_counter() + INTERACTIVE_S

    def want(self, taker: Runnable) -> None:
        """Give ``taker`` a turn after those that wait already. Not to be called while it waits for one or has it."""
        self._hurry()
        self._put(taker)

    def _put(self, taker: Runnable) -> None:
        self._waiting.append(taker)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._give)

    def _give(self) -> None:
        if self._rounds > 1:
            self._rounds -= 1
            self._loop.call_soon(self._give)
            return
        self._due = False
        if not self._waiting:
            return
        taker = self._waiting.popleft()
        alone = not self._waiting and taker is self._last and not self.beside_interactive
        self._calls = min(2 * self._calls, CALLS_ALONE_MAX) if alone else CALLS_SHARED
        if beside_writers := taker.beside_writers():
            self._calls = CALLS_BESIDE_INTERACTIVE if self.beside_interactive else CALLS_BESIDE_WRITERS
            self._rounds = ROUNDS_BESIDE_WRITERS
        self._last = taker
        if self._waiting:
            self._due = True
            self._loop.call_soon(self._give)
        if taker.take_turn(self._calls):
            self._put(taker)
        if beside_writers:
            time.sleep(YIELD_S)

    def close(self) -> None:
        """Give no turn more, and have threads wait as before."""
        self._waiting.clear()
        self._rounds = 1
        if self._hurried:
            self._hurried = False
            _SWITCHING.relax()

    # --- threads

    def _hurry(self) -> None:
        self._busy = True
        if not self._hurried:
            self._hurried = True
            _SWITCHING.hurry()
            self._loop.call_later(CALM_S, self._calm)

    def _calm(self) -> None:
        """Have threads wait as before, once no work was held for a while."""
        if not self._hurried:
            return
        if self._busy or self._waiting:
            self._busy = bool(self._waiting)
            self._loop.call_later(CALM_S, self._calm)
        else:
            self._hurried = False
            _SWITCHING.relax()


class _Switching:
    """How long threads wait for the interpreter: one for the process, whoever is in a hurry in it."""

    def __init__(self) -> None:
        self._hurries = 0
        self._usual_s = 0.0

    def hurry(self) -> None:
        if self._hurries == 0:
            self._usual_s = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_S)
        self._hurries += 1

    def relax(self) -> None:
        self._hurries -= 1
        if self._hurries == 0:
            sys.setswitchinterval(self._usual_s)


_SWITCHING: Final = _Switching()


class Order(Protocol):
    """Who gives turns."""

    def want(self, taker: Runnable) -> None:
        """Give ``taker`` a turn after those that wait already."""


class Group:
    """Passes each turn that it is given by ``order`` to the next of its own takers that have work."""

    __slots__ = ("_order", "_queued", "_waiting")

    def __init__(self, order: Order) -> None:
        self._order = order
        self._waiting: deque[Runnable] = deque()
        self._queued = False

    def want(self, taker: Runnable) -> None:
        """Give ``taker`` a turn after those that wait already. Not to be called while it waits for one or has it."""
        self._waiting.append(taker)
        if not self._queued:
            self._queued = True
            self._order.want(self)

    def beside_writers(self) -> bool:
        """As ``turns.Runnable``: whether others wait for writes of theirs, for whom the next taker is another."""
        return bool(self._waiting) and self._waiting[0].beside_writers()

    def take_turn(self, calls: int) -> bool:
        """As ``turns.Runnable``: let the next taker begin at most ``calls`` calls."""
        taker = self._waiting.popleft()
        if taker.take_turn(calls):
            self._waiting.append(taker)
        self._queued = bool(self._waiting)
        return self._queued
