"""The examples, the README's among them, are what people run first: they work, say what happened, and leave nothing
behind.
"""

import os
import re
import sys
from pathlib import Path
from textwrap import dedent

import anyio
import pytest

from ctxd_client import MODEL_TOOLS, connect
from tests.crash.daemon import DaemonProcess
from tests.fakes.messages_api import messages_api

DEMO_S_MAX = 60.0

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def run(module: str, tmp_path: Path, **env: str) -> tuple[int, str, str]:
    """Exit code and output of a module run as a program, with ``tmp_path`` for its temporary files."""
    with anyio.fail_after(DEMO_S_MAX):
        env = {**os.environ, "TMPDIR": str(tmp_path), **env}
        done = await anyio.run_process([sys.executable, "-m", module], check=False, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_the_demo_shows_that_the_context_is_byte_equal_after_kill_9(tmp_path: Path) -> None:
    code, said, errors = await run("ctxd.examples.demo", tmp_path)
    assert (code, errors) == (0, ""), said
    assert " ok  the context is byte-equal" in said
    assert "FAIL" not in said
    assert "\x1b" not in said, "a pipe gets plain text"
    assert list(tmp_path.iterdir()) == []


async def test_the_loop_fixes_a_project_with_the_running_daemon(daemon: DaemonProcess, tmp_path: Path) -> None:
    await daemon.start()
    place = tmp_path / "files"
    place.mkdir()
    code, said, _ = await run("ctxd.examples.agent_loop", place, CTXD_SOCKET=str(daemon.socket))
    assert code == 0
    assert "CHAT_MESSAGE role=user\nFix it." in said
    assert "\nOK" in said
    calls = [("list", "ok"), ("grep", "ok"), ("read", "ok"), ("test", "fail"), ("edit", "ok"), ("test", "ok")]
    assert re.findall(r"tool=(\w+) status=(\w+)", said)[: len(calls)] == calls


async def test_the_program_in_the_readme_runs_as_it_stands(daemon: DaemonProcess) -> None:
    await daemon.start()
    readme = Path(__file__).parents[2] / "README.md"
    (program,) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", readme.read_text(), re.DOTALL | re.MULTILINE)
        if block.startswith(("import", "from"))
    ]
    with anyio.fail_after(DEMO_S_MAX):
        env = {**os.environ, "CTXD_SOCKET": str(daemon.socket)}
        done = await anyio.run_process([sys.executable, "-c", program], check=False, env=env, cwd=readme.parent)
    assert done.returncode == 0, done.stderr.decode()
    assert "CHAT_MESSAGE role=user\nWhat does the README say?" in done.stdout.decode()


def call(call_id: str, name: str, **input: object) -> dict[str, object]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": input}


async def test_the_agent_works_on_the_messages_api_with_tools_and_its_own_context(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    await daemon.start()
    replies = [
        [
            {"type": "thinking", "thinking": "I look first.", "signature": "sig"},
            {"type": "text", "text": "I look."},
            call("t1", "bash", command="echo found; exit 3"),
            call("t2", "context_list"),
        ],
        [call("t3", "context_pin", id="t1"), call("t4", "context_activate", id="none"), call("t5", "bash", cmd="ls")],
        [{"type": "text", "text": "Done."}],
    ]
    with messages_api(replies) as api:
        env = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "k", "CTXD_SOCKET": str(daemon.socket)}
        code, said, errors = await run("ctxd.examples.anthropic_agent", tmp_path, **env)
        async with connect(daemon.socket) as client:
            (session,) = (await client.session_list()).sessions
            spent = (await client.session_usage_totals(session.session)).total
    assert (code, said) == (0, "Done.\n"), errors
    assert (spent.requests, spent.price.total > 0) == (3, True)
    assert [len(body["messages"]) for body in api.seen] == [1, 3, 5]
    assert {"bash", *MODEL_TOOLS} == {tool["name"] for tool in api.seen[0]["tools"]}
    _, reply, outputs, _, later = api.seen[-1]["messages"]
    assert [part["type"] for part in reply["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    first, listed = outputs["content"]
    assert first["is_error"] is True and first["content"][0]["text"] == "found\n"
    assert "t1 toolcall" in listed["content"][0]["text"]
    texts = [part["content"][0]["text"] for part in later["content"][:3]]
    assert texts[0] == '"t1" is pinned.' and texts[1].startswith("Error: ") and texts[2] == "KeyError: 'command'"


async def test_the_loop_in_the_readme_of_the_client_is_that_of_the_example() -> None:
    root = Path(__file__).parents[2]
    shown = re.findall(r"^```python\n(.*?)^```", (root / "ctxd_client" / "README.md").read_text(), re.DOTALL | re.M)
    source = (root / "ctxd" / "examples" / "anthropic_agent.py").read_text()
    assert sum(block.strip() in source for block in shown) == 1
    assert len(source.splitlines()) < 80


async def test_the_compaction_in_the_readme_of_the_client_works(daemon: DaemonProcess) -> None:
    await daemon.start()
    text = (Path(__file__).parents[2] / "ctxd_client" / "README.md").read_text()
    blocks = re.findall(r"^  ```python\n(.*?)^  ```", text, re.DOTALL | re.MULTILINE)
    (program,) = [block for block in blocks if "CompactionEvent" in block]
    with anyio.fail_after(DEMO_S_MAX):
        env = {**os.environ, "CTXD_SOCKET": str(daemon.socket)}
        done = await anyio.run_process([sys.executable, "-c", dedent(program)], check=False, env=env)
    assert done.returncode == 0, done.stderr.decode()
    message = "CHAT_MESSAGE role=user\n"
    assert done.stdout.decode() == f"{message}The bug in a.py is fixed.\n\n{message}and add a test\n"


async def test_the_loop_without_a_daemon_names_the_remedy(tmp_path: Path) -> None:
    code, said, errors = await run("ctxd.examples.agent_loop", tmp_path, CTXD_SOCKET=str(tmp_path / "none.sock"))
    assert (code, said) == (1, "")
    assert "ctxd run" in errors
