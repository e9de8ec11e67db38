"""A daemon, a real node, and what goes wrong between them: everything gets there once, and can be proven to have.

``CTXD_SEED`` repeats a run's choices.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.messages import PutDoc
from ctxd.projection.comparison import Comparison
from ctxd.projection.node_maintenance import put_back
from ctxd.sessions.session_settings import SessionSettings
from ctxd.sessions.stored_session import SessionHead, head_document
from ctxd_client import connect_sync
from ctxd_protocol.status_types import ProjectionStatus
from tests.crash.daemon import DaemonProcess, NotReady, daemon_process
from tests.crash.storm import Storm
from tests.unit.projection.projecting import compared, level, projecting
from tests.unit.projection.test_system_context import told_and_changed
from tests.unit.store.documents import document, write
from tests.unit.store.running import put, running
from tests.waiting import block_until
from tests.xtdb.running import Node, node

LEVEL_S = 60
"""Seconds that a node may take to get what it lacks."""

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Node]:
    """A node that keeps its data, to be killed."""
    with node("rocksdb", tmp_path / "node") as running_node:
        yield running_node


@pytest.fixture
def daemon(tmp_path: Path, kept: Node) -> Iterator[DaemonProcess]:
    """A daemon that projects there, to be started."""
    with daemon_process(tmp_path, env=xtdb(kept)) as process:
        yield process


def xtdb(at: Node) -> dict[str, str]:
    return {"CTXD_STORE_BACKEND": "xtdb", "CTXD_STORE_URL": at.url}


def projection(daemon: DaemonProcess) -> ProjectionStatus:
    with connect_sync(str(daemon.socket)) as client:
        found = client.daemon_status().store.projection
    assert found is not None
    return found


async def reached(daemon: DaemonProcess, state: str = "projecting", lag: int = 0) -> ProjectionStatus:
    """The daemon's projection, once it is in ``state``, at most ``lag`` rows behind."""

    def look() -> ProjectionStatus | None:
        found = projection(daemon)
        return found if found.state == state and found.lag_rows <= lag else None

    found = await run_sync(block_until, look, LEVEL_S)
    assert found is not None
    return found


async def difference(daemon: DaemonProcess, at: Node) -> Comparison:
    return await compared(daemon.state_dir, XtdbClient, at.url)


