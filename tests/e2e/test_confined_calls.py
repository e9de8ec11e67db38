"""What the unit lets the daemon ask of the kernel is enough: a real one at work, held against the filter."""

import os
import re
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from ctxd_protocol.session_types import Mount

UNIT = Path(__file__).parents[2] / "systemd" / "ctxd.service"

AS_ROOT = {"fchown"}
"""SQLite's, and only when it runs as root, which the service does not."""

pytestmark = pytest.mark.timeout(120)


@cache
def members(group: str) -> frozenset[str]:
    """The system calls of a group of systemd's, nested ones included."""
    told = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    words = {line.strip() for line in told.stdout.splitlines()[1:] if line.strip() and "#" not in line}
    return frozenset().union(*(members(word) if word.startswith("@") else {word} for word in words))


def permitted() -> set[str]:
    """What the unit's filter lets through."""
    calls = set(members("@default"))
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE):
        named = set().union(*(members(word) for word in line.lstrip("~").split()))
        calls = calls - named if line.startswith("~") else calls | named
    return calls


@pytest.mark.requirement("SVC-6")
def test_system_calls_of_a_busy_daemon_are_within_the_units_filter(tmp_path: Path) -> None:
    if shutil.which("strace") is None or shutil.which("systemd-analyze") is None:
        pytest.skip("needs strace and systemd-analyze: apt-get install strace systemd")
    trace, path = tmp_path / "trace", tmp_path / "ctxd.sock"
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a.py").write_text("print()\n")
    command = ["strace", "-f", "-qq", "-o", str(trace), sys.executable, "-m", "ctxd", "run"]
    command += ["--state-dir", str(tmp_path / "state"), "--socket", str(path)]
    env = {**os.environ, "CTXD_METRICS_SOCKET": str(tmp_path / "m.sock")}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
    try:
        with connect_sync(path, wait_s=60, deadline_s=60) as client:
            mount = Mount(agent_prefix="/w", canonical_prefix=str((tmp_path / "w").resolve()))
            s = client.session("s1", agent="a", filesystem_id="b" * 64, mounts=(mount,), workdir="/w")
            s.user("x")
            client.file_index("s1", "a.py")
            client.toolcall_record("s1", "c1", "t", "x" * 1_200_000)
            (tmp_path / "w" / "a.py").write_text("print(1)\n")
            client.context_assemble("s1")
            # A large delta is searched in a process of its own, which is in the same unit.
            client.session_configure("s1", secrets="redact")
            delta = '{"type":"user","message":{"content":"AKIAIOSFODNN7EXAMPLQ ' + "word " * 200_000 + '"}}\n'
            made = client.commit_checkpoint("claude-code-v1", delta, session="s1").commit
            assert "[REDACTED:" in (client.commit_materialize(made.commit).content or "")
            box = client.sandbox_register(["s1"], ttl_s=60).sandbox
            with connect_sync(box.socket, deadline_s=60) as inside:
                inside.context_current()
            client.sandbox_release(box.sandbox)
            os.kill(client.daemon_status().pid, signal.SIGHUP)
            pid = client.daemon_status().pid
        os.kill(pid, signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
    # What the dynamic loader and the interpreter do before the filter's program is the daemon counts too.
    calls = trace.read_text()
    asked = set(re.findall(r"^\d+ +(\w+)\(", calls, re.MULTILINE))
    assert {"fdatasync", "accept4", "openat2", "memfd_create", "setsid"} <= asked, "it was at work"
    # MemoryDenyWriteExecute and RestrictAddressFamilies refuse by argument.
    assert not re.search(r"mmap\(.*PROT_WRITE\|PROT_EXEC|(?:mprotect|pkey_mprotect)\(.*PROT_EXEC", calls)
    assert set(re.findall(r"\bsocket(?:pair)?\((AF_\w+)", calls)) == {"AF_UNIX"}
    assert asked - permitted() - (AS_ROOT if os.geteuid() == 0 else set()) == set()
