"""Sessions over a real store: what their calls do and answer, and that no session sees another's."""

from pathlib import Path

import anyio
import pytest

from tests.unit.sessions.world import code_of, filled, record, say, world

pytestmark = pytest.mark.anyio


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
        assert w.sessions.catalog.current(None).session is None
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "hi"))
        assert (w.sessions.catalog.current(None).session, w.sessions.catalog.current(None).turn) == ("s1", 1)
        await w.call("session.create", agent="a", session="s2")
        assert w.sessions.catalog.current(None).session is None
        assert w.sessions.catalog.current("s2").turn == 0


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
        kept, gone, large = tmp_path / "kept.txt", tmp_path / "gone.txt", tmp_path / "large"
        kept.write_text("hello")
        gone.write_text("bye")
        with large.open("wb") as file:
            file.truncate(2**40)
        await w.discover("s1", kept, gone, large)
        gone.unlink()
        ids = (await w.call("session.get", session="s1")).session.metadata_pool
        result = await w.call("session.activate", session="s1", object=ids[0][:12])
        assert (result.object, result.level, result.changed) == (ids[0], "active", True)
        shown = (await w.call("object.get", object=ids[0], session="s1")).object
        assert (shown.payload["content"], shown.state, shown.display_path) == ("hello", "present", str(kept))
        assert await code_of(w.call("session.activate", session="s1", object=ids[1])) == "file_not_found"
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
