"""Values that a daemon cannot take are refused before they are sent, and an answer without id ends its call."""

import math

import anyio
import pytest

from ctxd_client import CallFailed, DaemonFault, InvalidCall, TooLarge, connect, connect_sync
from ctxd_protocol.event_types import Attachment, PromptEvent
from ctxd_protocol.limits import DEPTH_MAX
from ctxd_protocol.session_types import Message
from tests.fakes.daemon import HOLD

pytestmark = pytest.mark.anyio

FRAME_LEVELS = 3
"""Levels of a frame around a value in the arguments of a tool call: the envelope, params, args."""


def nested(levels):
    value = "leaf"
    for _ in range(levels):
        value = [value]
    return value


def deeper_than_python():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


REFUSED = {
    "one level too deep": lambda: nested(DEPTH_MAX - FRAME_LEVELS + 1),
    "deeper than Python recurses": deeper_than_python,
    "NaN": lambda: math.nan,
    "Infinity within a list": lambda: [1.0, -math.inf],
    "a type that JSON has no form for": lambda: object(),
}


@pytest.mark.requirement("CLT-4")
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
async def test_a_value_that_the_daemon_cannot_take_is_refused_before_it_is_sent(daemon, make):
    async with connect(daemon.path) as client:
        with pytest.raises(InvalidCall) as refused:
            await client.toolcall_record("s", "c", "t", "x", args={"value": make()})
        await client.daemon_status()
    with connect_sync(daemon.path) as client:
        with pytest.raises(InvalidCall) as refused_too:
            client.toolcall_record("s", "c", "t", "x", args={"value": make()})
        client.daemon_status()
    for error in (refused.value, refused_too.value):
        assert (error.code, error.outcome, error.method) == ("invalid_params", "not_applied", "toolcall.record")
        assert error.hint
    assert daemon.of("toolcall.record") == []
    assert len(daemon.peers) == 2, "the connection goes on"


@pytest.mark.requirement("CLT-4")
async def test_the_deepest_value_that_the_daemon_takes_is_sent(daemon):
    value = nested(DEPTH_MAX - FRAME_LEVELS)
    async with connect(daemon.path) as client:
        await client.toolcall_record("s", "c", "t", "x", args={"value": value, "none": None})
    (seen,) = daemon.of("toolcall.record")
    assert seen.params["args"]["value"] == value


@pytest.mark.requirement("CLT-4")
async def test_numbers_that_are_not_finite_are_found_in_the_metadata_of_messages(daemon):
    async with connect(daemon.path) as client:
        with pytest.raises(InvalidCall, match="nan is not a JSON number"):
            await client.session_append("s", [Message(role="user", content="x", meta={"cost": math.nan})])
        # The text may well be the word itself.
        await client.session_append("s", [Message(role="user", content="null", meta={"cost": 0.5, "x": None})])


class Label(str):
    __slots__ = ()


BYTES = {
    "messages[0].content": lambda client: client.session("s1").user(b"text"),
    "path": lambda client: client.session("s1").read(b"/w/a"),
    "args.command": lambda client: client.toolcall_record("s", "c", "t", "x", args={"command": b"ls"}),
    "args.all[1]": lambda client: client.toolcall_record("s", "c", "t", "x", args={"all": ["a", bytearray(b"b")]}),
    "content": lambda client: client.toolcall_record("s", "c", "t", memoryview(b"x")),
    "args has the key b'k'": lambda client: client.toolcall_record("s", "c", "t", "x", args={b"k": 1}),
    "output": lambda client: client.session("s1").tool("bash", output=b"text"),
}


@pytest.mark.requirement("CLT-4")
@pytest.mark.parametrize("place", BYTES)
def test_bytes_are_refused_where_the_protocol_has_text(daemon, place):
    with connect_sync(daemon.path) as client:
        sent = len(daemon.seen)
        with pytest.raises(InvalidCall) as refused:
            BYTES[place](client)
        assert place in refused.value.message
        assert ".decode()" in refused.value.hint
        assert {seen.method for seen in daemon.seen[sent:]} <= {"session.get"}


