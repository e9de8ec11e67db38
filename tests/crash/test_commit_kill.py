"""Killed at every named place of a checkpoint or a tag, the daemon has every acknowledged commit, and none without its
delta."""

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ctxd import failpoints
from tests.crash.daemon import DaemonProcess, NotReady, daemon_process

pytestmark = [pytest.mark.timeout(420), pytest.mark.slow, pytest.mark.anyio]

PLACES = sorted(name for name in failpoints.NAMES if name.startswith(("journal.", "art."))) + ["rpc.reply"]
UNPASSED = {"art.erase", "art.repack"}
"""Passed only by a removal."""


class Lost(Exception):
    """The daemon ended before it answered."""


class Wire:
    """One connection."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(daemon.socket))
        self._lines = self._socket.makefile("rb")

    def ask(self, method: str, **params: Any) -> Any:
        """The result of a call. Raises: Lost."""
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"
        try:
            self._socket.sendall(line)
            answer = self._lines.readline()
        except OSError as error:
            raise Lost from error
        if not answer.endswith(b"\n"):
            raise Lost
        reply = json.loads(answer)
        assert "result" in reply, reply
        return reply["result"]

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def delta(text: str) -> str:
    return json.dumps({"type": "user", "message": {"content": text}}) + "\n"


class Writer:
    """The writes of one client, in order; what was not acknowledged is sent again."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answered: dict[str, Any] = {}
        self.tip: str | None = None

    def plan(self, place: str) -> None:
        """Add a small commit, a large one, a tag that moves, a summary, and something new in the session."""
        for name, text in (("small", place), ("large", f"{place} word " * 150_000)):
            given = {"format": "claude-code-v1", "session": "s", "delta": delta(text), "op_id": f"{place}-{name}"}
            self.calls.append(("commit.checkpoint", given))
        self.calls.append(("commit.tag", {"tag": "moving", "op_id": f"{place}-tag"}))
        self.calls.append(("commit.annotate", {"summary": f"seen {place}", "op_id": f"{place}-note"}))
        said = [{"role": "user", "content": f"said {place}"}]
        self.calls.append(("session.append", {"session": "s", "messages": said, "op_id": f"{place}-said"}))
        self.calls.append(("context.current", {"session": "s"}))

    def go_on(self, wire: Wire) -> None:
        """Make the calls that are left. Raises: Lost."""
        while self.calls:
            method, params = self.calls[0]
            if method in ("commit.tag", "commit.annotate"):
                params.setdefault("commit", self.tip)
            elif method == "commit.checkpoint":
                params.setdefault("parent", self.tip)
            result = wire.ask(method, **params)
            if method == "commit.checkpoint":
                self.tip = result["commit"]["commit"]
                self.answered[self.tip] = params["delta"]
            elif method == "context.current":
                assert result["context_id"]
            del self.calls[0]


@pytest.mark.requirement("CMT-5")
async def test_no_commit_is_lost_doubled_or_without_its_delta_over_a_kill_at_every_place(tmp_path: Path) -> None:
    writer = Writer()
    with daemon_process(tmp_path) as daemon:
        await daemon.start()
        wire = Wire(daemon)
        wire.ask("session.create", agent="a", session="s")
        wire.close()
        for turn, place in enumerate(name for name in PLACES if name not in UNPASSED):
            await daemon.kill()
            writer.plan(place)
            try:
                await daemon.start(failpoints=f"{place}=kill@{1 + turn % 3}")
            except NotReady:
                assert daemon.exit_code == -signal.SIGKILL, daemon.said()
            else:
                wire = Wire(daemon)
                try:
                    writer.go_on(wire)
                except Lost:
                    assert await daemon.ended() == -signal.SIGKILL, daemon.said()
                wire.close()
            await daemon.kill()
            await daemon.start()
            wire = Wire(daemon)
            writer.go_on(wire)
            judge(wire, writer)
            wire.close()
        await daemon.stop()
        code, report = await daemon.verify()
        assert code == 0, report


def judge(wire: Wire, writer: Writer) -> None:
    """Check the commits of the store against what was acknowledged."""
    commits = wire.ask("commit.list", limit=1000)["commits"]
    made = {each["commit"]: each for each in commits if each["format"] == "claude-code-v1"}
    assert made.keys() == writer.answered.keys(), "each once"
    for id, text in writer.answered.items():
        found = wire.ask("commit.materialize", commit=id, stop=id)
        assert found["content"] == text
        assert made[id]["artifact_ref"] == blake3(text.encode()).hexdigest()
    assert [each["commit"] for each in commits if "moving" in each["tags"]] == [writer.tip]
    own = [each for each in commits if each["format"] == "events-v1"]
    story = ""
    for each in own:
        found = wire.ask("commit.materialize", commit=each["commit"], stop=each["commit"], format="narrative-v1")
        story += found["content"]
    places = [id for id, text in writer.answered.items() if len(text) < 1000]
    assert story.count("said ") == len(places), "each event of the chat once"
