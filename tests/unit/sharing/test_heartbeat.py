"""A lease expires by the observer's own clock alone: no two clocks are compared."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd.backends.xtdb.documents import NEWEST_VALID_TIME, cursor_id
from ctxd.backends.xtdb.messages import PutDoc, Unknown
from ctxd.clock import SystemClock
from ctxd.sharing import heartbeat
from ctxd.sharing.heartbeat import Heartbeat, LeaseObserver, from_doc, lease_id
from ctxd.sharing.shared_log import SharedLog
from tests.fakes.node import MemoryNode
from tests.waiting import until

LEASE_S = 15.0


@pytest.mark.requirement("HST-3")
def test_a_lease_expires_when_it_was_seen_unchanged_for_its_length():
    observer = LeaseObserver(LEASE_S)
    observer.see([("a", 7)], 100.0)
    observer.see([("a", 7)], 114.0)
    assert observer.left_s("a", 114.0) == 1.0
    assert observer.left_s("a", 115.0) == 0


def test_a_changed_lease_restarts():
    observer = LeaseObserver(LEASE_S)
    observer.see([("a", 7)], 100.0)
    observer.see([("a", 8)], 110.0)
    assert observer.left_s("a", 115.0) == 10


def test_an_unseen_lease_starts_when_it_is_queried():
    observer = LeaseObserver(LEASE_S)
    assert observer.left_s("a", 100.0) == LEASE_S
    assert observer.left_s("a", 115.0) == 0


@pytest.mark.requirement("HST-3")
@given(start=st.floats(0, 1e6), steps=st.lists(st.floats(0.01, LEASE_S - 0.01), max_size=30))
def test_a_holder_renewing_in_time_is_never_considered_dead(start, steps):
    observer, now = LeaseObserver(LEASE_S), start
    for beat, step in enumerate(steps):
        observer.see([("a", beat)], now)
        now += step
        assert observer.left_s("a", now) > 0


class Figures:
    """A host's journal, and whether it has an active session."""

    def __init__(self) -> None:
        self.projected = self.head = 5
        self.active = True


def beats(node, figures: Figures | None = None, *, writer="a", clock=None, lease_s=LEASE_S, told=None) -> Heartbeat:
    own = figures or Figures()
    return Heartbeat(
        node, clock or SystemClock(), writer=writer, host="h", filesystem="f", lease_s=lease_s,
        projected=lambda: own.projected, head=lambda: own.head, is_active=lambda: own.active,
        log_event=lambda what, figures: None if told is None else told.append(what),
    )  # fmt: skip


async def lease_of(node: MemoryNode):
    return from_doc(await node.entity(lease_id("a"), valid_time=NEWEST_VALID_TIME))


@pytest.mark.anyio
async def test_no_two_renewals_are_at_one_valid_time_over_restarts_and_a_node_that_lost_some() -> None:
    """A node walks through all versions at one valid time to put the next one."""
    node = MemoryNode()
    for run in (1, 2, 3):
        one = beats(node)
        for n in range(3):
            await one.beat()
            if (run, n) == (2, 1):
                older = node.copy()
        lease = await lease_of(node)
        assert (lease.run, lease.beat) == (run, 3)
    node.become(older)
    await one.beat()
    lease = await lease_of(node)
    assert (lease.run, lease.beat) == (3, 4)
    rows = await node.history(lease_id("a"), valid_time=NEWEST_VALID_TIME)
    times = [row.valid_time for row in rows]
    assert len(times) == len(set(times)) > 1


@pytest.mark.anyio
@pytest.mark.requirement("HST-12")
async def test_renewals_repeat_their_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEATS", 20)
    node = MemoryNode()
    one = beats(node)
    for _ in range(40):
        await one.beat()
    rows = await node.history(lease_id("a"), valid_time=NEWEST_VALID_TIME)
    assert len({str(row.doc) for row in rows}) <= 20


