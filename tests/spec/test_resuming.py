"""SES: what a paused or closed session takes, and what resuming one restores, checks and reports."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import SyncClient, SyncSession, connect_sync
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.sessions import MOVES, call, said, sets, walk, whole

WRITES: dict[str, Callable[[SyncSession, str], Any]] = {
    "append": lambda s, id: s.user("more"),
    "assemble": lambda s, id: s.assemble(),
    "system prompt": lambda s, id: s.set_system_prompt("other"),
    "tool call": lambda s, id: s.record(f"late-{s.id}", "bash", "x"),
    "index": lambda s, id: s.edited("a.py", content="new\n"),
    "discover": lambda s, id: s.discover(["b.py"]),
    "observe": lambda s, id: s.observe("ls", "b.py\n"),
    "configure": lambda s, id: s.configure(labels={"a": "b"}),
    **{move: lambda s, id, move=move: getattr(s, move)(id) for move in MOVES},
}
"""Every call that writes into a session, with the id of an active object of it."""


@pytest.mark.own_daemon
@pytest.mark.requirement("SES-10")
@pytest.mark.parametrize(("state", "code"), [("pause", "session_not_active"), ("close", "session_closed")])
def test_a_paused_session_refuses_writes_and_stays_readable(
    s: SyncSession, client: SyncClient, tree: Path, state: str, code: str
) -> None:
    for name in ("a.py", "b.py"):
        (tree / name).write_text(name)
    s.user("Hello.")
    id = s.read("a.py").object
    shown = s.assemble()
    assert getattr(s, state)().session.state == {"pause": "paused", "close": "closed"}[state]
    before, written = s.view(), client.daemon_status().store.head_seq
    for what, write in WRITES.items():
        with refused(code):
            write(s, id)
            pytest.fail(f"{what} was taken")
    assert client.daemon_status().store.head_seq == written
    assert s.view() == before
    assert said(s) == [(1, [("user", "Hello.")])]
    assert s.show(number=shown.number).text == shown.text
    assert client.object_get(id, session=s.id).object.payload["content"] == "a.py"
    assert s.resolve("a.py").known
    current = s.current()
    assert client.commit_show(current.context_id or "").commit.session == s.id
    assert current.assembly == shown.number
    assert client.object_list(session=s.id).objects[0].object == id


@pytest.mark.requirement("SES-10")
def test_a_paused_session_can_be_resumed_and_a_closed_one_cannot(s: SyncSession) -> None:
    s.pause()
    assert s.resume().session.state == "active"
    assert s.user("Here again.").turn == 1
    s.close()
    for again in (s.resume, s.pause):
        with refused("session_closed"):
            again()
    assert s.view().session.state == "closed"


@pytest.mark.requirement("SES-10")
@pytest.mark.parametrize("state", ["pause", "close"])
def test_a_paused_or_closed_session_takes_commits_of_clients(s: SyncSession, client: SyncClient, state: str) -> None:
    s.user("Hello.")
    parent = s.current().context_id
    before = getattr(s, state)().session
    line = '{"type":"user","message":{"role":"user","content":"Captured late."}}\n'
    late = client.commit_checkpoint("claude-code-v1", line, session=s.id, parent=parent).commit.commit
    client.commit_tag(late, "late")
    client.commit_annotate(late, "the end of a run")
    found = client.commit_resolve(session=s.id).commit
    assert found is not None and (found.commit, found.tags) == (late, ("late",))
    assert s.view().session == before and said(s) == [(1, [("user", "Hello.")])]


@pytest.mark.requirement("SES-11")
@pytest.mark.requirement("SES-12")
def test_resuming_reports_every_file_and_changes_no_set(s: SyncSession, client: SyncClient, tree: Path) -> None:
    names = ("same.py", "changed.py", "gone.py", "dir/orphan.py", "indexed.py", "unread.py")
    (tree / "dir").mkdir()
    for name in names:
        (tree / name).write_text("one\n")
    ids = {name: s.read(name).object for name in names[:-1]}
    s.discover(["unread.py"])
    s.pool_remove(ids["indexed.py"])
    s.pin(ids["gone.py"])
    s.deactivate(ids["same.py"])
    toolcall = call(s)
    s.user("Wait.")
    before = sets(s)
    s.pause()
    for name in ("changed.py", "indexed.py"):
        (tree / name).write_text("two, and longer\n")
    (tree / "gone.py").unlink()
    shutil.rmtree(tree / "dir")
    resumed = s.resume()
    told = resumed.reconciled
    assert set(told.updated) == {ids["changed.py"], ids["indexed.py"]}
    assert told.deleted == (ids["gone.py"],)
    assert told.orphaned == (ids["dir/orphan.py"],)
    assert (told.unchanged, told.unread) == (1, 1)
    assert sets(s) == before
    assert resumed.session.state == "active"
    assert (resumed.session.session_index, resumed.session.pinned_set) == (before[0], before[3])
    assert said(s) == [(1, [("user", "Wait.")])]
    contents = {name: client.object_get(id).object.payload["content"] for name, id in ids.items()}
    assert contents == {
        "same.py": "one\n",
        "changed.py": "two, and longer\n",
        "gone.py": None,
        "dir/orphan.py": "one\n",
        "indexed.py": "two, and longer\n",
    }
    assert client.object_get(toolcall).object.payload["content"] == "ok\n"
    again = s.resume().reconciled
    assert (again.updated, again.deleted, again.orphaned) == ((), (), (ids["dir/orphan.py"],))


@pytest.mark.requirement("SES-11")
def test_resuming_after_a_kill_restores_all_sets_and_the_chat(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.py").write_text(f"{number}\n")
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            s = client.session("kept", agent="spec", workdir=str(tmp_path), system_prompt="Be brief.")
            last = walk(s, tmp_path, random.Random(7), 60)[-1]
            s.user("Before.")
            before = whole(s)
            s.pause()
        daemon.kill()
        daemon.start()
        with connect_sync(daemon.socket) as client:
            s = client.session("kept")
            assert s.view().session.state == "paused"
            resumed = s.resume().session
            assert resumed.state == "active"
            assert sets(s) == last
            after = whole(s)
    (_, view, *kept), (_, view_before, *kept_before) = after, before
    assert kept == kept_before
    assert view.session.turn_count == view_before.session.turn_count > 0


@pytest.mark.own_daemon
@pytest.mark.requirement("SES-12")
def test_resuming_a_session_that_was_not_paused_writes_only_changes(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("one\n")
    s.read("a.py")
    before, written = s.view(), client.daemon_status().store.head_seq
    assert s.resume().receipt is None
    assert (s.view(), client.daemon_status().store.head_seq) == (before, written)


@pytest.mark.requirement("SES-11")
def test_resuming_finds_that_an_unread_file_is_gone_and_reads_none_that_is_there(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "dir").mkdir()
    names = ("gone.py", "there.py", "dir/away.py")
    for name in names:
        (tree / name).write_text("text\n")
    ids = [found.object for found in s.discover(names).objects]
    s.pause()
    (tree / "gone.py").unlink()
    shutil.rmtree(tree / "dir")
    (tree / "there.py").write_text("changed\n")
    told = s.resume().reconciled
    assert (told.deleted, told.orphaned, told.updated, told.unread) == ((ids[0],), (ids[2],), (), 1)
    assert [client.object_get(id).object.state for id in ids if id] == ["deleted", "unread", "unread"]
    assert "[deleted]" in s.assemble().text
