"""As-of reads of a store that projects to a live node: answered by the node, as the embedded tables would."""

import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from ctxd import sqlite_file
from ctxd.backends.stored_version import Version
from ctxd.clock import SystemClock
from ctxd.objects.document import ALL, LATEST, AsOf, Page
from ctxd.projection import read_routing
from ctxd.projection.node_connection import connect
from ctxd.projection.progress import Room
from ctxd.projection.read_routing import NodeReads
from ctxd.store import journal
from ctxd.store.journal import read_versions
from ctxd.store.purge import KIND
from ctxd.store.write_types import PurgeRequest, Write
from ctxd_client import connect_sync
from tests.crash.daemon import daemon_process
from tests.fakes.backend import MemoryBackend
from tests.unit.projection.projecting import Projecting, compared, level
from tests.unit.store.documents import document
from tests.waiting import WAIT_S
from tests.xtdb.proxy import ChaosProxy, Schedule

pytestmark = pytest.mark.anyio

NAMES = ("a", "ab", "segment:s#0000000001", "toolcall:~x", "^y", "b\u00e9\ud7ff", "session:\U0001f600")
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**53 - 1,
    1.0,
    -0.0,
    0.1,
    5e-324,
    1.7976931348623157e308,
    "",
    "~:a",
    "^ ",
    "`x",
    "\0\ud7ff\U0001f600\n",
    "x" * 300,
    [],
    {},
    [None, [[]], {"": {}}],
    {"z": 1, "a": {"~#b": 2, "^1": [{"q": 1, "p": "~m0"}]}, "\U0001f600": 3, "\uffee": 4},
)
WORLDS = 20
WORLDS_OF_A_TEST = range(0, WORLDS, WORLDS // 4)
ROWS = 40


class World:
    """A store with a journal of its own, and entities that no other world has."""

    def __init__(self, root: Path, url: str, seed: int) -> None:
        self.dice = random.Random(seed)
        self.store = Projecting(root, url, connect, Room())
        self.root = root
        apart = f"{uuid.uuid4().hex[:8]}/"
        self.ids = [apart + name for name in NAMES]
        self.prefixes = [apart, apart + "a", apart + "s", apart + "b\u00e9"]

    @property
    def reads(self) -> NodeReads:
        reads = self.store._as_of_reads
        assert isinstance(reads, NodeReads)
        return reads

    async def fill(self, deletions: float) -> None:
        """Write rows of one to three versions, in bursts, some of them deletions, a third of a past valid time."""
        there: set[str] = set()
        times = [946_684_700_000, 1_000_000_000_000, 1_000_000_000_000]
        for _ in range(ROWS):
            ids = self.dice.sample(self.ids, self.dice.randint(1, 3))
            gone = {id for id in ids if id in there and self.dice.random() < deletions}
            puts = [self._document(id) for id in ids if id not in gone]
            there = there - gone | set(ids) - gone
            past = {put.id: self.dice.choice(times) for put in puts if self.dice.random() < 0.33}
            row = Write(
                kind="toolcall.record", principal="host", puts=tuple(puts), deletes=tuple(gone), valid_times=past
            )
            # At, before and after times that versions have already.
            times += [self.store.submit(row).vt - self.dice.randint(2, 4), *past.values()]
            await anyio.sleep(0.003 if self.dice.random() < 0.5 else 0)
            times = [time for time in times if time < SystemClock().wall_ms() - 1]
            if self.dice.random() < 0.3:
                await self.store.wait_for_writes()
        await level(self.store)

    async def purge(self) -> None:
        """Destroy what every version of some entities holds."""
        asked = PurgeRequest(self.ids[:2], lambda hashed: hashed)
        self.store.submit(Write(kind=KIND, principal="host", purge=asked))
        await level(self.store)

    def _document(self, id: str) -> Any:
        names = ("", "b", "a", "~k", "\U0001f600", "fields")
        payload = {self.dice.choice(names): self.dice.choice(VALUES) for _ in range(3)}
        text = self.dice.choice((None, "text", f"text {self.dice.random()}"))
        return document(id, text, **payload)

    def reference(self) -> MemoryBackend:
        """The plain reading of the algebra, over what the journal holds."""
        made = MemoryBackend()
        connection = sqlite_file.open_reader(self.root / "state.db")
        try:
            for row in journal.read_rows(connection, after=0):
                made.append(read_versions(row))
        finally:
            connection.close()
        return made


Read = tuple[str, Any, AsOf, Page[Any], dict[str, bool]]


def questions(dice: random.Random, world: World, rows: Sequence[Version]) -> list[Read]:
    """Reads by method and subject: about times at, between and beyond those of ``rows``."""
    times = sorted({row.valid_time for row in rows})
    txs = max(row.tx for row in rows)

    def at() -> AsOf:
        valid_time = dice.choice(times) + dice.randint(-1, 1) if dice.random() < 0.8 else LATEST
        return AsOf(valid_time, dice.randint(0, txs + 1) if dice.random() < 0.8 else LATEST)

    def page(after: Any) -> Page[Any]:
        limit = dice.randint(1, 5) if dice.random() < 0.4 else None
        return Page(after if dice.random() < 0.4 else None, limit, dice.random() < 0.5)

    made: list[Read] = []
    for _ in range(20):
        after = dice.choice(rows)
        corrections = {"corrections": dice.random() < 0.5}
        made.append(("history", dice.choice(world.ids), at(), page((after.valid_time, after.tx)), corrections))
    for _ in range(15):
        made.append(("as_of", dice.sample(world.ids, dice.randint(1, len(NAMES))), at(), ALL, {}))
    for _ in range(10):
        made.append(("scan", dice.choice(world.prefixes), at(), page(dice.choice(world.ids)), {}))
    return made


async def differences(world: World) -> list[str]:
    """Differences between the node, the embedded tables and the plain algebra."""
    reference = world.reference()
    rows = [row for id in world.ids for row in reference.history(id, corrections=True)]
    found = []
    for method, subject, at, page, options in questions(world.dice, world, rows):
        read = (subject, at) if method == "as_of" else (subject, at, page)
        expected = getattr(reference, method)(*read, **options)
        if method == "as_of":
            by_id = {version.id: version for version in expected}
            expected = [by_id[id] for id in subject if id in by_id]
        # Histories and ranges of ids are read from the embedded tables alone.
        nodes = () if method in ("history", "scan") else (("node", world.reads),)
        for name, reads in (*nodes, ("embedded", world.store.embedded)):
            given = await getattr(reads, method)(*read, **options)
            if method == "as_of":
                given = sorted(given, key=lambda version: subject.index(version.id))
            if given != expected:
                found.append(f"{name}: {method} {read} {options}: {given} instead of {expected}")
    return found


async def compare_world(root: Path, url: str, seed: int, deletions: float) -> NodeReads:
    """Compare the answers in a world of its own. Returns: its reader."""
    world = World(root, url, seed)
    async with anyio.create_task_group() as group:
        await group.start(world.store.run)
        await world.fill(deletions)
        assert await differences(world) == []
        await world.purge()
        assert await differences(world) == []
        assert (found := await compared(root, connect, url)).equal and found.problems == []
        reads = world.reads
        group.cancel_scope.cancel()
    return reads


@pytest.mark.requirement("VER-2")
@pytest.mark.requirement("VER-3")
@pytest.mark.requirement("XTB-1")
@pytest.mark.parametrize("deletions", [0.0, 0.2])
@pytest.mark.parametrize(
    "first",
    [first if first < WORLDS // 4 else pytest.param(first, marks=pytest.mark.slow) for first in WORLDS_OF_A_TEST],
)
async def test_reads_through_the_node_equal_those_of_the_embedded_tables(
    memory_node, tmp_path, monkeypatch, first, deletions
):
    # On a busy machine the node may be slower than a read waits, and is then left alone for some time.
    monkeypatch.setattr(read_routing, "READ_S", WAIT_S)
    answered = fallen_back = 0
    for seed in range(first, first + WORLDS // 4):
        reads = await compare_world(tmp_path / str(seed), memory_node.url, seed, deletions)
        answered += reads.answered
        fallen_back += reads.fallen_back
    # Rows of one millisecond cannot be distinguished at the node, and a fast machine writes more of those; nor can the
    # journal of a deletion. A later write at a past time hides what was there before it.
    assert answered > (1 if not deletions else 0.5) * fallen_back, "the node answers most reads"


@pytest.mark.requirement("XTB-1")
@pytest.mark.requirement("PRJ-7")
async def test_a_daemon_answers_from_the_node_and_equally_without_it(memory_node, tmp_path):
    proxy = ChaosProxy(tmp_path / "p", Path(memory_node.socket), Schedule(0, 0.0))
    env = {"CTXD_STORE_BACKEND": "xtdb", "CTXD_STORE_URL": proxy.url}
    with daemon_process(tmp_path, env=env) as daemon:
        async with proxy.running():
            await daemon.start()
            asked = await run_sync(_fill, daemon.socket, tmp_path)
            await run_sync(_level, daemon.socket)
            before = proxy.schedule.struck.total()
            from_node = await run_sync(_reads, daemon.socket, asked)
            assert proxy.schedule.struck.total() >= before + len(asked), "each read asks the node"
        assert await run_sync(_reads, daemon.socket, asked) == from_node
    assert [len(history) for history, _, _ in from_node] == [4] * len(asked)


def _fill(socket: Path, tree: Path) -> list[tuple[str, int]]:
    """Files with four versions each. Returns: their ids, each with the transaction of its second version."""
    asked = []
    with connect_sync(str(socket)) as client:
        session = client.session(f"s{uuid.uuid4().hex}", agent="test", workdir=str(tree))
        for number in range(3):
            path = tree / f"{number}.txt"
            for version in range(4):
                path.write_text(f"{number} {version}\n")
                done = client.file_index(session.id, str(path))
                if version == 1:
                    asked.append((done.object, done.receipt.seq))
    return asked


def _level(socket: Path) -> None:
    with connect_sync(str(socket)) as client:
        found = client.daemon_status().store.projection
        while found is None or found.lag_rows or found.state != "projecting":
            found = client.daemon_status().store.projection


def _reads(socket: Path, asked: list[tuple[str, int]]) -> list[Any]:
    with connect_sync(str(socket)) as client:
        return [
            (
                client.object_history(id).versions,
                client.object_get(id, tx=tx).object,
                client.object_get(id, tx=10**6).object,
            )
            for id, tx in asked
        ]
