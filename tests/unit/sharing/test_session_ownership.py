"""Claims that broke off: a host completes those that took place, and forgets the others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import anyio
import pytest

from ctxd.backends.xtdb.messages import Unknown
from ctxd.clock import SystemClock
from ctxd.errors import CtxdError
from ctxd.projection import owner_record
from ctxd.projection.owner_record import Owner
from ctxd.projection.ownership_checks import NO_ROW, Fence, Ownership, fence_document
from ctxd.sharing import session_ownership
from ctxd.sharing.session_ownership import SessionOwnership
from ctxd.store.write_types import Write
from tests.fakes.node import MemoryNode
from tests.unit.sessions.world import World, world
from tests.waiting import until

pytestmark = pytest.mark.anyio

THEIRS = Owner(writer="other", token=1)


class Client(MemoryNode):
    """A node that is its own client. ``looks``: the sessions of each read of owners; ``read`` runs after each."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[set[str]] = []
        self.synced = 0
        self.read = lambda: None

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def entities(self, ids, *, valid_time, tx_id=None):
        ids = list(ids)
        found = await super().entities(ids, valid_time=valid_time, tx_id=tx_id)
        if sessions := {id.removeprefix(owner_record.PREFIX) for id in ids if id.startswith(owner_record.PREFIX)}:
            self.looks.append(sessions)
            self.read()
        return found

    async def sync(self, timeout_s):
        self.synced += 1


@pytest.fixture
def node(monkeypatch):
    made = Client()
    monkeypatch.setattr(session_ownership, "TIDY_S", 0.005)
    monkeypatch.setattr(session_ownership, "COMPLETE_RETRY_S", 0.005)
    monkeypatch.setattr(session_ownership, "XtdbClient", lambda url, *, clock: made)
    return made


@asynccontextmanager
async def sharing(w: World, ownership: Ownership) -> AsyncIterator[SessionOwnership]:
    made = SessionOwnership(
        "", w.sessions, ownership, SystemClock(), host="here", lease_s=60, filesystem="",
        projected=lambda: w.store.status().head_seq, log_event=lambda what, fields: None,
    )  # fmt: skip
    await made.start()
    async with anyio.create_task_group() as group:
        group.start_soon(made.run)
        yield made
        group.cancel_scope.cancel()


@asynccontextmanager
async def claiming(root: Path, node: Client, *sessions: str, owner: Owner = THEIRS) -> AsyncIterator[SessionOwnership]:
    """A host that was about to claim ``sessions``, which ``owner`` has, when its daemon ended; it runs again."""
    async with world(root) as w:
        for session in sessions:
            await node.submit(owner_record.change(session, None, owner))
            fence = Fence(session=session, first=NO_ROW, branch=None, host="other", token=2)
            await w.store.submit(Write(kind="session.fence", principal="daemon", puts=(fence_document(fence),))).wait()
        async with sharing(w, Ownership(w.store.heads)) as made:
            yield made


async def test_all_claims_are_looked_up_in_one_request(tmp_path, node):
    sessions = [f"s{n}" for n in range(30)]
    async with claiming(tmp_path, node, *sessions):
        await until(lambda: len(node.looks) > 2)
    assert node.looks[0] == set(sessions)
    assert node.synced == 0


@pytest.mark.requirement("HST-13")
async def test_a_claim_that_never_took_place_is_not_looked_up_forever(tmp_path, node, monkeypatch):
    monkeypatch.setattr(session_ownership, "CLAIM_LATE_S", 0.05)
    async with claiming(tmp_path, node, "s1") as host:
        await until(lambda: node.looks)
        await until(lambda: not host._claimed)
        # The log was read to its end before: the claim is not on its way to this node.
        assert node.synced > 0
        assert "s1" in host._sessions.moved_sessions


@pytest.mark.requirement("HST-13")
async def test_a_claim_that_a_call_completes_while_it_is_looked_up_leaves_the_daemon_running(tmp_path, node):
    async with claiming(tmp_path, node, "s1", "s2") as host:
        node.read = lambda: host._claimed.pop("s1", None)
        await until(lambda: {"s2"} in node.looks[2:])
    assert "s2" in host._claimed


@asynccontextmanager
async def reading(root: Path, node: Client, monkeypatch: pytest.MonkeyPatch, *sessions: str) -> AsyncIterator[tuple]:
    """A host whose claims of ``sessions`` took place. Yields: the host, the sessions whose import has begun, with the
    state in which each is imported, and the event that an import waits for."""
    begun: dict[str, str] = {}
    released = anyio.Event()

    async def slow(host, session, owner, principal, state):
        begun[session] = state
        if session == sessions[0]:
            await released.wait()
        host._imported[session] = owner.token
        host._claimed.pop(session)

    monkeypatch.setattr(SessionOwnership, "_import_claimed", slow)
    # A bound that has passed before the first request.
    monkeypatch.setattr(session_ownership, "ACQUIRE_S", 0.0)
    async with claiming(root, node, *sessions) as host:
        for session in sessions:
            await node.submit(owner_record.change(session, THEIRS, owner_record.claimed(THEIRS, host._writer)))
        yield host, begun, released


