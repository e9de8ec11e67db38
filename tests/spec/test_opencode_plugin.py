"""HOK: the plugin that ``ctx install opencode`` writes, loaded by Node, with the events that opencode gives it."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import Any
from uuid import uuid4

import pytest

from ctxd_client.sync import SyncClient
from tests import programs
from tests.client.running import Running

Call = tuple[str, dict[str, Any], dict[str, Any]]

_PLAYER = """
const plugin = await import(process.argv[2]);
const hooks = await plugin.CtxdPlugin({ directory: "/" });
for (const [name, input, output] of JSON.parse(process.argv[3])) await hooks[name](input, output);
"""


class Plugin:
    """The plugin as it is installed, for one session of opencode."""

    def __init__(self, daemon: Running, folder: Path) -> None:
        self.native = f"ses_{uuid4().hex[:20]}"
        self.id = f"opencode-{self.native}"
        self._folder = folder
        self._environ = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "CTXD_SOCKET": daemon.socket, "CTXD_HOOK_SECONDS": "4",
        }  # fmt: skip

    def play(self, *calls: Call) -> None:
        """Let opencode call the hooks of the plugin."""
        done = programs.run("ctx", ("install", "opencode"), env=self._environ)
        assert done.returncode == 0, done.stderr
        (self._folder / "player.mjs").write_text(_PLAYER)
        module = self._folder / "plugin.mjs"
        module.write_text((self._folder / ".config/opencode/plugin/ctxd.js").read_text())
        node = which("node")
        assert node is not None
        words: Sequence[str | Path] = (node, self._folder / "player.mjs", module, json.dumps(calls))
        subprocess.run(words, env=self._environ, check=True, timeout=60)

    def prompt(self, id: str, *texts: str) -> Call:
        parts = [{"type": "text", "text": text} for text in texts]
        added = {"type": "text", "text": "by opencode itself", "synthetic": True}
        return "chat.message", {"sessionID": self.native}, {"message": {"id": id}, "parts": [added, *parts]}

    def said(self, text: str, message: str = "msg_x") -> Call:
        input = {"sessionID": self.native, "messageID": message, "partID": f"prt_{text}"}
        return "experimental.text.complete", input, {"text": text}

    def event(self, kind: str, **properties: Any) -> Call:
        return "event", {"event": {"type": kind, "properties": properties}}, {}

    def part(self, id: str, kind: str, **members: Any) -> Call:
        part = {"id": id, "sessionID": self.native, "messageID": "msg_x", "type": kind, **members}
        return self.event("message.part.updated", part=part, sessionID=self.native)

    def tool(self, status: str, **state: Any) -> Call:
        return self.part("prt_t", "tool", callID="c1", tool="bash", state={"status": status, "input": {}, **state})

    def recorded(self, client: SyncClient) -> list[tuple[str, str]]:
        """What the session has, without notices: the kind and text of each event."""
        events = [each.event for each in client.session_events(self.id).events]
        return [
            (each["event"], each.get("summary") or each.get("text") or "") for each in events
            if each["event"] != "system"
        ]  # fmt: skip


@pytest.fixture
def plugin(daemon: Running, tmp_path: Path) -> Plugin:
    if which("node") is None:
        pytest.skip("node is not installed")
    return Plugin(daemon, tmp_path)


@pytest.mark.requirement("HOK-17")
def test_the_summary_of_a_compaction_is_one_and_keeps_the_prompts_from_its_tail_on(
    plugin: Plugin, client: SyncClient
) -> None:
    compacting: Call = ("experimental.session.compacting", {"sessionID": plugin.native}, {})
    plugin.play(
        plugin.prompt("msg_1", "first"),
        plugin.said("first answer", "msg_2"),
        plugin.prompt("msg_3", "second"),
        plugin.said("second answer", "msg_4"),
        plugin.part("prt_c", "compaction", auto=False),
        compacting,
        plugin.part("prt_c", "compaction", auto=False, tail_start_id="msg_4"),
        plugin.said("the summary", "msg_6"),
        plugin.event("session.compacted", sessionID=plugin.native),
        plugin.prompt("msg_7", "third"),
        plugin.said("third answer", "msg_8"),
        # One that fails is none, and what follows is an answer.
        compacting,
        plugin.said("a part of a summary", "msg_9"),
        plugin.event("session.idle", sessionID=plugin.native),
        plugin.said("fourth answer", "msg_10"),
    )
    assert plugin.recorded(client) == [
        ("prompt", "first"), ("response", "first answer"), ("prompt", "second"), ("response", "second answer"),
        ("compaction", "the summary"), ("prompt", "third"), ("response", "third answer"),
        ("response", "fourth answer"),
    ]  # fmt: skip
    client.session_resume(plugin.id)
    made = client.context_assemble(session=plugin.id, format="anthropic-messages", model="claude-sonnet-5")
    window = json.dumps(made.request)
    places = [window.find(text) for text in ("the summary", "second", "second answer", "third")]
    assert places == sorted(places) and -1 not in places and "first answer" not in window


@pytest.mark.requirement("HOK-1")
def test_a_failed_call_that_a_fork_copies_is_recorded_in_its_origin_alone(plugin: Plugin, client: SyncClient) -> None:
    origin, plugin.native = plugin.native, f"{plugin.native}-fork"
    copy = plugin.tool("error", error="denied")
    plugin.native = origin
    before: Call = ("tool.execute.before", {"sessionID": origin, "tool": "bash", "callID": "c1"}, {"args": {}})
    plugin.play(
        plugin.prompt("msg_1", "first"), plugin.tool("pending"), before, plugin.tool("error", error="denied"), copy
    )
    assert [kind for kind, _ in plugin.recorded(client)] == ["prompt", "tool_call", "tool_result"]
    assert not client.session_list(label=f"native_session={origin}-fork").sessions


@pytest.mark.requirement("HOK-17")
@pytest.mark.parametrize("id", ["c1", "prt_t"])
def test_a_call_fails_under_the_id_under_which_it_began(plugin: Plugin, client: SyncClient, id: str) -> None:
    """For the call of a command's sub-agent, opencode passes the id of its part."""
    before: Call = ("tool.execute.before", {"sessionID": plugin.native, "tool": "task", "callID": id}, {"args": {}})
    plugin.play(plugin.prompt("msg_1", "a"), plugin.tool("running"), before, plugin.tool("error", error="denied"))
    events = [each.event for each in client.session_events(plugin.id).events]
    calls = [(each["event"], each["call"]) for each in events if each["event"].startswith("tool_")]
    assert calls == [("tool_call", id), ("tool_result", id)]


