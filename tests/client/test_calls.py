"""One call: what goes out, what comes back, and what is raised."""

import socket
import sys

import anyio
import msgspec
import pytest
import sniffio

from ctxd_client import (
    CallFailed,
    ConnectFailed,
    DaemonFault,
    InvalidCall,
    InvalidState,
    NotFound,
    TooLarge,
    Unavailable,
    connect,
    connect_sync,
)
from ctxd_client.errors import CLASSES
from ctxd_protocol.errors import ERRORS
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.sessions import SessionResult
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.session_types import Mount, SessionView
from tests.fakes.daemon import HELLO, HOLD, Refusal, smallest

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("CLT-1")
async def test_the_event_loop_is_the_parametrized_one(request):
    name = request.node.callspec.id
    loop = sys.modules["asyncio"].get_running_loop() if sniffio.current_async_library() == "asyncio" else None
    kind = "trio" if loop is None else "uvloop" if type(loop).__module__ == "uvloop" else "asyncio"
    assert kind == name


async def test_a_call_returns_its_typed_result(daemon):
    async with connect(daemon.path) as client:
        result = await client.session_create("demo", session="s1", workdir="/w")
    assert isinstance(result, SessionResult)
    assert result.session.agent == "demo"
    (seen,) = daemon.of("session.create")
    assert seen.params["agent"] == "demo"
    assert seen.params["workdir"] == "/w"


async def test_hello_comes_first_and_its_answer_is_kept(daemon):
    async with connect(daemon.path, client="harness", version="3") as client:
        assert client.server is not None
        assert client.server.protocol == 1
        assert client.socket == daemon.path
    assert daemon.seen[0].method == "hello"
    assert daemon.seen[0].params["client"] == "harness"
    assert daemon.seen[0].params["version"] == "3"


@pytest.mark.requirement("DIS-4")
async def test_a_recorded_tool_call_is_returned_with_the_failure_of_its_search_for_files(daemon):
    def fails(seen):
        raise Refusal("internal_error")

    daemon.script["tool.observe"] = fails
    async with connect(daemon.path) as client:
        s = await client.session("s1")
        ran = await s.tool("bash", {"command": "ls"}, output="a.py\n", command="ls", cwd="/w")
    assert ran.observed is None
    assert ran.failure is not None
    assert ran.failure.code == "internal_error"
    assert len(daemon.of("toolcall.record")) == 1


async def test_a_daemon_without_hello_is_served_too(daemon):
    def no_hello(seen):
        raise Refusal("method_not_found")

    daemon.script["hello"] = no_hello
    async with connect(daemon.path) as client:
        assert client.server is None
        assert (await client.context_current()).session is None


@pytest.mark.parametrize(
    ("code", "kind"), [("session_not_found", NotFound), ("not_in_index", InvalidState), ("corrupt", DaemonFault)]
)
async def test_an_error_response_raises_its_exception_with_all_its_data(daemon, code, kind):
    def refuse(seen):
        raise Refusal(code, "no such thing", hint="look again", outcome="not_applied")

    daemon.script["session.pause"] = refuse
    async with connect(daemon.path) as client:
        with pytest.raises(kind) as caught:
            await client.session_pause("s1")
    error = caught.value
    assert (error.code, error.hint, error.outcome, error.method) == (code, "look again", "not_applied", "session.pause")
    assert str(error) == f"session.pause: no such thing [{code}] (look again)"


def test_every_code_of_the_protocol_has_one_class():
    assert CLASSES.keys() == {kind.category for kind in ERRORS.values()}
    for code, kind in ERRORS.items():
        assert issubclass(CLASSES[kind.category], Unavailable) == kind.retryable, code


async def test_an_unknown_code_of_a_newer_daemon_is_still_a_failure_with_its_code(daemon):
    def refuse(seen):
        raise Refusal("invented_later")

    daemon.script["daemon.status"] = refuse
    async with connect(daemon.path) as client:
        with pytest.raises(DaemonFault, match="invented_later"):
            await client.daemon_status()


async def test_a_call_above_the_announced_limit_is_rejected_before_sending(daemon):
    async with connect(daemon.path) as client:
        limit = client.server.limits.frame_bytes
        with pytest.raises(TooLarge) as caught:
            await client.session_set_system_prompt("s1", "x" * (limit + 1))
        assert caught.value.outcome == "not_applied"
        assert daemon.of("session.set_system_prompt") == []
        await client.daemon_status()


async def test_a_call_with_text_outside_utf8_is_rejected_before_sending(daemon):
    async with connect(daemon.path) as client:
        with pytest.raises(InvalidCall, match="not Unicode") as caught:
            await client.file_index("s1", "/tmp/" + b"\xff.txt".decode(errors="surrogateescape"))
        assert (caught.value.code, caught.value.outcome) == ("invalid_params", "not_applied")
        assert daemon.of("file.index") == []
        await client.daemon_status()


