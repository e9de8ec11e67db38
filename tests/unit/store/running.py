"""A store that runs for the length of a block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from ctxd.clock import Clock, SystemClock
from ctxd.store.store import VersionStore

WAIT_S = 10


@asynccontextmanager
async def running(root: Path | None, clock: Clock | None = None) -> AsyncIterator[VersionStore]:
    store = VersionStore(root, clock or SystemClock())
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        with anyio.fail_after(WAIT_S):
            yield store
        group.cancel_scope.cancel()


class SteppingClock(SystemClock):
    """The host's clock, with a wall time that a test sets."""

    def __init__(self, wall: int) -> None:
        self.wall = wall

    def wall_ms(self) -> int:
        return self.wall
