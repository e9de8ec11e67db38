"""What a purge does to sessions: to that which said it, to those that went on elsewhere, to those that share bytes."""

from pathlib import Path

import pytest

from ctxd.objects.generated_ids import segment_id
from ctxd.sessions.moved_sessions import MovedSession
from ctxd.sessions.purging import purge, purge_chat
from ctxd.sessions.session import WriteRequest
from ctxd.store.verify import verify
from ctxd_protocol.events import PromptEvent
from tests.unit.sessions.world import code_of, record, say, world

pytestmark = pytest.mark.anyio
CALL = WriteRequest("object.purge", "host")


@pytest.mark.requirement("HST-10")
async def test_a_chat_that_went_on_elsewhere_is_purged_there(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "the secret"))
        live = await w.sessions.live("s1")
        w.sessions.moved_sessions["s1"] = MovedSession("other", "s1@branch")
        before = w.store.head()
        assert await code_of(purge_chat(w.store, w.sessions.guard, CALL, live, None)) == "session_owned_elsewhere"
        await w.store.settled()
        assert w.store.head() == before and live.recent[0][0] == PromptEvent(text="the secret")
        del w.sessions.moved_sessions["s1"]
        assert (await purge_chat(w.store, w.sessions.guard, CALL, live, None)).texts == 1


@pytest.mark.requirement("SEC-8")
async def test_a_session_outlives_the_purge_of_an_object_that_quotes_its_bundle(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        for n in range(300):
            await w.begin("session.append", session="s1", messages=[{"role": "user", "content": f"question {n}"}])
        before = (await w.sessions.live("s1")).state
        carrier = await w.store.get(segment_id("s1", 255), content=True)
        assert carrier is not None and carrier.document.content is not None
        await w.call("session.create", agent="a", session="s2")
        await record(w, "s2", "quote", carrier.document.content)
        await record(w, "s2", "twin", carrier.document.content)

        proof = await purge(w.store, w.sessions.guard, CALL, "quote")
        assert (set(proof.objects), proof.versions, proof.texts) == ({"quote", "twin"}, 2, 1)
        assert proof.residue == (), "the segments still say what the bundle did, which a purge of the quote leaves"
        w.sessions.unload("s1")
        assert (await w.sessions.live("s1")).state == before
        assert (await w.call("object.get", session="s2", object="quote")).object.payload["content"] is None
        await say(w, "s1", ("user", "it goes on"))
        assert (await purge(w.store, w.sessions.guard, CALL, "quote")).receipt is None
    async with world(tmp_path / "state") as w:
        assert (await w.sessions.live("s1")).state.turn == before.turn + 1
    *_, report = verify(tmp_path / "state")
    assert report.problems == []
