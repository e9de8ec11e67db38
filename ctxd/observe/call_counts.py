"""Counts of ended calls. One thread writes each; readers take them as they are.

A module of its own because the listeners of several packages count, and the metrics above them read.
"""

from collections import defaultdict
from typing import Final

UNKNOWN_METHOD: Final = "unknown"
"""What stands for a method that does not exist: names are clients' own, and there is no end of them."""


class Tally:
    """Counts of ended calls: by method, those that succeeded; by method and symbolic code, those that failed."""

    def __init__(self) -> None:
        self.succeeded: defaultdict[str, int] = defaultdict(int)
        self.failed: defaultdict[tuple[str, str], int] = defaultdict(int)