@pytest.mark.anyio
@pytest.mark.requirement("HST-12")
async def test_a_host_that_projects_or_has_no_active_session_does_not_renew() -> None:
    node, figures = MemoryNode(), Figures()
    one = beats(node, figures)
    await one.beat()
    first = await lease_of(node)
    for _ in range(5):
        figures.projected += 1
        await one.beat()
    assert await lease_of(node) == first
    await one.beat()
    assert (second := await lease_of(node)) != first
    figures.active = False
    await one.beat()
    assert await lease_of(node) == second
    # It is about to own a session: the lease must not have run out.
    one._renewed_at -= LEASE_S
    await one.require_fresh()
    assert await lease_of(node) != second


class StandingClock(SystemClock):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.anyio
@pytest.mark.requirement("HST-3")
async def test_a_host_whose_cursor_moves_is_alive() -> None:
    node, clock = MemoryNode(), StandingClock()
    await beats(node).beat()
    observer = beats(node, writer="b", clock=clock)
    for seq in range(5):
        await node.submit([PutDoc({"xt/id": cursor_id("a"), "type": "cursor", "payload": {"seq": seq}}, 1 + seq)])
        await observer.look()
        assert observer.left_s("a") == LEASE_S
        clock.now += LEASE_S
    await observer.look()
    assert observer.left_s("a") <= 0


class Lagging(MemoryNode):
    """A node that indexes the log of ``newest`` only when it is synced."""

    def __init__(self, newest: MemoryNode) -> None:
        super().__init__()
        self._newest = newest

    async def sync(self, timeout_s: float) -> None:
        self.become(self._newest)


@pytest.mark.anyio
@pytest.mark.requirement("HST-3")
async def test_a_renewing_host_is_not_considered_dead_by_a_stalled_observer():
    """The observer or its node stood still: it has seen the lease unchanged, but has not looked."""
    theirs, clock = MemoryNode(), StandingClock()
    node = Lagging(theirs)
    holder = beats(theirs)
    log = SharedLog(node, beats(node, writer="b", clock=clock))
    await holder.beat()
    await node.sync(1)
    assert await log.left_s_for_certain("a") == LEASE_S
    clock.now += 4 * LEASE_S
    await holder.beat()
    assert await log.left_s_for_certain("a") == LEASE_S
    clock.now += LEASE_S
    assert await log.left_s_for_certain("a") <= 0


@pytest.mark.anyio
@pytest.mark.requirement("HST-3")
async def test_a_renewal_that_the_node_does_not_answer_leaves_room_for_another(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.05)
    told: list[str] = []

    class LosingOne(MemoryNode):
        asked = 0

        async def ids(self, *given, **rest):
            self.asked += 1
            if self.asked == 1:
                await anyio.sleep_forever()
            return await super().ids(*given, **rest)

    node = LosingOne()
    holder = beats(node, lease_s=0.06, told=told)
    async with anyio.create_task_group() as group:
        group.start_soon(holder.run)
        await until(lambda: node.log)
        group.cancel_scope.cancel()
    assert told == ["sharing.lease_not_renewed"]


class Unsure(MemoryNode):
    """A node whose next answer to a submission is lost, after the submission took place or instead of it."""

    losing: str | None = None

    async def submit(self, ops):
        losing, self.losing = self.losing, None
        if losing != "request":
            tx_id = await super().submit(ops)
        if losing is not None:
            raise Unknown("no answer")
        return tx_id


@pytest.mark.anyio
@pytest.mark.requirement("HST-3")
@pytest.mark.parametrize(("lost", "beat"), [("answer", 2), ("request", 1)])
async def test_a_renewal_without_an_answer_counts_if_it_took_place(lost: str, beat: int) -> None:
    node = Unsure()
    node.losing = lost
    one = beats(node)
    await one.beat()
    await one.beat()
    lease = await lease_of(node)
    assert (lease.run, lease.beat) == (1, beat)
