"""The shipped units under a real systemd: what the stand-in of the other tests plays is done here by the real one."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ctxd_client import SyncClient, connect_sync
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.session_types import Mount
from tests.e2e.booted import REPOSITORY, WAIT_S, Booted, CannotBoot, booted

INSIDE, STRANGER = "alice", "mallory"
WATCHDOG_S = 2

_ASKING = """
import json, os, socket, sys, time
while True:
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(60)
        s.connect("/run/ctxd/ctxd.sock")
        try:
            s.sendall(b'{"jsonrpc":"2.0","id":1,"method":"context.current"}\\n')
            line = s.makefile().readline()
        except (BrokenPipeError, ConnectionResetError):
            continue  # killed after it accepted: a client calls again
    if not line:
        continue  # killed after it had read the call
    answer = json.loads(line)
    if answer.get("error", {}).get("data", {}).get("retryable"):
        continue  # a daemon that is about to end says so; a client calls again
    print(json.dumps([answer["result"]["session"], time.monotonic() - began]), flush=True)
    time.sleep(0.02)
"""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    try:
        with booted(tmp_path_factory.mktemp("systemd")) as made:
            for name in (INSIDE, STRANGER):
                made.run("useradd", "--create-home", name)
            made.run("chmod", "755", f"/home/{INSIDE}")
            yield made
    except CannotBoot as reason:
        pytest.skip(f"no systemd can be booted here: {reason}")


@pytest.fixture
def client(machine: Booted) -> Iterator[SyncClient]:
    with connect_sync(place(machine, "ctxd.sock"), deadline_s=WAIT_S) as made:
        yield made


def place(machine: Booted, name: str) -> str:
    """A file of the daemon's runtime directory, as seen from out here."""
    return f"/proc/{machine.pid}/root/run/ctxd/{name}"


def uid_of(machine: Booted, name: str) -> int:
    return int(machine.run("id", "-u", name))


