"""The daemon that installed hooks reach, whatever the environment of the program that runs them."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from ctxd.hook import delivery
from ctxd.hook.event_spool import LOST
from tests.spec.test_harness_install import FILES, HOOK, ctx, runs, written

EVENT = json.dumps({"session_id": "s1", "hook_event_name": "UserPromptSubmit", "prompt": "one", "prompt_id": "p1"})


def runtime(home: Path) -> tuple[str, Path]:
    """A directory for ``$XDG_RUNTIME_DIR``, and the socket that a daemon has there."""
    socket = home / "run" / "ctxd" / "ctxd.sock"
    socket.parent.mkdir(parents=True)
    socket.touch()
    return str(home / "run"), socket


def spool(home: Path, socket: Path) -> Path:
    return Path(delivery.waiting_root({"HOME": str(home)}), str(socket).replace("/", "%2F"))


def hook(home: Path, *words: str) -> None:
    done = subprocess.run([HOOK, *words], env={"PATH": "/usr/bin:/bin", "HOME": str(home)}, input=EVENT, text=True)
    assert done.returncode == 0


def doctor(home: Path, **environ: str) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in json.loads(ctx(home, "doctor", "--json", **environ).stdout)["items"]}


@pytest.mark.requirement("HOK-11")
@pytest.mark.parametrize("harness", FILES)
def test_hooks_without_the_environment_of_the_desktop_reach_its_daemon(tmp_path: Path, harness: str) -> None:
    folder, socket = runtime(tmp_path)
    assert ctx(tmp_path, "install", harness).returncode == 0
    assert str(socket) not in (tmp_path / FILES[harness]).read_text()
    found = ctx(tmp_path, "install", "status", XDG_RUNTIME_DIR=folder)
    assert "outdated" in found.stdout and "XDG_RUNTIME_DIR" in found.stderr
    assert ctx(tmp_path, "install", harness, XDG_RUNTIME_DIR=folder).returncode == 0
    assert str(socket) in (tmp_path / FILES[harness]).read_text()
    for environ in ({"XDG_RUNTIME_DIR": folder}, {}):
        assert "outdated" not in ctx(tmp_path, "install", "status", **environ).stdout
    if harness in ("claude", "codex"):
        command = runs(tmp_path / FILES[harness])[0]
        assert command == f"{HOOK} {harness} --socket {socket}"
        hook(tmp_path, *shlex.split(command)[1:])
        assert len(list(spool(tmp_path, socket).glob("*.event"))) == 1


@pytest.mark.requirement("HOK-11")
def test_hooks_reach_a_daemon_in_a_state_directory_of_another_name(tmp_path: Path) -> None:
    socket = tmp_path / "state" / "ctxd" / "ctxd.sock"
    socket.parent.mkdir(parents=True)
    socket.touch()
    assert ctx(tmp_path, "install", "claude", XDG_STATE_HOME=str(tmp_path / "state")).returncode == 0
    assert runs(tmp_path / FILES["claude"])[0] == f"{HOOK} claude --socket {socket}"


@pytest.mark.requirement("HOK-13")
def test_doctor_reports_events_that_wait_for_other_sockets(tmp_path: Path) -> None:
    folder, socket = runtime(tmp_path)
    written(tmp_path, "claude", "{}")
    other, odd = tmp_path / "other.sock", tmp_path / "a%2F b.sock"
    for each in (other, other, odd):
        hook(tmp_path, "claude", "--socket", str(each))
    found = doctor(tmp_path, XDG_RUNTIME_DIR=folder)
    assert found["hooks"]["verdict"] == "ok"
    check = found[f"hooks for {other}"]
    assert check["verdict"] == "warn" and "2 spooled events" in check["found"]
    assert "start the daemon" in check["fix"] and str(spool(tmp_path, other)) in check["fix"]
    assert "1 spooled event" in found[f"hooks for {odd}"]["found"]
    hook(tmp_path, "claude", "--socket", str(socket))
    found = doctor(tmp_path, XDG_RUNTIME_DIR=folder)
    assert "1 spooled event" in found["hooks"]["found"] and f"hooks for {socket}" not in found
    for path in spool(tmp_path, other).glob("*.event"):
        path.unlink()
    (spool(tmp_path, other) / LOST).write_text("1 full\n")
    assert "1 event dropped" in doctor(tmp_path, XDG_RUNTIME_DIR=folder)[f"hooks for {other}"]["found"]
