"""A client in a real sandbox, with nothing of the host but its mounted directory: no network, another process tree."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import anyio
import pytest

from ctxd_client import connect
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.session_types import Mount
from tests.crash.daemon import daemon_process

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

BOX = "b" * 64
ROOT = Path(__file__).parents[2]
QUIET = {name: value for name, value in os.environ.items() if not name.startswith("CTXD_")}

INSIDE = """
import json, sys
from ctxd_client import CallFailed, connect_sync
with connect_sync("/run/ctxd/ctxd.sock", deadline_s=60) as client:
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(client.within(asked["within_s"]), asked["call"])(*asked["args"])
            said = {name: getattr(answer, name) for name in asked["show"]}
        except CallFailed as error:
            said = {"error": error.code}
        print(json.dumps(said), flush=True)
"""


def sandboxed(box: SandboxView, workspace: Path, *command: str) -> list[str]:
    """``command`` in a bubblewrap sandbox."""
    made = ["bwrap", "--unshare-all", "--die-with-parent", "--tmpfs", "/", "--proc", "/proc", "--dev", "/dev"]
    for place in ("/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix, str(ROOT)):
        if Path(place).exists():
            made += ["--ro-bind", place, place]
    made += ["--ro-bind", box.directory, "/run/ctxd", "--bind", str(workspace), "/workspace"]
    made += ["--setenv", "PYTHONPATH", f"{ROOT}:{ROOT / 'protocol'}", "--chdir", "/workspace"]
    return [*made, "--", *command]


class Inside:
    """A Python in a bubblewrap sandbox that makes calls of the client as it is told."""

    def __init__(self, box: SandboxView, workspace: Path) -> None:
        self._place = box, workspace
        self.process = subprocess.Popen(
            sandboxed(box, workspace, sys.executable, "-c", INSIDE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def current(self) -> str:
        """What ``ctx current`` prints in another sandbox that has the same directory mounted."""
        command = sandboxed(*self._place, str(Path(sysconfig.get_path("scripts"), "ctx")), "current")
        # It looks for 200 ms, which a start alone takes on a machine that does other work: one of many finds it.
        for _ in range(60):
            done = await anyio.run_process(command, check=False, env=QUIET)
            if done.returncode != 3:
                break
        return done.stdout.decode()

    async def ask(self, call: str, *args: Any, show: tuple[str, ...] = (), within_s: float = 60.0) -> Any:
        line = json.dumps({"call": call, "args": args, "show": show, "within_s": within_s})
        return await anyio.to_thread.run_sync(self._ask, line)

    def _ask(self, line: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = (tmp_path / "project").resolve()
    place.mkdir()
    return place


@pytest.mark.requirement("BOX-1")
@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("ending", ["kill", "stop"])
async def test_a_client_in_a_sandbox_continues_across_a_daemon_restart(
    tmp_path: Path, workspace: Path, ending: str
) -> None:
    mount = Mount(agent_prefix="/workspace", canonical_prefix=str(workspace))
    (workspace / "a.py").write_text("print()\n")
    with daemon_process(tmp_path) as daemon:
        await daemon.start()
        async with connect(daemon.socket) as client:
            await client.session_create("a", session="s1", filesystem_id=BOX, mounts=(mount,), workdir="/workspace")
            await client.session_create("a", session="s2", filesystem_id=BOX)
            box = (await client.sandbox_register(["s1"])).sandbox
            inside = Inside(box, workspace)
            try:
                assert await inside.ask("context_current", show=("session", "context_id")) == {
                    "session": "s1",
                    "context_id": None,
                }
                recorded = await inside.ask("toolcall_record", "s1", "call-1", "bash", "output", show=("outcome",))
                assert recorded == {"outcome": "created"}
                assert await inside.ask("file_index", "s1", "a.py", show=("kind",)) == {"kind": "text"}
                assert await inside.ask("session_get", "s2", show=()) == {"error": "session_not_found"}
                assert await inside.ask("session_list", show=()) == {"error": "method_not_found"}
                await client.context_assemble("s1")
                first = (await client.context_current(session="s1")).context_id
                assert await inside.current() == f"{first}\n"

                await (daemon.kill() if ending == "kill" else daemon.stop())
                assert await inside.current() == f"{first}\n", "the file says it"
                await daemon.start()
                held = (await client.sandbox_renew(box.sandbox)).sandbox
                assert (held.socket, held.expires_at) == (box.socket, None)

                again = await inside.ask("toolcall_record", "s1", "call-2", "bash", "more", show=("outcome",))
                assert again == {"outcome": "created"}
                await client.context_assemble("s1")
                current = (await inside.ask("context_current", show=("context_id",)))["context_id"]
                assert (await client.commit_show(current)).commit.parent == first
                told = json.loads(Path(box.directory, "current.json").read_text())
                assert told["context_id"] == current
                assert await inside.current() == f"{current}\n"
                (listed,) = (await client.sandbox_list()).sandboxes
                assert (listed.socket, listed.connections) == (box.socket, 1)
                await client.sandbox_release(box.sandbox)
                gone = await inside.ask("context_current", show=(), within_s=2.0)
                assert gone == {"error": "connect_failed"}, "its directory is empty now"
            finally:
                inside.end()
        await daemon.stop()
        code, report = await daemon.verify()
        assert code == 0, report
