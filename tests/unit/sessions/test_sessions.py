"""Sessions over a real store: isolation, resends, loss, and the same session after it was loaded again."""

import inspect
import random
from pathlib import Path

import anyio
import msgspec
import pytest

from ctxd import failpoints
from ctxd.errors import CtxdError
from ctxd.sessions.capture import INLINE_CHARS_MAX
from ctxd.sessions.state import check
from ctxd.store.writes import Accepted
from ctxd_protocol.ids import chat_id, session_object_id
from tests.unit.sessions.world import CALLER, World, settled, world

pytestmark = pytest.mark.anyio


async def code_of(call) -> str:
    with pytest.raises(CtxdError) as caught:
        await call
    return caught.value.code


async def record(w: World, session: str, id: str, content: str = "out", **rest):
    return await w.call("toolcall.record", session=session, id=id, tool="bash", content=content, **rest)


async def say(w: World, session: str, *messages: tuple[str, str], **rest):
    said = [{"role": role, "content": text} for role, text in messages]
    return await w.call("session.append", session=session, messages=said, **rest)


async def filled(w: World, session: str, folder: Path) -> None:
    """A session with some of everything."""
    await w.call("session.create", agent="a", session=session, system_prompt="be good", labels={"k": "v"})
    for turn in range(5):
        await say(w, session, ("user", f"turn {turn}"), ("assistant", "well"))
        for n in range(3):
            await record(w, session, f"{session}-call-{turn}-{n}", f"output {n}")
        path = folder / f"{turn}.txt"
        path.write_text(f"text {turn}")
        await w.read(session, path)
    await w.call("session.pin", session=session, object=f"{session}-call-1-1")
    await w.call("session.activate", session=session, object=f"{session}-call-0-0")
    await w.call("session.pool_remove", session=session, object=f"{session}-call-0-1")


