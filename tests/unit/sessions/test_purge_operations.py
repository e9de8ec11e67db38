"""What a purge does to sessions: to that which said it, to those that went on elsewhere, to those that share bytes."""

import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from ctxd import sqlite_file
from ctxd.assembly.append_assembly import Wanted
from ctxd.backends import sqlite
from ctxd.errors import CtxdError
from ctxd.objects.commit_document import Fields
from ctxd.objects.document import Document, document_without_source
from ctxd.objects.generated_ids import component_text_id, component_texts_prefix, entry_id, segment_id
from ctxd.objects.version_state import is_purged
from ctxd.sessions import event_erasure, purge_operations
from ctxd.sessions.entry_operations import EntryOperations
from ctxd.sessions.event_erasure import content_in
from ctxd.sessions.fork_operations import ForkOperations
from ctxd.sessions.live_session import RECENT_CHARS_MAX, Actor, WriteRequest
from ctxd.sessions.purge_operations import purge, purge_chat
from ctxd.sessions.secret_redaction import INLINE_CHARS_MAX
from ctxd.sessions.sessions_elsewhere import MovedSession
from ctxd.store import component_text_index
from ctxd.store.purge import KIND
from ctxd.store.rebuild import rebuild_tables
from ctxd.store.verify import verify
from ctxd.store.write_types import PurgeRequest, Write
from ctxd_protocol.event_types import PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.limits import CONTENT_INLINE_BYTES_MAX
from ctxd_protocol.methods.epochs import EntrySetParams
from ctxd_protocol.session_types import Message, RecordedSession
from tests.unit.assembly.stored_sessions import household
from tests.unit.sessions.world import code_of, record, say, world
from tests.unit.store.running import verified

pytestmark = pytest.mark.anyio
CALL = WriteRequest("object.purge", "host")


@pytest.mark.requirement("HST-10")
async def test_a_purge_of_a_chat_owned_by_another_host_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "the secret"))
        live = await w.sessions.live("s1")
        w.sessions.moved_sessions["s1"] = MovedSession("other", "s1@branch")
        before = w.store.head()
        assert await code_of(purge_chat(w.sessions, CALL, live.session, None)) == "session_owned_elsewhere"
        await w.store.wait_for_writes()
        assert w.store.head() == before and live.recent[0][0] == PromptEvent(text="the secret")
        del w.sessions.moved_sessions["s1"]
        assert (await purge_chat(w.sessions, CALL, live.session, None)).texts == 1


@pytest.mark.requirement("SEC-8")
async def test_a_purge_keeps_the_content_of_a_long_chat_in_memory_but_not_its_events_and_reads_it_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop: list[int] = []
    encode = event_erasure._encode

    def noted(value: Any) -> bytes:
        encoded = encode(value)
        if threading.current_thread() is threading.main_thread():
            on_loop.append(len(encoded))
        return encoded

    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        for n in range(30):
            rows = [{"n": number, "call": n} for number in range(4_000)]
            call = ToolCallEvent(call=f"c{n}", tool="t", args={"rows": rows})
            await w.call("session.append", session="s1", events=[msgspec.to_builtins(call)])
        live = await w.sessions.live("s1")
        monkeypatch.setattr(event_erasure, "_encode", noted)
        tracemalloc.start()
        try:
            gone, count = await content_in(live, None)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (count, len(gone.texts)) == (30, 30)
        # The events take ten times as much memory as their content, which is JSON.
        assert kept < 4 * sum(map(len, gone.texts))
        assert (await purge_chat(w.sessions, CALL, live.session, None)).texts == 30
        assert max(on_loop, default=0) < INLINE_CHARS_MAX


