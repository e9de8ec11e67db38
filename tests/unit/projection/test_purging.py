"""Purged content is evicted from the node, and nothing shows it in between."""

import json

import anyio
import pytest
from blake3 import blake3

from ctxd.backends.xtdb.messages import Unknown
from ctxd.objects.document import AsOf
from ctxd.objects.version_state import is_purged
from ctxd.projection import node_transactions
from ctxd.store.purge import KIND
from ctxd.store.write_types import PurgeRequest, Write
from tests.fakes.node import MemoryNode
from tests.unit.projection.projecting import compared, level, projecting
from tests.unit.store.documents import document, write
from tests.unit.store.running import put
from tests.waiting import until

pytestmark = pytest.mark.anyio
SECRET = "the-secret-9f8e7d6c"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def node():
    return MemoryNode()


def purge(*ids):
    return Write(kind=KIND, principal="p", purge=PurgeRequest(ids, lambda text: blake3(text.encode()).hexdigest()))


async def fill_with_large(store):
    for n in range(20):
        store.submit(write(document(f"other{n}", f"text {n}", tool="x")))
        if n in (5, 9):
            store.submit(write(document("target", f"{SECRET} {n}", tool="x", status="ok")))
    await put(store, document("target", f"{SECRET}\n" * 90_000, tool="x", status="ok", args={"key": SECRET}))
    await put(store, document("large", "x" * 2_500_000, tool="x"))


def held(node):
    """Everything that the node shows, without its log."""
    return json.dumps(
        [row.body.decode() for rows in node._versions._rows.values() for row in rows.values() if row.body]
    )


@pytest.mark.requirement("PRJ-10")
async def test_after_a_purge_the_node_holds_only_a_mark_of_the_purged_object(root, node):
    async with projecting(root, node.connect) as store:
        await fill_with_large(store)
        await level(store)
        assert SECRET in held(node)
        await store.submit(purge("target")).wait()
        store.submit(write(document("after", tool="x")))
        await level(store)
        assert SECRET not in held(node)
        versions = await store.history("target")
        assert [is_purged(one.document) for one in versions] == [True] * 3
        assert [row.doc["payload"]["fields"].get("purged") for row in await node.history("target")] == [True] * 3
        assert store.status().projection.quarantined == ()
    found = await compared(root, node.connect)
    assert found.problems == [] and found.equal


@pytest.mark.requirement("PRJ-10")
async def test_purged_content_is_hidden_before_the_node_has_applied_the_purge(root, node):
    async with projecting(root, node.connect) as store:
        await fill_with_large(store)
        await level(store)
        node.down = True
        await store.submit(purge("target")).wait()
        node.answers = True
        node.hold = anyio.Event()
        node.down = False
        assert is_purged((await store.get("target", AsOf(tx=23))).document)
        node.hold.set()
        await level(store)
        assert SECRET not in held(node)


async def test_a_purge_that_is_cut_off_is_done_again_from_its_start(root, node):
    async with projecting(root, node.connect) as store:
        await fill_with_large(store)
        await level(store)
        for lost in (1, 2, 3):
            node.lose_reply = lost
            await store.submit(purge("target" if lost == 1 else f"other{lost}")).wait()
            await level(store)
        assert SECRET not in held(node)
    assert (await compared(root, node.connect)).problems == []


async def test_content_purged_before_projection_never_reaches_the_node(root, node):
    node.down = True
    async with projecting(root, node.connect) as store:
        await fill_with_large(store)
        await store.submit(purge("target")).wait()
        node.down = False
        await level(store)
        assert all(SECRET not in str(ops) for ops in node.log)
        assert store.status().projection.quarantined == ()
    assert (await compared(root, node.connect)).problems == []


async def test_a_row_read_before_its_text_was_purged_is_read_again(root, node):
    async with projecting(root, node.connect) as store:
        await level(store)
        # Rows are read ahead, and wait while nothing is indexed.
        node.hold = anyio.Event()
        for n in range(node_transactions.OUTSTANDING_MAX):
            sent = len(node.log)
            await store.submit(write(document("same", f"v{n}", tool="x"))).wait()
            await until(lambda sent=sent: len(node.log) > sent)
        await store.submit(write(document("target", SECRET, tool="x"))).wait()
        await store.submit(write(document("same", "again", tool="x"))).wait()
        await anyio.sleep(0.1)
        await store.submit(purge("target")).wait()
        node.hold.set()
        await level(store)
        assert store.status().projection.quarantined == () and SECRET not in held(node)
    assert (await compared(root, node.connect)).problems == []


async def test_a_purged_part_shared_with_another_text_is_restored(root, node):
    shared = "common line\n" * 100_000
    async with projecting(root, node.connect) as store:
        await put(store, document("one", shared + SECRET, tool="x"))
        await put(store, document("two", shared + "harmless", tool="x"))
        await level(store)
        await store.submit(purge("one")).wait()
        await level(store)
        assert SECRET not in held(node)
    found = await compared(root, node.connect)
    assert found.problems == [] and found.texts == 1


def without_secret(stored):
    """``stored`` after a purge that restates it."""
    if f"before {SECRET}" not in (stored.content or ""):
        return None
    return document(stored.id, stored.content.replace(SECRET, "[purged]"), stored.type, **stored.payload)


class CutOff(MemoryNode):
    """A node that does the submission ``at``, counted from when that is set, and is silent about it."""

    at = 0

    async def submit(self, ops):
        tx_id = await super().submit(ops)
        self.at -= 1
        if self.at == 0:
            raise Unknown("the reply was lost")
        return tx_id


@pytest.mark.requirement("PRJ-10")
@pytest.mark.parametrize("at", range(6))
async def test_texts_that_are_kept_stay_at_the_node_wherever_a_purge_is_cut_off(root, at):
    node, large = CutOff(), "common line\n" * 100_000
    async with projecting(root, node.connect) as store:
        store.submit(write(document("part#0000000001", "an earlier text", n=1)))
        store.submit(write(document("part#0000000001", f"before {SECRET} after", n=2)))
        await put(store, document("big", large + SECRET))
        store.submit(write(document("other", "an earlier text", tool="x")))
        store.submit(write(document("twin", f"before {SECRET} after", tool="x")))
        await put(store, document("larger", large + "harmless", tool="x"))
        await level(store)
        node.at = at
        asked = PurgeRequest((), lambda text: text, within=("part#",), restate=without_secret)
        await store.submit(Write(kind=KIND, principal="p", purge=asked)).wait()
        await level(store)
        await store.submit(purge("big")).wait()
        await level(store)
        assert node.at <= 0 and "before [purged] after" in held(node)
    found = await compared(root, node.connect)
    assert found.problems == [] and found.equal and found.texts == 4
    async with projecting(root, node.connect) as store:
        await store.submit(purge("twin")).wait()
        await level(store)
    assert SECRET not in held(node) and (await compared(root, node.connect)).problems == []