def ctxd(*words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ctxd", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})})


def told(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


class TestKills:
    @pytest.mark.slow
    @pytest.mark.requirement("PRJ-1")
    async def test_everything_is_projected_once_over_kills_of_daemon_and_node(
        self, daemon: DaemonProcess, kept: Node
    ) -> None:
        storm = Storm(daemon)

        async def nemesis() -> None:
            for number in range(9):
                await anyio.sleep(storm.rng.uniform(0.2, 0.8))
                if number % 4 == 3:
                    await run_sync(kept.kill)
                    await anyio.sleep(storm.rng.uniform(0.0, 0.5))
                    await run_sync(kept.start)
                else:
                    await storm.kill()
                    await storm.start()

        await storm.under_load(nemesis, large=0.02)
        await reached(daemon)
        await storm.judge()
        found = await difference(daemon, kept)
        assert found.problems == [] and found.equal
        assert found.seq == found.head_seq > 100

    @pytest.mark.slow
    @pytest.mark.requirement("PRJ-1")
    async def test_everything_is_projected_once_over_kills_at_each_projection_failpoint(
        self, daemon: DaemonProcess, kept: Node
    ) -> None:
        storm = Storm(daemon)

        async def nemesis() -> None:
            for place in ("project.submit", "project.sent", "project.committed"):
                for pass_number in (1, 5):
                    await storm.kill()
                    storm.recorder.daemon_is_down()
                    try:
                        await daemon.start(failpoints=f"{place}=kill@{pass_number}")
                        storm.recorder.daemon_is_up()
                        assert await daemon.ended() == -signal.SIGKILL
                    except NotReady:
                        assert daemon.exit_code == -signal.SIGKILL
                    await storm.start()

        await storm.under_load(nemesis)
        await reached(daemon)
        await storm.judge()
        assert (await difference(daemon, kept)).problems == []

    @pytest.mark.requirement("PRJ-2")
    @pytest.mark.slow
    async def test_a_stopped_or_absent_node_delays_no_write(self, daemon: DaemonProcess, kept: Node) -> None:
        await daemon.start()
        await reached(daemon)
        with connect_sync(str(daemon.socket)) as client:
            s = client.session("s", agent="a")
            kept.pause()
            for n in range(200):
                s.user(f"while it stands still {n}")
            kept.cont()
            await reached(daemon)
            kept.kill()
            for n in range(200):
                s.user(f"while it is away {n}")
            away = await reached(daemon, "unreachable", lag=10**6)
            assert away.lag_rows >= 200 and away.reason
            kept.start()
            await reached(daemon)
        assert await daemon.stop() == 0
        assert (await difference(daemon, kept)).problems == []


class TestAnotherPast:
    @pytest.mark.requirement("PRJ-3")
    async def test_a_wiped_node_gets_everything_again(self, daemon: DaemonProcess, kept: Node) -> None:
        await daemon.start()
        with connect_sync(str(daemon.socket)) as client:
            s = client.session("s", agent="a")
            for n in range(100):
                s.user(f"before {n}")
            before = await reached(daemon)
            kept.stop()
            kept.wipe()
            kept.start()
            s.user("after")
            await reached(daemon)
        assert f'"rows": {before.seq}' in daemon.said(100_000) and "projection.lost" in daemon.said(100_000)
        assert await daemon.stop() == 0
        found = await difference(daemon, kept)
        assert found.problems == [] and found.equal

    @pytest.mark.requirement("PRJ-3")
    @pytest.mark.slow
    async def test_a_node_restored_from_an_older_copy_gets_the_missing_rows(
        self, daemon: DaemonProcess, kept: Node, tmp_path: Path
    ) -> None:
        await daemon.start()
        with connect_sync(str(daemon.socket)) as client:
            s = client.session("s", agent="a")
            for n in range(50):
                s.user(f"before {n}")
            await reached(daemon)
            kept.stop()
            shutil.copytree(kept.data, tmp_path / "older")
            kept.start()
            for n in range(50):
                s.user(f"meanwhile {n}")
            await reached(daemon)
            kept.kill()
            kept.wipe()
            shutil.copytree(tmp_path / "older", kept.data)
            kept.start()
            s.user("after")
            await reached(daemon)
            assert s.chat().turn_count == 101
        assert "projection.lost" in daemon.said(100_000)
        assert await daemon.stop() == 0
        found = await difference(daemon, kept)
        assert found.problems == [] and found.equal


class Spoiling(XtdbClient):
    """A client whose puts of one entity no node takes."""

    async def submit(self, ops):
        spoilt = [
            PutDoc({**op.doc, "xt/id": {"no": "id"}}, op.valid_time)
            if isinstance(op, PutDoc) and op.doc["xt/id"] == "t37"
            else op
            for op in ops
        ]
        return await super().submit(spoilt)


@pytest.mark.requirement("PRJ-4")
async def test_the_one_row_that_a_node_refuses_is_left_out_and_can_be_put_back(
    tmp_path: Path, memory_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client would refuse to write it: it has to get as far as the node.
    from ctxd.backends.xtdb import messages, transit

    def any_document(doc: Any) -> bytes:
        if isinstance(doc["xt/id"], str):
            return encode_document(doc)
        return b'{"~:xt/id":null,"~:payload":%s}' % transit.encode(doc["payload"])

    encode_document = messages.encode_document
    monkeypatch.setattr(messages, "encode_document", any_document)
    root = tmp_path / "state"
    async with projecting(root, Spoiling, memory_node.url) as store:
        for n in range(100):
            store.submit(write(document(f"t{n}", f"text {n}", tool="x")))
        await level(store)
        status = store.status().projection
        assert status is not None and status.quarantined == (38,) and "38 (" in status.reason
    found = await compared(root, XtdbClient, memory_node.url)
    assert found.equal and [problem.severity for problem in found.problems] == ["warning"]
    assert await put_back(root, memory_node.url, ()) == {38: ""}
    found = await compared(root, XtdbClient, memory_node.url)
    assert found.equal and found.problems == []


class TestCommands:
    @pytest.fixture
    async def root(self, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
        """A state of the embedded store with so many rows; by default some batches, to be interrupted in."""
        async with running(tmp_path / "state") as store:
            settings = SessionSettings(agent="a", principal="host", created_at=0, ordinal=0, filesystem_id="f")
            head = head_document("s1", SessionHead(settings=settings))
            for n in range(getattr(request, "param", 3_000)):
                content = "x" * 1_100_000 if n == 7 else f"text {n}"
                call = document(f"t{n}", content, tool="x", z=n, a=1)
                await put(store, *([head, call] if n == 0 else [call]), knows=(f"t{n}",))
            await store.drain()
        return tmp_path / "state"

    @pytest.mark.requirement("PRJ-5")
    async def test_switching_stores_and_back_keeps_everything(self, root: Path, kept: Node, tmp_path: Path) -> None:
        to_xtdb = ["migrate", "--to", "xtdb", "--state-dir", root, "--store-url", kept.url, "--json"]
        for place in ("project.sent", "project.committed"):
            done = await run_sync(lambda at: ctxd(*to_xtdb, env={"CTXD_FAILPOINTS": f"{at}=kill@3"}), place)
            assert done.returncode == -signal.SIGKILL, done.stderr
        done = await run_sync(lambda: ctxd(*to_xtdb))
        assert done.returncode == 0, done.stderr
        report = told(done)
        assert report["equal"] and report["seq"] == report["head_seq"] == 3_000

        with daemon_process(tmp_path, env=xtdb(kept)) as daemon:
            await daemon.start()
            with connect_sync(str(daemon.socket)) as client:
                client.session("s", agent="a").user("on the node")
                assert client.daemon_status().store.backend == "xtdb"
            await reached(daemon)
            done = await run_sync(lambda: ctxd(*to_xtdb))
            assert done.returncode == 75, "while a daemon runs"
            assert await daemon.stop() == 0

        with_damage = ["migrate", "--to", "sqlite", "--state-dir", root, "--json"]
        done = await run_sync(lambda: ctxd(*with_damage))
        assert done.returncode == 0 and told(done)["folded"] == 0, done.stderr
        with daemon_process(tmp_path) as daemon:
            await daemon.start()
            with connect_sync(str(daemon.socket)) as client:
                assert client.daemon_status().store.backend == "sqlite"
                (turn,) = client.session("s", agent="a").chat().turns
                assert turn["messages"][0]["content"] == "on the node"
            assert await daemon.stop() == 0

    @pytest.mark.requirement("PRJ-6")
    @pytest.mark.parametrize("root", [900], indirect=True)
    @pytest.mark.slow
    async def test_verify_store_compares_the_node_with_the_journal(self, root: Path, kept: Node) -> None:
        compare = ["verify", "--store", "--state-dir", root, "--store-url", kept.url, "--json"]
        assert (await run_sync(lambda: ctxd(*compare))).returncode == 1, "nothing is there yet"
        rebuild = ["rebuild-xtdb", "--state-dir", root, "--store-url", kept.url, "--json"]
        assert (await run_sync(lambda: ctxd(*rebuild))).returncode == 0
        done = await run_sync(lambda: ctxd(*compare))
        report = told(done)
        assert done.returncode == 0 and report["equal"] and report["entities"] == 901 and report["texts"] == 900

        async with XtdbClient(kept.url) as client:
            (row,) = await client.history("t123")
            assert row.doc is not None
            forged = {**row.doc, "payload": {**row.doc["payload"], "tx_time": 1}}
            await client.committed(await client.submit([PutDoc(forged, row.valid_time)]), timeout_s=30)
        done = await run_sync(lambda: ctxd(*compare))
        assert done.returncode == 2 and not told(done)["equal"]
        assert "t123" in told(done)["problems"][0]["message"]
        assert (await run_sync(lambda: ctxd(*rebuild))).returncode == 2, "it does not write over what it finds"
        done = await run_sync(lambda: ctxd(*rebuild, "--force"))
        assert done.returncode == 0 and told(done)["equal"], done.stderr

        kept.kill()
        assert (await run_sync(lambda: ctxd(*compare))).returncode == 69


@pytest.mark.requirement("PRJ-10")
async def test_entries_and_component_texts_are_the_same_at_a_real_node_and_gone_after_a_purge(
    tmp_path: Path, memory_node: Node
) -> None:
    await told_and_changed(tmp_path / "state", XtdbClient, memory_node.url)