@pytest.mark.requirement("CLT-4")
def test_bytes_are_sent_where_the_protocol_has_bytes(daemon):
    with connect_sync(daemon.path) as client:
        client.artifact_put(data=b"\xff")
        image = Attachment(media_type="image/png", data=b"\xff")
        client.session_append("s", events=[PromptEvent(attachments=(image,))])
    assert daemon.of("artifact.put")[0].params["data"] == "/w=="
    (append,) = daemon.of("session.append")
    assert append.params["events"][0]["attachments"][0]["data"] == "/w=="


@pytest.mark.requirement("CLT-4")
def test_a_subclass_of_str_is_sent_as_its_text(daemon):
    with connect_sync(daemon.path) as client:
        client.toolcall_record("s", Label("c"), "t", Label("x"), args={"a": [Label("b")]})
    (seen,) = daemon.of("toolcall.record")
    assert (seen.params["id"], seen.params["content"], seen.params["args"]) == ("c", "x", {"a": ["b"]})


WRONG_SECONDS = [math.nan, "3", 1e30, b"3"]


@pytest.mark.requirement("CLT-4")
@pytest.mark.parametrize("seconds", WRONG_SECONDS)
async def test_an_invalid_deadline_is_rejected(daemon, seconds):
    async with connect(daemon.path) as client:
        with pytest.raises(InvalidCall, match="deadline_s is .*at most 1e.09"):
            client.within(seconds)
    with connect_sync(daemon.path) as client, pytest.raises(InvalidCall, match="deadline_s is .*at most 1e.09"):
        client.within(seconds)
    with pytest.raises(InvalidCall, match="deadline_s is "), connect_sync(daemon.path, deadline_s=seconds):
        pass
    with pytest.raises(InvalidCall, match="wait_s is "):
        async with connect(daemon.path, wait_s=seconds):
            pass


@pytest.mark.requirement("CLT-4")
@pytest.mark.parametrize("seconds", [None, 1e9, math.inf])
async def test_the_longest_deadlines_are_allowed(daemon, seconds):
    async with connect(daemon.path, deadline_s=seconds) as client:
        await client.daemon_status()
    with connect_sync(daemon.path, deadline_s=seconds) as client:
        client.daemon_status()


def nameless(code="parse_error"):
    def answer(seen):
        data = {"code": code, "hint": "look", "retryable": False}
        seen.peer.send({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no", "data": data}})
        return HOLD

    return answer


@pytest.mark.requirement("CLT-4")
async def test_an_error_without_id_fails_the_only_open_call_and_keeps_the_connection(daemon):
    daemon.script["session.pause"] = nameless()
    with anyio.fail_after(30):
        async with connect(daemon.path, deadline_s=None) as client:
            with pytest.raises(InvalidCall) as failed:
                await client.session_pause("s1")
            await client.daemon_status()
        with connect_sync(daemon.path, deadline_s=None) as client:
            with pytest.raises(InvalidCall) as failed_too:
                client.session_pause("s1")
            client.daemon_status()
    assert [error.value.code for error in (failed, failed_too)] == ["parse_error"] * 2
    assert len(daemon.of("hello")) == len(daemon.peers) == 2


@pytest.mark.requirement("CLT-4")
async def test_an_error_without_id_fails_every_call_that_it_may_be_about(daemon):
    daemon.script["session.pause"] = lambda seen: HOLD
    daemon.script["session.get"] = nameless("frame_too_large")
    failed = []

    async def fail(call, *args):
        try:
            await call(*args)
        except CallFailed as error:
            failed.append(error)

    with anyio.fail_after(30):
        async with connect(daemon.path, deadline_s=None) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(fail, client.session_pause, "s1")
                await anyio.to_thread.run_sync(daemon.wait, "session.pause")
                group.start_soon(fail, client.session_get, "s1")
            await client.daemon_status()
    assert [type(error) for error in failed] == [TooLarge, TooLarge]
    assert {error.outcome for error in failed} == {"unknown"}, "one of them may have been applied"
    assert len(daemon.peers) == 2, "the connection was replaced"


async def test_a_line_that_is_not_json_rpc_is_still_the_daemons_fault(daemon):
    daemon.script["session.pause"] = lambda seen: seen.peer.raw(b"nonsense\n") or HOLD
    async with connect(daemon.path) as client:
        with pytest.raises(DaemonFault):
            await client.session_pause("s1")
