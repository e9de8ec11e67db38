"""Journals of two hosts on one node: rows of a session take place while it is their writer's, and no longer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME
from ctxd.backends.xtdb.messages import PutDoc
from ctxd.objects.document import AsOf, Document, encode_document
from ctxd.projection import owner_record, projection_loop
from ctxd.projection.owner_record import Owner
from ctxd.projection.ownership_checks import FENCES, NO_ROW, Fence, Fences, Ownership, OwnershipLost, fence_document
from ctxd.projection.projected_rows import ProjectedRow
from ctxd.store.purge import KIND
from ctxd.store.write_types import PurgeRequest, Write
from tests.fakes.node import MemoryNode
from tests.unit.projection.projecting import ROOM, Projecting, compared, level
from tests.unit.store.documents import document, write
from tests.unit.store.running import put
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(projection_loop, "BACKOFF_MAX_S", 0.05)
    monkeypatch.setattr(projection_loop, "RECHECK_S", 0.02)


@pytest.fixture
def node():
    return MemoryNode()


class Host(Projecting):
    """A store that fences what it loses, without a branch."""

    def __init__(self, root: Path, node: MemoryNode) -> None:
        super().__init__(root, "", node.connect, ROOM)
        self.ownership = Ownership(self.heads)
        self.projection.share(self.ownership)
        self.lost: list[OwnershipLost] = []

    async def settle(self, lost: OwnershipLost) -> None:
        self.lost.append(lost)
        for session, owner in lost.sessions.items():
            fence = Fence(session=session, first=lost.first, branch=None, host="other", token=owner.token)
            put = fence_document(fence)
            receipt = await self.submit(Write(kind="session.fence", principal="daemon", puts=(put,))).wait()
            self.ownership.fences.add(fence, receipt.seq)


@asynccontextmanager
async def host(root: Path, node: MemoryNode) -> AsyncIterator[Host]:
    store = Host(root, node)
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        store.ownership.open(await store.scan(FENCES), store.settle)
        with anyio.fail_after(15):
            yield store
        group.cancel_scope.cancel()
    assert store.faults == []


def head(state: str = "active") -> Document:
    return document("session:s1", type="session", settings={"state": state})


def segment(number: int, **payload: object) -> Document:
    return document(f"segment:s1#{number:010d}", type="segment", **payload)


async def owner(node: MemoryNode) -> Owner | None:
    return owner_record.from_doc(await node.entity(owner_record.owner_id("s1"), valid_time=FIXED_VALID_TIME))


async def claim(node: MemoryNode, writer: str) -> None:
    """Make ``writer`` the owner of the session."""
    before = await owner(node)
    assert before is not None
    tx_id = await node.submit(
        owner_record.change("s1", before, owner_record.adopted(owner_record.claimed(before, writer)))
    )
    assert await node.committed(tx_id, timeout_s=1)


async def test_the_first_rows_of_a_session_make_their_writer_its_owner(tmp_path, node):
    async with host(tmp_path / "a", node) as a:
        a.submit(write(head(), segment(0)))
        a.submit(write(document("call-1", "out"), segment(1)))
        await level(a)
        assert await owner(node) == Owner(writer=a.writer, token=1)


async def test_a_pause_releases_the_session_and_a_resume_reclaims_it(tmp_path, node):
    async with host(tmp_path / "a", node) as a:
        a.submit(write(head(), segment(0)))
        await level(a)
        a.submit(write(head("paused")))
        await level(a)
        assert await owner(node) == Owner(writer=a.writer, token=1, released=True)
        a.submit(write(head(), segment(1)))
        await level(a)
        assert await owner(node) == Owner(writer=a.writer, token=2)


async def test_a_session_resumed_before_its_pause_was_projected_is_not_released(tmp_path, node):
    async with host(tmp_path / "a", node) as a:
        node.down = True
        a.submit(write(head(), segment(0)))
        a.submit(write(head("paused")))
        await a.submit(write(head(), segment(1))).wait()
        node.down = False
        await level(a)
        assert await owner(node) == Owner(writer=a.writer, token=1)
        with a.ownership.holding("s1"):
            a.submit(write(head("paused")))
            await level(a)
            assert not (await owner(node)).released


async def test_late_rows_of_a_lost_session_stay_out_and_other_rows_are_projected(tmp_path, node):
    async with host(tmp_path / "a", node) as a:
        a.submit(write(head(), segment(0)))
        await level(a)
        await claim(node, "b" * 32)
        a.submit(write(document("late", "out"), segment(1)))
        a.submit(write(document("elsewhere", "of another"), session="s2"))
        await until(lambda: a.lost)
        await level(a)
        assert [list(lost.sessions) for lost in a.lost] == [["s1"]]
        assert await node.entity(segment(1).id, valid_time=2**42) is None
        assert await node.entity("late", valid_time=2**42) is not None
        assert await node.entity("elsewhere", valid_time=2**42) is not None
        assert a.projection.status().quarantined == ()
        # The session is still read elsewhere, and the comparison knows what the node lacks.
        assert [stored.document.id for stored in await a.scan("segment:s1#", AsOf(tx=10))] == [
            segment(0).id,
            segment(1).id,
        ]
    found = await compared(tmp_path / "a", node.connect)
    assert found.problems == []
    assert found.equal


async def test_a_fence_outlasts_the_daemon_and_another_node(tmp_path, node):
    async with host(tmp_path / "a", node) as a:
        a.submit(write(head(), segment(0)))
        await level(a)
        await claim(node, "b" * 32)
        a.submit(write(segment(1)))
        await level(a)
    other = MemoryNode()
    async with host(tmp_path / "a", other) as a:
        await level(a)
        assert a.lost == []
        assert await other.entity(segment(0).id, valid_time=2**42) is not None
        assert await other.entity(segment(1).id, valid_time=2**42) is None


@pytest.mark.requirement("HST-4")
async def test_a_segment_that_an_import_deletes_here_stays_at_the_node(tmp_path, node):
    async with host(tmp_path / "a", node) as a:
        a.submit(write(head(), segment(0), segment(1)))
        a.submit(Write(kind="session.adopt", principal="p", session="s1", deletes=(segment(1).id,)))
        a.submit(write(segment(0, more=1)))
        await level(a)
        # It may be another host's, and the session goes on with it there.
        assert await node.entity(segment(1).id, valid_time=2**42) is not None
    found = await compared(tmp_path / "a", node.connect)
    assert found.equal and found.problems == []


@pytest.mark.requirement("HST-4")
async def test_several_fences_against_one_owner_all_outlast_the_daemon(tmp_path, node):
    async with host(tmp_path / "a", node) as a:
        a.submit(write(head(), segment(0)))
        await level(a)
        await claim(node, "b" * 32)
        for number in (1, 2):
            a.submit(write(segment(number)))
            await level(a)
        assert [lost.first for lost in a.lost] == [2, 4]
    found = await compared(tmp_path / "a", node.connect)
    assert found.equal and found.problems == []


def quiet(stored: Document) -> Document | None:
    """Return ``stored`` without its content."""
    return document(stored.id, type="segment", said="[purged]") if "said" in stored.payload else None


def purge_of_chat() -> Write:
    asked = PurgeRequest((), lambda text: text, within=("segment:s1#",), restate=quiet)
    return Write(kind=KIND, principal="p", session="s1", purge=asked)


async def said_at(node: MemoryNode) -> list[str]:
    """Return all versions of the first segment at the node."""
    return [str(row.doc) for row in await node.history(segment(0).id)]


@pytest.mark.requirement("HST-10")
async def test_a_purge_of_an_owned_session_removes_its_messages_from_the_node(tmp_path, node):
    async with host(tmp_path / "a", node) as a:
        a.submit(write(head(), segment(0, said="secret")))
        a.submit(write(head("paused")))
        await level(a)
        a.submit(purge_of_chat())
        await level(a)
        (kept,) = await said_at(node)
        assert "[purged]" in kept
        # The purge resumed it, so that no other host claims it meanwhile.
        assert await owner(node) == Owner(writer=a.writer, token=2) and a.lost == []
    found = await compared(tmp_path / "a", node.connect)
    assert found.equal and found.problems == []


@pytest.mark.requirement("HST-10")
async def test_a_purge_of_a_session_owned_by_another_host_erases_nothing_on_the_node(tmp_path, node):
    async with host(tmp_path / "a", node) as a:
        a.submit(write(head(), segment(0, said="secret")))
        await level(a)
        node.down = True
        a.submit(purge_of_chat())
        await a.wait_for_writes()
        node.down = False
        await claim(node, "b" * 32)
        await level(a)
        assert [list(lost.sessions) for lost in a.lost] == [["s1"]]
        before, corrected = await said_at(node)
        assert "secret" in before and "[purged]" in corrected
        assert (await owner(node)).writer == "b" * 32
    found = await compared(tmp_path / "a", node.connect)
    assert found.equal and found.problems == []


async def test_an_owner_change_during_a_batch_quarantines_no_row(tmp_path, node):
    async with host(tmp_path / "a", node) as a:
        a.submit(write(head(), segment(0)))
        await level(a)
        for number, writer in enumerate(("b" * 32, a.writer, "c" * 32, a.writer)):
            # What is believed here is out of date each time, so that the batch of the one row is aborted.
            await claim(node, writer)
            await a.submit(write(document(f"t{number}"), segment(1 + number))).wait()
            await level(a)
        assert a.projection.status().quarantined == ()
    found = await compared(tmp_path / "a", node.connect)
    assert found.equal
    assert found.problems == []


@pytest.mark.requirement("PRJ-4")
@pytest.mark.parametrize("before, change", [([], "active"), (["active"], "paused"), (["active", "paused"], "active")])
async def test_a_bad_row_in_a_batch_that_changes_an_owner_is_quarantined_alone(tmp_path, node, before, change):
    async with host(tmp_path / "a", node) as a:
        for number, state in enumerate(before):
            a.submit(write(head(state), segment(number)))
            await level(a)
        node.down = True
        a.submit(write(head(change), segment(len(before))))
        await (await put(a, document("bad", "x", tool="x"))).wait()
        await a.submit(write(document("after", "fine"))).wait()
        node.refuses = lambda op: isinstance(op, PutDoc) and op.doc["xt/id"] == "bad"
        node.down = False
        await level(a)
        assert a.projection.status().quarantined == (len(before) + 2,)
        assert await owner(node) == Owner(writer=a.writer, token=max(1, len(before)), released=change == "paused")
        assert a.lost == []


async def test_an_owner_learned_while_a_batch_is_checked_stops_the_batch(node):
    mine, theirs = Owner(writer="a" * 32, token=1), Owner(writer="b" * 32, token=2)
    assert await node.committed(await node.submit(owner_record.change("s1", None, mine)), timeout_s=1)

    async def heads(ids):
        ownership.learn("s1", theirs)
        return {}

    ownership = Ownership(heads)
    ownership.open((), lambda lost: anyio.sleep(0))
    ownership.begin(mine.writer)
    paused = head("paused")
    row = ProjectedRow(1, "", "s1", (Version(paused.id, 1, 1, 1, encode_document(paused)),), 10)
    with pytest.raises(OwnershipLost):
        await ownership.guard(node, [row])


async def test_a_text_evicted_by_another_host_is_put_again_by_its_next_writer(tmp_path, node):
    async with host(tmp_path / "a", node) as a, host(tmp_path / "b", node) as b:
        b.submit(write(document("told-b", "said by both", tool="x"), session=None))
        a.submit(write(document("told-a", "said by both", tool="x"), session=None))
        await level(a)
        await level(b)
        await a.submit(Write(kind=KIND, principal="p", purge=PurgeRequest(("told-a",), lambda text: text))).wait()
        await level(a)
        b.submit(write(document("again", "said by both", tool="x"), session=None))
        await level(b)
        assert b.projection.status().quarantined == ()
        puts = [op.doc for ops in node.log for op in ops if isinstance(op, PutDoc)]
        assert len({str(doc) for doc in puts if doc["type"] == "content"}) == 2, "evicted, it is another document"
    found = await compared(tmp_path / "b", node.connect)
    assert found.equal and found.problems == []


def test_a_claim_fences_no_row():
    fences = Fences()
    assert not fences
    fences.add(Fence(session="s1", first=NO_ROW, branch=None, host="other", token=2), 5)
    assert not fences and not fences.skips("session:s1", 5)
    fences.add(Fence(session="s1", first=4, branch=None, host="other", token=3), 6)
    assert fences and fences.skips("session:s1", 5)
