"""A session that its own harness continues has what its model has seen, and nothing else."""

import json
from io import BytesIO
from typing import Any

import msgspec
import pytest

from ctxd.formats.harness_session import NewSession, written
from ctxd.formats.losses import Losses
from ctxd.transcripts import claude_code, codex, opencode
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd.transcripts.opencode_storage import export_records, numbered
from ctxd.transcripts.record_decoding import Line, lines
from ctxd_protocol import event_types as typed

Record = dict[str, Any]

NEW = NewSession("01999999-0000-7000-8000-000000000001", "/work", 1_793_527_200_000, ("scripted", "model"))


def goes_on(harness: HarnessCommand, events: list[typed.Event]) -> tuple[bytes, dict[str, int]]:
    """The file with which ``harness`` continues its own session of ``events``, and what was left out."""
    losses = Losses()
    made = written(events, harness, NEW, own=True, losses=losses)
    return made, {loss.part: loss.times for loss in losses.found()}


def of_claude(*records: Record) -> list[typed.Event]:
    found = (Line(number, {"uuid": str(number), **each}) for number, each in enumerate(records))
    return [entry.event for entry in claude_code.read_session(found)]


def shown(text: str, **more: Any) -> Record:
    return {"type": "system", "subtype": "local_command", "content": text, **more}


def says(content: Any, **more: Any) -> Record:
    return {"type": "user", "message": {"role": "user", "content": content}, **more}


def calls(call: str) -> Record:
    block = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "ls"}}
    return {"type": "assistant", "message": {"id": f"m-{call}", "role": "assistant", "content": [block]}}


@pytest.mark.requirement("HND-7")
def test_claude_receives_commands_as_system_records() -> None:
    events = of_claude(
        says("tabs too"),
        shown("<command-name>/context</command-name>"),
        shown("<local-command-stdout>12 tokens</local-command-stdout>"),
        shown("<local-command-stdout>only for the user</local-command-stdout>", isDisplayOnly=True),
    )
    made, lost = goes_on("claude", events)
    again = [entry.event for entry in claude_code.read_session(lines(BytesIO(made)))]
    assert [(getattr(each, "kind", None), getattr(each, "text", "")) for each in again] == [
        (None, "tabs too"),
        ("command-name", "<command-name>/context</command-name>"),
        ("local-command-stdout", "<local-command-stdout>12 tokens</local-command-stdout>"),
    ]
    assert lost == {"system": 1}


@pytest.mark.requirement("HND-7")
def test_claude_receives_replaced_outputs_and_files_of_notices() -> None:
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}}
    changed = {"kind": "tool-result", "toolUseId": "t1", "replacement": "a preview"}
    other = {"kind": "tool-result", "toolUseId": "t2", "replacement": "of a sub-agent"}
    events = of_claude(
        says("tabs too"),
        calls("t1"),
        says([{"type": "tool_result", "tool_use_id": "t1", "content": "the whole output"}]),
        {"type": "content-replacement", "replacements": [changed]},
        {"type": "content-replacement", "replacements": [changed, {"kind": "news"}]},
        {"type": "content-replacement", "agentId": "a1", "replacements": [other]},
        calls("t2"),
        says([{"type": "tool_result", "tool_use_id": "t2", "content": "another"}]),
        says([pdf], isMeta=True),
        says([{"type": "text", "text": "and"}, pdf], isMeta=True),
    )
    made, lost = goes_on("claude", events)
    told = [json.loads(line)["message"]["content"] for line in made.splitlines()]
    assert told[2][0]["content"] == "a preview" and told[4][0]["content"] == "another"
    assert told[5:] == [[pdf], [{"type": "text", "text": "and"}, pdf]]
    assert lost == {"content-replacement": 1, "sidechain content-replacement": 1}


@pytest.mark.requirement("HND-7")
@pytest.mark.parametrize("encrypted", [None, "gAAA"])
def test_codex_receives_messages_of_other_agents(encrypted: str | None) -> None:
    said = {"author": "/root/tester", "recipient": "/root", "content": "One test fails.", "trigger_turn": True}
    if encrypted is not None:
        said |= {"content": "", "encrypted_content": encrypted}
    prompt = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "tabs too"}]}
    records = [
        {"type": "response_item", "payload": prompt},
        {"type": "inter_agent_communication", "payload": said},
    ]
    events = [entry.event for entry in codex.read_rollout(Line(n, each) for n, each in enumerate(records))]
    made, lost = goes_on("codex", events)
    item = json.loads(made.splitlines()[-1])
    assert item["type"] == "response_item" and item["payload"]["type"] == "agent_message" and not lost
    assert (item["payload"]["author"], item["payload"]["recipient"]) == ("/root/tester", "/root")
    content = item["payload"]["content"]
    if encrypted is None:
        assert content == [{"type": "input_text", "text": "One test fails."}]
    else:
        assert content[0]["text"].startswith("Message Type: NEW_TASK\nTask name: /root\nSender: /root/tester\n")
        assert content[1] == {"type": "encrypted_content", "encrypted_content": "gAAA"}


@pytest.mark.requirement("HND-7")
def test_opencode_receives_only_content_it_includes_in_its_requests() -> None:
    def message(id: str, role: str, *parts: Record, **info: Any) -> Record:
        placed = [{"id": f"{id}-{number}", **part} for number, part in enumerate(parts)]
        return {"info": {"id": id, "role": role, "time": {"created": 1, "completed": 2}, **info}, "parts": placed}

    def tool(call: str, **state: Any) -> Record:
        return {"type": "tool", "callID": call, "tool": "bash", "state": {"input": {"command": call}, **state}}

    def text(said: str, **more: Any) -> Record:
        return {"type": "text", "text": said, **more}

    aborted = {"interrupted": True, "output": "half of it"}
    document = {
        "info": {"id": "ses_1"},
        "messages": [
            message("m1", "user", text("tabs too"), text("a note", ignored=True), text("a hint", synthetic=True)),
            message(
                "m2", "assistant",
                tool("c1", status="completed", output="long", time={"start": 1, "end": 2, "compacted": 3}),
                tool("c2", status="error", error="Tool execution aborted", metadata=aborted),
                tool("c3", status="error", error="no such file"),
            ),
            message("m3", "assistant", text("never sent"), error={"name": "APIError", "data": {"message": "busy"}}),
            message("m4", "user", text("and spaces?")),
            message("m5", "assistant", text("stopped by the user"), error={"name": "MessageAbortedError", "data": {}}),
        ],
    }  # fmt: skip
    events = [entry.event for entry in opencode.read_session(numbered(export_records(document)))]
    made, lost = goes_on("opencode", events)
    parts = [part for each in msgspec.json.decode(made)["messages"] for part in each["parts"]]
    assert [part["text"] for part in parts if part["type"] == "text"] == [
        "tabs too", "a hint", "and spaces?", "stopped by the user",
    ]  # fmt: skip
    assert [part["text"] for part in parts if part.get("synthetic")] == ["a hint"]
    states = [part["state"] for part in parts if part["type"] == "tool"]
    assert [each.get("output", each.get("error")) for each in states] == [
        "[Old tool result content cleared]", "half of it", "no such file",
    ]  # fmt: skip
    assert (lost["response"], lost["system"]) == (1, 1)