@contextmanager
def asking(machine: Booted, box: SandboxView, user: str) -> Iterator["subprocess.Popen[str]"]:
    """A real sandbox of ``user`` without network, in which a program asks for its context again and again."""
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "bwrap", "--unshare-all"]
    command += ["--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run"]
    command += ["--ro-bind", box.directory, "/run/ctxd", sys.executable, "-c", _ASKING]
    with subprocess.Popen(
        machine.inside(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as made:
        try:
            yield made
        finally:
            made.kill()


def answers(program: "subprocess.Popen[str]", count: int) -> list[tuple[str, float]]:
    """The next ``count`` answers: the session's, and the seconds that it took. What else it says fails the test."""
    assert program.stdout is not None
    lines = [program.stdout.readline() for _ in range(count)]
    try:
        return [(session, seconds) for session, seconds in map(json.loads, lines)]
    except ValueError:
        raise AssertionError("".join(lines) + program.stdout.read()) from None


@pytest.mark.requirement("SVC-1")
def test_the_service_is_ready_and_doctor_reports_no_failure(machine: Booted, client: SyncClient) -> None:
    assert [machine.show(name) for name in ("ActiveState", "StatusText", "NRestarts")] == ["active", "ready", "0"]
    assert int(machine.show("MainPID")) == client.daemon_status().pid
    told = json.loads(machine.run("ctx", "doctor", "--json"))
    assert told["failed"] == 0
    assert {each["name"] for each in told["items"] if each["verdict"] != "ok"} <= {
        "inotify max_user_watches", "inotify max_user_instances", "open files", "disk",
    }, "what this machine may lack"  # fmt: skip


@pytest.mark.requirement("SVC-1")
def test_a_connection_starts_the_service(machine: Booted) -> None:
    machine.run("systemctl", "stop", "ctxd.service")
    machine.until("ActiveState", "inactive")
    with connect_sync(place(machine, "ctxd.sock"), deadline_s=WAIT_S) as client:
        assert client.daemon_status().state == "ready"
    # systemd may read the daemon's message of readiness after the daemon has replied.
    machine.until("ActiveState", "active")


@pytest.mark.requirement("SVC-2")
@pytest.mark.requirement("BOX-10")
@pytest.mark.usefixtures("bubblewrap")
def test_a_sandbox_of_another_user_survives_every_kind_of_restart(machine: Booted, client: SyncClient) -> None:
    client.session_create("a", session="kept", filesystem_id="b" * 64)
    box = client.sandbox_register(["kept"], ttl_s=600, uid=uid_of(machine, INSIDE)).sandbox
    with asking(machine, box, INSIDE) as program:
        assert {session for session, _ in answers(program, 5)} == {"kept"}
        assert machine.show("NFileDescriptorStore") == "1"
        for command in (
            ("systemctl", "restart", "ctxd"),
            ("systemctl", "kill", "--signal=KILL", "--kill-who=main", "ctxd"),
            ("systemctl", "reload", "ctxd"),
            ("systemctl", "restart", "ctxd.socket"),
        ):
            machine.run(*command)
            assert {session for session, _ in answers(program, 60)} == {"kept"}, command
            machine.until("ActiveState", "active")
    with asking(machine, box, STRANGER) as program:
        assert program.stdout is not None
        assert "PermissionError" in program.stdout.read(), "of nobody else"
    (tried,) = (c for c in doctor(machine, 0) if c["name"] == f"sandbox {box.sandbox}")
    assert (tried["verdict"], tried["found"]) == ("ok", "reachable inside a sandbox without network")
    with connect_sync(place(machine, "ctxd.sock"), deadline_s=WAIT_S) as again:
        again.sandbox_release(box.sandbox)
    machine.until("NFileDescriptorStore", "0")


def doctor(machine: Booted, failed: int) -> list[dict[str, Any]]:
    told = json.loads(machine.run("ctx", "doctor", "--json") if not failed else unhealthy(machine))
    assert told["failed"] == failed, told
    found: list[dict[str, Any]] = told["items"]
    return found


def unhealthy(machine: Booted) -> str:
    done = subprocess.run(machine.inside("ctx", "doctor", "--json"), capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 7, done
    return done.stdout


@pytest.mark.requirement("BOX-10")
@pytest.mark.usefixtures("bubblewrap")
def test_a_sandbox_without_a_named_user_belongs_to_its_harness(machine: Booted, client: SyncClient) -> None:
    """The daemon's user is not root's, and root inside a sandbox is nobody in particular."""
    client.session_create("a", session="roots", filesystem_id="b" * 64)
    box = client.sandbox_register(["roots"], ttl_s=600).sandbox
    assert box.uid == 0
    with asking(machine, box, "root") as program:
        assert answers(program, 1)[0][0] == "roots"
    client.sandbox_release(box.sandbox)


@pytest.mark.requirement("SVC-3")
def test_a_frozen_daemon_is_restarted_by_the_watchdog(machine: Booted) -> None:
    machine.drop_in("watchdog", f"[Service]\nWatchdogSec={WATCHDOG_S}\n")
    machine.run("systemctl", "restart", "ctxd")
    frozen = machine.show("MainPID")
    for _ in range(3):
        machine.until_other("WatchdogTimestampMonotonic")
    assert machine.show("MainPID") == frozen, "one that works is left alone"
    machine.run("kill", "-STOP", frozen)
    machine.until("NRestarts", "1")
    machine.until("ActiveState", "active")
    assert "Watchdog timeout" in machine.journal()
    assert machine.show("MainPID") != frozen
    machine.run("ctx", "status")


@pytest.mark.requirement("SVC-4")
def test_a_reload_applies_reloadable_settings(machine: Booted) -> None:
    before = machine.show("MainPID")
    machine.run("sh", "-c", "printf '[limits]\\nconnections_max = 77\\nin_flight = 9\\n' > /etc/ctxd/ctxd.toml")
    machine.run("systemctl", "reload", "ctxd")
    told = "ready; now in force: limits.connections_max; in force after a restart: limits.in_flight"
    machine.until("StatusText", told)
    machine.run("rm", "/etc/ctxd/ctxd.toml")
    machine.run("systemctl", "reload", "ctxd")
    assert machine.show("MainPID") == before


@pytest.mark.requirement("SVC-6")
@pytest.mark.requirement("SVC-9")
def test_the_units_restrictions_do_not_affect_the_daemon(machine: Booted) -> None:
    """Files below /home read and followed, a text of a megabyte, a sandbox, metrics; and no word of it in the log."""
    tree = f"/home/{INSIDE}/work"
    machine.run("sh", "-c", f"mkdir -p {tree} /tmp/hidden; echo xyzzy-one > {tree}/a.py; echo x > /tmp/hidden/b.py")
    # A client of its own: an earlier one's session may be of a daemon before.
    with connect_sync(place(machine, "ctxd.sock"), deadline_s=WAIT_S) as client:
        mounts = (
            Mount(agent_prefix="/w", canonical_prefix=tree),
            Mount(agent_prefix="/t", canonical_prefix="/tmp/hidden"),
        )
        s = client.session("work", agent="a", filesystem_id="b" * 64, mounts=mounts, workdir="/w")
        s.user("xyzzy-said")
        object = client.file_index("work", "a.py").object
        client.toolcall_record("work", "c1", "t", "xyzzy-called " * 100_000)
        until_version(machine, client, object, f"echo xyzzy-two > {tree}/a.py", "xyzzy-two")
        assert client.context_assemble("work").turn == 1
        box = client.sandbox_register(["work"], ttl_s=600, uid=uid_of(machine, INSIDE)).sandbox
        mount = next(check for check in doctor(machine, 1) if check["verdict"] == "fail")
        assert mount["name"] == "sandbox mounts"
        assert "/tmp/hidden" in mount["found"], "the service has a /tmp of its own"
        assert "BindReadOnlyPaths" in mount["fix"]
        client.sandbox_release(box.sandbox)
    told = machine.run("curl", "-sS", "--unix-socket", "/run/ctxd/metrics.sock", "http://ctxd/metrics")
    assert {family.name for family in text_string_to_metric_families(told)} >= {"ctxd_writes", "process_open_fds"}
    assert "xyzzy" not in told
    assert machine.run(*"find /var/lib/ctxd /var/cache/ctxd -not -user ctxd -o -not -type l -perm /077".split()) == ""
    journal = machine.journal()
    assert "xyzzy" not in journal
    levels = {json.loads(line)["level"] for line in journal.splitlines() if line.startswith("{")}
    assert levels == {"info"}, journal


def until_version(machine: Booted, client: SyncClient, object: str, command: str, text: str) -> None:
    """Run ``command`` and wait until the daemon, which follows the file, has what it now says."""
    machine.run("sh", "-c", command)
    deadline = time.monotonic() + WAIT_S
    while text not in client.object_get(object, content=True).object.payload["content"]:
        assert time.monotonic() < deadline, machine.journal()
        time.sleep(0.05)


@pytest.mark.requirement("SVC-1")
def test_users_of_the_sockets_group_may_connect_and_others_may_not(machine: Booted) -> None:
    machine.run("groupadd", "--force", "agents")
    machine.run("usermod", "--append", "--groups", "agents", INSIDE)
    machine.drop_in("group", "[Socket]\nSocketGroup=agents\nSocketMode=0660\n", "ctxd.socket")
    machine.run("systemctl", "restart", "ctxd.socket")
    machine.run("systemctl", "start", "ctxd.service")
    status = ["ctx", "--socket", "/run/ctxd/ctxd.sock", "status"]
    as_user = ["setpriv", "--init-groups"]
    machine.run(*as_user, f"--reuid={INSIDE}", f"--regid={INSIDE}", *status)
    refused = machine.run(*as_user, f"--reuid={STRANGER}", f"--regid={STRANGER}", *status, fails=True)
    assert "ermission" in refused
    machine.run("sh", "-c", "rm -r /run/systemd/system/ctxd.socket.d; systemctl daemon-reload")
    machine.run("systemctl", "restart", "ctxd.socket")


@pytest.mark.requirement("SVC-1")
def test_a_stop_is_a_success_and_a_daemon_with_invalid_settings_is_not_restarted(machine: Booted) -> None:
    machine.run("systemctl", "restart", "ctxd.service")
    machine.run("systemctl", "stop", "ctxd.service")
    assert [machine.show(name) for name in ("Result", "ExecMainStatus")] == ["success", "0"]
    machine.run("sh", "-c", "echo '[limits' > /etc/ctxd/ctxd.toml")
    machine.run("systemctl", "start", "ctxd.service", fails=True)
    machine.until("ActiveState", "failed")
    assert [machine.show(name) for name in ("ExecMainStatus", "NRestarts")] == ["78", "0"]
    assert "/etc/ctxd/ctxd.toml: not TOML" in machine.journal()
    machine.run("rm", "/etc/ctxd/ctxd.toml")
    machine.run("systemctl", "restart", "ctxd.socket", "ctxd.service")
    assert machine.show("ActiveState") == "active"


@pytest.mark.requirement("SVC-1")
def test_a_user_has_a_service_of_their_own_beside_the_hosts(machine: Booted) -> None:
    home, uid = f"/home/{INSIDE}", uid_of(machine, INSIDE)
    runtime, units = f"/run/user/{uid}", f"{home}/.config/systemd/user"
    as_user = ["setpriv", "--init-groups", f"--reuid={INSIDE}", f"--regid={INSIDE}", "env", f"HOME={home}"]
    as_user += [f"XDG_RUNTIME_DIR={runtime}"]
    machine.run(*as_user, "mkdir", "-p", units, f"{home}/.local/bin")
    machine.run("sh", "-c", f"install -d -m700 -o {uid} {runtime} && cp {REPOSITORY}/systemd/user/* {units}")
    machine.run("ln", "-sf", f"{Path(sys.executable).parent}/ctxd", f"{home}/.local/bin/ctxd")
    machine.run("systemctl", "start", f"user@{uid}.service")
    machine.run(*as_user, "systemctl", "--user", "enable", "--now", "ctxd.socket", "ctxd.service")
    status = json.loads(machine.run(*as_user, "ctx", "status", "--json"))
    assert (status["socket"], status["state_dir"]) == (f"{runtime}/ctxd/ctxd.sock", f"{home}/.local/state/ctxd")
    assert machine.run("stat", "-c", "%a", status["state_dir"]).strip() == "700"
    machine.run(*as_user, "systemctl", "--user", "restart", "ctxd.service")
    assert json.loads(machine.run(*as_user, "ctx", "status", "--json"))["incarnation"] == status["incarnation"] + 1
    assert json.loads(machine.run("ctx", "status", "--json"))["socket"] == "/run/ctxd/ctxd.sock", (
        "root means the host's"
    )
    machine.run("systemctl", "stop", f"user@{uid}.service")