@pytest.mark.requirement("SEC-8")
async def test_a_session_unloaded_while_a_purge_looks_for_quotations_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_from = purge_operations._made_from

    async with world(tmp_path / "state", live_max=1) as w:
        await w.call("session.create", agent="a", session="s1")
        await record(w, "s1", "call", "the secret")

        async def evicting(*given: Any) -> list[str]:
            if "s2" not in w.sessions.catalog:
                await w.call("session.create", agent="a", session="s2")
                assert w.sessions.peek("s1") is None
            return await made_from(*given)

        monkeypatch.setattr(purge_operations, "_made_from", evicting)
        assert (await w.call("object.purge", object="call")).complete


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

        proof = await purge(w.sessions, CALL, "quote")
        assert (set(proof.objects), proof.versions, proof.texts) == ({"quote", "twin"}, 2, 1)
        assert proof.residue == (), "the segments still say what the bundle did, which a purge of the quote leaves"
        w.sessions.unload("s1")
        assert (await w.sessions.live("s1")).state == before
        assert (await w.call("object.get", session="s2", object="quote")).object.payload["content"] is None
        await say(w, "s1", ("user", "it goes on"))
        assert (await purge(w.sessions, CALL, "quote")).receipt is None
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
        assert (await purge(w.sessions, CALL, "big")).residue == ()
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
        done = await w.call("object.purge", object="c1")
        assert (done.complete, done.residue, done.objects, done.texts) == (True, (), ("c1",), 4)
        assert not any("the secret" in str(events) for events in live.recent.values()), "nor is it in memory"
        w.sessions.unload("s1")
        kept = [each.event for each in (await w.call("session.events", session="s1")).events]
        assert kept[0] == log[0]
        assert kept[1] == ToolCallEvent(call="c1", tool="bash")
        assert kept[2] == ToolResultEvent(call="c1", text="[purged]")
        assert kept[3] == ResponseEvent(text="[purged]")
    verified(tmp_path / "state")
    assert _holding(tmp_path / "state", b"the secret") == []


@pytest.mark.requirement("SEC-8")
@pytest.mark.parametrize(
    ("args", "recorded"),
    [
        ("*** Begin Patch the secret", {"input": "*** Begin Patch the secret"}),
        ('{"command": "the secret"}', {"command": "the secret"}),
        ({"command": "the secret", "cwd": "/"}, {"cwd": "/", "command": "the secret"}),
    ],
)
async def test_a_purged_call_keeps_no_arguments_and_output_in_the_chat_in_whatever_form(
    tmp_path: Path, args: object, recorded: dict[str, str]
) -> None:
    async with world(tmp_path / "state") as w:
        for session in ("s1", "s2"):
            await w.call("session.create", agent="a", session=session)
        await record(w, "s1", "c1", "the secret", args=recorded)
        others = (ToolCallEvent(call="c2", tool="bash", args="kept"), ToolResultEvent(call="c2", text="kept"))
        output = ToolResultEvent(call="c1", text="Exit code: 0\nthe secret")
        log = (ToolCallEvent(call="c1", tool="bash", args=args), output, *others)
        await w.call("session.append", session="s1", events=[msgspec.to_builtins(event) for event in log])
        assert (await w.call("object.purge", object="c1")).complete
        kept = [each.event for each in (await w.call("session.events", session="s1")).events]
        assert kept == [ToolCallEvent(call="c1", tool="bash"), ToolResultEvent(call="c1", text="[purged]"), *others]
    assert _holding(tmp_path / "state", b"the secret") == []


@pytest.mark.requirement("SEC-8")
async def test_the_purge_of_a_call_leaves_a_fork_s_own_call_with_the_same_id(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "hello"))
        await w.call("session.fork", session="s1", fork="f1")
        for session in ("s1", "f1"):
            await record(w, session, "c1", f"output of {session}", chat="none")
            call = ToolCallEvent(call="c1", tool="bash", args=f"made by {session}")
            output = ToolResultEvent(call="c1", text=f"seen by {session}")
            events = [msgspec.to_builtins(event) for event in (call, output)]
            await w.call("session.append", session=session, events=events)
        assert (await w.call("object.purge", object="c1")).complete
        for session, left in (("s1", (None, "[purged]")), ("f1", ("made by f1", "seen by f1"))):
            w.sessions.unload(session)
            call, output = [each.event for each in (await w.call("session.events", session=session)).events][-2:]
            assert (call.args, output.text) == left


