"""Two daemons with journals of their own on two nodes with one log: a session is one host's at a time, and whole."""

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from blake3 import blake3

from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.documents import content_id
from ctxd_client import CallFailed
from ctxd_client.sync import SyncClient
from tests.waiting import block_until
from tests.xtdb.hosts import LEASE_S, TEN_MINUTES_MS, Host, Pair, hosts, lived, set_aside, shown, taken_over
from tests.xtdb.running import Node, Postgres

NODE_WAIT_S = 6.0
"""Seconds that a host waits for its node where the node will not answer; the product's 20 are no better a proof."""


def copies(node: Node, text: str) -> int:
    """Count the versions of the entity of ``text`` at the node: documents of equal content are one."""

    async def count() -> int:
        async with XtdbClient(node.url) as client:
            id = content_id(blake3(text.encode()).digest())
            rows = await client.history(id)
            return len({str(row.doc) for row in rows})

    return anyio.run(count)


def ctx(host: Host, *words: str) -> str:
    """Return the output of ``ctx``, both streams."""
    command = [sys.executable, "-c", "from ctxd.cli.main import main; main()", "--socket", host.socket, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(CallFailed) as caught:
        call()
    return caught.value.code


def same(one: SyncClient, other: SyncClient, session: str) -> None:
    """The session is the same on both, to the last byte."""
    views = [client.session_get(session).session for client in (one, other)]
    for name in ("session_index", "metadata_pool", "active_set", "pinned_set", "turn_count", "labels", "workdir"):
        assert getattr(views[0], name) == getattr(views[1], name), name
    assert one.session_chat(session) == other.session_chat(session)
    assert shown(one, session) == shown(other, session)


@pytest.mark.requirement("HST-1")
@pytest.mark.requirement("HST-5")
@pytest.mark.parametrize(
    "ahead",
    [
        pytest.param((0, 0), marks=pytest.mark.slow),
        (0, TEN_MINUTES_MS),
        pytest.param((TEN_MINUTES_MS, 0), marks=pytest.mark.slow),
        pytest.param((-TEN_MINUTES_MS, 0), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_session_paused_on_one_host_continues_on_another_with_the_same_bytes(
    pair: Pair, tmp_path: Path, ahead: tuple[int, int]
) -> None:
    a, b = pair(ahead)
    session = f"moved{ahead[0]}{ahead[1]}"
    with hosts(a, b):
        texts = lived(a.client, session, tmp_path / "tree", calls=90)
        a.client.session_pin(session, f"{session}-0-0")
        set_aside(a, session)
        resumed = b.client.session_resume(session)
        assert resumed.session.state == "active"
        assert len(resumed.session.session_index) == 271
        same(a.client, b.client, session)
        assert shown(b.client, session)[:3] == texts
        assert len(set(texts)) == 3
        # And back again, with what the other one added.
        s = b.client.session(session)
        s.user("on the other host")
        s.tool("bash", output="made there", id=f"{session}-there")
        texts.append(s.assemble().text)
        set_aside(b, session)
        a.client.session_resume(session)
        same(a.client, b.client, session)
        assert texts[-1] in shown(a.client, session)
        a.client.session(session).tool("bash", output="made here again", id=f"{session}-here")
        assert "made here again" in a.client.session(session).assemble().text
        assert code_of(lambda: b.client.session(session).user("late")) == "session_not_active"


@pytest.mark.requirement("HST-2")
def test_a_session_of_a_host_that_is_alive_is_refused_and_named(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    with hosts(a, b):
        lived(a.client, "alive", tmp_path / "tree")
        a.level()
        block_until(lambda: b.client.session_list(elsewhere=True, text="alive").sessions)
        with pytest.raises(CallFailed, match="session alive is owned by host alpha") as caught:
            b.client.session_resume("alive")
        assert caught.value.code == "session_owned_elsewhere"
        assert 0 < (caught.value.retry_after_ms or 0) <= LEASE_S * 1000
        (row,) = b.client.session_list(elsewhere=True, text="alive").sessions
        assert (row.session, row.host, row.turn_count, row.state) == ("alive", "alpha", 3, "active")
        assert code_of(lambda: b.client.session_create("agent", session="alive")) == "session_exists"
        owner = b.client.session_owner("alive")
        assert (owner.host, owner.here, owner.released) == ("alpha", False, False)
        assert a.client.session_owner("alive").here
        assert code_of(lambda: b.client.session_resume("nowhere")) == "session_not_found"
        with pytest.raises(CallFailed, match="session_not_found.*--elsewhere"):
            b.client.session("alive").user("not here")
        listed, shown_here, shown_there = (
            ctx(host, *words)
            for host, words in (
                (b, ("session", "ls", "--elsewhere", "--text", "alive")),
                (a, ("session", "show", "alive")),
                (b, ("session", "show", "alive")),
            )
        )
        assert "alive" in listed and "alpha" in listed
        assert "owned by this host, alpha" in shown_here
        assert "session alive is owned by host alpha" in shown_there
        # Hosts of other tests used this log, under the same names.
        (mine,) = [each for each in b.client.session_hosts().hosts if each.here]
        assert (mine.host, mine.lease_left_ms) == ("beta", None)
        block_until(lambda: (1, 0) in [(each.sessions, each.lag_rows) for each in b.client.session_hosts().hosts])
        assert '"lag_rows": 0' in ctx(a, "session", "hosts", "--json")
        assert "this host" in ctx(a, "session", "hosts")
        set_aside(a, "alive")
        ctx(b, "session", "resume", "alive")
        assert "owned by this host, beta" in ctx(b, "session", "show", "alive")


@pytest.mark.requirement("HST-3")
def test_a_dead_host_s_session_is_taken_over_after_its_lease(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    with hosts(a, b):
        texts = lived(a.client, "orphan", tmp_path / "tree")
        a.level()
        a.kill()
        taken_over(b, "orphan")
        assert shown(b.client, "orphan")[:3] == texts
        b.client.session("orphan").user("alive again")
        a.start()
        assert a.client.session_owner("orphan").host == "beta"


@pytest.mark.requirement("HST-4")
@pytest.mark.slow
def test_writes_of_a_host_after_it_lost_a_session_are_kept_as_a_branch(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    with hosts(a, b):
        texts = lived(a.client, "torn", tmp_path / "tree")
        a.level()
        a.send(signal.SIGSTOP)
        taken_over(b, "torn")
        b.client.session("torn").user("said on beta")
        b.level()
        a.send(signal.SIGCONT)
        s, late = a.client.session("torn"), []
        try:
            for n in range(20):
                late.append(s.record(f"late-{n}", "bash", f"late {n}").object)
        except CallFailed as refused:
            assert refused.code in ("session_owned_elsewhere", "store_failed")
        branch = block_until(lambda: a.client.session_owner("torn").branch)
        with pytest.raises(CallFailed, match="host beta") as caught:
            s.user("one more")
        assert caught.value.code == "session_owned_elsewhere"
        assert branch in caught.value.hint
        block_until(lambda: branch in [row.session for row in a.client.session_list().sessions])
        kept = a.client.session_get(branch).session
        assert late
        assert set(late) <= set(kept.session_index)
        assert shown(a.client, branch)[:3] == texts
        assert "id=late-0 " in a.client.session(branch).assemble().text
        a.level()
        # Nothing of it has reached the session.
        assert not set(late) & set(b.client.session_get("torn").session.session_index)
        # The session comes back, without what was only the branch's.
        set_aside(b, "torn")
        a.client.session_resume("torn")
        same(a.client, b.client, "torn")
        a.client.session("torn").user("back home")
        # And the branch can go where the session can.
        set_aside(a, branch)
        b.client.session_resume(branch)
        same(a.client, b.client, branch)
        for host in (a, b):
            host.level()
            host.agrees()
        a.kill()
        a.start()
        assert a.client.session_get("torn").session.state == "active"


@pytest.mark.requirement("HST-4")
@pytest.mark.slow
def test_late_writes_are_kept_even_if_the_session_returns_before_its_loss_is_known(
    pair: Pair, nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    a, b = pair()
    with hosts(a, b):
        lived(a.client, "back", tmp_path / "tree", turns=1)
        a.level()
        nodes[0].pause()
        try:
            late = a.client.session("back").record("late", "bash", "late").object
            a.client.session_pause("back", wait=False)
            taken_over(b, "back")
            b.client.session("back").user("said on beta")
            set_aside(b, "back")
        finally:
            nodes[0].cont()

        def resumed() -> bool:
            try:
                return a.client.session_resume("back").session.state == "active"
            except CallFailed as error:
                assert error.retryable
                return False

        block_until(resumed, within_s=60)
        same(a.client, b.client, "back")
        kept = {row.session: a.client.session_get(row.session).session for row in a.client.session_list().sessions}
        (branch,) = kept.keys() - {"back"}
        assert late in kept[branch].session_index
        assert late not in kept["back"].session_index
        for host in (a, b):
            host.level()
            host.agrees()


@pytest.mark.requirement("HST-4")
@pytest.mark.slow
def test_a_resume_does_not_undo_writes_that_the_log_does_not_have_yet(
    pair: Pair, log: Postgres, tmp_path: Path
) -> None:
    a, b = pair()
    a.node_wait_s = NODE_WAIT_S
    with hosts(a, b):
        lived(b.client, "newer", tmp_path / "tree", turns=1)
        set_aside(b, "newer")
        a.client.session_resume("newer")
        # The node answers from its index, which does not have the import.
        log.pause()
        try:
            written = [a.client.session("newer").record(f"new-{n}", "bash", f"new {n}").object for n in range(3)]
            a.client.session("newer").user("said before the pause")
            a.client.session_pause("newer", wait=False)
            a.client.session_resume("newer")
            assert set(written) <= set(a.client.session_get("newer").session.session_index)
        finally:
            log.cont()
        a.client.session("newer").user("said after it")
        a.level()
        set_aside(a, "newer")
        b.client.session_resume("newer")
        same(a.client, b.client, "newer")
        assert set(written) <= set(b.client.session_get("newer").session.session_index)
        assert [row.session for row in a.client.session_list().sessions] == ["newer"]


@pytest.mark.requirement("HST-4")
@pytest.mark.slow
def test_tool_calls_alone_are_kept_when_their_session_was_lost_and_is_back(
    pair: Pair, nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    a, b = pair()
    with hosts(a, b):
        lived(a.client, "calls", tmp_path / "tree", turns=1)
        a.level()
        nodes[0].pause()
        try:
            late = [a.client.session("calls").record(f"late-{n}", "bash", f"late {n}").object for n in range(7)]
            taken_over(b, "calls")
            b.client.session("calls").user("said on beta")
            set_aside(b, "calls")
        finally:
            nodes[0].cont()
        taken_over(a, "calls")
        same(a.client, b.client, "calls")
        (branch,) = {row.session for row in a.client.session_list().sessions} - {"calls"}
        assert set(late) <= set(a.client.session_get(branch).session.session_index)
        for host in (a, b):
            host.level()
            host.agrees()


@pytest.mark.requirement("HST-2")
@pytest.mark.slow
def test_a_returning_host_checks_the_log_before_it_resumes(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    with hosts(a, b):
        lived(a.client, "away", tmp_path / "tree", turns=1)
        a.level()
        a.send(signal.SIGSTOP)
        taken_over(b, "away")
        b.client.session("away").user("said on beta")
        a.send(signal.SIGCONT)
        with pytest.raises(CallFailed) as caught:
            a.client.session_resume("away")
        assert caught.value.code == "session_owned_elsewhere"
        assert code_of(lambda: a.client.session("away").user("late")) == "session_owned_elsewhere"
        set_aside(b, "away")
        a.client.session_resume("away")
        same(a.client, b.client, "away")


@pytest.mark.requirement("HST-8")
@pytest.mark.slow
def test_an_incomplete_pause_reports_the_missing_rows(pair: Pair, nodes: tuple[Node, Node]) -> None:
    a, b = pair()
    a.node_wait_s = NODE_WAIT_S
    with hosts(a, b):
        a.client.session_create("agent", session="waits-for-node")
        a.level()
        nodes[0].pause()
        try:
            a.client.session("waits-for-node").user("not at the node")
            with pytest.raises(
                CallFailed, match="is paused, but not released after 6 s: the node lacks . rows"
            ) as caught:
                a.client.session_pause("waits-for-node")
            assert (caught.value.code, caught.value.outcome) == ("session_not_released", "applied")
            assert a.client.session_get("waits-for-node").session.state == "paused"
        finally:
            nodes[0].cont()
        a.client.session_pause("waits-for-node")
        b.client.session_resume("waits-for-node")


@pytest.mark.requirement("HST-6")
def test_equal_ids_of_two_hosts_are_distinguished(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    with hosts(a, b):
        mine = lived(a.client, "mine", tmp_path / "tree")
        b.client.session_create("agent", session="theirs")
        b.client.session("theirs").tool("bash", output="of beta", id="mine-1-1")
        set_aside(a, "mine")
        b.client.session_resume("mine")
        assert shown(b.client, "mine")[:3] == mine
        assert b.client.object_get("mine-1-1", session="mine").object.payload["content"] == "mine 1 1"
        assert b.client.object_get("mine-1-1", session="theirs").object.payload["content"] == "of beta"


@pytest.mark.requirement("HST-6")
def test_a_session_created_on_two_hosts_is_owned_by_one_and_a_branch_of_the_other(
    pair: Pair, nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    a, b = pair()
    with hosts(a, b):
        nodes[1].pause()
        try:
            lived(a.client, "twice", tmp_path / "tree")
            # Its node does not answer, so it cannot know.
            b.client.session_create("agent", session="twice")
            b.client.session("twice").tool("bash", output="the other", id="only-here")
            a.level()
        finally:
            nodes[1].cont()
        branch = block_until(lambda: b.client.session_owner("twice").branch, within_s=60)
        assert b.client.session_owner("twice").host == "alpha"
        block_until(lambda: branch in [row.session for row in b.client.session_list().sessions])
        assert b.client.session_get(branch).session.session_index == ("only-here",)
        set_aside(a, "twice")
        b.client.session_resume("twice")
        same(a.client, b.client, "twice")


@pytest.mark.requirement("HST-7")
def test_equal_text_is_kept_once_for_all_hosts(pair: Pair, nodes: tuple[Node, Node]) -> None:
    text = "the same everywhere " * 50
    a, b = pair()
    with hosts(a, b):
        for host in (a, b):
            host.client.session_create("agent", session=f"shares-{host.name}")
            host.client.session(f"shares-{host.name}").tool("bash", output=text, id=f"call-{host.name}")
            host.level()
        assert copies(nodes[0], text) == 1


@pytest.mark.requirement("HST-8")
@pytest.mark.slow
def test_a_resume_that_needs_the_node_fails_while_it_is_down(
    pair: Pair, nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    a, b = pair()
    with hosts(a, b):
        lived(a.client, "waits", tmp_path / "tree")
        set_aside(a, "waits")
        nodes[1].pause()
        try:
            with pytest.raises(CallFailed) as caught:
                b.once.session_resume("waits")
            assert caught.value.code == "store_unavailable"
            assert caught.value.retryable
            # What is here goes on without it.
            b.client.session_create("agent", session="unmoved")
            b.client.session("unmoved").user("all the same")
        finally:
            nodes[1].cont()

        def resumed() -> bool:
            try:
                return b.client.session_resume("waits").session.state == "active"
            except CallFailed as error:
                assert error.code == "store_unavailable"
                return False

        block_until(resumed, within_s=60)
        same(a.client, b.client, "waits")


@pytest.mark.requirement("HST-1")
@pytest.mark.requirement("HST-13")
@pytest.mark.parametrize("died", ["precommit", pytest.param("postcommit", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_host_that_died_while_it_took_a_session_over_completes_it(pair: Pair, tmp_path: Path, died: str) -> None:
    a, b = pair()
    session = f"half-{died}"
    with hosts(a, b):
        texts = lived(a.client, session, tmp_path / "tree", calls=60)
        set_aside(a, session)
        b.stop()
        # After those of its start and of the claim, this is the commit of the first part of the session.
        b.start(failpoints=f"journal.{died}=kill@3")
        with pytest.raises(CallFailed):
            b.once.session_resume(session)
        b.kill()
        b.start()
        assert code_of(lambda: b.client.session_create("agent", session=session)) == "session_exists"
        # No client knows it as active there, so any host may resume it once it is whole.
        block_until(
            lambda: (session, "paused") in [(row.session, row.state) for row in b.client.session_list().sessions]
        )
        block_until(lambda: b.client.session_owner(session).released)
        same(a.client, b.client, session)
        b.client.session_resume(session)
        assert shown(b.client, session)[:3] == texts


@pytest.mark.requirement("HST-4")
@pytest.mark.requirement("HST-13")
@pytest.mark.parametrize("died", ["postcommit=kill@2", pytest.param("precommit=kill@3", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_host_that_died_after_a_claim_does_not_continue_from_its_own_copy(
    pair: Pair, tmp_path: Path, died: str
) -> None:
    a, b = pair()
    session = f"stale-{died[:4]}-{died[-1]}"
    with hosts(a, b):
        lived(a.client, session, tmp_path / "tree", turns=1)
        a.level()
        a.kill()
        taken_over(b, session)
        b.client.session(session).user("said on beta")
        set_aside(b, session)
        # The host still has the session, as active as it was.
        a.start(failpoints=f"journal.{died}")
        with pytest.raises(CallFailed):
            a.once.session_resume(session)
        a.kill()
        a.start()
        late = code_of(lambda: a.client.session(session).user("late"))
        assert late in ("session_owned_elsewhere", "session_not_active", "session_not_found")
        # A pause must not take the place of what the other host wrote either. The host may have paused it by now.
        with suppress(CallFailed):
            a.client.session_pause(session)
        block_until(lambda: a.client.session_owner(session).released)
        a.client.session_resume(session)
        same(a.client, b.client, session)
        assert "said on beta" in str(a.client.session_chat(session))
        for host in (a, b):
            host.level()
            host.agrees()


@pytest.mark.requirement("HST-9")
@pytest.mark.slow
def test_a_purge_during_a_takeover_also_applies_on_the_new_host(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    with hosts(a, b):
        lived(a.client, "purged", tmp_path / "tree", calls=60)
        set_aside(a, "purged")
        b.stop()
        b.start(failpoints="journal.postcommit=kill@3")
        with pytest.raises(CallFailed):
            b.once.session_resume("purged")
        b.kill()
        # The session is claimed as it was before this.
        assert a.client.object_purge("purged-1-7").complete
        a.level()
        b.start()
        b.client.session_resume("purged")
        assert b.client.object_get("purged-1-7", session="purged").object.payload.get("purged") is True
        assert b.client.object_get("purged-1-8", session="purged").object.payload["content"] == "purged 1 8"
        same(a.client, b.client, "purged")
        b.level()
        b.agrees()


@pytest.mark.requirement("HST-9")
@pytest.mark.slow
def test_a_text_that_another_host_purged_does_not_keep_a_session_where_it_is(pair: Pair, tmp_path: Path) -> None:
    text = "said on both hosts, and taken back on one"
    a, b = pair()
    with hosts(a, b):
        for host in (a, b):
            lived(host.client, f"said-{host.name}", tmp_path / host.name)
            host.client.session(f"said-{host.name}").tool("bash", output=text, id=f"told-{host.name}")
            host.level()
        a.client.object_purge("told-alpha")
        a.level()
        set_aside(b, "said-beta")
        b.level()
        b.agrees()
        a.client.session_resume("said-beta")
        assert a.client.object_get("told-beta", session="said-beta").object.payload.get("purged") is True
        assert a.client.object_get("said-beta-0-0", session="said-beta").object.payload["content"] == "said-beta 0 0"


@pytest.mark.requirement("HST-2")
@pytest.mark.slow
def test_sessions_from_before_multiple_hosts_can_be_taken_over(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    a.shared = False
    with hosts(a, b):
        lived(a.client, "old", tmp_path / "tree")
        a.client.session_pause("old")  # A single host does not wait.
        a.level()
        assert code_of(lambda: a.client.session_owner("old")) == "unsupported"
        assert code_of(lambda: b.client.session_resume("old")) == "session_not_found"
        a.stop()
        a.shared = True
        a.start()
        block_until(lambda: a.client.session_owner("old").released)
        b.client.session_resume("old")
        same(a.client, b.client, "old")
