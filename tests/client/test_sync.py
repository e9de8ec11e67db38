"""The synchronous client: the same repeats and errors without a loop."""

import threading

import pytest

from ctxd_client import CallFailed, Closed, Conflict, InvalidState, TimedOut, TooLarge, Unavailable, connect_sync
from tests.fakes.daemon import HELLO, HOLD, WAIT_S, Refusal, ScriptedDaemon, drop, once


@pytest.mark.requirement("CLT-2")
def test_a_write_whose_answer_was_lost_is_sent_again_with_the_same_op_id(daemon):
    daemon.script["session.append"] = once(drop, lambda seen: {"turn": 1, "receipt": None})
    with connect_sync(daemon.path) as client:
        assert client.session("s1").user("hi").turn == 1
    first, second = daemon.of("session.append")
    assert first.peer.number != second.peer.number
    assert first.params == second.params
    assert first.params["op_id"]


def test_a_draining_daemon_is_replaced_by_the_next_one(daemon):
    def draining(seen):
        raise Refusal("draining", retry_after_ms=1)

    daemon.script["session.append"] = once(draining, lambda seen: {"turn": 2, "receipt": None})
    with connect_sync(daemon.path) as client:
        assert client.session_append("s1", []).turn == 2
    assert [seen.peer.number for seen in daemon.of("session.append")] == [0, 1]


def test_a_call_past_its_deadline_times_out_and_the_next_call_succeeds(daemon):
    daemon.script["session.append"] = lambda seen: HOLD
    with connect_sync(daemon.path) as client:
        with pytest.raises(TimedOut) as caught:
            client.within(0.1).session_append("s1", [])
        assert caught.value.outcome == "unknown"
        daemon.wait("$/cancelRequest")
        assert client.daemon_status().pid == 1


def test_when_no_daemon_comes_back_the_outcome_stays_unknown(daemon):
    def die(seen):
        daemon.stop()
        return HOLD

    daemon.script["session.append"] = die
    with connect_sync(daemon.path, deadline_s=0.3) as client, pytest.raises(Unavailable) as caught:
        client.session_append("s1", [])
    assert caught.value.outcome == "unknown"


def test_errors_and_limits_are_those_of_the_other_client(daemon):
    def refuse(seen):
        raise Refusal("not_active", "it is not loaded", hint="activate it")

    daemon.script["session.deactivate"] = refuse
    with connect_sync(daemon.path) as client:
        with pytest.raises(InvalidState) as caught:
            client.session_deactivate("s1", "f1")
        assert str(caught.value) == "session.deactivate: it is not loaded [not_active] (activate it)"
        with pytest.raises(TooLarge):
            client.session_set_system_prompt("s1", "x" * (HELLO.limits.frame_bytes + 1))
        client.daemon_status()
    with pytest.raises(Closed):
        client.daemon_status()


def test_a_response_in_many_small_pieces_is_reassembled(daemon):
    def trickle(seen):
        line = b'{"jsonrpc":"2.0","id":%d,"result":{"turn":3,"receipt":null}}\n' % seen.id
        for byte in line:
            seen.peer.raw(bytes([byte]))
        return HOLD

    daemon.script["session.append"] = trickle
    with connect_sync(daemon.path) as client:
        assert client.session_append("s1", []).turn == 3


