"""Debounce of changes: a file is looked at soon, but not for each of many changes. Pure.

A file that is whole is due almost at once: its writer may be about to report it. One that is being written is due a
moment later; one whose name went away, later still, for editors and version control put another in its place. After
each look the file is left alone for a while that doubles as long as it goes on changing. The promise: what was noted
last is looked at, at most ``GAP_MAX_S`` later than its kind of change asks for.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Literal

Hint = Literal["written", "touched", "gone", "directory"]
"""``written``: it is whole now. ``touched``: something of it changed, more may follow. ``gone``: the name went away.
``directory``: the name is that of a directory that came, went or was moved."""


WRITTEN_S: Final = 0.008
"""Seconds that a writer is given to report what it wrote."""

TOUCHED_S: Final = 0.015
"""Seconds that a writer is given to close a file."""

GONE_S: Final = 0.1
"""Seconds that a replacement is given to appear."""

GAP_MIN_S: Final = 0.02
"""Seconds between the first two looks at one file."""

GAP_MAX_S: Final = 0.25
"""Seconds between two looks at a file that never stops changing."""

QUIET_S: Final = 1.0
"""Seconds without a look after which a file counts as quiet again."""


class Debouncer:
    """Keys that are due, by time. Times are in seconds of any one clock. Every step costs the logarithm of its size."""

    __slots__ = ("_due", "_gone", "_heap", "_looked")

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._gone: set[str] = set()
        self._heap: list[tuple[float, str]] = []
        self._looked: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due)

    def note(self, key: str, hint: Hint, now: float) -> None:
        """Something became of ``key``."""
        if hint == "gone":
            self._gone.add(key)
            self._plan(key, now + GONE_S)
            return
        due = now + (WRITTEN_S if hint == "written" else TOUCHED_S)
        if key in self._gone:
            self._gone.discard(key)
            self._plan(key, due)
        elif key not in self._due or due < self._due[key]:
            self._plan(key, due)

    def again(self, keys: Iterable[str], at: float) -> None:
        """Look at ``keys`` at ``at``, unless they are due before."""
        for key in keys:
            if key not in self._due or at < self._due[key]:
                self._plan(key, at)

    def forget(self, key: str) -> None:
        """``key`` is of no interest any more."""
        self._due.pop(key, None)
        self._gone.discard(key)
        self._looked.pop(key, None)

    def next_at(self) -> float | None:
        """The time at which the next key is due; `None` if no key is."""
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: float, limit: int) -> list[str]:
        """At most ``limit`` keys that are due, the longest due first: they are looked at now."""
        self._quieten(now)
        taken: list[str] = []
        while len(taken) < limit and (at := self.next_at()) is not None and at <= now:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            self._gone.discard(key)
            before = self._looked.pop(key, None)
            gap = GAP_MIN_S if before is None else min(2 * before[1], GAP_MAX_S)
            self._looked[key] = (now, gap)
            taken.append(key)
        return taken

    def _plan(self, key: str, due: float) -> None:
        looked = self._looked.get(key)
        if looked is not None:
            due = max(due, looked[0] + looked[1])
        if self._due.get(key) == due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))

    def _quieten(self, now: float) -> None:
        while self._looked and next(iter(self._looked.values()))[0] + QUIET_S <= now:
            self._looked.popitem(last=False)
