"""What a purge does to sessions: to that which said it, to those that went on elsewhere, to those that share bytes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ctxd.assembly.append_assembly import Wanted
from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Stored
from ctxd.objects.generated_ids import component_texts_prefix, entry_id, segment_id
from ctxd.objects.kinds import is_purged
from ctxd.sessions.entry_operations import EntryOperations
from ctxd.sessions.moved_sessions import MovedSession
from ctxd.sessions.purging import purge, purge_chat
from ctxd.sessions.session import RECENT_CHARS_MAX, Actor, WriteRequest
from ctxd.store.purge import KIND
from ctxd.store.writes import PurgeRequest, Write
from ctxd_protocol.event_types import PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.limits import CONTENT_INLINE_BYTES_MAX
from ctxd_protocol.methods.epochs import EntrySetParams
from ctxd_protocol.session_types import Message
from tests.unit.assembly.household import household
from tests.unit.sessions.world import code_of, record, say, world
from tests.unit.store.running import verified

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
    verified(tmp_path / "state")


@pytest.mark.requirement("SEC-8")
async def test_the_large_text_of_a_purged_call_that_comes_again_does_not_reach_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "the secret\n" * (CONTENT_INLINE_BYTES_MAX // 10)
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await record(w, "s1", "big", text)
        assert (await purge(w.store, w.sessions.guard, CALL, "big")).residue == ()
        kept: list[str] = []
        store_keep = w.store.keep

        async def keep(document: Document) -> Document:
            kept.append(document.id)
            return await store_keep(document)

        monkeypatch.setattr(w.store, "keep", keep)
        assert await code_of(record(w, "s1", "big", text)) == "purged"
        assert kept == []
        await record(w, "s1", "other", text)
        assert kept == ["other"]


@pytest.mark.requirement("SEC-8")
async def test_a_tool_call_is_purged_from_the_chat_of_its_session_too(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await record(w, "s1", "c1", "the secret", args={"token": "t"})
        call = ToolCallEvent(call="c1", tool="bash", args={"token": "t"})
        quote = ResponseEvent(text="the secret")
        log = (PromptEvent(text="hello"), call, ToolResultEvent(call="c1", text="the secret"), quote)
        await w.call("session.append", session="s1", events=[msgspec.to_builtins(event) for event in log])
        live = await w.sessions.live("s1")
        before = live.state.chat_chars

        done = await w.call("object.purge", object="c1")
        assert (done.complete, done.residue, done.objects, done.texts) == (True, (), ("c1",), 4)
        assert live.state.chat_chars < before
        w.sessions.unload("s1")
        kept = [each.event for each in (await w.call("session.events", session="s1")).events]
        assert kept[0] == log[0]
        assert kept[1] == ToolCallEvent(call="c1", tool="bash")
        assert kept[2] == ToolResultEvent(call="c1", text="[purged]")
        assert kept[3] == ResponseEvent(text="[purged]")
    verified(tmp_path / "state")
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert [path for path in files if b"the secret" in path.read_bytes()] == []


@pytest.mark.requirement("SEC-8")
async def test_the_chat_of_a_session_that_moved_is_residue_of_its_tool_call(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await record(w, "s1", "c1", "the secret")
        await say(w, "s1", ("user", "the secret"))
        w.sessions.moved_sessions["s1"] = MovedSession("other", None)
        done = await w.call("object.purge", object="c1")
        assert (done.complete, done.residue) == (False, ("chat:s1",))
        assert (await w.sessions.live("s1")).recent, "the owner purges the chat"


async def test_purged_events_make_room_in_the_cache_of_the_newest(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "x" * (RECENT_CHARS_MAX - 1000)))
        live = await w.sessions.live("s1")
        await purge_chat(w.store, w.sessions.guard, CALL, live, None)
        for n in range(10):
            await say(w, "s1", ("user", f"{n}" * 1000))
        assert len(live.recent) == 11, "the purged event and those after it take 11 KB of 64"


async def test_a_listing_bears_a_purge_without_messages_and_one_of_a_session_that_it_does_not_have(
    tmp_path: Path,
) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "the secret"))
        await record(w, "s1", "call-1", "the output")
        faults: list[Exception] = []
        w.store.on_fault(faults.append)
        request = PurgeRequest(("call-1",), w.sessions.guard.keyed_hash)
        await w.store.submit(Write(kind=KIND, principal="host", session="s1", purge=request)).wait()
        assert w.sessions.catalog.summary("s1").preview == "the secret"
        w.sessions.catalog.discard("s1")
        live = await w.sessions.live("s1")
        assert (await purge_chat(w.store, w.sessions.guard, CALL, live, None)).texts == 1
        assert "s1" not in w.sessions.catalog and faults == []
        await say(w, "s1", ("user", "it goes on"))


@pytest.mark.parametrize("what", ["chat", "call-1"])
async def test_a_purge_that_the_store_refuses_counts_as_not_submitted(tmp_path: Path, what: str) -> None:
    def refuse() -> None:
        raise CtxdError("store_backlog_full", "the queue is full")

    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "the secret"))
        await record(w, "s1", "call-1", "the output")
        live = await w.sessions.live("s1")
        w.store.on_submit(refuse)
        call = WriteRequest("object.purge", "host")
        purged = purge_chat(w.store, w.sessions.guard, call, live, None)
        if what != "chat":
            purged.close()
            purged = purge(w.store, w.sessions.guard, call, what, live)
        assert await code_of(purged) == "store_backlog_full" and not call.submitted
        assert live.recent[0][0] == PromptEvent(text="the secret")


@pytest.mark.requirement("EPO-9")
async def test_a_text_that_is_made_of_an_entry_while_that_is_purged_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        home.append(live, Message(role="user", content="Begin."))
        params = EntrySetParams(session="s", key="mode", value="the secret")
        await EntryOperations(home.sessions, home.indexer).set_entry(Actor("p", "host"), params)
        scan = home.store.scan

        async def scanned(prefix: str, *args: Any, **rest: Any) -> list[Stored]:
            found: list[Stored] = await scan(prefix, *args, **rest)
            if prefix == component_texts_prefix("s") and not found:
                wanted = Wanted("anthropic-messages", "m", None)
                await home.assembler.assemble(live, WriteRequest("context.assemble", "p"), wanted=wanted)
            return found

        monkeypatch.setattr(home.store, "scan", scanned)
        proof = await purge(home.store, home.sessions.guard, CALL, entry_id("s", "mode"))
        monkeypatch.undo()
        texts = await home.store.scan(component_texts_prefix())
        assert texts and all(is_purged(stored.document) for stored in texts)
        assert set(proof.objects) == {entry_id("s", "mode"), *(stored.document.id for stored in texts)}