@pytest.mark.requirement("HST-13")
async def test_a_claim_that_takes_longer_to_read_than_a_call_waits_is_completed(tmp_path, node, monkeypatch):
    async with reading(tmp_path, node, monkeypatch, "s1") as (host, begun, released):
        await until(lambda: begun == {"s1": "paused"})
        released.set()
        await until(lambda: not host._claimed and not host._completing)


@pytest.mark.requirement("HST-13")
async def test_a_claim_that_takes_long_to_read_delays_no_other(tmp_path, node, monkeypatch):
    async with reading(tmp_path, node, monkeypatch, "s1", "s2") as (host, begun, _):
        await until(lambda: "s1" in begun)
        await until(lambda: set(host._claimed) == {"s1"})


@pytest.mark.requirement("HST-13")
async def test_a_resume_that_waits_too_long_for_a_claim_names_cause_and_remedy(tmp_path, node, monkeypatch):
    async with reading(tmp_path, node, monkeypatch, "s1") as (host, begun, released):
        await until(lambda: "s1" in begun)
        with pytest.raises(CtxdError, match="claimed, but its import takes longer than 0 s") as slow:
            async with host.acquire("s1", "p"):
                pass
        assert slow.value.retry_after_ms and "session.resume" in slow.value.hint
        released.set()
        await until(lambda: not host._claimed)


@pytest.mark.requirement("HST-1")
@pytest.mark.parametrize(
    ("owner", "state", "goes_on"),
    [(None, "active", True), (None, "paused", False), ("mine", "paused", True), ("theirs", "active", False)],
)
async def test_without_its_node_a_host_continues_only_sessions_it_has_not_released(
    tmp_path, node, owner, state, goes_on
):
    async with world(tmp_path) as w:
        await w.call("session.create", agent="a", session="s")
        if state == "paused":
            await w.call("session.pause", session="s")
        ownership = Ownership(w.store.heads)
        async with sharing(w, ownership) as host:
            if owner is not None:
                writer = w.store.writer if owner == "mine" else THEIRS.writer
                ownership.learn("s", Owner(writer=writer, token=1))
            node.down = True
            with nullcontext() if goes_on else pytest.raises(CtxdError) as refused:
                async with host.acquire("s", "p"):
                    pass
            assert goes_on or refused.value.code == "store_unavailable"


@pytest.mark.requirement("HST-13")
async def test_a_resume_whose_owner_does_not_settle_names_cause_and_remedy(tmp_path, node, monkeypatch):
    async def changed(host, session):
        return None

    async with claiming(tmp_path, node) as host:
        monkeypatch.setattr(SessionOwnership, "_step", changed)
        monkeypatch.setattr(session_ownership, "ACQUIRE_S", 0.0)
        with pytest.raises(CtxdError, match="the node did not settle the owner of session s1 within 0 s") as slow:
            async with host.acquire("s1", "p"):
                pass
        assert slow.value.retry_after_ms and "session.owner" in slow.value.hint


@pytest.mark.requirement("HST-1")
async def test_sessions_that_have_not_changed_are_not_checked_again(tmp_path, node, monkeypatch):
    async with world(tmp_path) as w:
        for session in ("s1", "s2"):
            await w.call("session.create", session=session, agent="a")
        async with sharing(w, Ownership(w.store.heads)) as host:
            await until(lambda: host._ownership.believed("s2") and not host._to_tidy)
            # A look at all sessions would take 0.1 s a second with 100,000 of them.
            monkeypatch.setattr(w.sessions.catalog, "states", dict)
            await w.call("session.pause", session="s1")
            await until(lambda: host._ownership.believed("s1").released and not host._to_tidy)
            assert not host._ownership.believed("s2").released


@pytest.mark.requirement("HST-2")
async def test_a_check_of_many_sessions_keeps_the_owners_read_before_a_request_failed(tmp_path, node, monkeypatch):
    monkeypatch.setattr(session_ownership, "SESSIONS_PER_REQUEST", 2)

    def fail() -> None:
        if "s4" in node.looks[-1]:
            raise Unknown("no response")

    async with world(tmp_path) as w:
        for n in range(5):
            await w.call("session.create", session=f"s{n}", agent="a")
        node.read = fail
        async with sharing(w, Ownership(w.store.heads)) as host:
            await until(lambda: all(host._ownership.believed(f"s{n}") for n in range(4)))
            assert host._ownership.believed("s4") is None
            node.read = lambda: None
            await until(lambda: host._ownership.believed("s4"))
