"""What the daemon tells Prometheus, over a socket of its own: a real daemon, read as a scraper reads it."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ctxd_client import CallFailed, connect_sync
from ctxd_protocol.sandbox_types import Quota
from tests.fakes.service_manager import ServiceManager, service_manager

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    env = {"CTXD_METRICS_SOCKET": str(tmp_path / "metrics.sock"), "CTXD_TRACKING_WATCHER": "polling"}
    with service_manager(tmp_path, env=env) as made:
        made.start()
        yield made


def ask(folder: Path, request: bytes) -> bytes:
    """What comes back for ``request`` until the end."""
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(20)
        connection.connect(str(folder / "metrics.sock"))
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def called(manager: ServiceManager, method: bytes) -> bytes:
    """What is answered to a call of ``method``, which the client would not send."""
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(20)
        connection.connect(str(manager.socket))
        connection.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "%s"}\n' % method)
        return connection.recv(65536)


@contextmanager
def flooded(path: str) -> Iterator[None]:
    """A connection to a sandbox's socket that has sent more calls than its quota lets through."""
    with closing(socket.socket(socket.AF_UNIX)) as inside, inside.makefile("rb") as answers:
        inside.settimeout(20)
        inside.connect(path)
        inside.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "context.current"}\n' * 9)
        answered = [answers.readline() for _ in range(9)]
        assert any(b"quota_exceeded" in answer for answer in answered)
        yield


def scraped(folder: Path) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and its labels."""
    head, _, body = ask(folder, b"GET /metrics HTTP/1.1\r\nHost: ctxd\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: %d" % len(body) in head
    families = text_string_to_metric_families(body.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


@pytest.mark.requirement("SVC-8")
def test_metrics_count_writes_calls_and_resources(manager: ServiceManager, tmp_path: Path) -> None:
    before = scraped(tmp_path)
    (tmp_path / "a.py").write_text("print()\n")
    with connect_sync(manager.socket) as client:
        s = client.session("s1", agent="a")
        for number in range(5):
            s.user(f"turn {number}")
        client.file_index("s1", str(tmp_path / "a.py"))
        client.session_create("a", session="box", filesystem_id="b" * 64)
        client.sandbox_register(["box"], ttl_s=600)
        with pytest.raises(CallFailed):
            client.session_get("missing")
        assert b"method_not_found" in called(manager, b"not.a.method")
        after = scraped(tmp_path)

    def rise(name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return after[key] - before.get(key, 0)

    assert rise("ctxd_calls_total", method="session.append", outcome="ok") == 5
    assert rise("ctxd_calls_total", method="session.get", outcome="session_not_found") == 1
    assert rise("ctxd_calls_total", method="unknown", outcome="method_not_found") == 1
    assert rise("ctxd_writes_total") == 9
    assert rise("ctxd_commit_duration_seconds_count") == rise("ctxd_commits_total") > 0
    assert rise("ctxd_connections", listener="host") == 1
    assert (rise("ctxd_sandboxes"), rise("ctxd_sessions_live")) == (1, 2)
    assert after["ctxd_state", (("state", "ready"),)] == 1
    assert after["process_open_fds", ()] > 0
    buckets = [value for (name, _), value in after.items() if name == "ctxd_commit_duration_seconds_bucket"]
    assert buckets == sorted(buckets)


@pytest.mark.requirement("SVC-8")
def test_sandbox_metrics_match_the_status(manager: ServiceManager, tmp_path: Path) -> None:
    with connect_sync(manager.socket) as client:
        for name in ("one", "two"):
            client.session_create("a", session=name, filesystem_id="b" * 64)
        strict = client.sandbox_register(["one"], ttl_s=600, quota=Quota(requests_per_s=1)).sandbox
        client.sandbox_register(["two"], ttl_s=600)
        with flooded(strict.socket):
            told, after = client.daemon_status().sandboxes, scraped(tmp_path)
    assert (told.registered, told.connections) == (2, 1) and told.refused > 0
    assert after["ctxd_sandboxes", ()] == told.registered
    assert after["ctxd_connections", (("listener", "sandbox"),)] == told.connections
    assert after["ctxd_quota_refusals_total", ()] == told.refused


@pytest.mark.requirement("SVC-8")
def test_quota_refusals_stay_counted_after_a_sandbox_is_released(manager: ServiceManager, tmp_path: Path) -> None:
    def refusals() -> float:
        return scraped(tmp_path)["ctxd_quota_refusals_total", ()]

    with connect_sync(manager.socket) as client:
        client.session_create("a", session="one", filesystem_id="b" * 64)
        total = 0
        for _ in range(2):
            strict = client.sandbox_register(["one"], ttl_s=600, quota=Quota(requests_per_s=1)).sandbox
            with flooded(strict.socket):
                total += client.daemon_status().sandboxes.refused
            assert refusals() == total
            client.sandbox_release(strict.sandbox)
            assert client.daemon_status().sandboxes.refused == 0, "of those that are registered"
            assert refusals() == total > 0


@pytest.mark.requirement("SVC-8")
def test_the_socket_is_the_owners_alone_and_names_nothing_that_a_client_chose(
    manager: ServiceManager, tmp_path: Path
) -> None:
    assert stat.S_IMODE(os.stat(tmp_path / "metrics.sock").st_mode) == 0o600
    with connect_sync(manager.socket) as client:
        client.session_create("xyzzy-agent", session="xyzzy-session", filesystem_id="b" * 64)
        client.sandbox_register(["xyzzy-session"], principal="xyzzy-principal", ttl_s=600)
        assert b"method_not_found" in called(manager, b"xyzzy.method")
    assert b"xyzzy" not in ask(tmp_path, b"GET /metrics HTTP/1.0\r\n\r\n")
    manager.end()
    assert not (tmp_path / "metrics.sock").exists()


@pytest.mark.requirement("SVC-8")
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
        (b"GET /else HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 "),
        (b"\r\n\r\n", b"HTTP/1.1 404 "),
        (b"x" * 100_000, b""),
    ],
    ids=["method", "path", "nothing", "too long"],
)
def test_invalid_metrics_requests_are_refused_and_the_next_one_succeeds(
    manager: ServiceManager, tmp_path: Path, request_: bytes, status: bytes
) -> None:
    try:
        assert ask(tmp_path, request_).startswith(status)
    except (ConnectionResetError, BrokenPipeError):
        assert status == b""
    assert scraped(tmp_path)["ctxd_state", (("state", "ready"),)] == 1


@pytest.mark.requirement("SVC-8")
def test_idle_metrics_connections_do_not_block_scrapes_for_long(manager: ServiceManager, tmp_path: Path) -> None:
    idle = [socket.socket(socket.AF_UNIX) for _ in range(8)]
    try:
        for each in idle:
            each.settimeout(20)
            each.connect(str(tmp_path / "metrics.sock"))
        assert [each.recv(1) for each in idle] == [b""] * 8
        assert scraped(tmp_path)["ctxd_state", (("state", "ready"),)] == 1
    finally:
        for each in idle:
            each.close()
