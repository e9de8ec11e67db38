"""Versions of shared files that a session in a sandbox may see."""

from pathlib import Path

import pytest

from tests.unit.sessions.world import record, world

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("BOX-9")
async def test_the_first_observation_is_of_the_requested_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("first")
    second.write_text("second")
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="host")
        read = await w.read("host", first)
        await w.read("host", second)
        await w.call("session.create", agent="a", session="inside")
        await w.discover("inside", first, second)
        await record(w, "inside", "call-1")
        live = await w.sessions.live("inside")
        stored = await w.store.get(read)
        assert stored is not None
        assert stored.tx < live.seqs[0]
        shown = await w.sessions.visibility.shown(live, stored)
        assert shown is not None
        assert shown.tx == live.seqs[0], "the segment that named both files, not that of the last object read"
