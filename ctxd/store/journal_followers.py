"""Journal followers: each reads durable rows in order from a watermark of its own, which survives restarts.

The place for what is derived from the journal beside the writes: scrub, search, analytics, triggers. A follower that
dies between the work on a row and its mark meets the row again, so the work has to be idempotent.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from ctxd.store.journal import Row

PAGE_ROWS: Final = 256
"""Rows of one read: few enough that a slow follower keeps little in memory."""


class Follower:
    """One reader of the journal, by name. ``after`` is the sequence up to which its work was marked as done."""

    def __init__(
        self,
        name: str,
        after: int,
        read: Callable[[int, int], Awaitable[list[Row]]],
        wait: Callable[[int], Awaitable[None]],
        keep: Callable[[str, int], None],
    ) -> None:
        """``read`` returns rows beyond a sequence, ``wait`` returns once there are some, ``keep`` stores a mark."""
        self.name = name
        self.after = after
        self._read = read
        self._wait = wait
        self._keep = keep

    async def rows(self) -> AsyncIterator[Row]:
        """Yield durable rows beyond the mark, in order, without end.

        Raises: CtxdError ``corrupt`` for a damaged row, ``store_failed``, ``draining``. Cancel: safe.
        """
        at = self.after
        while True:
            for row in await self._read(at, PAGE_ROWS):
                at = row.seq
                yield row
            await self._wait(at)

    async def wait(self, after: int) -> None:
        """Return once a row beyond ``after`` is durable. Cancel: safe."""
        await self._wait(after)

    def mark(self, seq: int) -> None:
        """Note that the work up to row ``seq`` is done. Kept with the next transaction, at most a second later."""
        self.after = seq
        self._keep(self.name, seq)
