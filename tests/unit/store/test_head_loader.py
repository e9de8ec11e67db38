"""What is accepted while a lookup waits for its turn is not overwritten by what the lookup finds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ctxd import failpoints, limits
from ctxd.clock import SystemClock
from ctxd.objects import document as documents
from ctxd.objects.document import Stored
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import Write

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[VersionStore]:
    store = VersionStore(root, SystemClock())
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        yield store
        await store.drain()
        group.cancel_scope.cancel()


def prompt(text: str, floor_vt: int = 0) -> Write:
    return Write(kind="t", principal="p", puts=(documents.system_prompt("s", text),), floor_vt=floor_vt)


async def test_a_write_between_a_lookup_and_its_reading_stays_the_newest(tmp_path):
    async with opened(tmp_path / "state") as store:
        first = await store.submit(prompt("old")).wait()
    async with opened(tmp_path / "state") as store, anyio.create_task_group() as group:
        id = "system_prompt:s"
        # The flush outlasts the lookup, so that the lookup finds the old version on the disk.
        with failpoints.armed("journal.flush=sleep:100ms*1"):
            group.start_soon(store.heads, [id])
            await checkpoint()
            pending = store.submit(prompt("new", first.vt + 1))
            await pending.wait()
            head = (await store.heads([id]))[id]
            assert isinstance(head, Stored)
            assert head.tx == pending.seq


async def test_a_write_during_a_lookup_waiting_for_pending_rows_stays_the_newest(tmp_path):
    async with opened(tmp_path / "state") as store:
        first = await store.submit(prompt("old")).wait()
    async with opened(tmp_path / "state") as store, anyio.create_task_group() as group:
        id = "system_prompt:s"
        with failpoints.armed("journal.flush=sleep:100ms*2"):
            other = documents.system_prompt("other", "")
            store.submit(Write(kind="t", principal="p", puts=(other,)))
            # What is logged is looked up once what is pending is durable.
            group.start_soon(store.heads, [id, "segment:s#0000000000"])
            await anyio.sleep(0.02)
            pending = store.submit(prompt("new", first.vt + 1))
            await pending.wait()
            head = (await store.heads([id]))[id]
            assert isinstance(head, Stored)
            assert head.tx == pending.seq


async def test_more_heads_than_the_cache_holds_are_returned_completely_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "HEADS_CACHED_MAX", 10)
    names = [f"n{number}" for number in range(700)]
    async with opened(tmp_path / "state") as store:
        puts = tuple(documents.system_prompt(name, name) for name in names)
        await store.submit(Write(kind="t", principal="p", puts=puts)).wait()
    async with opened(tmp_path / "state") as store:
        wanted = [f"system_prompt:{name}" for name in (*reversed(names), "nobody")]
        heads = await store.heads(wanted)
        assert list(heads) == wanted
        assert [id for id, head in heads.items() if head is None] == ["system_prompt:nobody"]
        assert all(head is None or head.document.id == id for id, head in heads.items())
        assert store.cached <= 10
