"""The examples, the README's among them, are what people run first: they work, say what happened, and leave nothing
behind.
"""

import os
import re
import sys
from pathlib import Path

import anyio
import pytest

from tests.crash.daemon import DaemonProcess

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


async def test_the_loop_mends_a_project_with_the_daemon_it_finds(daemon: DaemonProcess, tmp_path: Path) -> None:
    await daemon.start()
    place = tmp_path / "files"
    place.mkdir()
    code, said, _ = await run("ctxd.examples.agent_loop", place, CTXD_SOCKET=str(daemon.socket))
    assert code == 0
    assert "CHAT_MESSAGE role=user\nFix it." in said
    assert "\nOK" in said


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


async def test_the_loop_without_a_daemon_names_the_remedy(tmp_path: Path) -> None:
    code, said, errors = await run("ctxd.examples.agent_loop", tmp_path, CTXD_SOCKET=str(tmp_path / "none.sock"))
    assert (code, said) == (1, "")
    assert "ctxd run" in errors