@pytest.mark.requirement("SES-28")
async def test_a_fork_continued_during_a_purge_of_its_prompt_keeps_nothing_of_it(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w, anyio.create_task_group() as group:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "the secret"))
        await w.call("session.fork", session="s1", fork="f1")
        await say(w, "f1", ("user", "before"))
        group.start_soon(partial(w.call, "object.purge", object="chat:s1"))
        with anyio.fail_after(30):
            while not w.store.is_purging():
                await anyio.lowlevel.checkpoint()
        await say(w, "f1", ("user", "after"))
        kept = [each.event.text for each in (await w.call("session.events", session="f1")).events]
        assert kept == ["[purged]", "before", "after"]
    assert _holding(tmp_path / "state", b"the secret") == []


@pytest.mark.requirement("SES-28")
@pytest.mark.parametrize("what", ["chat:s1", "system_prompt:s1"])
async def test_a_session_forked_during_a_purge_of_its_prompt_has_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async with world(tmp_path / "state") as w, anyio.create_task_group() as group:
        await w.call("session.create", agent="a", session="s1", system_prompt="the secret")
        await say(w, "s1", ("user", "the secret"))
        copied = ForkOperations._own_documents

        async def slowly(self: ForkOperations, *given: Any) -> list[Document]:
            documents = await copied(self, *given)
            monkeypatch.undo()
            group.start_soon(partial(w.call, "object.purge", object=what))
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
                await w.store.wait_for_writes()
            return documents

        monkeypatch.setattr(ForkOperations, "_own_documents", slowly)
        await w.call("session.fork", session="s1", fork="f1")
    async with world(tmp_path / "state") as w:
        other = "system_prompt:s1" if what == "chat:s1" else "chat:s1"
        await w.call("object.purge", object=other)
    assert _holding(tmp_path / "state", b"the secret") == []


def _holding(state: Path, text: bytes) -> list[Path]:
    return [path for path in state.rglob("*") if path.is_file() and text in path.read_bytes()]


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


@pytest.mark.requirement("SEC-8")
async def test_a_copy_in_a_commit_of_a_session_that_moved_makes_its_chat_residue(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await record(w, "s1", "c1", "the secret")
        fields = Fields(principal="host", at=1, format="claude-code-v1", checkpoint="explicit", session="s1")
        line = '{"message":{"content":[{"tool_use_id":"c1","content":"the secret"}]}}\n'
        commit = document_without_source("commit:ctx-12345678", "commit", msgspec.to_builtins(fields), line)
        await w.store.submit(Write(kind="test", principal="host", session="s1", puts=(commit,))).wait()
        w.sessions.moved_sessions["s1"] = MovedSession("other", None)
        done = await w.call("object.purge", object="c1")
        assert (done.complete, done.residue) == (False, ("chat:s1",))


@pytest.mark.requirement("LST-9")
@pytest.mark.parametrize("moved", [False, True])
async def test_the_title_of_an_imported_session_that_moved_is_residue_of_its_commit(
    tmp_path: Path, moved: bool
) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        recorded = RecordedSession(title="the secret", permissions={"mode": "plan"})
        await w.call("session.annotate", session="s1", recorded=msgspec.to_builtins(recorded))
        fields = Fields(principal="host", at=1, format="raw", checkpoint="explicit", session="s1")
        commit = document_without_source("commit:ctx-12345678", "commit", msgspec.to_builtins(fields), "the secret")
        await w.store.submit(Write(kind="test", principal="host", session="s1", puts=(commit,))).wait()
        if moved:
            w.sessions.moved_sessions["s1"] = MovedSession("other", None)
        done = await w.call("object.purge", object=commit.id)
        assert (done.complete, done.residue) == (not moved, ("session:s1",) if moved else ())
        left = (await w.sessions.live("s1")).settings.recorded
        assert left == (recorded if moved else msgspec.structs.replace(recorded, title="[purged]"))


async def test_purged_events_make_room_in_the_cache_of_the_newest(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "x" * (RECENT_CHARS_MAX - 1000)))
        live = await w.sessions.live("s1")
        await purge_chat(w.sessions, CALL, live.session, None)
        for n in range(10):
            await say(w, "s1", ("user", f"{n}" * 1000))
        assert len(live.recent) == 11, "the purged event and those after it take 11 KB of 64"


