"""What of a session is not durable yet is shown to nobody, and is gone when it is lost."""

from pathlib import Path

import pytest

from ctxd import failpoints
from tests.unit.sessions.world import code_of, record, settled, world

pytestmark = pytest.mark.anyio


async def test_a_lost_commit_discards_its_state(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await record(w, "s1", "call-kept")
        before = await w.call("session.get", session="s1")
        with failpoints.armed("journal.commit=error:ENOSPC*1"):
            accepted = await w.begin("toolcall.record", session="s1", id="call-lost", tool="bash", content="x")
            shown = await w.begin("session.get", session="s1")
            assert await code_of(settled(accepted)) == "disk_full"
            assert await code_of(settled(shown)) == "disk_full", "nobody sees what was not durable"
        after = await w.call("session.get", session="s1")
        assert after.session == before.session


async def test_a_pending_write_of_a_session_is_never_shown_before_it_is_durable(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        first = await w.begin("toolcall.record", session="s1", id="call-1", tool="t", content="x")
        for method, params in (
            ("session.get", {"session": "s1"}),
            ("session.chat", {"session": "s1"}),
            ("session.list", {}),
            ("object.list", {"session": "s1"}),
            ("session.pin", {"session": "s1", "object": "call-1"}),
            ("toolcall.record", {"session": "s1", "id": "call-1", "tool": "t", "content": "x"}),
        ):
            answer = await w.begin(method, **params)
            assert answer.pending is not None, method
            assert answer.pending.seq >= first.pending.seq
        shown = await w.call("object.get", object="call-1")
        assert shown.object.tx == first.pending.seq
        assert first.pending.done