@pytest.mark.requirement("HOK-23")
def test_an_image_in_an_output_is_an_attachment(plugin: Plugin, client: SyncClient) -> None:
    file = {"type": "file", "mime": "image/png", "url": "data:image/png;base64,aGk=", "filename": "a.png"}
    input = {"sessionID": plugin.native, "tool": "read", "callID": "c1", "args": {}}
    plugin.play(("tool.execute.after", input, {"title": "", "output": "seen", "metadata": {}, "attachments": [file]}))
    events = [each.event for each in client.session_events(plugin.id).events]
    (result,) = (event for event in events if event["event"] == "tool_result")
    assert (result["text"], result["attachments"]) == (
        "seen", [{"media_type": "image/png", "name": "a.png", "data": "aGk="}]
    )  # fmt: skip


@pytest.mark.requirement("HOK-14")
def test_each_text_of_a_prompt_is_one_as_in_the_database(plugin: Plugin, client: SyncClient) -> None:
    plugin.play(plugin.prompt("msg_1", "one text", "another text"))
    assert plugin.recorded(client) == [("prompt", "one text"), ("prompt", "another text")]


@pytest.mark.requirement("HOK-14")
def test_the_prompt_of_a_command_that_a_sub_agent_runs_is_a_prompt(plugin: Plugin, client: SyncClient) -> None:
    part = {"id": "prt_1", "type": "subtask", "prompt": "Review p.py", "agent": "general", "command": "review"}
    plugin.play(("chat.message", {"sessionID": plugin.native}, {"message": {"id": "msg_1"}, "parts": [part]}))
    assert plugin.recorded(client) == [("prompt", "Review p.py")]


