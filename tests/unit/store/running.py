"""A store that runs for the length of a block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from ctxd.artifacts.packs import records
from ctxd.clock import Clock, SystemClock
from ctxd.objects.document import Document
from ctxd.store.verify import Report, verify
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import Pending
from tests.unit.store.documents import write

WAIT_S = 30.0


async def put(store: VersionStore, *documents: Document, **rest: Any) -> Pending:
    """Submit ``documents`` of any size as one write."""
    return store.submit(write(*[await store.keep(document) for document in documents], **rest))


@asynccontextmanager
async def running(root: Path | None, clock: Clock | None = None) -> AsyncIterator[VersionStore]:
    store = VersionStore(root, clock or SystemClock())
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        with anyio.fail_after(WAIT_S):
            yield store
        group.cancel_scope.cancel()


def verified(root: Path) -> Report:
    """The report of a verification of the state directory ``root`` that finds no problem."""
    *_, report = verify(root)
    assert report.problems == []
    return report


class SteppingClock(SystemClock):
    """The host's clock, with a wall time that a test sets."""

    def __init__(self, wall: int) -> None:
        self.wall = wall

    def wall_ms(self) -> int:
        return self.wall


def damage_artifacts(root: Path) -> None:
    """Flip a bit of every record of every pack."""
    for path in (root / "artifacts" / "packs").iterdir():
        data = bytearray(path.read_bytes())
        for record in records(path):
            data[record.location.end - 1] ^= 1
        path.write_bytes(data)
