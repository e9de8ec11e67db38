"""Counts of finished calls. Each is written by one thread; readers read them without a lock."""

from collections import defaultdict
from typing import Final

UNKNOWN_METHOD: Final = "unknown"
"""Name under which unknown methods are counted: clients choose those names, so their number is unbounded."""


class CallCounter:
    """Counts of finished calls: successes by method, failures by method and symbolic code."""

    def __init__(self) -> None:
        self.succeeded: defaultdict[str, int] = defaultdict(int)
        self.failed: defaultdict[tuple[str, str], int] = defaultdict(int)
