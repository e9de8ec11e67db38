"""Servers that are not ours: the backend keeps to what XTDB's own HTTP server does, weaknesses and all.

That server is not to be had where Maven finds the node's jars. So all of this runs on a stand-in, which answers as that
server is documented and was observed to; and, with ``CTXD_XTDB_URL=http://host:port``, on whatever answers there. Each
run leaves entities of its own there.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.messages import PutDoc, Refused, Unknown
from ctxd.backends.xtdb.node.launch import start
from ctxd.backends.xtdb.node.node_checks import look
from ctxd.backends.xtdb.node.node_layout import find_java
from tests.xtdb import test_node_suite, test_spec
from tests.xtdb.running import QUICK, START_S_MAX, installation
from tests.xtdb.test_differential import compare_world

YOURS = os.environ.get("CTXD_XTDB_URL")
STAND_IN = "stand-in"
HEADER_BYTES = "65536"
"""What README's configuration of that server asks for: an id may be longer than the 8 KiB that it takes otherwise."""


class Server:
    """One that answers at ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url


@contextmanager
def standing_in(log: Path, header_bytes: str = HEADER_BYTES) -> Iterator[Server]:
    """The stand-in, before a node in memory."""
    jars = installation().class_path()
    command = [
        str(find_java(os.environ).path),
        "-Xmx512m",
        *QUICK,
        "-cp",
        os.pathsep.join((jars, str(Path(__file__).parent))),
    ]
    process = start(
        [*command, "clojure.main", "-m", "standing-in", header_bytes], os.environ, log=log, ready_s=START_S_MAX
    )
    try:
        yield Server(address_in(log))
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def address_in(log: Path) -> str:
    """Address printed by the stand-in."""
    return log.read_text().partition("serving ")[2].split()[0]


@pytest.fixture(scope="module", params=[STAND_IN, *([YOURS] if YOURS else [])])
def memory_node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Instead of a node of ours: the tests that others share run here on another server."""
    if request.param == STAND_IN:
        with standing_in(tmp_path_factory.mktemp("standing-in") / "log") as server:
            yield server
    else:
        yield Server(request.param)


class TestNode(test_node_suite.TestXtdbNode):
    """Promises on which the projection relies."""


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.requirement("XTB-5")
async def test_another_server_answers_as_the_embedded_tables_and_the_algebra(memory_node, tmp_path, seed):
    assert (await compare_world(tmp_path, memory_node.url, seed, 0.1)).answered > 0


@pytest.mark.anyio
@pytest.mark.requirement("XTB-9")
async def test_a_server_that_refuses_long_ids_is_reported_with_the_setting_that_helps(tmp_path):
    with standing_in(tmp_path / "log", header_bytes="8192") as server:
        async with XtdbClient(server.url) as client:
            with pytest.raises(Refused, match=":request-header-size 65536"):
                await client.history("\U0001f600" * 1_024)


@pytest.mark.anyio
async def test_errors_of_another_server_are_classified(memory_node):
    async with XtdbClient(memory_node.url) as client:
        with pytest.raises(Unknown) as caught:
            await client.committed(
                await client.submit([PutDoc({"xt/id": "there", "type": "t"}, 1)]) + 1_000, timeout_s=0.1
            )
        assert caught.value.kind == "timeout"
        with pytest.raises(Refused, match="(?i)entity|query|find"):
            await client._query("{:find [e] :nothing 7}", [], lambda read: read, 0, None)


@pytest.mark.slow
@pytest.mark.timeout(test_spec.RUN_S_MAX)
@pytest.mark.requirement("XTB-5")
def test_a_daemon_keeps_its_versions_in_another_server(memory_node):
    done = test_spec.run(memory_node, test_spec.SPEC / "test_versions.py")
    assert done.returncode == 0, done.stdout[-8000:]
    assert " skipped" not in done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(3 * test_spec.RUN_S_MAX)
@pytest.mark.requirement("XTB-5")
def test_a_daemon_does_all_that_it_does_on_another_server(memory_node):
    done = test_spec.run(memory_node, *sorted(test_spec.SPEC.glob("test_*.py")))
    assert done.returncode == 0, done.stdout[-8000:]


def test_the_doctor_knows_another_server(memory_node):
    told = {finding.name: finding for finding in look(installation(), memory_node.url, os.environ)}
    assert [told[name].verdict for name in ("node", "ingester", "lag")] == ["ok"] * 3
    if memory_node.url != YOURS:
        assert told["sync"].verdict == "warn" and "does not report" in told["sync"].found


@pytest.mark.skipif(not YOURS, reason="CTXD_XTDB_URL names no XTDB HTTP server: this ran on a stand-in only")
def test_the_configured_server_is_an_xtdb():
    told = {finding.name: finding for finding in look(installation(), YOURS or "", os.environ)}
    assert told["node"].verdict == "ok", told["node"].found
