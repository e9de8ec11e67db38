"""Commits, forks and the trash with several hosts: they move with their session, and what others have stays."""

import signal
from pathlib import Path

import pytest

from ctxd.commits.snapshot_making import SNAPSHOT_COMMITS_MIN
from ctxd.store.verify import search
from ctxd_client import CallFailed
from ctxd_client.sync import SyncClient
from tests.waiting import block_until
from tests.xtdb.hosts import Host, Pair, hosts, lived, set_aside, shown, taken_over
from tests.xtdb.running import Node
from tests.xtdb.test_hosts import code_of, same

LARGE = "".join(f'{{"role":"user","content":"{n:06d}"}}\n' for n in range(60_000))


def chain(client: SyncClient, commit: str) -> list[tuple[object, ...]]:
    """The history of a commit, without what differs between hosts: the journal's sequences."""
    return [
        (each.commit, each.parent, each.artifact_ref, each.summary, each.tags, each.created_at_ms, each.machine)
        for each in client.commit_history(commit).commits
    ]


def said(client: SyncClient, session: str) -> list[object]:
    return list(client.session_chat(session).turns)


@pytest.mark.requirement("HST-14")
@pytest.mark.slow
def test_the_commits_of_a_session_move_with_it(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    with hosts(a, b):
        texts = lived(a.client, "moving", tmp_path / "tree")
        s = a.client.session("moving")
        s.set_entry("mode", "Plan only.")
        root = a.client.commit_checkpoint("claude-code-v1", '{"n":0}\n', template="t").commit.commit
        own = a.client.commit_checkpoint("claude-code-v1", '{"n":1}\n', session="moving", parent=root).commit.commit
        then = said(a.client, "moving")
        s.user("after the first commit")
        held = a.client.artifact_put(data=LARGE.encode()).artifact
        large = a.client.commit_checkpoint("claude-code-v1", artifact=held, session="moving", parent=own).commit.commit
        side = a.client.commit_checkpoint("claude-code-v1", '{"n":2}\n', session="moving", parent=own).commit.commit
        tip = a.client.context_current(session="moving").context_id
        assert tip is not None
        a.client.commit_annotate(own, "The first one.")
        a.client.commit_tag(side, "kept")
        a.client.object_purge(f"commit:{side}")
        before = {commit: chain(a.client, commit) for commit in (large, side, tip)}
        whole = a.client.commit_materialize(large, stop="root", format="narrative-v1").artifact_ref
        set_aside(a, "moving")
        b.client.session_resume("moving")
        same(a.client, b.client, "moving")
        assert shown(b.client, "moving")[:3] == texts
        assert {commit: chain(b.client, commit) for commit in before} == before
        assert b.client.commit_materialize(large, stop="root", format="narrative-v1").artifact_ref == whole
        assert code_of(lambda: b.client.commit_materialize(side)) == "purged"
        (tagged,) = b.client.commit_list(tag="kept").commits
        assert tagged.commit == side
        # Nothing is committed again, and what is new continues the chain.
        assert b.client.context_current(session="moving").context_id == tip
        b.client.session("moving").user("on the other host")
        newest = b.client.context_current(session="moving").context_id
        assert newest is not None and chain(b.client, newest)[1:] == before[tip]
        resolved = b.client.commit_resolve(session="moving").commit
        assert resolved is not None and resolved.commit == newest
        # A fork at a commit that was made on the other host is the session of that moment.
        fork = b.client.session_fork("moving", commit=own).session
        assert said(b.client, fork) == then
        b.client.session(fork).user("only in the fork")
        made = b.client.context_current(session=fork).context_id
        assert made is not None and [each[0] for each in chain(b.client, made)[1:]] == [own, root]
        # And back again, with a tag that has moved meanwhile.
        b.client.commit_tag(newest, "kept")
        set_aside(b, "moving")
        a.client.session_resume("moving")
        assert chain(a.client, newest) == chain(b.client, newest)
        (tagged,) = a.client.commit_list(tag="kept").commits
        assert tagged.commit == newest
        assert a.client.context_current(session="moving").context_id == newest
        for host in (a, b):
            host.level()
            host.agrees()


@pytest.mark.requirement("HST-9")
@pytest.mark.requirement("CMT-40")
@pytest.mark.slow
def test_a_purge_on_another_host_leaves_nothing_on_this_one_once_the_session_is_back(pair: Pair) -> None:
    """Of commits and tool calls that this host has had before, in the database or in snapshots of their chain."""
    texts = {kind: f"the-secret-of-a-{kind}-7c1e" for kind in ("commit", "call")}

    def held(host: Host) -> set[str]:
        """The files that hold a text, by its kind."""
        return {
            f"{kind} {path.partition('/')[0].removesuffix('-wal')}"
            for kind, text in texts.items()
            for path in search(host.state, [text.encode()], lambda *_: None)
        }

    def snapshots(host: Host) -> list[Path]:
        return list((host.state / "snapshots").glob("*.snapshot"))

    a, b = pair()
    with hosts(a, b):
        a.client.session_create("agent", session="long")
        a.client.toolcall_record("long", "long-call", "bash", texts["call"])
        b.client.session_create("agent", session="other")
        b.client.toolcall_record("other", "other-call", "bash", "not of the session")
        ids: list[str] = []
        for number in range(SNAPSHOT_COMMITS_MIN + 1):
            delta = f'{{"n":{number},"text":"{texts["commit"] if number == 30 else number}"}}\n'
            parent = ids[-1] if ids else None
            ids.append(a.client.commit_checkpoint("claude-code-v1", delta, session="long", parent=parent).commit.commit)
        for host, other in ((a, b), (b, a)):
            host.client.commit_materialize(ids[-1], stop="root", content=False)
            block_until(lambda host=host: snapshots(host))
            assert held(host) >= {"commit snapshots", "commit state.db", "call state.db"}
            set_aside(host, "long")
            other.client.session_resume("long")
        for id in (f"commit:{ids[30]}", "long-call"):
            assert a.client.object_purge(id).complete
        assert not held(a) and not snapshots(a)
        a.level()
        set_aside(a, "long")
        b.client.session_resume("long")
        assert not held(b) and not snapshots(b)
        assert b.client.object_get("long-call", session="long").object.payload["purged"] is True
        assert b.client.object_get("other-call", session="other").object.payload["content"] == "not of the session"
        assert code_of(lambda: b.client.commit_materialize(ids[-1], stop="root")) == "purged"
        assert b.client.commit_materialize(ids[-1], stop=ids[31], content=False).commit_count == len(ids) - 31
        same(a.client, b.client, "long")
        b.level()
        b.agrees()


@pytest.mark.requirement("HST-15")
@pytest.mark.slow
def test_a_fork_goes_to_another_host_without_the_session_that_it_was_forked_from(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    with hosts(a, b):
        lived(a.client, "stays", tmp_path / "tree")
        tip = a.client.context_current(session="stays").context_id
        assert tip is not None
        a.client.session_fork("stays", fork="goes")
        a.client.session("stays").user("not in the fork")
        s = a.client.session("goes")
        s.tool("bash", output="in the fork", id="in-the-fork")
        s.assemble()
        assert code_of(lambda: b.client.session_fork("goes")) == "session_not_found"
        set_aside(a, "goes")
        b.client.session_resume("goes")
        same(a.client, b.client, "goes")
        assert len(shown(b.client, "goes")) == 4
        assert "stays" not in [row.session for row in b.client.session_list().sessions]
        made = b.client.context_current(session="goes").context_id
        assert made is not None and tip in [each[0] for each in chain(b.client, made)]
        assert code_of(lambda: a.client.session_fork("goes")) == "session_owned_elsewhere"
        assert code_of(lambda: a.client.session_fork("stays", fork="goes")) == "session_exists"
        before = b.client.daemon_status().store.head_seq
        b.client.session_fork("goes", fork="again")
        assert b.client.daemon_status().store.head_seq == before + 1, "a fork copies nothing"
        b.client.session("again").user("only here")
        b.client.session("goes").user("said on the other host")
        set_aside(b, "goes")
        a.client.session_resume("goes")
        same(a.client, b.client, "goes")
        a.client.session("goes").user("home")
        set_aside(b, "again")
        a.client.session_resume("again")
        same(a.client, b.client, "again")
        set_aside(a, "stays")
        b.client.session_resume("stays")
        same(a.client, b.client, "stays")
        for host in (a, b):
            host.kill()
            host.start()
            host.level()
            host.agrees()
        assert len(shown(a.client, "goes")) == 4


@pytest.mark.requirement("HST-15")
@pytest.mark.slow
def test_a_fork_of_late_writes_keeps_them_when_its_session_returns(
    pair: Pair, nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    a, b = pair()
    with hosts(a, b):
        lived(a.client, "lost", tmp_path / "tree", turns=1)
        earlier = a.client.context_current(session="lost").context_id
        a.level()
        nodes[0].pause()
        try:
            a.client.session("lost").user("late")
            late = a.client.session("lost").record("late", "bash", "late").object
            commit = a.client.context_current(session="lost").context_id
            a.client.session_fork("lost", fork="of-late")
            taken_over(b, "lost")
            b.client.session("lost").user("said on beta")
            others = b.client.context_current(session="lost").context_id
            set_aside(b, "lost")
        finally:
            nodes[0].cont()
        assert commit is not None and others is not None and earlier is not None
        block_until(lambda: a.client.session_owner("lost").branch)
        branch = a.client.session_owner("lost").branch
        assert branch is not None
        taken_over(a, "lost")
        same(a.client, b.client, "lost")
        # The late commit is the branch's, so that the session goes on from the other host's.
        assert a.client.context_current(session="lost").context_id == others
        assert [each[0] for each in chain(a.client, others)] == [others, earlier]
        assert a.client.commit_show(commit).commit.session == branch
        assert a.client.context_current(session=branch).context_id == commit
        for session in ("of-late", branch):
            assert late in a.client.session_get(session).session.session_index
            a.client.session(session).user("goes on")
            set_aside(a, session)
            b.client.session_resume(session)
            same(a.client, b.client, session)
            made = b.client.context_current(session=session).context_id
            assert made is not None and [each[0] for each in chain(b.client, made)][-2:] == [commit, earlier]
        for host in (a, b):
            host.level()
            host.agrees()


def emptied(host: Host, session: str) -> None:
    """Remove the session for good."""
    host.client.session_remove(session)
    done = host.client.session_gc(0, force=True)
    assert [each.session for each in done.sessions if each.action == "emptied"] == [session]


@pytest.mark.requirement("HST-16")
@pytest.mark.slow
def test_sessions_collected_on_one_host_stay_on_another(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    with hosts(a, b):
        texts = lived(a.client, "first", tmp_path / "tree")
        commit = a.client.commit_checkpoint("claude-code-v1", '{"n":1}\n', session="first").commit.commit
        a.client.context_current(session="first")
        set_aside(a, "first")
        b.client.session_resume("first")
        b.client.session_fork("first", fork="second")
        b.client.session("second").user("on beta")
        tip = b.client.context_current(session="second").context_id
        assert tip is not None
        b.client.session_create("agent", session="third")
        b.client.session("third").tool("bash", output="first 0 0", id="another")
        third = b.client.session("third").assemble().text
        set_aside(b, "first")
        a.client.session_resume("first")
        emptied(a, "first")
        assert code_of(lambda: a.client.session_get("first")) == "session_not_found"
        a.level()
        a.agrees()
        assert code_of(lambda: b.client.session_resume("first")) in ("session_removed", "session_closed")
        # What another host has is whole there, and goes on from there.
        assert shown(b.client, "second") == texts
        history = chain(b.client, tip)
        for session in ("second", "third"):
            set_aside(b, session)
            a.client.session_resume(session)
            same(a.client, b.client, session)
        assert shown(a.client, "third") == [third]
        assert chain(a.client, tip) == history
        assert a.client.commit_materialize(tip, stop="root", format="narrative-v1").commit_count >= 2
        assert a.client.commit_show(commit).commit.session == "first"
        b.level()
        b.agrees()
        a.agrees()


@pytest.mark.requirement("HST-16")
@pytest.mark.slow
def test_a_session_with_a_fork_on_another_host_is_kept_with_the_reason(pair: Pair, tmp_path: Path) -> None:
    a, b = pair()
    with hosts(a, b):
        lived(a.client, "base", tmp_path / "tree", turns=1)
        a.client.session_fork("base", fork="gone")
        set_aside(a, "gone")
        b.client.session_resume("gone")
        a.client.session_remove("base")
        (kept,) = [each for each in a.client.session_gc(0, force=True).sessions if each.session == "base"]
        assert (kept.action, kept.reason) == ("kept", "forked")
        with pytest.raises(CallFailed, match="in the trash"):
            a.client.session_fork("base")


ARRIVING = (
    "journal.begin@3", "journal.insert@3", "journal.precommit@3", "journal.flush@4", "journal.commit@3",
    "journal.postcommit@3", "journal.ack@3", "art.write", "art.fsync", "art.index", "project.submit@2",
    "project.sent@2", "project.committed@2",
)  # fmt: skip
"""Places of the host that takes a session over, and the pass at which it is killed there."""


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.requirement("HST-14")
@pytest.mark.requirement("HST-13")
@pytest.mark.slow
def test_no_commit_is_lost_doubled_or_without_its_artifact_over_a_kill_at_every_place_of_a_hand_over(
    pair: Pair,
) -> None:
    a, b = pair()
    killed: set[str] = set()
    with hosts(a, b):
        for number, place in enumerate(ARRIVING):
            one, other = (a, b) if number % 2 == 0 else (b, a)
            name, _, passes = place.partition("@")
            session = place.replace("@", "-")
            s = one.client.session(session, agent="agent")
            root = one.client.commit_checkpoint("claude-code-v1", f'{{"n":"{place}"}}\n', session=session).commit.commit
            text = f'{{"role":"user","content":"{place}"}}\n' + LARGE
            held = one.client.artifact_put(data=text.encode()).artifact
            given = {"session": session, "artifact": held, "parent": root}
            large = one.client.commit_checkpoint("claude-code-v1", **given).commit.commit
            one.client.commit_annotate(root, "the first")
            one.client.commit_tag(large, "kept")
            s.user("there")
            tip = one.client.context_current(session=session).context_id
            assert tip is not None
            before = chain(one.client, tip)
            set_aside(one, session)
            other.stop()
            other.start(failpoints=f"{name}=kill@{passes or 1}")
            try:
                other.once.session_resume(session)
                other.once.session(session).user("and here")
                while not other.is_level(other.once):
                    pass
            except CallFailed:
                assert other.process is not None
                assert other.process.wait(30) == -signal.SIGKILL
                killed.add(place)
            other.kill()
            other.start()
            block_until(lambda other=other, session=session: resumed(other, session))
            other.client.session(session).user("and on")
            newest = other.client.context_current(session=session).context_id
            assert newest is not None
            assert chain(other.client, tip) == before
            found = chain(other.client, newest)
            assert found[-len(before) :] == before
            assert [each.commit for each in other.client.commit_list(tag="kept", session=session).commits] == [large]
            assert len(other.client.commit_list(session=session).commits) == len({each[0] for each in found})
            whole = other.client.commit_materialize(newest, stop="root", format="narrative-v1").content or ""
            assert [whole.count(word) for word in ("there", "and on")] == [1, 1] and whole.count("and here") < 2
            got = other.client.artifact_get(large_ref(other.client, large))
            assert got.size == len(text)
        assert killed == {*ARRIVING}, "each place was passed"
        for host in (a, b):
            host.level()
            host.agrees()


def resumed(host: Host, session: str) -> bool:
    """Try to resume ``session``; true once it is active."""
    try:
        return host.client.session_resume(session).session.state == "active"
    except CallFailed as error:
        assert error.code in ("session_owned_elsewhere", "store_unavailable", "session_not_found"), error
        return False


def large_ref(client: SyncClient, commit: str) -> str:
    ref = client.commit_show(commit).commit.artifact_ref
    assert ref is not None
    return ref
