"""IMP: messages of opencode in forms that only some commands or versions write."""

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import PromptEvent, ToolCallEvent, ToolResultEvent, Usage
from tests.client.running import Running
from tests.spec.imported_contexts import narrative, spent
from tests.spec.test_import import Record, commits, here, imported, text
from tests.spec.test_import_opencode import Opencode

SUBTASK = {
    "type": "subtask", "prompt": "Review p.py", "description": "review", "agent": "general", "command": "review",
}  # fmt: skip
ARGS = {"prompt": "Review p.py", "description": "review", "subagent_type": "general", "command": "review"}
TASK = {
    "type": "tool", "callID": "01M8", "tool": "task",
    "state": {"status": "completed", "input": ARGS, "output": "Fine.", "title": "review", "metadata": {}},
}  # fmt: skip


@pytest.fixture
def session(tmp_path: Path) -> str:
    """A session that a command with a sub-agent began."""
    native = f"ses_{uuid4().hex[:20]}"
    source = Opencode(tmp_path / "opencode.db")
    source.add("session", id=native, directory="/srv/app")
    source.message(native, f"{native}-a", "user", SUBTASK)
    source.message(native, f"{native}-b", "assistant", TASK, finish="tool-calls")
    source.database.close()
    return native


@pytest.mark.requirement("IMP-16")
def test_the_prompt_of_a_command_that_a_sub_agent_runs_is_a_prompt(
    daemon: Running, client: SyncClient, tmp_path: Path, session: str
) -> None:
    found = imported(daemon, "opencode", tmp_path)
    assert found["events"]["prompt"] == 1
    id = here("opencode", session)
    (row,) = (each for each in client.session_list(limit=1000).sessions if each.session == id)
    assert row.title == "Review p.py"
    assert narrative(client, id).partition("## User\n\n")[2].startswith("Review p.py\n")


@pytest.mark.requirement("HOK-14")
def test_a_command_that_hooks_recorded_is_not_imported_again(
    daemon: Running, client: SyncClient, tmp_path: Path, session: str
) -> None:
    id = here("opencode", session)
    client.session_create("opencode", session=id, checkpoint="turn")
    # opencode gives a hook the id of the part for the call that it makes itself.
    call = f"{session}-b-0"
    called = ToolCallEvent(call=call, tool="task", args=ARGS)
    client.session_append(
        id, events=[PromptEvent(text="Review p.py"), called, ToolResultEvent(call=call, text="Fine.")]
    )
    client.session_pause(id)
    imported(daemon, "opencode", tmp_path)
    lines = [text(client, each.commit) for each in commits(client, id).values() if each.format == "opencode-v1"]
    assert "Review" not in "".join(lines) and "Fine" not in "".join(lines)


@pytest.mark.requirement("IMP-6")
def test_files_of_opencode_without_a_conversation_are_not_listed(daemon: Running, tmp_path: Path, session: str) -> None:
    for name in ("app.json", "auth.json", "storage/session_diff/ses_1.json", "storage/todo/ses_1.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "other.json").write_text("{}")
    found = imported(daemon, "opencode", tmp_path)
    assert found["sessions"] == [here("opencode", session)]
    assert [Path(each["path"]).name for each in found["skipped"]] == ["other.json"]


def _first(text: str, *, failed: bool) -> tuple[Record, Record]:
    """The prompt and the response of a session of version 0.1."""
    invocation = {"state": "result", "step": 0, "toolCallId": "c1", "toolName": "bash", "args": {"command": "ls"}}
    tool = {"c1": {"title": "ls", "time": {"start": 2000, "end": 3000}, **({"error": True} if failed else {})}}
    assistant = {"modelID": "m", "path": {"cwd": "/srv/app"}, "tokens": {"input": 10, "output": 20}}
    parts = [
        {"type": "tool-invocation", "toolInvocation": {**invocation, "result": "p.py"}},
        {"type": "text", "text": "Done."},
    ]
    prompt = {
        "role": "user",
        "metadata": {"time": {"created": 1000}, "tool": {}},
        "parts": [{"type": "text", "text": text}],
    }
    return prompt, {
        "role": "assistant", "parts": parts,
        "metadata": {"time": {"created": 2000, "completed": 4000}, "tool": tool, "assistant": assistant},
    }  # fmt: skip


def _second(text: str, *, failed: bool) -> tuple[Record, Record]:
    """The same of version 0.2."""
    state = {"status": "error", "error": "p.py"} if failed else {"status": "completed", "output": "p.py"}
    parts = [
        {"type": "tool", "id": "c1", "tool": "bash", "state": {"input": {"command": "ls"}, **state}},
        {"type": "text", "text": "Done."},
    ]
    return (
        {"role": "user", "time": {"created": 1000}, "parts": [{"type": "text", "text": text}]},
        {
            "role": "assistant", "time": {"created": 2000}, "modelID": "m", "path": {"cwd": "/srv/app"},
            "tokens": {"input": 10, "output": 20}, "parts": parts,
        },
    )  # fmt: skip


@pytest.mark.requirement("IMP-16")
@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("version", [_first, _second])
def test_a_message_with_its_parts_in_it_has_them_in_the_conversation(
    daemon: Running, client: SyncClient, tmp_path: Path, version: Callable[..., tuple[Record, Record]], failed: bool
) -> None:
    native = f"ses_{uuid4().hex[:20]}"
    storage = tmp_path / "project/srv-app/storage"
    folder = storage / "session/message" / native
    folder.mkdir(parents=True)
    (storage / "session/info").mkdir()
    (storage / "session/info" / f"{native}.json").write_text(json.dumps({"time": {"created": 1000, "updated": 4000}}))
    for number, message in enumerate(version("Fix it.", failed=failed)):
        (folder / f"msg_{number}.json").write_text(json.dumps(message))
    found = imported(daemon, "opencode", tmp_path)
    assert {name: found["events"][name] for name in ("prompt", "tool_call", "tool_result", "response")} == {
        "prompt": 1, "tool_call": 1, "tool_result": 1, "response": 1,
    }  # fmt: skip
    id = here("opencode", native)
    (row,) = (each for each in client.session_list(limit=1000).sessions if each.session == id)
    assert (row.title, row.created_at, row.updated_at) == ("Fix it.", 1000, 2000)
    assert row.project is not None and row.project.directory == "/srv/app"
    told = narrative(client, id)
    assert [told.count(text) for text in ("Fix it.", "p.py", "Done.")] == [1, 1, 1]
    assert ("Tool failed" in told) == failed
    assert spent(client, id) == Usage(input=10, output=20)
    assert imported(daemon, "opencode", tmp_path)["commits"] == 0
