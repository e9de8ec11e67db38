"""The clock of valid times: a hybrid of the host's clock and a counter that never goes back.

Pure. What is persisted is the journal itself: the clock starts from the newest row's valid time.
"""

from collections.abc import Iterable


class ValidTimes:
    """Valid times in ms since 1970: never decreasing over all writes, and at least 1 ms apart for each entity."""

    def __init__(self, newest: int = 0) -> None:
        """``newest`` is the valid time of the newest row there is; every time given out is above it."""
        self._newest = newest
        # Entities written at the newest time. Null: unknown, as after a start, when any might have been.
        self._written: set[str] | None = None

    @property
    def newest(self) -> int:
        """The newest time given out."""
        return self._newest

    def next(self, wall_ms: int, floor: int, ids: Iterable[str]) -> int:
        """The valid time of a write of ``ids`` at ``wall_ms``: at least ``floor``."""
        ids = tuple(ids)
        time = max(self._newest, wall_ms, floor)
        if time == self._newest and (self._written is None or not self._written.isdisjoint(ids)):
            time += 1
        if time > self._newest or self._written is None:
            self._newest, self._written = time, set(ids)
        else:
            self._written.update(ids)
        return time

    def lead_ms(self, wall_ms: int) -> int:
        """By how many ms the newest time is ahead of the host's clock; negative when behind."""
        return self._newest - wall_ms
