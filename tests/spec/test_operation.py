"""Start, end and status of a daemon: real processes, real signals, real sockets."""

import json
import os
import signal
import socket
import stat
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from tests.client.running import Running
from tests.crash.daemon import DaemonProcess, daemon_process
from tests.crash.wire import Gone, Refused, Wire
from tests.waiting import block_until

CTXD = Path(sysconfig.get_path("scripts")) / "ctxd"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon_process(tmp_path) as made:
        yield made


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """With another umask, which a started process inherits."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """``ctxd run`` that is expected to be refused."""
    return subprocess.run([CTXD, "run", *map(str, words)], capture_output=True, text=True, timeout=30)


@pytest.mark.requirement("OPS-1")
def test_the_socket_is_only_accessible_to_its_owner_under_every_umask(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    modes: set[int] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            try:
                modes.add(stat.S_IMODE((folder / "ctxd.sock").lstat().st_mode))
            except FileNotFoundError:
                pass

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with umask(0), Running(folder):
            block_until(lambda: modes, 10)  # On a busy machine, the daemon may start and end before it is seen.
    finally:
        over.set()
        watcher.join()
    assert modes == {0o600}


@pytest.mark.requirement("OPS-1")
def test_the_socket_that_a_kill_left_behind_is_replaced(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon:
        daemon.kill()
        assert stat.S_ISSOCK(Path(daemon.socket).lstat().st_mode), "a kill leaves the socket"
        daemon.start()
        with connect_sync(daemon.socket) as client:
            assert client.daemon_status().incarnation == 2
    assert not Path(daemon.socket).exists(), "an orderly end does not"


@pytest.mark.requirement("OPS-1")
def test_a_live_socket_and_a_regular_file_are_refused_and_left_alone(tmp_path: Path) -> None:
    with Running(tmp_path) as daemon, connect_sync(daemon.socket) as client:
        refused = run("--ephemeral", "--socket", daemon.socket)
        assert refused.returncode == os.EX_UNAVAILABLE
        assert daemon.socket in refused.stderr
        assert f"{client.daemon_status().pid}" in refused.stderr
        assert client.daemon_status().state == "ready"
    (tmp_path / "file").write_text("mine")
    refused = run("--ephemeral", "--socket", tmp_path / "file")
    assert refused.returncode == os.EX_CANTCREAT
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "words",
    [
        ["verify", "--nonsense"],
        ["verify", "beyond"],
        ["backup"],
        ["nonsense"],
        ["--nonsense"],
        ["run", "--ephemeral", "--state-dir", "/nowhere"],
        ["run", "--log-level", "loud"],
    ],
    ids=" ".join,
)
def test_wrong_usage_has_its_own_exit_status(words: list[str]) -> None:
    ended = subprocess.run([CTXD, *words], capture_output=True, text=True, timeout=30)
    assert ended.returncode == os.EX_USAGE
    assert ended.stderr.endswith(
        ("--help\n", "exclude each other: an ephemeral state has no directory; leave one of them out\n")
    )


@pytest.mark.requirement("DUR-5")
def test_a_second_daemon_on_the_same_state_is_refused_and_names_the_owner(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        refused = run("--state-dir", tmp_path / "state", "--socket", tmp_path / "other.sock")
        assert refused.returncode == os.EX_TEMPFAIL
        assert f"process {client.daemon_status().pid}" in refused.stderr
        assert not (tmp_path / "other.sock").exists()
        assert client.daemon_status().state == "ready"


def line(id: object, method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


@pytest.mark.anyio
@pytest.mark.requirement("OPS-2")
async def test_sigterm_completes_started_calls_refuses_new_ones_and_exits_with_0(
    process: DaemonProcess, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    await process.start(failpoints=f"journal.flush=hold:{held}")
    async with await Wire.open(process.socket) as wire, await Wire.open(process.socket) as other:
        await wire.call("session.create", agent="a", session="s")
        messages = [{"role": "user", "content": "begun"}]
        held.touch()
        await wire.send(line("begun", "session.append", session="s", messages=messages))
        while (await other.call("daemon.status"))["store"]["pending_writes"] == 0:
            pass
        process.send(signal.SIGTERM)
        await until_no_listener(process.socket)
        await wire.send(line("new", "session.append", session="s", messages=messages))
        replies = {"new": json.loads(await wire.line())}
        held.unlink()
        replies["begun"] = json.loads(await wire.line())
        assert replies["begun"]["result"]["turn"] == 1
        data = replies["new"]["error"]["data"]
        assert (data["code"], data["outcome"], data["retryable"]) == ("draining", "not_applied", True)
        with pytest.raises(Gone):
            await wire.line()
    assert await process.ended() == 0
    await process.start()
    async with await Wire.open(process.socket) as wire:
        assert (await wire.call("session.get", session="s"))["session"]["turn_count"] == 1


async def until_no_listener(path: Path) -> None:
    """Wait until the daemon takes no more connections."""
    for _ in range(100_000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) != 0:
                return
    raise AssertionError("the daemon still listens")


@pytest.mark.requirement("OPS-3")
def test_status_identifies_the_daemon_and_counts_its_work(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        before = client.daemon_status()
        assert before.state == "ready"
        assert (before.socket, before.state_dir) == (daemon.socket, str(tmp_path / "state"))
        assert Path(f"/proc/{before.pid}").exists()
        assert (before.incarnation, before.sessions_live, before.store.state) == (1, 0, "ok")
        s = client.session("s", agent="a")
        receipt = s.user("go").receipt
        assert receipt is not None
        with connect_sync(daemon.socket):
            after = client.daemon_status()
        assert after.connections == before.connections + 1
        assert after.requests > before.requests + 2
        assert after.uptime_s > before.uptime_s
        assert (after.sessions_live, after.store.pending_writes) == (1, 0)
        assert after.objects_cached > before.objects_cached
        assert (after.store.head_seq, after.store.head_chain) == (receipt.seq, receipt.chain)
        assert (after.store.rows, after.store.commits) == (before.store.rows + 2, before.store.commits + 2)
        assert after.store.flush_ms_p99 >= after.store.flush_ms_p50 > 0


@pytest.mark.anyio
@pytest.mark.requirement("OPS-3")
async def test_status_shows_calls_in_flight_and_a_degraded_daemon(process: DaemonProcess, tmp_path: Path) -> None:
    held = tmp_path / "held"
    await process.start(failpoints=f"journal.flush=hold:{held};journal.commit=error:ENOSPC*1@4")
    async with await Wire.open(process.socket) as wire, await Wire.open(process.socket) as other:
        await wire.call("session.create", agent="a", session="s")
        held.touch()
        await wire.send(line("slow", "session.append", session="s", messages=[{"role": "user", "content": "x"}]))
        while (await other.call("daemon.status"))["in_flight"] == 0:
            pass
        status = await other.call("daemon.status")
        assert (status["in_flight"], status["store"]["pending_writes"]) == (1, 1)
        held.unlink()
        assert json.loads(await wire.line())["id"] == "slow"
        with pytest.raises(Refused):
            await other.call("session.append", session="s", messages=[{"role": "user", "content": "y"}])
        status = await other.call("daemon.status")
        assert (status["state"], status["store"]["state"]) == ("degraded", "read_only")
        assert "space" in status["store"]["reason"]
