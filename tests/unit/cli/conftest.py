"""Run ``ctx`` in this process, or in one of its own on a pipe or a terminal, against a scripted or a real daemon."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ctxd.cli.main import run
from tests.client.running import Running
from tests.fakes.daemon import ScriptedDaemon


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
    return subprocess.run(
        [sys.executable, "-m", "ctxd.cli.main", *words],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environ},
    )  # fmt: skip


def terminal(*words: str, **environ: str) -> str:
    """What ``ctx`` writes to a terminal."""
    ours, theirs = pty.openpty()
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
