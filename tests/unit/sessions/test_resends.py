"""An operation id stands for one call of one method."""

from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest
from blake3 import blake3

from ctxd.errors import CtxdError
from ctxd.sessions.live_session import write_request
from ctxd_protocol.event_types import PromptEvent
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.chat import SessionAppendParams
from ctxd_protocol.methods.declaration import Method
from ctxd_protocol.session_types import Message
from tests.unit.sessions.world import World, code_of, say, settled, world
from tests.waiting import until

pytestmark = pytest.mark.anyio

SAME_PARAMETERS = ("session.pin", "session.unpin", "session.deactivate", "session.pool_remove")


FIRST_PARAMETERS = {
    "artifact.put": "data upload policy media_type blake3",
    "artifact.tag": "tag artifact expected",
    "commit.annotate": "commit summary",
    "commit.checkpoint": "format delta session parent commit_type checkpoint delta_base64 template ticket_id thread_id"
    " summary message_count token_count valid_time",
    "commit.tag": "commit tag remove expected",
    "context.assemble": "session text blocks",
    "file.discover": "session paths",
    "file.index": "session path content content_base64 cause",
    "object.purge": "object turns",
    "sandbox.register": "sessions principal mounts grants quota ttl_s grace_s uid",
    "sandbox.release": "sandbox",
    "sandbox.renew": "sandbox",
    "session.activate": "session object",
    "session.annotate": "session title archived labels directory recorded",
    "session.append": "session messages",
    "session.close": "session",
    "session.configure": "session workdir mounts collapse budget_tokens labels secrets",
    "session.create": "agent session system_prompt workdir filesystem_id detect_filesystems mounts"
    " collapse budget_tokens labels secrets",
    "session.deactivate": "session object",
    "session.delete_entry": "session key",
    "session.fork": "session commit fork",
    "session.hook": "harness input at shorten_chars",
    "session.pause": "session",
    "session.pin": "session object",
    "session.pool_add": "session object",
    "session.pool_remove": "session object",
    "session.remove": "session",
    "session.restore": "session",
    "session.resume": "session",
    "session.set_system_prompt": "session content",
    "session.unpin": "session object",
    "tool.observe": "session command output cwd",
    "session.set_entry": "session key value",
    "session.usage": "session usage context_id model",
    "toolcall.record": "session id tool content args args_display status file_refs",
}
"""The parameters of each write in the first version that had it, in their order. Later ones stand behind ``op_id``."""


@pytest.mark.requirement("RPC-4")
@pytest.mark.parametrize("row", [row for row in METHODS.values() if row.writes], ids=lambda row: row.name)
def test_a_write_of_the_first_version_can_be_resent_after_an_update(row: Method) -> None:
    assert (row.name in FIRST_PARAMETERS) == ("op_id" in row.params.__struct_fields__)
    if row.name not in FIRST_PARAMETERS:
        return
    names = FIRST_PARAMETERS[row.name].split()
    now = msgspec.structs.replace(msgspec.convert(row.example, row.params), op_id="op")
    form = msgspec.defstruct("FirstForm", [*names, "op_id"])
    first = form(*(getattr(now, name) for name in names), None)
    digest = blake3(msgspec.msgpack.encode((row.name, first))).digest()
    assert write_request(row.name, "p", now).request == digest


def test_a_parameter_of_a_later_version_is_part_of_a_request_only_if_it_is_given() -> None:
    messages = (Message(role="user", content="x"),)
    now = SessionAppendParams(session="s", messages=messages, op_id="op")
    before = write_request("session.append", "p", now)
    events = (PromptEvent(text="x"),)
    typed = write_request("session.append", "p", msgspec.structs.replace(now, messages=(), events=events))
    other = write_request("session.append", "p", msgspec.structs.replace(now, messages=(), events=(PromptEvent(),)))
    assert len({before.request, typed.request, other.request}) == 3


@pytest.mark.parametrize("second", SAME_PARAMETERS[1:])
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


async def test_a_close_with_the_operation_id_of_a_pause_is_a_mismatch(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as here:
        await here.call("session.create", session="s", agent="a")
        await here.call("session.pause", session="s", op_id="op")
        for method in ("session.close", "session.resume"):
            with pytest.raises(CtxdError) as refused:
                await here.call(method, session="s", op_id="op")
            assert refused.value.code == "idempotency_mismatch"
        assert (await here.call("session.get", session="s")).session.state == "paused"


@pytest.mark.parametrize("cursor", ["9999999999999999999.1", "1.9999999999999999999", "9007199254740992.0"])
async def test_a_cursor_with_a_huge_number_is_rejected_as_a_cursor(tmp_path: Path, cursor: str) -> None:
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


async def test_a_new_tool_call_waits_for_the_holder_of_the_session(tmp_path: Path) -> None:
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
    await until(lambda: here.store.is_new_operation(("host", "never")))


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
