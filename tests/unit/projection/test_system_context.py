"""Entries and component texts at the node: projected with their sessions, read as of any time, evicted by a purge."""

import json
from pathlib import Path

import anyio
import pytest

from ctxd.assembly.append_assembly import Wanted
from ctxd.clock import SystemClock
from ctxd.objects.document import AsOf
from ctxd.objects.generated_ids import component_texts_prefix, entry_id
from ctxd.objects.version_state import is_purged
from ctxd.projection.node_connection import Connect
from ctxd.sessions.live_session import WriteRequest
from ctxd.sessions.purge_operations import purge
from tests.fakes.node import MemoryNode
from tests.unit.assembly.stored_sessions import Household
from tests.unit.projection.projecting import compared, level, projecting

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]


async def told_and_changed(root: Path, connect: Connect, url: str = "") -> None:
    """Set, change and delete entries between requests, and compare the node with the store, also as of each time."""
    id, texts = entry_id("s", "mode"), component_texts_prefix("s")
    async with projecting(root, connect, url) as store:
        home = Household(store, SystemClock(), root)
        await home.sessions.start()
        live = await home.create()
        ends: list[int] = []
        for value in ("Plan only.", "The password is swordfish.", None):
            await home.set_entry(live, "mode", value)
            wanted = Wanted("anthropic-messages", "m")
            made = await home.assembler.assemble(live, WriteRequest("context.assemble", "p"), form=wanted)
            assert made.pending is not None
            ends.append((await made.pending.wait()).seq)
            # Rows of one millisecond cannot be distinguished at the node.
            await anyio.sleep(0.002)
        await level(store)
        assert (await compared(root, connect, url)).problems == []
        past, embedded = store._as_of_reads, store.embedded
        for tx in ends:
            written = [stored.document.id for stored in await store.scan(texts, AsOf(tx=tx))]
            ids = [id, *written]
            assert await past.as_of(ids, AsOf(tx=tx)) == await embedded.as_of(ids, AsOf(tx=tx))
        values = [await store.get(id, AsOf(tx=tx), content=True) for tx in ends]
        assert [None if each is None else each.document.content for each in values] == [
            json.dumps("Plan only."),
            json.dumps("The password is swordfish."),
            None,
        ]
        as_of = [(await home.sessions.as_of("s", AsOf(tx=tx))).settings.entries for tx in ends]
        assert as_of == [("mode",), ("mode",), ()]
        assert past.answered > 0 and past.fallen_back == 0
        await purge(home.sessions, WriteRequest("object.purge", "p"), id)
        await level(store)
        assert (await compared(root, connect, url)).problems == []
        gone = [await store.get(each, AsOf(tx=ends[1]), content=True) for each in ids]
        assert all(each is not None and is_purged(each.document) for each in gone)
        assert "swordfish" not in repr(gone)


@pytest.mark.requirement("PRJ-10")
async def test_entries_and_component_texts_are_the_same_at_the_node_and_gone_after_a_purge(tmp_path: Path) -> None:
    await told_and_changed(tmp_path / "state", MemoryNode().connect)