async def test_short_messages_and_views_of_a_session_in_memory_take_no_wait(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        said = w.now("session.append", session="s1", messages=[{"role": "user", "content": "short"}])
        shown = w.now("session.get", session="s1")
        assert isinstance(said, Accepted) and isinstance(shown, Accepted)
        assert shown.pending is said.pending
        assert (await settled(shown)).session.turn_count == (await settled(said)).turn == 1


async def test_who_comes_while_another_holds_the_session_waits_for_its_turn(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        turns: list[tuple[str, int]] = []

        async def say_once() -> None:
            turns.append(("said", (await say(w, "s1", ("user", "x"))).turn))

        async def get_once() -> None:
            turns.append(("got", (await w.call("session.get", session="s1")).session.turn_count))

        async with anyio.create_task_group() as group:
            async with (await w.sessions.live("s1")).lock:
                group.start_soon(say_once)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(get_once)
                await anyio.wait_all_tasks_blocked()
                assert turns == []
        assert sorted(turns) == [("got", 1), ("said", 1)]


async def test_a_long_message_is_searched_for_secrets_beside_the_loop(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        long = [{"role": "user", "content": "x" * (INLINE_CHARS_MAX + 1)}]
        said = w.now("session.append", session="s1", messages=long)
        assert inspect.iscoroutine(said)
        assert (await settled(await said)).turn == 1


@pytest.mark.requirement("SES-11")
async def test_a_session_loaded_again_is_the_very_same(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await filled(w, "s1", tmp_path)
        before = await w.call("session.get", session="s1")
        chat = await w.call("session.chat", session="s1")
        state = (await w.sessions.live("s1")).state
        listed = await w.call("session.list")
    async with world(tmp_path / "state") as w:
        assert w.sessions.live_count == 0
        after = await w.call("session.get", session="s1")
        assert after.session == before.session
        assert await w.call("session.chat", session="s1") == chat
        assert (await w.sessions.live("s1")).state == state
        assert await w.call("session.list") == listed


async def test_a_long_session_is_the_same_out_of_its_bundles_and_out_of_its_segments(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        last = None
        for n in range(600):
            if n % 7 == 0:
                text = "long " * (2000 if n % 70 == 0 else 1)
                last = await w.begin("session.append", session="s1", messages=[{"role": "user", "content": text}])
            else:
                last = await w.begin("toolcall.record", session="s1", id=f"call-{n}", tool="t", content=str(n))
        receipt = await last.pending.wait()
        live = await w.sessions.live("s1")
        view = live.view()
    async with world(tmp_path / "state") as w:
        again = await w.sessions.live("s1")
        assert (again.state, again.seqs, again.view()) == (live.state, live.seqs, view)
        past = await w.sessions.as_of("s1", tx=receipt.seq)
        assert (past.state, past.seqs, past.view()) == (live.state, live.seqs, view)
        for n in range(600, 1300):
            last = await w.begin("toolcall.record", session="s1", id=f"call-{n}", tool="t", content=str(n))
        await last.pending.wait()
    async with world(tmp_path / "state") as w:
        assert (await w.sessions.live("s1")).state == again.state


async def test_idle_sessions_are_unloaded_and_come_back_equal(tmp_path: Path) -> None:
    async with world(tmp_path / "state", live_max=2) as w:
        for n in range(6):
            await w.call("session.create", agent="a", session=f"s{n}")
            await record(w, f"s{n}", f"call-{n}")
        assert w.sessions.live_count == 2
        for n in range(6):
            view = (await w.call("session.get", session=f"s{n}")).session
            assert view.active_set == (f"call-{n}",)
        assert w.sessions.live_count == 2


@pytest.mark.requirement("SES-13")
async def test_no_session_sees_anothers_sets_or_chat(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        names = [f"s{n}" for n in range(20)]
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(filled, w, name, tmp_path)
        for name in names:
            view = (await w.call("session.get", session=name)).session
            calls = [id for id in view.session_index if "call" in id]
            assert calls == [f"{name}-call-{turn}-{n}" for turn in range(5) for n in range(3)]
            assert len(view.session_index) == 20
            assert view.turn_count == 5


@pytest.mark.requirement("RPC-7")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio starts tasks in an order of its own
async def test_calls_of_a_session_take_effect_in_the_order_they_arrive(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        async with anyio.create_task_group() as group:
            for n in range(40):
                if n % 4:
                    op = {"op_id": f"op-{n}"} if n % 2 else {}
                    group.start_soon(lambda n=n, op=op: record(w, "s1", f"call-{n}", **op))
                else:
                    group.start_soon(lambda n=n: say(w, "s1", ("user", str(n)), op_id=f"op-{n}"))
        live = await w.sessions.live("s1")
        assert list(live.state.index) == [f"call-{n}" for n in range(40) if n % 4]
        assert live.state.calls == dict.fromkeys(range(1, 11), 3)


@pytest.mark.requirement("RPC-4")
async def test_a_resend_gets_the_first_answer_and_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        first = [await w.call("session.create", agent="a", op_id="op-1")]
        session = first[0].session.session
        calls = [
            ("session.append", {"messages": [{"role": "user", "content": "hi"}]}),
            ("toolcall.record", {"id": "call-1", "tool": "bash", "content": "x"}),
            ("session.pin", {"object": "call-1"}),
            ("session.deactivate", {"object": "call-1"}),
            ("session.configure", {"labels": {"a": "b"}}),
            ("session.pause", {}),
            ("session.resume", {}),
            ("session.set_system_prompt", {"content": "new"}),
            ("session.close", {}),
        ]
        for n, (method, params) in enumerate(calls):
            first.append(await w.call(method, session=session, op_id=f"op-{n + 2}", **params))
        assert await w.call("session.create", agent="a", op_id="op-1") == first[0]
        for n, (method, params) in enumerate(calls):
            assert await w.call(method, session=session, op_id=f"op-{n + 2}", **params) == first[n + 1], method
        assert await code_of(w.call("session.create", agent="b", op_id="op-1")) == "idempotency_mismatch"
        assert len(await w.sessions.store.scan("session:")) == 1


@pytest.mark.requirement("RPC-4")
async def test_a_call_and_its_resend_at_once_are_made_once(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        answers = []

        async def send() -> None:
            answers.append(await say(w, "s1", ("user", "hi"), op_id="op-1"))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(send)
        assert len(answers) == 5
        assert len(set(map(repr, answers))) == 1
        assert (await w.call("session.chat", session="s1")).turn_count == 1


async def test_a_lost_commit_takes_the_state_it_made_along(tmp_path: Path) -> None:
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


@pytest.mark.requirement("SES-10")
async def test_paused_and_closed_sessions_take_no_writes_but_can_be_read(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await w.call("session.pause", session="s1")
        assert await code_of(record(w, "s1", "call-1")) == "session_not_active"
        assert (await w.call("session.get", session="s1")).session.state == "paused"
        assert (await w.call("session.resume", session="s1")).session.state == "active"
        await record(w, "s1", "call-1")
        await w.call("session.close", session="s1")
        assert await code_of(record(w, "s1", "call-2")) == "session_closed"
        assert await code_of(w.call("session.resume", session="s1")) == "session_closed"
        assert (await w.call("session.get", session="s1")).session.session_index == ("call-1",)


async def test_an_existing_id_is_refused_and_an_unknown_session_is_not_found(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        assert await code_of(w.call("session.create", agent="a", session="s1")) == "session_exists"
        assert await code_of(w.call("session.get", session="s2")) == "session_not_found"


@pytest.mark.requirement("SES-9")
async def test_sessions_are_listed_newest_first_filtered_and_by_pages(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        for n in range(7):
            labels = {"team": "red" if n % 2 else "blue"}
            await w.call("session.create", agent="cat" if n < 4 else "dog", session=f"s{n}", labels=labels)
        await say(w, "s3", ("user", "Please fix the Parser"))
        await w.call("session.pause", session="s5")

        async def names(**filters) -> list[str]:
            return [row.session for row in (await w.call("session.list", **filters)).sessions]

        assert await names() == [f"s{n}" for n in reversed(range(7))]
        assert await names(agent="cat") == ["s3", "s2", "s1", "s0"]
        assert await names(label="team=red") == ["s5", "s3", "s1"]
        assert await names(state="paused") == ["s5"]
        assert await names(text="parser") == ["s3"]
        page = await w.call("session.list", limit=3)
        await w.call("session.create", agent="cat", session="later")
        following = await w.call("session.list", limit=3, cursor=page.next_cursor)
        assert [row.session for row in following.sessions] == ["s3", "s2", "s1"]
        assert following.sessions[0].preview == "Please fix the Parser"


@pytest.mark.requirement("CTX-10")
async def test_the_only_open_session_is_the_current_one(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        assert w.sessions.current(None).session is None
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "hi"))
        assert (w.sessions.current(None).session, w.sessions.current(None).turn) == ("s1", 1)
        await w.call("session.create", agent="a", session="s2")
        assert w.sessions.current(None).session is None
        assert w.sessions.current("s2").turn == 0


@pytest.mark.requirement("OBJ-8")
@pytest.mark.requirement("OBJ-9")
async def test_a_tool_call_is_recorded_once_and_its_id_is_each_sessions_own(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        for name in ("s1", "s2"):
            await w.call("session.create", agent="a", session=name)
        assert (await record(w, "s1", "call|1 x")).object == "call|1 x"
        same = await record(w, "s1", "call|1 x")
        assert (same.outcome, same.receipt) == ("unchanged", None)
        assert await code_of(record(w, "s1", "call|1 x", "another")) == "toolcall_conflict"
        other = await record(w, "s2", "call|1 x", "another")
        assert (other.object, other.outcome) == ("toolcall:s2:call|1 x", "created")
        assert (await record(w, "s2", "call|1 x", "another")).outcome == "unchanged"
        assert (await record(w, "s1", "chat:s1")).object == "toolcall:s1:chat:s1"
        assert (await record(w, "s1", "ab" * 32)).object == "toolcall:s1:" + "ab" * 32
        # Where a session's id holds a colon, its tool calls must not be those of another one.
        for name in ("a", "a:b"):
            await w.call("session.create", agent="a", session=name)
        await record(w, "s1", "b:chat:c")
        theirs = await record(w, "a", "b:chat:c")
        ours = await record(w, "a:b", "chat:c", "another")
        assert (theirs.object, ours.object) == ("toolcall:a:b:chat:c", "toolcall:a~b:chat:c")
        gone = await w.call("session.deactivate", session="s2", object="call|1 x")
        assert gone.object == "toolcall:s2:call|1 x"


@pytest.mark.requirement("COL-1")
async def test_collapsed_tool_calls_are_named_in_the_result(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        results = [await record(w, "s1", f"call-{n}") for n in range(7)]
        assert [result.collapsed for result in results] == [()] * 5 + [("call-0",), ("call-1",)]


@pytest.mark.requirement("SES-4")
@pytest.mark.requirement("SES-5")
async def test_activating_an_unread_file_reads_it_and_one_that_is_out_of_reach_stays_a_stub(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        kept, gone, binary = tmp_path / "kept.txt", tmp_path / "gone.txt", tmp_path / "bin"
        kept.write_text("hello")
        gone.write_text("bye")
        binary.write_bytes(b"\x00\xff\xfe")
        await w.discover("s1", kept, gone, binary)
        gone.unlink()
        ids = (await w.call("session.get", session="s1")).session.metadata_pool
        result = await w.call("session.activate", session="s1", object=ids[0][:12])
        assert (result.object, result.level, result.changed) == (ids[0], "active", True)
        shown = (await w.call("object.get", object=ids[0], session="s1")).object
        assert (shown.payload["content"], shown.state, shown.display_path) == ("hello", "present", str(kept))
        assert await code_of(w.call("session.activate", session="s1", object=ids[1])) == "source_unreachable"
        assert await code_of(w.call("session.activate", session="s1", object=ids[2])) == "content_unavailable"
        view = (await w.call("session.get", session="s1")).session
        assert view.active_set == (ids[0],)
        assert (await w.call("object.get", object=ids[1])).object.state == "unread"


@pytest.mark.requirement("SES-11")
@pytest.mark.requirement("SES-12")
@pytest.mark.requirement("IDX-7")
async def test_a_resume_checks_every_file_and_changes_no_set(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        paths = [tmp_path / name for name in ("same", "edited", "deleted", "stub", "lost/inner")]
        (tmp_path / "lost").mkdir()
        for path in paths:
            path.write_text("one")
        ids = [await w.read("s1", path) for path in (*paths[:3], paths[4])]
        await w.discover("s1", paths[3])
        await w.call("session.pause", session="s1")
        before = (await w.call("session.get", session="s1")).session
    paths[1].write_text("two!")
    paths[2].unlink()
    paths[4].unlink()
    (tmp_path / "lost").rmdir()
    async with world(tmp_path / "state") as w:
        resumed = await w.call("session.resume", session="s1", op_id="op-1")
        found = resumed.reconciled
        assert (found.updated, found.deleted, found.orphaned) == ((ids[1],), (ids[2],), (ids[3],))
        assert (found.unchanged, found.unread) == (1, 1)
        for name in ("session_index", "metadata_pool", "active_set", "pinned_set"):
            assert getattr(resumed.session, name) == getattr(before, name)
        assert resumed.session.state == "active"
        assert await w.call("session.resume", session="s1", op_id="op-1") == resumed
        states = {v.id: v.state for v in (await w.call("object.bulk", objects=ids)).objects}
        assert [states[id] for id in ids] == ["present", "present", "deleted", "present"]


@pytest.mark.requirement("OBJ-11")
@pytest.mark.requirement("VER-2")
async def test_chat_and_session_read_as_objects_of_any_time(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        made = await w.call("session.create", agent="a", session="s1")
        first = await say(w, "s1", ("user", "one"))
        await record(w, "s1", "call-1")
        await w.call("session.append", session="s1", messages=[{"role": "toolcall", "toolcall": "call-1"}])
        chat, session = chat_id("s1"), session_object_id("s1")
        now = (await w.call("object.get", object=chat)).object
        assert now.payload["turn_count"] == 1
        assert now.payload["toolcall_refs"] == ["call-1"]
        assert [m["role"] for m in now.payload["turns"][0]["messages"]] == ["user", "toolcall"]
        then = (await w.call("object.get", object=chat, tx=first.receipt.seq)).object
        assert then.payload["toolcall_refs"] == []
        assert (then.tx, then.valid_time) == (first.receipt.seq, first.receipt.vt)
        empty = (await w.call("object.get", object=chat, tx=made.receipt.seq)).object
        assert empty.payload["turns"] == []
        assert (await w.call("object.get", object=session)).object.payload["active_set"] == ["call-1"]
        assert await code_of(w.call("object.get", object=chat, tx=0)) == "object_not_found"
        assert await code_of(w.call("object.get", object="segment:s1#0000000000")) == "object_not_found"
        versions = (await w.call("object.history", object=session)).versions
        assert [version.tx for version in versions] == [1, 2, 3, 4]
        page = await w.call("object.history", object=chat, limit=2, order="desc")
        rest = await w.call("object.history", object=chat, limit=2, order="desc", cursor=page.next_cursor)
        assert [v.tx for v in (*page.versions, *rest.versions)] == [4, 2, 1]


async def test_a_time_before_an_objects_first_version_is_told_apart_from_an_object_that_is_not_there(
    tmp_path: Path,
) -> None:
    async with world(tmp_path / "state") as w:
        made = await w.call("session.create", agent="a", session="s1")
        await record(w, "s1", "call-1")
        for session in (None, "s1"):
            with pytest.raises(CtxdError, match="had no version then") as caught:
                await w.call("object.get", object="call-1", session=session, tx=made.receipt.seq)
            assert caught.value.code == "object_not_found"
        with pytest.raises(CtxdError, match="no object id=call-2"):
            await w.call("object.get", object="call-2", tx=made.receipt.seq)


@pytest.mark.requirement("NOT-4")
async def test_objects_are_listed_by_session_and_over_all(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await filled(w, "s1", tmp_path)
        await filled(w, "s2", tmp_path)
        index = (await w.call("session.get", session="s1")).session.session_index
        listed, cursor = [], None
        while True:
            page = await w.call("object.list", session="s1", limit=3, cursor=cursor)
            listed += [item.object for item in page.objects]
            if (cursor := page.next_cursor) is None:
                break
        assert tuple(listed) == index
        pinned = [item for item in (await w.call("object.list", session="s1")).objects if item.pinned]
        assert [(item.object, item.label) for item in pinned] == [("s1-call-1-1", "bash")]
        files = (await w.call("object.list", type="file", limit=2)).objects
        assert len(files) == 2
        everything, cursor = [], None
        while True:
            page = await w.call("object.list", limit=7, cursor=cursor)
            everything += [item.object for item in page.objects]
            if (cursor := page.next_cursor) is None:
                break
        assert len(everything) == len(set(everything)) == 15 * 2 + 5 + 2 * 2
        assert not [id for id in everything if id.startswith(("segment:", "assembly:"))]
        shared = (await w.call("object.sessions", object=files[0].object)).sessions
        assert shared == ("s1", "s2")
        for id in ("chat:s1", "session:s1", "system_prompt:s1"):
            assert (await w.call("object.get", object=id)).object.id == id
            assert (await w.call("object.sessions", object=id)).sessions == ()
        for id in ("segment:s1#0000000000", "assembly:s1#0000000001", "chat:none", "none"):
            for method in ("object.get", "object.sessions"):
                assert await code_of(w.call(method, object=id)) == "object_not_found"


@pytest.mark.requirement("SES-1")
async def test_a_session_is_read_whole_as_it_was_created(tmp_path: Path) -> None:
    mount = {"agent_prefix": "/workspace", "canonical_prefix": "/home/me/project", "writable": False}
    asked = {"agent": "pi", "workdir": "/workspace/./src/", "mounts": [mount], "budget_tokens": 9000}
    asked |= {"labels": {"team": "red"}, "collapse": {"per_turn": 2, "turns": 1}, "filesystem_id": "container"}
    async with world(tmp_path / "state") as w:
        made = await w.call("session.create", session="s1", system_prompt="be brief", **asked)
        view = (await w.call("session.get", session="s1")).session
        assert view == made.session
        assert (view.agent, view.principal, view.state, view.workdir) == ("pi", "host", "active", "/workspace/src")
        assert (view.budget_tokens, view.labels, view.filesystem_id) == (9000, {"team": "red"}, "container")
        assert (view.mounts[0].agent_prefix, view.mounts[0].writable) == ("/workspace", False)
        assert (view.created_at <= view.updated_at, view.turn_count) == (True, 0)
        prompt = (await w.call("object.get", object=view.system_prompt_ref)).object
        assert prompt.payload["content"] == "be brief"
        bad = [mount, mount]
        assert await code_of(w.call("session.create", agent="a", session="s2", mounts=bad)) == "invalid_path"
        assert await code_of(w.call("session.get", session="s2")) == "session_not_found"


@pytest.mark.requirement("COL-4")
async def test_the_window_and_other_settings_are_changed_one_by_one(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1", budget_tokens=5, labels={"a": "b"})
        await w.call("session.configure", session="s1", collapse={"per_turn": 1, "turns": 1})
        view = (await w.call("session.configure", session="s1", budget_tokens=0)).session
        assert (view.collapse.per_turn, view.budget_tokens, view.labels) == (1, None, {"a": "b"})
        same = await w.call("session.configure", session="s1", labels={"a": "b"})
        assert same.receipt is None
        await record(w, "s1", "call-1")
        assert (await record(w, "s1", "call-2")).collapsed == ("call-1",)


async def test_settings_that_are_refused_change_nothing(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        before = await w.call("session.get", session="s1")
        assert await code_of(w.call("session.configure", session="s1", workdir="a/../../..")) == "invalid_path"
        bad = {"agent_prefix": "relative", "canonical_prefix": "/x"}
        assert await code_of(w.call("session.configure", session="s1", mounts=[bad])) == "invalid_path"
        huge = [{"role": "assistant", "content": "x", "meta": {"n": 2**60}}]
        assert await code_of(w.call("session.append", session="s1", messages=huge)) == "invalid_params"
        assert (await w.call("session.get", session="s1")) == before


@pytest.mark.requirement("SES-13")
async def test_a_connection_bound_to_a_session_sees_only_what_that_session_knows(tmp_path: Path) -> None:
    bound = msgspec.structs.replace(CALLER, capability="session", session="s1")
    async with world(tmp_path / "state") as w:
        for name in ("s1", "s2"):
            await w.call("session.create", agent="a", session=name)
            await record(w, name, f"call-of-{name}")
        mine = await w.call("object.get", caller=bound, session="s1", object="call-of-s1")
        assert mine.object.payload["content"] == "out"
        for foreign in ("call-of-s2", "chat:s2", "session:s2", "system_prompt:s2", "call-of-nobody"):
            get = w.call("object.get", caller=bound, session="s1", object=foreign)
            assert await code_of(get) == "object_not_found"
        wanted = ["call-of-s1", "call-of-s2", "chat:s1", "chat:s2"]
        bulk = await w.call("object.bulk", caller=bound, session="s1", objects=wanted)
        assert [version.id for version in bulk.objects] == ["call-of-s1", "chat:s1"]
        assert bulk.missing == ("call-of-s2", "chat:s2")


async def test_an_unanswered_write_of_a_session_is_never_shown_before_it_is_durable(tmp_path: Path) -> None:
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


async def test_a_cancelled_call_leaves_the_queue_and_the_session_as_they_were(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        live = await w.sessions.live("s1")
        holding = live.lock.ticket()
        scope = anyio.CancelScope()

        async def send() -> None:
            with scope:
                await say(w, "s1", ("user", "never"), op_id="op-1")

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
        holding.leave()
        assert live.lock.free
        assert live.state.turn == 0
        assert (await say(w, "s1", ("user", "now"), op_id="op-1")).turn == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.requirement("SES-11")
async def test_whatever_was_asked_a_session_loaded_again_is_the_live_one(tmp_path: Path, seed: int) -> None:
    """Requests at random, refused ones among them; what is in memory is held against what is stored."""
    rng = random.Random(seed)
    methods = ["activate", "deactivate", "pin", "unpin", "pool_add", "pool_remove"]
    async with world(tmp_path / "state", live_max=2) as w:
        names = ["s0", "s1", "s2"]
        for name in names:
            await w.call("session.create", agent="a", session=name, collapse={"per_turn": 2, "turns": 2})
        refused = 0
        for n in range(400):
            name = rng.choice(names)
            try:
                if rng.random() < 0.3:
                    await w.begin(
                        "toolcall.record", session=name, id=f"call-{rng.randrange(40)}", tool="t", content="x"
                    )
                elif rng.random() < 0.1:
                    await w.begin("session.append", session=name, messages=[{"role": "user", "content": str(n)}])
                else:
                    target = f"call-{rng.randrange(40)}"
                    await w.begin(f"session.{rng.choice(methods)}", session=name, object=target)
            except CtxdError:
                refused += 1
            if n % 20 == 0:
                live = await w.sessions.live(name)
                if live.barrier is not None:
                    await live.barrier.wait()
                stored = await w.sessions.as_of(name)
                check(stored.state)
                assert (stored.state, stored.view(), stored.seqs) == (live.state, live.view(), live.seqs)
        assert 0 < refused < 350
