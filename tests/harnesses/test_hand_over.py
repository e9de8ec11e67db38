"""The real clients continue sessions that were handed over to them, with the same messages in their requests."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import connect_sync
from ctxd_protocol.event_types import PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from tests.client.running import Running
from tests.harnesses.scripted_model import ANSWER, PROMPT, ScriptedModel
from tests.harnesses.test_live_capture import CTX, HARNESSES, Client, daemon  # noqa: F401 - a fixture

TALK = [
    PromptEvent(text="ASKED: what do they say?"),
    ResponseEvent(text="LOOKING", message="m1"),
    ToolCallEvent(call="call/1", tool="files.read", args={"path": "b.txt"}, message="m1"),
    ToolCallEvent(call="call/2", tool="files.read", args={"path": "c.txt"}, message="m1"),
    ToolResultEvent(call="call/2", text="SECOND-OUTPUT", is_error=True),
    ToolResultEvent(call="call/1", text="FIRST-OUTPUT"),
    ResponseEvent(text="ANSWERED", message="m2"),
    PromptEvent(text="ASKED-AGAIN"),
]


class Continued(Client):
    """A harness that goes on from ``commit``, which is handed over to it when it runs."""

    commit = ""
    session = ""

    def run(self, *words: str, **environ: str) -> str:
        handed = [CTX, "resume", self.commit, "--in", self.harness, "--cwd", self.tree, "--json"]
        done = subprocess.run(handed, env=self.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        made: dict[str, Any] = json.loads(done.stdout)
        self.session = made["session"]
        id = made["native_session"]
        if self.harness == "opencode":
            super().run(*made["imports"][1:], **environ)
        placed = {
            "claude": ("--resume", id, *words),
            "codex": (*words[:-1], "resume", id, words[-1]),
            "pi": ("--session", made["file"], *words),
            "opencode": (words[0], "--session", id, *words[1:]),
        }
        return super().run(*placed[self.harness], **environ)


@pytest.mark.timeout(240)
@pytest.mark.requirement("HND-6")
@pytest.mark.parametrize(
    "harness", [pytest.param(name, marks=pytest.mark.nightly if name == "opencode" else ()) for name in HARNESSES]
)
def test_the_real_client_continues_a_session_of_another_harness(harness: str, daemon: Running, tmp_path: Path) -> None:  # noqa: F811
    run, tool = HARNESSES[harness]
    client = Continued(harness, daemon, tmp_path / "client")
    with connect_sync(daemon.socket) as ctxd:
        ctxd.session_create("another", session="source")
        ctxd.session_append("source", events=TALK)
        client.commit = ctxd.context_current(session="source").context_id or ""
    with ScriptedModel(tool) as model:
        run(client, model)
    texts = [json.dumps(body.get("messages", body.get("input"))) for body in model.requests]
    first = next(text for text in texts if PROMPT in text and "ASKED" in text)
    parts = ["ASKED:", "LOOKING", "b.txt", "c.txt", "FIRST-OUTPUT", "SECOND-OUTPUT", "ANSWERED", "ASKED-AGAIN", PROMPT]
    places = [first.index(part) for part in parts]
    assert places == sorted(places)
    with connect_sync(daemon.socket) as ctxd:
        newest = ctxd.context_current(session=client.session).context_id
        story = ctxd.commit_materialize(newest, stop="root", format="narrative-v1").content or ""
    assert story.index("ANSWERED") < story.index(PROMPT) < story.index(ANSWER)
