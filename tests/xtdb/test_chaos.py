"""Whatever a connection does to requests and replies, the node has each row of the journal once, and in order."""

import random
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from ctxd import sqlite_file
from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb import documents as xtdb_documents
from ctxd.backends.xtdb.client import XtdbClient
from ctxd.clock import SystemClock
from ctxd.projection import node_transactions, projection_loop
from ctxd.projection.node_connection import connect
from ctxd.projection.progress import Room
from ctxd.store import journal
from ctxd.store.journal import read_versions
from ctxd.store.verify import digest
from ctxd.store.version_store import VersionStore
from tests.unit.projection.projecting import Projecting
from tests.unit.store.documents import document, write
from tests.xtdb.proxy import HARMFUL, ChaosProxy, Fault, Schedule
from tests.xtdb.running import Node, node

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SCHEDULES = 30
SCHEDULES_NIGHTLY = 300
SCHEDULES_A_NODE = 100
"""What one node in memory holds; with twice as much its heap is full, and it collects garbage more than it indexes."""

SHARE = 0.35
"""Of the requests, how many are harmed: enough that no life of a projection lasts long."""

WRITES = 160
ENTITIES = 40
WAIT_S = 60
faults_met: Counter[Fault] = Counter()


class HastyClock(SystemClock):
    """A clock on which the pauses between attempts pass sooner. Times that are written down are the host's."""

    FASTER = 40

    def monotonic(self) -> float:
        return super().monotonic() * self.FASTER

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / self.FASTER)


@asynccontextmanager
async def projecting(root: Path, url: str):
    """A store in ``root`` that projects to ``url``."""
    store = Projecting(root, url, connect, Room(), HastyClock())
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        yield store
        await store.drain()
        group.cancel_scope.cancel()
    assert store.faults == []


async def write_some(store: VersionStore, chance: random.Random, apart: str, count: int) -> None:
    """Writes of one to three versions, in bursts: of some entities again and again, with and without text."""
    for number in range(count):
        ids = chance.sample(range(ENTITIES), chance.randint(1, 3))
        text = [None, f"text {chance.randrange(8)}", f"~ ^ ` only {number}"]
        puts = [document(f"{apart}{id}", chance.choice(text), number=number, z=1, a=[id, None]) for id in ids]
        store.submit(write(*puts, session=None))
        if chance.random() < 0.2:
            await store.wait_for_writes()
            await anyio.sleep(chance.random() * 0.02)


async def level(store: VersionStore) -> None:
    """Return once the node has every row."""
    await store.wait_for_writes()
    with anyio.move_on_after(WAIT_S):
        while (status := store.status()).projection.seq < status.head_seq:
            await anyio.sleep(0.005)
        return
    raise AssertionError(f"after {WAIT_S} s the node has not every row: {store.status().projection}")


def folded(root: Path) -> list[Version]:
    """Every version in the journal in ``root``."""
    connection = sqlite_file.open_reader(root / "state.db")
    try:
        return [version for row in journal.read_rows(connection, after=0) for version in read_versions(row)]
    finally:
        connection.close()


async def at_the_node(url: str, versions: list[Version]) -> list[Version]:
    """Every version that the node has of the entities in ``versions``, those that others replaced included."""
    found: list[Version] = []
    async with XtdbClient(url) as client:
        for id in {version.id for version in versions}:
            for row in await client.history(id):
                assert row.doc is not None, f"{id} is deleted, which nobody asked for"
                found.append(xtdb_documents.from_doc(row.doc, row.valid_time)[0])
    return found


async def require_equal(url: str, root: Path) -> None:
    """Assert that the node has what the journal has: nothing less, nothing more, nothing twice."""
    wanted = folded(root)
    found = await at_the_node(url, wanted)
    if digest(found) != digest(wanted):
        by_id: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        for version in found:
            by_id[version.id].append((version.valid_time, version.tx))
        for version in wanted:
            assert (version.valid_time, version.tx) in by_id[version.id], f"lost: {version}"
        assert sorted(found, key=repr) == sorted(wanted, key=repr)
    texts = {version.content for version in wanted if version.content is not None}
    async with XtdbClient(url) as client:
        ids = [xtdb_documents.content_id(text) for text in texts]
        assert len(await client.entities(ids, valid_time=xtdb_documents.FIXED_VALID_TIME)) == len(texts)


async def run_schedule(seed: int, running: Node, root: Path) -> Counter[Fault]:
    """One seed's writes through one seed's harm, and what came of them."""
    schedule = Schedule(seed, SHARE)
    proxy = ChaosProxy(root / "p", Path(running.socket), schedule)
    state = root / "state"
    async with proxy.running():
        chance = random.Random(seed)
        apart = f"{root.name}-{seed}/"
        async with projecting(state, proxy.url) as store:
            await write_some(store, chance, apart, WRITES // 2)
        # A daemon that ends with rows under way, and another one that goes on.
        async with projecting(state, proxy.url) as store:
            await write_some(store, chance, apart, WRITES // 2)
            with anyio.move_on_after(1.0):
                await level(store)
            schedule.heal()
            await level(store)
            assert store.status().projection.reason == ""
    await require_equal(running.url, state)
    return schedule.struck


@pytest.fixture
def short_waits(monkeypatch):
    """A transaction that was never submitted is given up after a second, not after half a minute."""
    monkeypatch.setattr(node_transactions, "COMMIT_S", 1.0)
    monkeypatch.setattr(projection_loop, "FENCE_S", 1.0)


@pytest.mark.parametrize("seed", range(SCHEDULES))
async def test_a_faulty_connection_loses_and_duplicates_nothing(seed, memory_node, tmp_path, short_waits):
    faults_met.update(await run_schedule(seed, memory_node, tmp_path))


async def test_every_kind_of_fault_occurred():
    if not faults_met:
        pytest.skip("the schedules were not run")
    assert set(HARMFUL) <= faults_met.keys()


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1_000, 1_000 + SCHEDULES_NIGHTLY, SCHEDULES_A_NODE))
async def test_hundreds_of_faulty_connections_lose_and_duplicate_nothing(first, tmp_path, short_waits):
    met: Counter[Fault] = Counter()
    with node("memory") as fresh:
        for seed in range(first, first + SCHEDULES_A_NODE):
            root = tmp_path / str(seed)
            root.mkdir()
            try:
                met.update(await run_schedule(seed, fresh, root))
            except BaseException as failure:
                failure.add_note(f"seed {seed}")
                raise
    assert min(met[fault] for fault in HARMFUL) >= SCHEDULES_A_NODE / 3
