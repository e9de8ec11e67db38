"""IMP: messages of opencode in forms that only some commands or versions write."""

from pathlib import Path
from uuid import uuid4

import pytest

from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import PromptEvent, ToolCallEvent, ToolResultEvent
from tests.client.running import Running
from tests.spec.imported_contexts import narrative
from tests.spec.test_import import commits, here, imported, text
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
