"""Work on windows: small amounts on the event loop, large ones in threads, one for the host and one for all sandboxes.

All of this work is pure, and the caller holds the session's lock or has the data to itself, so that nothing that the
work reads changes meanwhile.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from ctxd.sessions.sandbox_file_visibility import Visibility
from ctxd.worker_threads import Lane, SharedLane

INLINE_MAX: Final = 30_000
"""Largest work that is done on the loop, in some 5 ms: in characters of arguments to search, see ``work_size``."""

OBJECT_SIZE: Final = 50
"""Characters of arguments that take as long as one event, call, file or reference."""

_COUNTED_BYTES: Final = 16
"""Bytes of text to count and to encode that take as long as one character of arguments to search."""

T = TypeVar("T")


def work_size(objects: int, size: int) -> int:
    """The work to resolve, judge or render ``objects`` references with ``size`` bytes of text."""
    return OBJECT_SIZE * objects + size // _COUNTED_BYTES


class WindowLanes:
    """Threads for the windows of the host's sessions, and of those that sandboxes may use."""

    def __init__(self, visibility: Visibility) -> None:
        self._visibility = visibility
        # A sandbox may send arguments that take long to search.
        self._host = Lane("plan", inline=INLINE_MAX, bulk=True)
        self._sandboxes = SharedLane("sandbox-plan", inline=INLINE_MAX, bulk=True)

    async def run(self, session: str, size: int, work: Callable[[], T]) -> T:
        """Return the result of ``work`` of ``size`` on a window of ``session``. It does not await if the work is small.

        Raises: as ``work``, NoThread. Cancel: at once; work in a thread continues there, without effect.
        """
        if self._visibility.restricts(session):
            return await self._sandboxes.run_for(session, work, size=size, abandon=True)
        return await self._host.run(work, size=size, abandon=True)
