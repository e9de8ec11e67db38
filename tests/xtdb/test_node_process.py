"""The node as a process: its socket, its start after an end of any kind, and how it ends when it cannot start."""

import os
import socket
import stat
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from ctxd.backends.xtdb.client import PutDoc, XtdbClient
from ctxd.backends.xtdb.messages import XtdbFailure
from ctxd.backends.xtdb.node.launch import Launch, command, environment, find_config, request
from ctxd.backends.xtdb.node.node_layout import NodeFailure
from tests.xtdb.asking import Http
from tests.xtdb.running import QUICK, START_S_MAX, installation, node, postgres

pytestmark = pytest.mark.anyio

ENDED_BY_JVM = 3
"""The exit code of a JVM that ends because memory ran out."""

MEBIBYTE = {"text": "x" * 1_048_576}


@pytest.fixture
def shared(memory_node):
    return memory_node


@pytest.mark.requirement("XDB-4")
async def test_the_socket_is_for_its_owner_only(shared):
    assert stat.S_IMODE(os.stat(shared.socket).st_mode) == 0o600


@pytest.mark.requirement("XDB-4")
async def test_a_live_socket_is_refused_and_keeps_serving(shared, tmp_path):
    ended = run(Launch(find_config("memory"), tmp_path / "data", Path(shared.socket)))
    assert ended.returncode == 69
    assert f"another node holds {shared.socket}" in ended.stderr
    assert request(shared.url, "status")[0] == 200


@pytest.mark.requirement("XDB-4")
@pytest.mark.slow
async def test_a_socket_on_which_another_program_answers_is_refused(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        ended = run(Launch(find_config("memory"), tmp_path / "data", path))
    assert ended.returncode == 69
    assert path.is_socket()


@pytest.mark.requirement("XDB-4")
async def test_a_file_in_the_sockets_place_is_left_alone(tmp_path):
    (tmp_path / "s").write_text("precious")
    ended = run(Launch(find_config("memory"), tmp_path / "data", tmp_path / "s"))
    assert ended.returncode == 73
    assert (tmp_path / "s").read_text() == "precious"


@pytest.mark.requirement("XDB-4")
@pytest.mark.requirement("XDB-5")
async def test_a_killed_node_restarts_over_its_stale_socket_with_all_acknowledged_data(tmp_path):
    with node("rocksdb", tmp_path) as running:
        async with Http(running.socket) as http:
            assert (await http.get("status"))[1]["synced?"] is True
            for n in range(20):
                tx_id = await http.put(f"d{n}", n=n)
            assert stat.S_IMODE(running.data.stat().st_mode) == 0o700
        running.kill()
        assert Path(running.socket).is_socket()
        running.start()
        async with Http(running.socket) as http:
            assert (await http.get("latest-submitted-tx"))[1]["tx-id"] == tx_id
            assert (await http.get("entity", eid="d19", await_tx_id=tx_id))[1]["n"] == 19
        running.stop()
        assert not Path(running.socket).exists()


@pytest.mark.requirement("XDB-5")
@pytest.mark.slow
async def test_an_index_that_is_gone_is_made_again_from_log_and_documents(tmp_path):
    with node("rocksdb", tmp_path) as running:
        async with Http(running.socket) as http:
            tx_id = await http.put("kept", n=1)
            assert (await http.get("entity", eid="kept", await_tx_id=tx_id))[1]["n"] == 1
        running.stop()
        for file in sorted((running.data / "index").iterdir()):
            file.unlink()
        running.start()
        async with Http(running.socket) as http:
            assert (await http.get("entity", eid="kept", await_tx_id=tx_id))[1]["n"] == 1


async def test_a_paused_node_responds_to_everything_once_it_continues(tmp_path):
    with node("memory", tmp_path) as running:
        running.pause()
        with pytest.raises(NodeFailure):
            request(running.url, "status", timeout_s=0.3)
        running.cont()
        assert request(running.url, "status")[0] == 200


@pytest.mark.requirement("XDB-6")
@pytest.mark.slow
async def test_two_nodes_on_one_postgresql_see_each_others_writes(tmp_path):
    with (
        postgres() as database,
        node("postgres", tmp_path / "a", environ=database.environ) as one,
        node("postgres", tmp_path / "b", environ=database.environ) as other,
    ):
        async with Http(one.socket) as writer, Http(other.socket) as reader:
            assert (await writer.get("status"))[1]["synced?"] is True
            tx_id = await writer.put("both", n=1)
            assert (await reader.get("entity", eid="both", await_tx_id=tx_id))[1]["n"] == 1


@pytest.mark.requirement("XDB-2")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{:a", "EOF while reading"),
        ('{:a #ctxd/env "CTXD_NOT_SET"}', "the environment variable CTXD_NOT_SET is not set"),
    ],
)
async def test_an_unreadable_configuration_ends_the_node_with_the_reason(tmp_path, text, reason):
    (tmp_path / "node.edn").write_text(text)
    ended = run(Launch(tmp_path / "node.edn", tmp_path / "data", tmp_path / "s"))
    assert ended.returncode == os.EX_CONFIG
    assert f"{tmp_path}/node.edn cannot be read: {reason}" in ended.stderr


