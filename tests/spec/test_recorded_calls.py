"""Tool calls recorded with their chat events in one write: paired in requests, durable, and added once."""

from pathlib import Path

import pytest

from ctxd_client import connect_sync
from ctxd_client.sync import SyncSession
from ctxd_protocol.event_types import ResponseEvent, ToolCallEvent, ToolResultEvent
from tests.client.running import Running
from tests.spec.test_provider_requests import request, text_of
from tests.unit.assembly.provider_rules import FORMATS

CALL = {"command": "ls"}


def events(s: SyncSession) -> list[dict[str, object]]:
    return [logged.event for logged in s.events().events]


@pytest.mark.requirement("REQ-7")
def test_a_tool_call_is_recorded_with_its_chat_events_in_one_write(s: SyncSession) -> None:
    s.user("Look.")
    made = s.tool("bash", CALL, output="a.py\n", id="t1").record
    object = made.object
    call, result = events(s)[1:]
    assert call == {"event": "tool_call", "call": "t1", "tool": "bash", "args": CALL}
    assert result == {"event": "tool_result", "call": "t1", "object": object}
    assert made.receipt is not None
    assert {row.seq for row in s.events().events if row.place} == {made.receipt.seq}
    for format in FORMATS:
        assert text_of(request(s, format)).count("a.py") == 1
    assert [message.get("toolcall") for message in s.chat().turns[-1]["messages"]] == [None, object]


@pytest.mark.requirement("REQ-7")
def test_a_repeated_record_adds_nothing_to_the_chat(s: SyncSession) -> None:
    s.user("Look.")
    first = s.tool("bash", CALL, output="a.py\n", id="t1", op_id=f"{s.id}-tool")
    before = events(s)
    assert s.tool("bash", CALL, output="a.py\n", id="t1", op_id=f"{s.id}-tool").record == first.record
    assert s.tool("bash", CALL, output="a.py\n", id="t1").record.outcome == "unchanged"
    assert events(s) == before


@pytest.mark.requirement("REQ-7")
def test_the_error_of_a_tool_is_recorded_as_a_failure(s: SyncSession) -> None:
    s.user("Look.")
    s.tool("read", {"path": "gone"}, output=FileNotFoundError("no file gone"), id="t1")
    output = request(s).request["messages"][-1]["content"][0]  # type: ignore[index]
    assert output["is_error"] is True
    assert output["content"][0]["text"] == "FileNotFoundError: no file gone"
    s.tool("read", {"path": "odd"}, output=OSError("no file odd\udcff"), id="t3")
    assert "no file odd\\\\udcff" in text_of(request(s))
    s.tool("bash", CALL, output=TimeoutError("too slow"), status="aborted", id="t2")
    assert s.client.object_get("t2", session=s.id).object.payload["status"] == "aborted"


@pytest.mark.requirement("REQ-7")
@pytest.mark.parametrize("in_chat", [True, False], ids=["result alone", "call again"])
def test_calls_of_one_reply_stay_in_one_message(s: SyncSession, in_chat: bool) -> None:
    s.user("Look.")
    calls = [ToolCallEvent(call=id, tool="bash", args=CALL) for id in ("t1", "t2")]
    s.append(events=[ResponseEvent(text="Two things."), *calls])
    for id in ("t2", "t1"):
        s.tool("bash", CALL, output=f"output of {id}", id=id, in_chat=in_chat)
    for format in FORMATS:
        made = request(s, format)
        assert [text_of(made).count(f"output of {id}") for id in ("t1", "t2")] == [1, 1]
    reply = request(s).request["messages"][1]["content"]  # type: ignore[index]
    assert [part.get("id", part["type"]) for part in reply] == ["text", "t1", "t2"]


@pytest.mark.requirement("REQ-7")
def test_a_result_names_the_object_also_where_the_id_is_taken(s: SyncSession, start: object) -> None:
    other = start()  # type: ignore[operator]
    s.tool("bash", CALL, output="mine", id="same")
    made = other.tool("bash", CALL, output="theirs", id="same").record
    assert made.object != "same"
    assert events(other)[1] == {"event": "tool_result", "call": "same", "object": made.object}
    assert text_of(request(other)).count("theirs") == 1


@pytest.mark.requirement("REQ-7")
def test_a_kill_after_the_record_loses_neither_call_nor_result(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            s = client.session("s", agent="agent")
            s.user("Look.")
            s.tool("bash", CALL, output="a.py\n", id="t1", op_id=f"{s.id}-tool")
        daemon.kill()
        daemon.start()
        with connect_sync(daemon.socket) as client:
            s = client.session("s")
            s.tool("bash", CALL, output="a.py\n", id="t1", op_id=f"{s.id}-tool")
            assert [event["event"] for event in events(s)] == ["prompt", "tool_call", "tool_result"]
            assert text_of(request(s)).count("a.py") == 1


@pytest.mark.requirement("REQ-7")
@pytest.mark.parametrize("policy", ["flag", "redact"])
def test_secrets_in_the_arguments_are_found_in_the_chat_too(start: object, policy: str) -> None:
    s = start(secrets=policy)  # type: ignore[operator]
    key = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"
    s.tool("bash", {"command": f"export TOKEN={key}"}, output="done", id="t1")
    call, result = events(s)
    assert [found["rule"] for found in call["secrets"]["found"]] != []  # type: ignore[index]
    assert (key in str(call)) is (policy == "flag")
    assert "secrets" not in result


@pytest.mark.requirement("REQ-7")
def test_a_record_without_chat_adds_no_event(s: SyncSession) -> None:
    s.append(events=[ToolCallEvent(call="t1", tool="bash", args=CALL), ToolResultEvent(call="t1", text="a.py")])
    s.record("t2", "bash", "b.py", args=CALL)
    assert len(events(s)) == 2