@pytest.mark.parametrize("how", ["missing", "stale"])
async def test_without_a_daemon_the_error_names_the_path_and_the_remedy(tmp_path, how):
    path = tmp_path / "none.sock"
    if how == "stale":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    with pytest.raises(ConnectFailed) as caught:
        async with connect(path):
            pass
    assert str(path) in str(caught.value)
    assert f"ctxd run --state-dir DIR --socket {path}" in caught.value.hint
    with pytest.raises(ConnectFailed) as caught_too, connect_sync(path):
        pass
    assert str(caught_too.value) == str(caught.value)


@pytest.fixture
def crowded(tmp_path):
    """A socket that accepts nothing, with as many connections as may wait there."""
    path = str(tmp_path / "crowded.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(path)
        listener.listen(0)
        waiting.connect(path)
        yield path


@pytest.mark.requirement("CLT-2")
async def test_a_daemon_that_accepts_no_connection_is_tried_until_the_deadline(crowded):
    began = anyio.current_time()
    with pytest.raises(ConnectFailed, match=r"accepts no connection: too many wait .*ctx doctor"):
        async with connect(crowded, deadline_s=0.5):
            pass
    with pytest.raises(ConnectFailed, match=r"accepts no connection: too many wait .*ctx doctor"):
        with connect_sync(crowded, deadline_s=0.5):
            pass
    assert anyio.current_time() - began > 0.1, "each connects again"


async def test_concurrent_calls_each_get_their_own_response_in_any_order(daemon):
    held = []

    def backwards(seen):
        held.append(seen)
        if len(held) == 20:
            for each in reversed(held):
                each.peer.answer(each.id, {"turn": int(each.params["session"][1:]), "receipt": None})
        return HOLD

    daemon.script["session.append"] = backwards
    results = {}

    async def append(client, number):
        results[number] = (await (await client.session(f"s{number}")).user("hi")).turn

    async with connect(daemon.path) as client:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(append, client, number)
    assert results == {number: number for number in range(20)}


async def test_pipelined_calls_are_limited_as_the_daemon_announces(daemon):
    daemon.script["hello"] = lambda seen: msgspec.structs.replace(HELLO, limits=Limits(in_flight=3))
    daemon.script["daemon.status"] = lambda seen: HOLD
    async with connect(daemon.path) as client, anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(client.daemon_status)
        await anyio.to_thread.run_sync(daemon.wait, "daemon.status", 3)
        await anyio.wait_all_tasks_blocked()
        assert len(daemon.of("daemon.status")) == 3
        group.cancel_scope.cancel()


async def test_an_exception_in_the_with_block_is_raised_unchanged(daemon):
    error = ValueError("mine")
    with pytest.raises(ValueError) as caught:
        async with connect(daemon.path):
            raise error
    assert caught.value is error


async def test_a_call_on_a_closed_client_fails(daemon):
    async with connect(daemon.path) as client:
        pass
    with pytest.raises(CallFailed, match="closed"):
        await client.daemon_status()


async def test_garbage_from_the_daemon_ends_the_connection_and_not_the_program(daemon):
    def garbage(seen):
        seen.peer.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        return HOLD

    daemon.script["daemon.status"] = garbage
    async with connect(daemon.path, deadline_s=30) as client:
        with pytest.raises(DaemonFault, match="not JSON-RPC"):
            await client.daemon_status()
        assert (await client.context_current()).turn == 1


def with_surplus(value):
    """``value`` with a member that no version knows in each of its objects."""
    if isinstance(value, dict):
        return {name: with_surplus(member) for name, member in value.items()} | {"surplus": {"new": 1}}
    if isinstance(value, list):
        return [with_surplus(member) for member in value]
    return value


async def test_members_that_a_newer_daemon_adds_at_any_level_are_ignored(daemon):
    mount = {"agent_prefix": "/w", "canonical_prefix": "/h"}
    receipt = {"seq": 1, "chain": "c", "vt": 2}
    view = {**smallest(SessionView), "mounts": [mount], "labels": {}}
    whole = with_surplus({"session": view, "receipt": receipt})
    whole["session"]["labels"] = {"a": "b"}
    daemon.script["session.pause"] = lambda seen: whole
    async with connect(daemon.path) as client:
        paused = await client.session_pause("s1")
    assert paused.session.mounts == (Mount(agent_prefix="/w", canonical_prefix="/h"),)
    assert (paused.session.labels, paused.receipt) == ({"a": "b"}, Receipt(1, "c", 2))
