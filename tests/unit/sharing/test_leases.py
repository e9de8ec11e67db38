"""A lease runs out by the observer's own clock alone: no two clocks are ever compared."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd.backends.xtdb.documents import NEWEST_VALID_TIME
from ctxd.backends.xtdb.operations import Match
from ctxd.clock import SystemClock
from ctxd.sharing import heartbeat, leases, ownership_ops
from ctxd.sharing.heartbeat import Heartbeat
from ctxd.sharing.leases import Lease, Observer
from ctxd.sharing.shared_log import SharedLog
from tests.fakes.node import MemoryNode
from tests.unit.projection.projecting import until

LEASE_S = 15.0


def lease(beat: int, incarnation: int = 1) -> Lease:
    return Lease(host="h", filesystem="f", incarnation=incarnation, beat=beat)


@pytest.mark.requirement("HST-3")
def test_a_lease_runs_out_when_it_was_seen_unchanged_for_its_length():
    observer = Observer(LEASE_S)
    observer.see([("a", lease(7))], 100.0)
    observer.see([("a", lease(7))], 114.0)
    assert observer.left_s("a", 114.0) == 1.0
    assert observer.left_s("a", 115.0) == 0


def test_a_renewed_or_restarted_lease_begins_anew():
    observer = Observer(LEASE_S)
    observer.see([("a", lease(7))], 100.0)
    observer.see([("a", lease(8))], 110.0)
    assert observer.left_s("a", 115.0) == 10
    observer.see([("a", lease(8, incarnation=2))], 120.0)
    assert observer.left_s("a", 120.0) == LEASE_S


def test_a_lease_never_seen_has_not_run_out():
    assert Observer(LEASE_S).left_s("a", 1e9) > 0


@pytest.mark.requirement("HST-3")
@given(start=st.floats(0, 1e6), steps=st.lists(st.floats(0.01, LEASE_S - 0.01), max_size=30))
def test_a_holder_that_renews_in_time_is_never_taken_for_dead(start, steps):
    observer, now = Observer(LEASE_S), start
    for beat, step in enumerate(steps):
        observer.see([("a", lease(beat))], now)
        now += step
        assert observer.left_s("a", now) > 0


def test_a_renewal_matches_what_it_renews():
    match, put = leases.renewal("a", lease(1), lease(2))
    assert isinstance(match, Match)
    assert leases.from_doc(match.doc) == lease(1)
    assert leases.from_doc(put.doc) == lease(2)
    assert leases.renewal("a", None, lease(0))[0].doc is None


def beats(node: MemoryNode, incarnation: int) -> Heartbeat:
    return Heartbeat(
        node, SystemClock(), writer="a", host="h", filesystem="f", incarnation=incarnation, lease_s=LEASE_S,
        tell=lambda what, figures: None,
    )  # fmt: skip


@pytest.mark.anyio
async def test_no_two_renewals_are_at_one_valid_time_over_restarts_and_a_node_that_lost_some() -> None:
    """Or a node would walk through all that there ever were to put the next one."""
    node = MemoryNode()
    older = node.copy()
    for incarnation in (1, 2, 1):
        one = beats(node, incarnation)
        for n in range(3):
            await one.beat()
            if (incarnation, n) == (1, 1):
                older = node.copy()
    assert (await ownership_ops.every_lease(node))["a"] == lease(9)
    node.become(older)
    await one.beat()
    assert (await ownership_ops.every_lease(node))["a"] == lease(10)
    rows = await node.history(leases.lease_id("a"), corrections=True, valid_time=NEWEST_VALID_TIME)
    times = [row.valid_time for row in rows]
    assert len(times) == len(set(times)) > 1


class StandingClock(SystemClock):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Lagging(MemoryNode):
    """A node that has taken in what is in the log of ``newest`` when it was last synced."""

    def __init__(self, newest: MemoryNode) -> None:
        super().__init__()
        self._newest = newest

    async def sync(self, timeout_s: float) -> None:
        self.become(self._newest)


@pytest.mark.anyio
@pytest.mark.requirement("HST-3")
async def test_a_host_that_renews_is_not_taken_for_dead_by_one_that_looked_away():
    """Whose node was away, or which stood still itself: it has seen the lease unchanged, but has not looked."""
    theirs, clock = MemoryNode(), StandingClock()
    node = Lagging(theirs)
    holder = beats(theirs, 1)
    observer = Heartbeat(
        node, clock, writer="b", host="h", filesystem="f", incarnation=1, lease_s=LEASE_S,
        tell=lambda what, figures: None,
    )  # fmt: skip
    log = SharedLog(node, observer)
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
    holder = Heartbeat(
        node, SystemClock(), writer="a", host="h", filesystem="f", incarnation=1, lease_s=0.06,
        tell=lambda what, figures: told.append(what),
    )  # fmt: skip
    async with anyio.create_task_group() as group:
        group.start_soon(holder.run)
        await until(lambda: node.log)
        group.cancel_scope.cancel()
    assert told == ["sharing.lease_not_renewed"]