async def test_a_listing_tolerates_purges_without_messages_and_of_unknown_sessions(
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
        assert (await purge_chat(w.sessions, CALL, live.session, None)).texts == 1
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
        purged = purge_chat(w.sessions, call, live.session, None)
        if what != "chat":
            purged.close()
            purged = purge(w.sessions, call, what, live.session)
        assert await code_of(purged) == "store_backlog_full" and not call.submitted
        assert live.recent[0][0] == PromptEvent(text="the secret")


@pytest.mark.requirement("EPO-9")
async def test_a_text_rendered_from_an_entry_during_its_purge_is_purged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        home.append(live, Message(role="user", content="Begin."))
        params = EntrySetParams(session="s", key="mode", value="the secret")
        await EntryOperations(home.sessions, home.indexer).set_entry(Actor("p", "host"), params)
        read_index = home.store.read_index

        async def looked_up(query: Callable[..., Any]) -> Any:
            found = await read_index(query)
            if found == []:
                wanted = Wanted("anthropic-messages", "m", None)
                await home.assembler.assemble(live, WriteRequest("context.assemble", "p"), form=wanted)
            return found

        monkeypatch.setattr(home.store, "read_index", looked_up)
        proof = await purge(home.sessions, CALL, entry_id("s", "mode"))
        monkeypatch.undo()
        texts = await home.store.scan(component_texts_prefix())
        assert texts and all(is_purged(stored.document) for stored in texts)
        assert set(proof.objects) == {entry_id("s", "mode"), *(stored.document.id for stored in texts)}


@pytest.mark.requirement("EPO-6")
@pytest.mark.requirement("SEC-8")
async def test_a_purge_also_erases_texts_made_from_other_entries_with_the_same_value(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        for session in ("s", "other"):
            live = await home.create(session)
            home.append(live, Message(role="user", content="Begin."))
            params = EntrySetParams(session=session, key="mode", value="the secret")
            await EntryOperations(home.sessions, home.indexer).set_entry(Actor("p", "host"), params)
            wanted = Wanted("anthropic-messages", "m", None)
            await home.assembler.assemble(live, WriteRequest("context.assemble", "p"), wanted)
        proof = await purge(home.sessions, CALL, entry_id("s", "mode"))
        texts = await home.store.scan(component_texts_prefix())
        assert len(texts) == 2 and all(is_purged(stored.document) for stored in texts)
        assert set(proof.objects) == {
            entry_id("s", "mode"),
            entry_id("other", "mode"),
            *(stored.document.id for stored in texts),
        }
    assert _holding(tmp_path, b"the secret") == []


@pytest.mark.requirement("EPO-6")
async def test_a_repeated_purge_erases_texts_that_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        home.append(live, Message(role="user", content="Begin."))
        params = EntrySetParams(session="s", key="mode", value="the secret")
        await EntryOperations(home.sessions, home.indexer).set_entry(Actor("p", "host"), params)
        wanted = Wanted("anthropic-messages", "m", None)
        await home.assembler.assemble(live, WriteRequest("context.assemble", "p"), wanted)
        purged = partial(purge, home.sessions, CALL, entry_id("s", "mode"))
        with monkeypatch.context() as patch:
            patch.setattr("ctxd.store.component_text_index.made_from", lambda *_, **__: [])
            await purged()
        assert not any(is_purged(stored.document) for stored in await home.store.scan(component_texts_prefix()))
        proof = await purged()
        assert all(is_purged(stored.document) for stored in await home.store.scan(component_texts_prefix()))
        assert (proof.versions, proof.texts) == (1, 1) and proof.receipt is not None


def made_text(number: int, source: str) -> Document:
    """A component text of a session of its own."""
    payload = {"key": "instructions:/a", "sources": [source]}
    return document_without_source(
        component_text_id(f"s{number}", f"{number:064x}"), "component_text", payload, f"text {number}"
    )


@pytest.mark.requirement("SEC-8")
async def test_a_purge_of_a_file_reads_as_few_versions_in_a_store_of_ten_times_the_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    read: list[object] = []
    encode = sqlite._encode

    def counted(row: object) -> bytes:
        read.append(row)
        return encode(row)

    for texts in (30, 300):
        root = tmp_path / str(texts)
        async with world(root) as w:
            file = document_without_source("f" * 64, "file", {"char_count": 4}, "file")
            puts = [made_text(number, f"{number:064x}") for number in range(1, texts)]
            await w.store.submit(Write(kind="object.put", principal="p", puts=(file, *puts))).wait()
            mine = [made_text(number, file.id) for number in range(texts, texts + 2)]
            await w.store.submit(Write(kind="object.put", principal="p", puts=tuple(mine))).wait()
        async with world(root) as w:
            read.clear()
            with monkeypatch.context() as patched:
                patched.setattr(sqlite, "_encode", counted)
                proof = await purge(w.sessions, CALL, file.id)
                counts.append(len(read))
            assert set(proof.objects) == {file.id, *(text.id for text in mine)} and proof.texts == 3
            left = await w.store.scan(component_texts_prefix())
            assert sum(is_purged(stored.document) for stored in left) == 2
        verified(root)
    assert counts[0] == counts[1] > 0


@pytest.mark.requirement("DUR-10")
async def test_the_index_of_component_texts_is_filled_checked_and_rebuilt(tmp_path: Path) -> None:
    root = tmp_path / "state"
    async with world(root) as w:
        texts = (made_text(1, "f" * 64), made_text(2, "e" * 64))
        await w.store.submit(Write(kind="k", principal="p", puts=texts)).wait()

    def change(statement: str) -> None:
        connection = sqlite_file.open_writer(root / "state.db")
        connection.execute(statement).fetchall()
        connection.close()

    def found() -> set[tuple[str, str]]:
        connection = sqlite_file.open_reader(root / "state.db")
        pairs = set(component_text_index.pairs(connection))
        connection.close()
        return pairs

    before = found()
    assert before == {("f" * 64, made_text(1, "").id), ("e" * 64, made_text(2, "").id)}
    change("DELETE FROM text_source WHERE text=(SELECT max(text) FROM text_source)")
    *_, report = verify(root)
    assert [problem.message for problem in report.problems] == ["the index of component texts lacks 1 source"]
    rebuild_tables(root / "state.db", lambda done: None)
    assert found() == before
    # A state of before there was the index.
    change("DROP TABLE text_source")
    verified(root)
    async with world(root) as w:
        pass
    assert found() == before
    verified(root)


@pytest.mark.requirement("SEC-10")
@pytest.mark.parametrize(("payload", "code"), [({"v": 99}, "unsupported"), ({"v": 2, "ops": 5}, "corrupt")])
async def test_a_purge_that_cannot_read_a_segment_of_a_fork_erases_nothing_and_the_session_goes_on(
    tmp_path: Path, payload: dict[str, Any], code: str
) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "the secret"))
        await w.call("session.fork", session="s1", fork="f1")
        unreadable = document_without_source(segment_id("f1", 7), "segment", payload)
        await w.store.submit(Write(kind="session.append", principal="host", session="f1", puts=(unreadable,))).wait()
        async with anyio.create_task_group() as group:
            group.start_soon(partial(say, w, "s1", ("user", "meanwhile")))
            with pytest.raises(CtxdError, match=r"nothing was purged: .*segment:f1#") as caught:
                await w.call("object.purge", object="chat:s1", op_id="op")
        assert (caught.value.code, caught.value.outcome) == (code, "not_applied") and caught.value.hint
        await say(w, "s1", ("user", "it goes on"))
        kept = [each.event.text for each in (await w.call("session.events", session="s1")).events]
        assert kept[0] == "the secret" and kept[-1] == "it goes on"
        with pytest.raises(CtxdError, match="nothing was purged"):
            await w.call("object.purge", object="chat:s1", op_id="op")
