"""A store that projects, for the length of a block, and what a test waits for there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync

from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.clock import Clock, SystemClock
from ctxd.projection.comparison import Comparison, compare
from ctxd.projection.node_connection import Connect
from ctxd.projection.progress import Room
from ctxd.projection.projected_rows import Rows
from ctxd.projection.projection_loop import Projection, Target
from ctxd.store.version_store import VersionStore
from ctxd_protocol.status_types import StoreStatus
from tests.unit.store.documents import document, write
from tests.waiting import until

WAIT_S = 30
ROOM = Room()


class Projecting(VersionStore):
    """A store with its projection, and the events that were logged."""

    def __init__(self, root: Path, url: str, connect: Connect, room: Room, clock: Clock | None = None) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        clock = clock or SystemClock()
        self.projection = Projection(
            Target(url=url, room=room),
            clock,
            log_event=lambda what, said: self.told.append((what, said)),
            connect=connect,
        )
        super().__init__(root, clock)
        self.attach(self.projection.serve)
        self.faults: list[Exception] = []
        self.on_fault(self.faults.append)

    def status(self) -> StoreStatus:
        return self.projection.reported_in(super().status())

    def heard(self, what: str) -> list[dict[str, Any]]:
        return [said for name, said in self.told if name == what]


@asynccontextmanager
async def projecting(
    root: Path, connect: Connect, url: str = "", room: Room = ROOM, wait_s: float = WAIT_S
) -> AsyncIterator[Projecting]:
    store = Projecting(root, url, connect, room)
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        with anyio.fail_after(wait_s):
            yield store
        group.cancel_scope.cancel()
    assert store.faults == []


async def level(store: VersionStore) -> None:
    """Return once the node has everything that was accepted."""
    await store.wait_for_writes()

    def reached() -> bool:
        status = store.status()
        found = status.projection
        # Before it was looked at, the node is believed to have what it had.
        return found is not None and found.state == "projecting" and found.seq >= status.head_seq

    await until(reached)


async def compared(root: Path, connect: Connect, url: str = "") -> Comparison:
    """Compare the state directory with the node."""
    rows = await run_sync(lambda: Rows(root / "state.db", ArtifactStore(root / "artifacts")))
    try:
        async with connect(url) as node:
            return await compare(node, rows, lambda report: None)
    finally:
        await run_sync(rows.close)


def fill(store, count, first=0, **rest):
    return [
        store.submit(write(document(f"t{n}", f"text {n % 7}", tool="bash", n=n), **rest))
        for n in range(first, first + count)
    ]
