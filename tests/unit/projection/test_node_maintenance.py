"""Projections without a daemon: rebuilt, migrated, rows put back."""

import sqlite3
from contextlib import closing

import anyio
import pytest
from anyio.to_thread import run_sync

from ctxd.backends.xtdb.messages import PutDoc
from ctxd.clock import SystemClock
from ctxd.errors import StateDirError
from ctxd.objects.document import AsOf
from ctxd.projection import node_maintenance, projection_loop
from ctxd.projection.node_maintenance import GivenUp, put_back
from ctxd.projection.node_maintenance import rebuild as make
from ctxd.store.rebuild import checked
from tests.fakes.node import MemoryNode
from tests.unit.projection.projecting import compared, level, projecting
from tests.unit.store.documents import document, sourced, write
from tests.unit.store.running import running
from tests.unit.store.synced import noting_syncs

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(projection_loop, "BACKOFF_MAX_S", 0.05)
    monkeypatch.setattr(node_maintenance, "POLL_S", 0.005)


@pytest.fixture
def node():
    return MemoryNode()


@pytest.fixture
async def root(tmp_path):
    """A state directory that was never projected."""
    async with running(tmp_path / "state") as store:
        for n in range(200):
            puts = [document(f"t{n}", f"text {n}", tool="x"), sourced("/a.py", f"v{n}")]
            head = [document("session:s1", type="session")] if n == 0 else []
            store.submit(write(*puts, *head, knows=(f"t{n}",)))
        await store.drain()
    return tmp_path / "state"


async def rebuilt(root, node, **options):
    with anyio.fail_after(30):
        return await make(root, "", SystemClock(), lambda s: None, lambda c: None, connect=node.connect, **options)


async def test_an_empty_node_gets_everything_and_is_compared(root, node):
    report = await rebuilt(root, node)
    assert report.equal and report.problems == [] and (report.seq, report.entities) == (200, 202)


async def test_an_interrupted_rebuild_continues(root, node):
    steps = []

    def stop_soon(status):
        steps.append(status.seq)
        if status.seq > 0:
            raise KeyboardInterrupt

    with pytest.raises(BaseExceptionGroup):
        await make(root, "", SystemClock(), stop_soon, lambda c: None, connect=node.connect)
    began = len(node.log)
    assert 0 < steps[-1]
    assert (await rebuilt(root, node)).equal
    puts = [
        op.doc["payload"]["tx"] for ops in node.log for op in ops if isinstance(op, PutDoc) and op.doc["type"] == "file"
    ]
    assert sorted(puts) == list(range(1, 201)) and len(node.log) > began


async def test_a_complete_node_is_only_compared(root, node):
    await rebuilt(root, node)
    before = len(node.log)
    assert (await rebuilt(root, node)).equal
    # A fence, and no row.
    assert [len(ops) for ops in node.log[before:]] == [2]


async def test_the_refusal_of_a_node_names_two_commands_that_work(root, node):
    await rebuilt(root, node)
    put = next(op for ops in node.log[::-1] for op in ops if isinstance(op, PutDoc) and op.doc["type"] == "cursor")
    payload = {**put.doc["payload"], "chain": "other"}
    await node.submit([PutDoc({**put.doc, "payload": payload}, put.valid_time)])
    with pytest.raises(GivenUp) as given_up:
        await rebuilt(root, node)
    reason, _, remedy = str(given_up.value).partition(": ")
    assert reason == "row 200 at the node is not the journal's"
    assert remedy.startswith("name an empty node with --store-url, or run ctxd rebuild-xtdb --force")
    assert (await rebuilt(root, MemoryNode())).equal
    assert (await rebuilt(root, node, force=True)).equal


async def test_a_node_that_holds_something_else_is_refused_unless_forced(root, node, tmp_path):
    await rebuilt(root, node)
    async with running(root) as store:
        await store.submit(write(document("more"))).wait()
    await rebuilt(root, node)
    with closing(sqlite3.connect(root / "state.db")) as database:
        database.execute("UPDATE journal SET chain=zeroblob(32) WHERE seq=201")
        database.commit()
    with pytest.raises(GivenUp, match="--force") as given_up:
        await rebuilt(root, node)
    assert given_up.value.exit_code == node_maintenance.EXIT_REFUSED


async def test_a_forced_rebuild_takes_a_new_writer_name_and_passes_verification(root, node):
    await rebuilt(root, node)
    forged = next(op for ops in node.log for op in ops if isinstance(op, PutDoc) and op.doc["xt/id"] == "t7")
    payload = {**forged.doc["payload"], "fields": {"tool": "forged"}}
    await node.submit([PutDoc({**forged.doc, "payload": payload}, forged.valid_time)])
    assert (await rebuilt(root, node)).worst == "damage"
    report = await rebuilt(root, node, force=True)
    assert report.equal and report.problems == []
    async with projecting(root, node.connect) as store:
        await level(store)
        assert (await store.get("t7", AsOf(tx=200))).document.payload == {"tool": "x"}
        assert store._as_of_reads.answered == 1