@pytest.mark.requirement("HOK-16")
def test_a_text_is_reported_once_though_a_sub_agent_ends_before_its_end(plugin: Plugin, client: SyncClient) -> None:
    said = {"sessionID": plugin.native, "messageID": "msg_x", "partID": "prt_I delegate."}
    plugin.play(
        plugin.prompt("msg_1", "first"),
        plugin.part(said["partID"], "text", text=""),
        plugin.event("message.part.delta", **said, field="text", delta="I delegate. "),
        ("tool.execute.before", {"sessionID": plugin.native, "tool": "task", "callID": "c1"}, {"args": {}}),
        plugin.event("session.idle", sessionID="ses_of_the_sub_agent"),
        plugin.said("I delegate."),
    )
    assert [kind for kind, _ in plugin.recorded(client)] == ["prompt", "response", "tool_call"]


def notices(client: SyncClient, session: str) -> list[tuple[str, str]]:
    """The kind and text of each notice, prompt and summary, without those of the start."""
    events = [each.event for each in client.session_events(session).events]
    return [
        (each.get("kind") or each["event"], each.get("summary") or each["text"])
        for each in events
        if each["event"] in ("prompt", "system", "compaction")
        and each.get("kind") not in ("session_start", "session_end")
    ]


@pytest.mark.requirement("HOK-20")
def test_texts_that_opencode_adds_are_recorded_where_the_model_sees_them(plugin: Plugin, client: SyncClient) -> None:
    def added(id: str, message: str, text: str, **members: Any) -> list[Call]:
        info = {"id": message, "sessionID": plugin.native, "role": "user"}
        part = {"id": id, "sessionID": plugin.native, "messageID": message, "type": "text", "text": text, **members}
        return [
            plugin.event("message.updated", info=info),
            plugin.event("message.part.updated", part=part),
            plugin.event("message.updated", info=info),
        ]

    # A fork copies its messages before its first prompt.
    copies = added("prt_a", "msg_a", "copied") + added("prt_b", "msg_b", "copied too", synthetic=True)
    plugin.play(
        *copies,
        plugin.prompt("msg_1", "first"),
        *added("prt_1", "msg_1", "first"),
        *added("prt_2", "msg_2", "Go on with the task.", synthetic=True),
        *added("prt_3", "msg_3", "not for the model", synthetic=True, ignored=True),
        ("experimental.session.compacting", {"sessionID": plugin.native}, {}),
        plugin.said("the summary", "msg_4"),
        *added("prt_5", "msg_5", "Continue if you have next steps.", synthetic=True),
        *added("prt_6", "msg_6", "asked again after an overflow"),
        plugin.event("session.compacted", sessionID=plugin.native),
    )
    assert notices(client, plugin.id) == [
        ("synthetic", "by opencode itself"), ("prompt", "first"), ("synthetic", "Go on with the task."),
        ("compaction", "the summary"), ("synthetic", "Continue if you have next steps."),
        ("prompt", "asked again after an overflow"),
    ]  # fmt: skip


@pytest.mark.requirement("HOK-21")
@pytest.mark.requirement("HOK-22")
def test_the_session_of_a_sub_agent_names_its_caller(plugin: Plugin, client: SyncClient) -> None:
    caller = plugin.native
    begun = plugin.prompt("msg_1", "first")
    plugin.native = f"{caller}-sub"
    plugin.play(
        begun,
        plugin.event("session.created", info={"id": plugin.native, "parentID": caller}),
        plugin.prompt("msg_2", "look into it"),
        plugin.event("session.idle", sessionID=plugin.native),
    )
    (spawned,) = client.session_list(label=f"spawned_by=opencode-{caller}").sessions
    assert spawned.session == f"opencode-{caller}-sub"
    assert "spawned_by" not in client.session_get(f"opencode-{caller}").session.labels
    assert [ending(client, session) for session in (spawned.session, f"opencode-{caller}")] == ["idle", "exit"]


def ending(client: SyncClient, session: str) -> str:
    """The reason for the end of a session, which is paused."""
    assert client.session_get(session).session.state == "paused"
    last = client.session_events(session).events[-1].event
    assert last["kind"] == "session_end"
    return str(last["text"])
