"""Counts that are cheap to keep and are looked at now and then: how calls ended, and how long things took.

Owns plain numbers, no names of metrics. One thread writes each; readers take them as they are.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

UNKNOWN_METHOD: Final = "unknown"
"""What stands for a method that does not exist: names are clients' own, and there is no end of them."""


class Tally:
    """Counts of ended calls: by method, those that succeeded; by method and symbolic code, those that failed."""

    def __init__(self) -> None:
        self.succeeded: defaultdict[str, int] = defaultdict(int)
        self.failed: defaultdict[tuple[str, str], int] = defaultdict(int)


class Durations:
    """Histogram of durations. ``bounds`` are the upper ends of its classes, in seconds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float) -> None:
        """Count one that took ``seconds``."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum_s += seconds

    def cumulated(self) -> list[tuple[str, int]]:
        """Upper end of each class as text, the last ``+Inf``, and how many took that long at most."""
        total, rows = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), list(self.counts), strict=True):
            total += count
            rows.append((bound, total))
        return rows
