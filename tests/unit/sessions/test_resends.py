"""An operation id stands for one call of one method."""

from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest
from blake3 import blake3

from ctxd.errors import CtxdError
from ctxd.sessions.session import write_request
from ctxd_protocol.events import PromptEvent
from ctxd_protocol.methods.sessions import SessionAppendParams
from ctxd_protocol.sessions import Message
from tests.unit.sessions.world import World, code_of, say, settled, world

pytestmark = pytest.mark.anyio

METHODS = ("session.pin", "session.unpin", "session.deactivate", "session.pool_remove")


class AppendParams(msgspec.Struct, kw_only=True):
    """Parameters of ``session.append`` as they were before typed events."""

    session: str
    messages: tuple[Message, ...]
    op_id: str | None = None


def test_a_parameter_of_a_later_version_is_part_of_a_request_only_if_it_is_given() -> None:
    messages = (Message(role="user", content="x"),)
    before = write_request("session.append", "p", AppendParams(session="s", messages=messages, op_id="op"))
    digest = blake3(msgspec.msgpack.encode(("session.append", AppendParams(session="s", messages=messages)))).digest()
    assert before.request == digest
    now = SessionAppendParams(session="s", messages=messages, op_id="op")
    assert write_request("session.append", "p", now) == before
    events = (PromptEvent(text="x"),)
    typed = write_request("session.append", "p", msgspec.structs.replace(now, messages=(), events=events))
    other = write_request("session.append", "p", msgspec.structs.replace(now, messages=(), events=(PromptEvent(),)))
    assert len({before.request, typed.request, other.request}) == 3


@pytest.mark.parametrize("second", METHODS[1:])
async def test_an_operation_id_of_one_method_is_refused_by_another_of_equal_parameters(
    tmp_path: Path, second: str
) -> None:
    async with world(tmp_path / "state") as here:
        await here.call("session.create", session="s", agent="a")
        await here.call("toolcall.record", session="s", id="call", tool="bash", content="x")
        await here.call("session.pin", session="s", object="call", op_id="op")
        with pytest.raises(CtxdError) as refused:
            await here.call(second, session="s", object="call", op_id="op")
        assert refused.value.code == "idempotency_mismatch"
        again = await here.call("session.pin", session="s", object="call", op_id="op")
        assert again.pinned


async def test_a_close_is_not_answered_with_the_pause_of_the_same_operation_id(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as here:
        await here.call("session.create", session="s", agent="a")
        await here.call("session.pause", session="s", op_id="op")
        for method in ("session.close", "session.resume"):
            with pytest.raises(CtxdError) as refused:
                await here.call(method, session="s", op_id="op")
            assert refused.value.code == "idempotency_mismatch"
        assert (await here.call("session.get", session="s")).session.state == "paused"


@pytest.mark.parametrize("cursor", ["9999999999999999999.1", "1.9999999999999999999", "9007199254740992.0"])
async def test_a_cursor_beyond_every_number_is_refused_as_such(tmp_path: Path, cursor: str) -> None:
    async with world(tmp_path / "state") as here:
        await here.call("session.create", session="s", agent="a")
        with pytest.raises(CtxdError) as refused:
            await here.call("object.history", object="system_prompt:s", cursor=cursor)
        assert refused.value.code == "invalid_params"


async def test_a_new_tool_call_of_a_session_in_memory_is_decided_without_waiting(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as here:
        await here.call("session.create", session="s", agent="a")
        await until_whole(here)
        first = here.now("toolcall.record", session="s", id="call", tool="bash", content="x", op_id="op")
        with pytest.raises(CtxdError) as refused:
            await here.call("toolcall.record", session="s", id="other", tool="bash", content="x", op_id="op")
        assert refused.value.code == "idempotency_mismatch"
        result = await settled(first)
        again = await here.call("toolcall.record", session="s", id="call", tool="bash", content="x", op_id="op")
        assert again == result


async def test_a_new_tool_call_waits_for_who_holds_the_session(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as here:
        await here.call("session.create", session="s", agent="a")
        await until_whole(here)
        live = await here.sessions.live("s")
        outcomes = []

        async def record() -> None:
            answer = await here.call("toolcall.record", session="s", id="call", tool="bash", content="x")
            outcomes.append(answer.outcome)

        async with anyio.create_task_group() as group:
            async with live.lock:
                group.start_soon(record)
                await anyio.wait_all_tasks_blocked()
                assert "call" not in live.state.index
        assert outcomes == ["created"]


async def until_whole(here: World) -> None:
    """Return once the store has read which operations there were, of which nobody is told."""
    with anyio.fail_after(10):
        while not here.store.is_new_operation(("host", "never")):
            await anyio.sleep(0.01)


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
