"""Sub-agents of codex, which have threads of their own, as its hooks report them."""

from pathlib import Path

import msgspec
import pytest

from ctxd_client import connect_sync
from tests.client.running import Running
from tests.spec.harness_files import Thread
from tests.spec.test_hooks import Harness, events, texts
from tests.spec.test_import import imported


@pytest.mark.requirement("HOK-14")
@pytest.mark.requirement("HOK-16")
@pytest.mark.requirement("HOK-21")
@pytest.mark.requirement("HOK-22")
def test_a_sub_agent_of_codex_is_recorded_in_the_session_of_its_own_thread(running: Running, tmp_path: Path) -> None:
    caller, agent = Thread(), Thread(hour=4)
    agent.records[0]["payload"]["source"] = {"subagent": {"thread_spawn": {"parent_thread_id": caller.thread}}}
    agent.add("p", type="message", role="user", content=[{"type": "input_text", "text": "Look."}])
    agent.add("t", type="message", role="assistant", content=[{"type": "output_text", "text": "I look."}])
    agent.add("c", type="function_call", name="Bash", call_id="c1", arguments='{"command":"ls"}')
    harness = Harness(running, tmp_path / "home", "codex", caller.thread)
    harness.hook("UserPromptSubmit", turn_id="t1", prompt="Have a look.")
    of_agent = {"agent_id": agent.thread, "agent_type": "default", "turn_id": "t2"}
    harness.hook("SubagentStart", **of_agent)
    harness.hook("UserPromptSubmit", prompt="Look.", **of_agent)
    call = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "c1", **of_agent}
    path = agent.write(tmp_path / "sessions")
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in agent.records))
    harness.hook("PreToolUse", **{**call, "transcript_path": str(path)})
    harness.hook("PostToolUse", tool_response="a.txt", **call)
    harness.hook("SubagentStop", last_assistant_message="Found it.", **of_agent)

    assert texts(events(harness)) == ["Have a look."] and {each.sidechain for each in events(harness)} == {None}
    child = Harness(running, tmp_path / "home", "codex", agent.thread)
    kinds = [type(each).__name__.removesuffix("Event") for each in events(child)]
    assert kinds == ["System", "Prompt", "Response", "ToolCall", "ToolResult", "Response"]
    with connect_sync(running.socket) as client:
        found = client.session_get(child.session).session
        assert found.state == "paused" and found.labels["spawned_by"] == harness.session
        client.session_pause(harness.session)
    agent.add("o", type="function_call_output", call_id="c1", output="a.txt")
    agent.add("r", type="message", role="assistant", content=[{"type": "output_text", "text": "Found it."}])
    agent.write(tmp_path / "sessions")
    result = imported(running, "codex", tmp_path / "sessions")
    assert result["recorded"] == 5 and not result["events"].keys() & {"prompt", "response", "tool_call", "tool_result"}
