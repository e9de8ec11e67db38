"""Run ``ctx`` in this process, or in one of its own on a pipe or a terminal, against a scripted or a real daemon."""

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ctxd.cli.main import run
from ctxd_client import connect_sync
from ctxd_protocol.session_types import Message
from tests import programs
from tests.client.running import Running
from tests.fakes.daemon import ScriptedDaemon
from tests.unit.cli.commit_lines import AT, LINES, line


class Ran(NamedTuple):
    """How a run ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    with ScriptedDaemon(tmp_path / "ctxd.sock") as scripted:
        yield scripted


@pytest.fixture
def clean(monkeypatch, tmp_path):
    """No variable and no file of the person who runs the tests."""
    for name in list(os.environ):
        if name.startswith("CTXD_") or name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("ctxd.config.SYSTEM_FILE", tmp_path / "none.toml")


@pytest.fixture
def ctx(clean, capsys):
    """``ctx(*words)`` in this process."""

    def call(*words: str) -> Ran:
        capsys.readouterr()
        code = run(words)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def scripted(ctx, daemon, monkeypatch):
    """``ctx`` that reaches the scripted daemon by ``$CTXD_SOCKET``."""
    monkeypatch.setenv("CTXD_SOCKET", daemon.path)
    return ctx


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("daemon")) as real:
        yield real


def process(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """``ctx`` in a process of its own, on pipes."""
    return programs.run("ctx", words, env={**os.environ, **environ})


def terminal(*words: str, columns: int = 0, **environ: str) -> str:
    """What ``ctx`` writes to a terminal of ``columns``, by default of unknown size."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40 if columns else 0, columns))
    child = subprocess.Popen(
        [sys.executable, "-m", "ctxd.cli.main", *words],
        stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm", **environ},
    )  # fmt: skip
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(ours)
    child.wait(60)
    return written.decode().replace("\r\n", "\n")


@pytest.fixture
def real(ctx, running, monkeypatch):
    monkeypatch.setenv("CTXD_SOCKET", running.socket)
    return ctx


@pytest.fixture
def session(running, tmp_path, request, monkeypatch):
    """A session of two turns and two assemblies, with a tool call and a file that was edited; it is the default one."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.py").write_text("one\n")
    with connect_sync(running.socket) as client:
        s = client.session(agent="demo", system_prompt="Be brief.", workdir="/w", mounts={"/w": str(tree)})
        s.user("first\x1b[2J")
        call = s.tool("bash", {"command": "ls"}, output="a.py\n", command="ls", cwd="/w", id=f"call-of-{s.id}")
        s.append([Message(role="toolcall", toolcall=call.record.object)])
        s.read("/w/a.py")
        s.assemble()
        (tree / "a.py").write_text("one\ntwo\n")
        s.edited("/w/a.py")
        s.user("second")
        s.assemble()
        monkeypatch.setenv("CTXD_SESSION", s.id)
        yield s


@pytest.fixture
def own(running, monkeypatch, clean):
    """A session of its own, which is the default one; the client."""
    monkeypatch.setenv("CTXD_SOCKET", running.socket)
    with connect_sync(running.socket) as client:
        s = client.session(agent="demo")
        monkeypatch.setenv("CTXD_SESSION", s.id)
        yield s


@pytest.fixture
def chain(own):
    """Three commits, and a branch from the first."""
    client = own.client
    made, parent = [], None
    for number, text in enumerate(("one", "two", "three")):
        times = {"valid_time": AT + number * 60_000}
        parent = client.commit_checkpoint(
            LINES, line(text), session=own.id, parent=parent, summary=f"learned {text}", **times
        ).commit.commit
        made.append(parent)
    side = client.commit_checkpoint(LINES, line("side"), session=own.id, parent=made[0], valid_time=AT + 30_000)
    return [*made, side.commit.commit]
