"""Journal followers: each reads durable rows in order from a watermark of its own, which survives restarts.

For whatever is derived from the journal outside the write path: scrub, search, analytics, triggers. A follower that
dies between processing a row and marking it gets the row again, so processing has to be idempotent.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import anyio

from ctxd.store.journal import Row

PAGE_ROWS: Final = 256
"""Rows per read: few enough that a slow follower holds little in memory."""


class JournalGrowth:
    """The last row of the journal, as far as its followers were notified."""

    def __init__(self) -> None:
        self._seq = 0
        self._grown = anyio.Event()

    def note(self, seq: int) -> None:
        """Resume the followers that wait for a row up to ``seq``, which is durable."""
        if seq > self._seq:
            self._seq = seq
            self._grown.set()
            self._grown = anyio.Event()

    async def wait_beyond(self, seq: int) -> None:
        """Return once followers were notified of a row after ``seq``. Cancel: safe."""
        while self._seq <= seq:
            await self._grown.wait()


class Follower:
    """A named reader of the journal. ``after`` is the sequence up to which its work is marked as done."""

    def __init__(
        self,
        name: str,
        after: int,
        read: Callable[[int, int], Awaitable[list[Row]]],
        wait: Callable[[int], Awaitable[None]],
        keep: Callable[[str, int], None],
    ) -> None:
        """``read`` returns rows after a sequence, ``wait`` returns once there are some, ``keep`` stores a mark."""
        self.name = name
        self.after = after
        self._read = read
        self._wait = wait
        self._keep = keep

    async def rows(self) -> AsyncIterator[Row]:
        """Yield durable rows after the mark, in order, forever.

        Raises: CtxdError ``corrupt`` for a damaged row, ``store_failed``, ``draining``. Cancel: safe.
        """
        at = self.after
        while True:
            for row in await self._read(at, PAGE_ROWS):
                at = row.seq
                yield row
            await self._wait(at)

    async def wait(self, after: int) -> None:
        """Return some time after a row after ``after`` is durable, see ``FOLLOWERS_DELAY_S``: further rows can be read
        with it. Waits forever if the store fails: run this in a task that ends with the store. Cancel: safe."""
        await self._wait(after)

    def mark(self, seq: int) -> None:
        """Mark the work up to row ``seq`` as done. The mark is stored with a later transaction, or at an orderly end:
        after a kill, the rows since an older mark come again."""
        self.after = seq
        self._keep(self.name, seq)