def test_threads_share_a_client_and_each_gets_its_own_answers(daemon):
    daemon.script["session.append"] = lambda seen: {"turn": int(seen.params["session"][1:]), "receipt": None}
    results = {}
    with connect_sync(daemon.path) as client:
        threads = [
            threading.Thread(target=lambda n=n: results.update({n: client.session_append(f"s{n}", []).turn}))
            for n in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert results == {n: n for n in range(12)}


def test_connect_waits_for_a_daemon_that_is_about_to_start(tmp_path):
    with ScriptedDaemon(tmp_path / "late.sock") as late:
        late.stop()
        starter = threading.Thread(target=late.listen)
        starter.start()
        with connect_sync(late.path, wait_s=10) as client:
            assert client.daemon_status().pid == 1
        starter.join(5)


def test_a_handle_is_made_for_an_agent_or_found_by_its_id(daemon, tmp_path):
    with connect_sync(daemon.path) as client:
        assert client.session("s1").id == "s1"
        made = client.session(agent="demo", mounts={"/workspace": str(tmp_path)})
        (create,) = daemon.of("session.create")
        assert create.params["mounts"][0]["canonical_prefix"] == str(tmp_path.resolve())
        assert made.id == "x"
        client.session(agent="demo", filesystem_id="sandbox-7")
        client.session(agent="demo", detect_filesystems=True)
        (_, sandboxed, detecting) = (seen.params for seen in daemon.of("session.create"))
        assert (sandboxed["filesystem_id"], detecting["detect_filesystems"]) == ("sandbox-7", True)

        def taken(seen):
            raise Refusal("session_exists")

        daemon.script["session.create"] = taken
        agent = client.session_get("s1").session.agent
        assert client.session("s1", agent=agent).id == "s1"
        with pytest.raises(Conflict, match=f"exists with agent '{agent}', not 'not {agent}'"):
            client.session("s1", agent=f"not {agent}")
        with pytest.raises(TypeError):
            client.session()


def test_a_tool_call_is_recorded_and_with_a_command_its_files_are_looked_for(daemon):
    with connect_sync(daemon.path) as client:
        s = client.session("s1")
        quiet = s.tool("read", {"path": "a.py"}, output="text", id="call_1")
        assert quiet.observed is None
        assert daemon.of("tool.observe") == []
        s.tool("bash", {"command": "ls"}, output="a.py\n", command="ls", cwd="/w")
    first, second = daemon.of("toolcall.record")
    assert (first.params["id"], first.params["args"], first.params["content"]) == ("call_1", {"path": "a.py"}, "text")
    assert second.params["id"].startswith("call-")
    (observe,) = daemon.of("tool.observe")
    assert (observe.params["command"], observe.params["output"], observe.params["cwd"]) == ("ls", "a.py\n", "/w")


@pytest.mark.requirement("DIS-4")
def test_a_recorded_tool_call_is_returned_with_the_failure_of_its_search_for_files(daemon):
    def fails(seen):
        raise Refusal("internal_error")

    daemon.script["tool.observe"] = fails
    with connect_sync(daemon.path) as client:
        ran = client.session("s1").tool("bash", {"command": "ls"}, output="a.py\n", command="ls", cwd="/w")
    assert ran.observed is None
    assert ran.failure is not None
    assert ran.failure.code == "internal_error"
    assert len(daemon.of("toolcall.record")) == 1


def test_file_bytes_are_sent_unchanged(daemon):
    with connect_sync(daemon.path) as client:
        s = client.session("s1")
        s.read("/w/a.bin", content=b"\xff\x00")
        s.edited("/w/a.py", content="text")
    binary, text = daemon.of("file.index")
    assert (binary.params["content"], binary.params["content_base64"]) == (None, "/wA=")
    assert (text.params["content"], text.params["content_base64"], text.params["cause"]) == ("text", None, "edit")


def outcome_of(call):
    """Start ``call`` in a thread. Returns: the thread, and a list for the exception that the call raises."""
    raised = []

    def run():
        try:
            call()
        except CallFailed as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


@pytest.mark.requirement("CLT-12")
@pytest.mark.parametrize("held", ["session.append", "hello"])
def test_closing_the_client_ends_a_call_of_another_thread(daemon, held):
    with connect_sync(daemon.path, deadline_s=None) as client:
        if held == "hello":
            daemon.stop()
            daemon.listen()
        daemon.script[held] = lambda seen: HOLD
        waiting, raised = outcome_of(lambda: client.session_append("s1", []))
        daemon.wait(held, 2 if held == "hello" else 1)
    waiting.join(WAIT_S)
    (error,) = raised
    assert isinstance(error, Closed)
    assert error.outcome == "unknown"
