"""Made-up secrets, the ways they come into a session, and the commands that look for them."""

import os
import subprocess
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

from ctxd_client.sync import SyncSession
from ctxd_protocol.session_types import Message
from tests import programs
from tests.suites.secret_corpus import made_up

SCRIPTS = Path(sysconfig.get_path("scripts"))
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("CTXD_")}
TOKEN = made_up("github-token", seed=41)
OTHER = made_up("openai-key", seed=42)
KEY = made_up("private-key", seed=43)
PASSWORD = made_up("assigned-password", seed=44)

Start = Callable[..., SyncSession]


def ctx(socket: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**ENVIRON, "CTXD_SOCKET": socket}
    return programs.run("ctx", words, env=environ, input=stdin)


def say(s: SyncSession, tree: Path) -> str:
    """Secrets by every way into a session. Returns: the id of the file."""
    (tree / ".env").write_text(f"TOKEN={TOKEN}\nMODE=test\n")
    s.set_system_prompt(f"Use {TOKEN}.")
    s.user(f"my key is {TOKEN}")
    s.client.session_append(s.id, [Message(role="assistant", content="noted", meta={"auth": TOKEN})])
    s.client.toolcall_record(
        s.id, f"{s.id}-call", "bash", f"{KEY}\n", args={"command": "login", "env": {"DB_PASSWORD": PASSWORD}}
    )
    return s.read(".env").object


def until_in_no_file(state: Path, *needles: str) -> None:
    """Wait for the removal of a refused text: it was made durable before the decision to write it, and goes after the
    answer."""
    deadline = time.monotonic() + 30
    while found := files_with(state, *needles):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def files_with(state: Path, *needles: str) -> set[str]:
    return {
        path.name
        for path in state.rglob("*")
        if path.is_file()
        for data in [path.read_bytes()]
        if any(needle.encode() in data for needle in needles)
    }