async def test_the_watermark_of_a_former_writer_id_stays_removed_after_a_power_cut(root, node):
    await rebuilt(root, node)
    assert (root / "projection.json").exists()
    async with node_maintenance.held(root) as state:
        with noting_syncs() as synced:
            node_maintenance.renew_writer_id(state)
    assert [names for folder, names in synced.seen if folder == root and "projection.json" not in names]


async def test_a_rebuild_gives_up_without_a_listener_or_progress(root, node, monkeypatch):
    node.down = True
    with pytest.raises(GivenUp) as given_up:
        await rebuilt(root, node)
    assert given_up.value.exit_code == node_maintenance.EXIT_UNAVAILABLE
    node.down = False
    node.refuses = lambda op: True
    with pytest.raises(GivenUp), anyio.fail_after(30):
        async with node_maintenance.held(root) as state:
            target = node_maintenance.Target(url="")
            clock = SystemClock()
            await node_maintenance.project(state, target, clock, node.connect, lambda s: None, patience_s=0.2)


async def test_a_state_that_a_daemon_uses_is_refused(root, node):
    async with running(root):
        with pytest.raises(StateDirError) as refused:
            await rebuilt(root, node)
        assert refused.value.exit_code == 75
    with pytest.raises(StateDirError) as refused:
        await rebuilt(root.parent / "none", node)
    assert refused.value.exit_code == node_maintenance.EXIT_NO_STATE


async def test_rows_that_were_left_out_are_put_back_once_the_node_takes_them(root, node):
    node.refuses = lambda op: isinstance(op, PutDoc) and op.doc["xt/id"] in ("t5", "t6")
    report = await rebuilt(root, node)
    assert report.quarantined == (6, 7) and report.worst == "warning"
    node.refuses = lambda op: isinstance(op, PutDoc) and op.doc["xt/id"] == "t6"
    assert await put_back(root, "", (), connect=node.connect) == {6: "", 7: "invalid tx-op"}
    assert (await compared(root, node.connect)).quarantined == (7,)
    with pytest.raises(GivenUp):
        await put_back(root, "", (6,), connect=node.connect)
    node.refuses = lambda op: False
    assert await put_back(root, "", (7,), connect=node.connect) == {7: ""}
    found = await compared(root, node.connect)
    assert found.equal and found.problems == []


async def test_a_daemon_continues_after_rows_were_put_back(root, node):
    node.refuses = lambda op: isinstance(op, PutDoc) and op.doc["xt/id"] == "t5"
    await rebuilt(root, node)
    node.refuses = lambda op: False
    await put_back(root, "", (), connect=node.connect)
    async with projecting(root, node.connect) as store:
        store.submit(write(document("later")))
        await level(store)
        assert store.status().projection.reason == ""


class TestFolding:
    async def test_embedded_versions_that_agree_are_left_as_they_are(self, root):
        report, folded = await run_sync(checked, root, lambda what, done: None)
        assert (report.worst, folded) == (None, 0)

    @pytest.mark.parametrize(
        "damage",
        [
            "DELETE FROM version WHERE rowid=5",
            "UPDATE version SET vt=vt+1 WHERE rowid=5",
            "DELETE FROM knows WHERE object=(SELECT n FROM entity WHERE id='t5')",
            "DELETE FROM entity WHERE n=3",
        ],
    )
    async def test_differing_embedded_versions_are_rebuilt_from_the_journal(self, root, damage):
        before = (await run_sync(checked, root, lambda what, done: None))[0].digest
        with closing(sqlite3.connect(root / "state.db")) as database:
            database.execute(damage)
            database.commit()
        report, folded = await run_sync(checked, root, lambda what, done: None)
        assert (report.worst, folded, report.digest) == (None, 200, before)
        async with running(root) as store:
            assert (await store.get("t5", content=True)).document.content == "text 5"
            assert await store.knowing("t5") == ["s1"]

    async def test_a_failed_rebuild_leaves_the_embedded_versions_unchanged(self, root):
        with closing(sqlite3.connect(root / "state.db")) as database:
            database.execute("DELETE FROM version WHERE rowid=5")
            database.execute("UPDATE journal SET body=x'00' WHERE seq=150")
            database.commit()
        with pytest.raises(StateDirError):
            await run_sync(checked, root, lambda what, done: None)
        with closing(sqlite3.connect(root / "state.db")) as database:
            assert database.execute("SELECT count(*) FROM version").fetchone() == (400,)
