"""What a purge does to sessions: to that which said it, to those that went on elsewhere, to those that share bytes."""

from pathlib import Path

import pytest

from ctxd.sessions.barred import Barred
from ctxd.sessions.calls import Call
from ctxd.sessions.purging import purge_chat
from tests.unit.sessions.test_sessions import code_of, say
from tests.unit.sessions.world import world

pytestmark = pytest.mark.anyio
CALL = Call("object.purge", "host")


@pytest.mark.requirement("HST-10")
async def test_a_chat_that_went_on_elsewhere_is_purged_there(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "the secret"))
        live = await w.sessions.live("s1")
        w.sessions.barred["s1"] = Barred("other", "s1@branch")
        before = w.store.head()
        assert await code_of(purge_chat(w.store, w.sessions.guard, CALL, live, None)) == "session_owned_elsewhere"
        await w.store.settled()
        assert w.store.head() == before and live.state.turns[1][0].content == "the secret"
        del w.sessions.barred["s1"]
        assert (await purge_chat(w.store, w.sessions.guard, CALL, live, None)).texts == 1