@pytest.mark.slow
async def test_without_its_database_the_node_exits_with_a_retryable_code(tmp_path, monkeypatch):
    monkeypatch.setenv("CTXD_XTDB_PG_PORT", "1")
    ended = run(Launch(find_config("postgres"), tmp_path / "data", tmp_path / "s"))
    assert ended.returncode == 1
    assert "Connection to 127.0.0.1:1 refused" in ended.stderr


async def test_with_a_port_the_node_listens_only_on_the_given_address(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with node("memory", tmp_path, tcp=f"127.0.0.1:{port}") as running:
        assert running.url == f"http://127.0.0.1:{port}"
        assert request(running.url, "status")[0] == 200
        assert not Path(running._launch.socket).exists()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port), timeout=2)


def run(launch):
    """A node that is expected to refuse to start."""
    arguments = command(
        installation(), Launch(**{**vars_of(launch), "heap": "256m", "java_options": QUICK}), os.environ
    )
    return subprocess.run(
        arguments, env=environment(os.environ), capture_output=True, text=True, timeout=START_S_MAX, check=False
    )


def vars_of(launch):
    return {name: getattr(launch, name) for name in launch.__slots__}


@pytest.mark.requirement("XDB-4")
@pytest.mark.slow
async def test_a_node_out_of_memory_exits_and_can_be_restarted(tmp_path):
    with node("memory", tmp_path, heap="64m") as running:
        async with XtdbClient(running.url) as client:
            with pytest.raises(XtdbFailure):
                for number in range(1_000):
                    await client.submit([PutDoc({"xt/id": f"large {number}", "type": "t", "payload": MEBIBYTE}, 1_000)])
        assert running.process is not None
        assert running.process.wait(60) == ENDED_BY_JVM
        running.restart()
        assert request(running.url, "status")[0] == 200


@pytest.mark.requirement("XDB-9")
@pytest.mark.parametrize("config", ["rocksdb", pytest.param("postgres", marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_a_node_indexes_more_text_than_its_heap_holds(tmp_path, config):
    with ExitStack() as stack:
        environ = stack.enter_context(postgres()).environ if config == "postgres" else {}
        running = stack.enter_context(node(config, tmp_path, heap="96m", environ=environ))
        async with XtdbClient(running.url) as client:
            for number in range(120):
                tx_id = await client.submit(
                    [PutDoc({"xt/id": f"large {number}", "type": "t", "payload": MEBIBYTE}, 1_000)]
                )
            assert await client.committed(tx_id, timeout_s=60)
            ids = [f"large {number}" for number in range(120)]
            assert len(await client.entities(ids, valid_time=1_000)) == 120


async def test_the_data_may_be_in_a_directory_with_any_name(tmp_path):
    with node("rocksdb", tmp_path / "50 % of café") as running:
        assert request(running.url, "status")[0] == 200
        assert (running.data / "golden").is_dir()
