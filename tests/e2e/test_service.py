"""The daemon as a service: a real ``ctxd run`` under a stand-in for systemd that plays READY, LISTEN_FDS, FDSTORE,
WATCHDOG, reload, and restarts of both kinds."""

import json
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import connect_sync
from ctxd_protocol.default_paths import SANDBOXES_NAME
from tests.fakes.service_manager import Overdue, ServiceManager, service_manager

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    with service_manager(tmp_path) as made:
        yield made


def sent(path: str | Path, method: str, **params: Any) -> socket.socket:
    """A connection on which a call was sent whose answer nobody has waited for."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(str(path))
    connection.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
    return connection


def answer(connection: socket.socket) -> Any:
    with closing(connection), connection.makefile("rb") as lines:
        return json.loads(lines.readline())


@pytest.mark.requirement("SVC-1")
def test_ready_is_sent_once_and_earlier_connections_are_served(manager: ServiceManager) -> None:
    early = sent(manager.socket, "daemon.status")
    manager.start()
    assert answer(early)["result"]["socket"] == str(manager.socket)
    assert [message["READY"] for message in manager.said if "READY" in message] == ["1"]
    assert manager.end() == 0
    assert any("STOPPING" in message for message in manager.said)
    assert stat.S_ISSOCK(manager.socket.lstat().st_mode), "the socket is the manager's"


@pytest.mark.requirement("SVC-1")
def test_ready_is_not_sent_while_the_journal_is_opening(manager: ServiceManager) -> None:
    manager.launch(failpoints="journal.begin=sleep:1s*1")
    with pytest.raises(TimeoutError):
        manager.until("READY", seconds=0.7)
    manager.until("READY")


@pytest.mark.requirement("SVC-2")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stop", "kill"])
def test_connections_made_without_a_daemon_are_served_by_the_next_on_both_sockets(
    manager: ServiceManager, number: signal.Signals
) -> None:
    manager.start()
    with connect_sync(manager.socket) as client:
        client.session_create("a", session="s1", filesystem_id="b" * 64)
        box = client.sandbox_register(["s1"], ttl_s=600).sandbox
        inode = os.stat(box.socket).st_ino
        manager.hear_all()
        assert list(manager.stored) == [f"sbx-{box.sandbox}"]
        manager.end(number)
        waiting = sent(manager.socket, "session.get", session="s1"), sent(box.socket, "context.current")
        manager.start()
        assert answer(waiting[0])["result"]["session"]["agent"] == "a"
        assert answer(waiting[1])["result"]["session"] == "s1"
        assert os.stat(box.socket).st_ino == inode, "it is the same socket"
        client.sandbox_release(box.sandbox)
        manager.hear_all()
        assert manager.stored == {}
        assert not Path(box.directory).exists()


@pytest.mark.requirement("SVC-2")
def test_a_kept_socket_without_a_sandbox_is_closed(manager: ServiceManager, tmp_path: Path) -> None:
    manager.start()
    manager.end()
    stray = tmp_path / SANDBOXES_NAME / ("q" * 16)
    stray.mkdir(parents=True)
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(stray / "ctxd.sock"))
        listener.listen()
        manager.stored[f"sbx-{stray.name}"] = os.dup(listener.fileno())
    manager.start()
    manager.hear_all()
    assert manager.stored == {}
    assert not stray.exists()


@pytest.mark.requirement("SVC-3")
def test_the_watchdog_is_notified_while_work_completes(tmp_path: Path) -> None:
    with service_manager(tmp_path, watchdog_s=2.0) as manager:
        manager.start()
        for _ in range(3):
            manager.until("WATCHDOG")


@pytest.mark.requirement("SVC-3")
def test_a_frozen_daemon_misses_the_watchdog(tmp_path: Path) -> None:
    with service_manager(tmp_path, watchdog_s=2.0) as manager:
        manager.start()
        manager.until("WATCHDOG")
        assert manager.process is not None
        manager.process.send_signal(signal.SIGSTOP)
        with pytest.raises(Overdue):
            while True:
                manager.until("WATCHDOG")


@pytest.mark.requirement("SVC-3")
def test_a_commit_that_never_ends_misses_the_watchdog(tmp_path: Path) -> None:
    with service_manager(tmp_path, watchdog_s=2.0) as manager:
        manager.start(failpoints="journal.flush=sleep:8s*1@3")
        manager.until("WATCHDOG")
        with connect_sync(manager.socket) as client:
            client.session_create("a", session="s1")
        stuck = sent(manager.socket, "session.append", session="s1", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(Overdue):
            while True:
                manager.until("WATCHDOG")
                with connect_sync(manager.socket) as client:
                    assert client.daemon_status().pid == manager.pid, "the loop turns"
        manager.until_logged("service.no_progress")
        stuck.close()


@pytest.mark.requirement("SVC-4")
def test_sighup_applies_reloadable_settings_and_names_the_others(tmp_path: Path) -> None:
    settings = tmp_path / "ctxd.toml"
    settings.write_text('[log]\nlevel = "error"\n')
    with service_manager(tmp_path) as manager:
        manager.start("--config", str(settings))
        assert "daemon.ready" not in manager.tail()
        settings.write_text('[log]\nlevel = "info"\n[limits]\nconnections_max = 2\nin_flight = 7\n')
        os.kill(manager.pid, signal.SIGHUP)
        began = manager.until("RELOADING")
        assert int(began["MONOTONIC_USEC"]) > 0
        said = manager.until("READY")["STATUS"]
        assert "now in force: log.level, limits.connections_max" in said
        assert "after a restart: limits.in_flight" in said
        assert "daemon.reloaded" in manager.tail()
        with connect_sync(manager.socket) as first, connect_sync(manager.socket):
            third = socket.socket(socket.AF_UNIX)
            third.connect(str(manager.socket))
            refused = answer(third)
            assert refused["error"]["data"]["code"] == "rate_limited"
            settings.write_text("[limits]\nconnections_max = -3\n")
            os.kill(manager.pid, signal.SIGHUP)
            assert "not applied" in manager.until("READY")["STATUS"]
            assert first.daemon_status().state == "ready"


@pytest.mark.requirement("SVC-5")
def test_journal_log_lines_are_prefixed_with_their_severity(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    log.touch()
    found = log.stat()
    with service_manager(tmp_path, env={"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}) as manager:
        manager.start()
        manager.end()
        lines = log.read_text().splitlines()
        assert lines
        assert all(line.startswith("<6>{") for line in lines)
        assert all(json.loads(line[3:])["level"] == "info" for line in lines)


def test_inherited_sockets_are_close_on_exec(manager: ServiceManager) -> None:
    manager.start()
    flags = Path(f"/proc/{manager.pid}/fdinfo/3").read_text().split("flags:")[1].split()[0]
    assert os.readlink(f"/proc/{manager.pid}/fd/3").startswith("socket:")
    assert int(flags, 8) & os.O_CLOEXEC


def test_many_clients_waiting_for_the_next_daemon_are_all_served(manager: ServiceManager) -> None:
    manager.start()
    manager.end(signal.SIGKILL)
    waiting = [sent(manager.socket, "daemon.status") for _ in range(200)]
    starting = threading.Thread(target=manager.start)
    starting.start()
    assert {answer(each)["result"]["pid"] for each in waiting} == {manager.pid}
    starting.join()
