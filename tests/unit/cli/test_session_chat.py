"""``ctx session chat``: what is hidden, cut, and read from commits."""

import json

import pytest

from ctxd_client import connect_sync
from ctxd_protocol.event_types import (
    OpaqueEvent,
    PromptEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)

LONG = "\n".join(f"line {number}\tof the output" for number in range(1, 41)) + "\n"


@pytest.fixture
def empty(running):
    """A session without events."""
    with connect_sync(running.socket) as client:
        yield client.session(agent="demo")


def claude(kind, content):
    return json.dumps({"type": kind, "message": {"role": kind, "content": content}}) + "\n"


@pytest.mark.requirement("CLI-15")
def test_events_without_text_are_hidden_and_counted(real, empty):
    empty.client.session_append(
        empty.id,
        events=[
            PromptEvent(text="a\tprompt"),
            ThinkingEvent(text="", signature="x"),
            ThinkingEvent(text="a thought"),
            OpaqueEvent(kind="attachment", data={"a": 1}),
        ],
    )
    ran = real("session", "chat", empty.id)
    assert ran.out.splitlines() == ["turn 1, 0: prompt", "    a       prompt", "turn 1, 2: thinking", "    a thought"]
    assert ran.err == "hidden: 2 events without text; --all shows them\n"
    whole = real("session", "chat", empty.id, "--all")
    assert "turn 1, 1: thinking" in whole.out and "turn 1, 3: opaque attachment" in whole.out and whole.err == ""
    assert len(real("session", "chat", empty.id, "--json").out.splitlines()) == 4


@pytest.mark.requirement("CLI-15")
def test_the_output_of_a_tool_call_is_cut_whether_recorded_or_imported(real, empty):
    call = empty.tool("bash", {"command": "ls"}, output=LONG)
    empty.client.session_append(
        empty.id,
        events=[
            ToolCallEvent(call="c", tool="bash"),
            ToolResultEvent(call="c", text=LONG),
            ToolResultEvent(call="d", text="x" * 2500),
            ToolResultEvent(call="e"),
        ],
    )
    ran = real("session", "chat", empty.id)
    rows = ran.out.splitlines()
    assert rows.count("    line 10 of the output") == 2 and not any("line 11" in row for row in rows)
    left = len(LONG) - 1 - len("\n".join(LONG.split("\n")[:10]))
    assert f"    … {left} more characters: ctx object cat {call.record.object} -s {empty.id}" in rows
    assert f"    … {left} more characters: --all shows it" in rows
    assert "    … 1,500 more characters: --all shows it" in rows
    assert rows[-1].endswith(": tool result")
    assert "line 40" in real("session", "chat", empty.id, "--all").out


@pytest.mark.requirement("CLI-15")
def test_a_heading_names_the_tool_of_a_result_its_failure_and_the_agent(real, empty):
    empty.client.session_append(
        empty.id,
        events=[
            ToolCallEvent(call="a", tool="Bash"),
            ToolCallEvent(call="b", tool="Read", sidechain="agent-1"),
            ToolResultEvent(call="b", text="text", sidechain="agent-1"),
            ToolResultEvent(call="a", text="not found", is_error=True),
            SystemEvent(kind="session_end", text="other"),
        ],
    )
    headings = [row.partition(": ")[2] for row in real("session", "chat", empty.id).out.splitlines() if row[0] != " "]
    assert headings == [
        "tool call Bash", "tool call Read (sub-agent agent-1)", "tool result Read (sub-agent agent-1)",
        "tool result Bash (failed)", "system session_end",
    ]  # fmt: skip


@pytest.mark.requirement("CLI-15")
def test_an_empty_output_and_a_purged_one_are_not_taken_for_cut_ones(real, empty):
    empty.tool("bash", {"command": "true"}, output="")
    purged = empty.tool("bash", {"command": "env"}, output="a secret")
    empty.client.object_purge(purged.record.object)
    rows = real("session", "chat", empty.id).out.splitlines()
    assert [row.strip() for row in rows if row.startswith("    ") and "command" not in row] == [
        "(no output)",
        "[purged]",
    ]


@pytest.mark.requirement("CLI-15")
def test_messages_that_only_a_commit_has_are_pointed_out(real, empty):
    empty.user("a question")
    assert real("session", "chat", empty.id).err == ""
    delta = claude("assistant", [{"type": "text", "text": "an answer that no hook saw"}])
    made = empty.client.commit_checkpoint("claude-code-v1", delta, session=empty.id).commit.commit
    ran = real("session", "chat", empty.id)
    assert "a question" in ran.out and made in ran.err
    assert f"ctx materialize {empty.id} --format narrative-v1" in ran.err
    assert real("session", "chat", f"{empty.id}@1").err == ""


@pytest.mark.requirement("CLI-15")
def test_the_conversation_of_a_session_with_commits_alone_is_shown(real, empty):
    def commit(delta):
        return empty.client.commit_checkpoint("claude-code-v1", delta, session=empty.id).commit.commit

    commit(json.dumps({"type": "mode", "mode": "x"}) + "\n")
    nothing = real("session", "chat", empty.id)
    assert (nothing.code, nothing.out) == (0, "") and f"{empty.id} has no message" in nothing.err
    first = commit(claude("user", "a question") + claude("assistant", [{"type": "text", "text": "an answer"}]))
    tip = empty.client.commit_checkpoint(
        "claude-code-v1", claude("user", "another"), session=empty.id, parent=first
    ).commit.commit
    ran = real("session", "chat", empty.id)
    assert ran.out.splitlines() == [
        "turn 1, 0: prompt", "    a question", "turn 1, 1: response", "    an answer",
        "turn 2, 0: prompt", "    another",
    ]  # fmt: skip
    assert ran.err == f"the conversation of commit {tip}, as the session has no events of its own:\n"
    records = [json.loads(row) for row in real("session", "chat", empty.id, "--json").out.splitlines()]
    assert [(each["turn"], each["place"], each["event"]["event"]) for each in records] == [
        (1, 0, "prompt"), (1, 1, "response"), (2, 0, "prompt"),
    ]  # fmt: skip
    assert {each["commit"] for each in records} == {tip}
