"""SES: what a session holds, what moves within it, and what stays apart, paused or resumed."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import CallFailed, SyncClient, SyncSession, connect_sync
from ctxd_protocol.sessions import Collapse, Message, Mount, SessionView
from tests.client.running import Running
from tests.spec.refusal import refused

MOVES = ("activate", "deactivate", "pin", "unpin", "pool_add", "pool_remove")


def sets(s: SyncSession) -> tuple[tuple[str, ...], ...]:
    """Index, pool, active and pinned set, in order of entry."""
    view = s.view().session
    return view.session_index, view.metadata_pool, view.active_set, view.pinned_set


def said(s: SyncSession) -> list[tuple[int, list[tuple[str, str]]]]:
    """The chat: turn numbers, and each message's role with its text or the object it stands for."""
    turns = s.client.session_chat(s.id).turns
    messages = [(turn["number"], turn["messages"]) for turn in turns]
    return [(number, [(m["role"], m.get("content") or m.get("toolcall", "")) for m in all]) for number, all in messages]


def call(s: SyncSession, name: str = "call", output: str = "ok\n") -> str:
    """A fresh tool call; its id."""
    return s.record(f"{name}-{s.id}", "bash", output).object


def whole(s: SyncSession) -> tuple[Any, ...]:
    """Everything that belongs to one session alone: context, settings and sets, chat, system prompt."""
    text = s.assemble().text
    return text, s.view(), said(s), s.client.object_get(f"system_prompt:{s.id}").object


@pytest.mark.requirement("SES-1")
def test_a_session_is_read_whole_as_it_was_created(client: SyncClient, tree: Path) -> None:
    mounts = (
        Mount(agent_prefix="/w", canonical_prefix=str(tree), writable=False),
        Mount(agent_prefix="/far", canonical_prefix="/x", filesystem_id="nfs"),
    )
    made = client.session_create(
        "agent-7",
        session="whole.session@1",
        system_prompt="Be brief.",
        workdir="/w",
        filesystem_id="box",
        mounts=mounts,
        collapse=Collapse(per_turn=2, turns=9),
        budget_tokens=1234,
        labels={"task": "mend", "Größe": "1"},
    )
    assert made.receipt is not None
    expected = SessionView(
        session="whole.session@1",
        agent="agent-7",
        principal=made.session.principal,
        state="active",
        created_at=made.session.created_at,
        updated_at=made.receipt.vt,
        chat_ref="chat:whole.session@1",
        system_prompt_ref="system_prompt:whole.session@1",
        turn_count=0,
        workdir="/w",
        filesystem_id="box",
        detect_filesystems=False,
        mounts=mounts,
        collapse=Collapse(per_turn=2, turns=9),
        budget_tokens=1234,
        labels={"task": "mend", "Größe": "1"},
        secrets="flag",
        session_index=(),
        metadata_pool=(),
        active_set=(),
        pinned_set=(),
    )
    assert made.session == expected
    assert 0 <= made.receipt.vt - made.session.created_at < 60_000
    read = client.session_get("whole.session@1")
    assert (read.session, read.receipt) == (expected, None)
    assert client.object_get(expected.system_prompt_ref).object.payload["content"] == "Be brief."


@pytest.mark.requirement("SES-1")
def test_what_is_not_said_gets_its_default_and_an_id_is_made(client: SyncClient) -> None:
    one, two = client.session_create("spec").session, client.session_create("spec").session
    assert one.session != two.session
    assert (one.workdir, one.mounts, one.collapse, one.budget_tokens, one.labels) == ("/", (), Collapse(), None, {})


@pytest.mark.requirement("SES-1")
def test_an_id_is_taken_once(s: SyncSession, client: SyncClient) -> None:
    s.user("mine")
    before = whole(s)
    with refused("session_exists"):
        client.session_create("another", session=s.id, system_prompt="other")
    assert whole(s) == before
    with refused("session_not_found"):
        client.session_get("no-such-session")


def walk(s: SyncSession, tree: Path, rng: random.Random, steps: int) -> list[tuple[tuple[str, ...], ...]]:
    """The sets after each of so many random moves, refused ones included."""
    seen = []
    for number in range(steps):
        known = s.view().session.session_index
        name = f"{rng.randrange(12)}.py"
        step: list[Callable[[], Any]] = [
            lambda number=number: call(s, f"call{number}"),
            lambda: s.user("next"),
            lambda name=name: s.discover([name]),
            lambda name=name: s.read(name),
            lambda name=name, number=number: s.edited(name, content=f"{number}\n"),
        ]
        if known:
            step += [lambda move=move, known=known: getattr(s, move)(rng.choice(known)) for move in MOVES] * 2
        try:
            rng.choice(step)()
        except CallFailed as failure:
            assert failure.code in ("not_active", "not_pinned", "not_in_pool", "content_unavailable"), failure
        seen.append(sets(s))
    return seen


@pytest.mark.requirement("SES-2")
@pytest.mark.requirement("SES-3")
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_asked_the_index_only_grows_and_the_sets_lie_within_one_another(
    start, tree: Path, seed: int
) -> None:
    for number in range(12):
        (tree / f"{number}.py").write_text(f"{number}\n")
    s = start(collapse=Collapse(per_turn=2, turns=2))
    before: tuple[str, ...] = ()
    reached = set()
    for index, pool, active, pinned in walk(s, tree, random.Random(seed), 120):
        assert index[: len(before)] == before
        for ids in (index, pool, active, pinned):
            assert len(ids) == len(set(ids))
        assert set(active) <= set(pool) <= set(index)
        assert set(pinned) <= set(pool)
        reached |= {len(pool) < len(index), len(active) < len(pool), bool(pinned), bool(active)}
        before = index
    assert reached == {False, True}
    assert len(before) > 10


@pytest.mark.requirement("SES-2")
def test_what_is_deleted_hidden_or_closed_stays_in_the_index(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("x")
    file, toolcall = s.read("a.py").object, call(s)
    (tree / "a.py").unlink()
    client.file_index(s.id, "a.py", cause="check")
    s.pool_remove(file)
    s.pool_remove(toolcall)
    s.close()
    assert s.view().session.session_index == (file, toolcall)


@pytest.mark.requirement("SES-3")
def test_what_is_not_in_the_index_is_in_no_other_set(start, tree: Path) -> None:
    one, two = start(), start()
    theirs = call(two)
    for move in MOVES:
        with refused("not_in_index"):
            getattr(one, move)(theirs)
    assert sets(one) == ((), (), (), ())
    hidden = call(one)
    one.pool_remove(hidden)
    for move in ("pin", "pool_remove"):
        with refused("not_in_pool"):
            getattr(one, move)(hidden)
    assert sets(one) == ((hidden,), (), (), ())


@pytest.mark.requirement("SES-4")
def test_activating_an_indexed_object_shows_it_in_the_pool_too(s: SyncSession) -> None:
    id = call(s)
    s.pool_remove(id)
    assert sets(s) == ((id,), (), (), ())
    moved = s.activate(id)
    assert (moved.object, moved.level, moved.changed) == (id, "active", True)
    assert sets(s) == ((id,), (id,), (id,), ())


@pytest.mark.requirement("SES-4")
@pytest.mark.parametrize("hidden", [False, True])
def test_activating_an_unread_file_reads_it_first(s: SyncSession, client: SyncClient, tree: Path, hidden: bool) -> None:
    (tree / "a.py").write_text("read at last\n")
    id = s.discover(["a.py"]).objects[0].object
    assert id is not None
    if hidden:
        s.pool_remove(id)
    moved = s.activate(id)
    assert (moved.level, moved.changed) == ("active", True)
    version = client.object_get(id).object
    assert (version.state, version.payload["content"]) == ("present", "read at last\n")
    assert moved.receipt is not None
    assert version.tx == moved.receipt.seq, "the reading and the move are one write"
    assert "read at last" in s.assemble().text
    again = s.activate(id)
    assert (again.level, again.changed, again.receipt) == ("active", False, None)


@pytest.mark.requirement("SES-5")
@pytest.mark.parametrize("what", ["gone", "directory gone", "binary", "too large", "a pipe", "the sandbox's"])
def test_activating_what_has_no_content_to_be_had_fails_and_changes_nothing(
    start, client: SyncClient, tree: Path, what: str
) -> None:
    s, place = start(), tree / "src"
    place.mkdir()
    (place / "a").write_bytes(b"\x00" if what == "binary" else b"text\n")
    id = s.discover(["src/a"]).objects[0].object
    assert id is not None
    match what:
        case "gone":
            (place / "a").unlink()
        case "directory gone":
            shutil.rmtree(place)
        case "too large":
            with (place / "a").open("wb") as large:
                large.truncate(2**40)
        case "a pipe":
            (place / "a").unlink()
            os.mkfifo(place / "a")
        case "the sandbox's":
            id = _binary_in_a_sandbox(s, client)
    before, version = s.view(), client.object_get(id)
    with refused("source_unreachable", "content_unavailable"):
        s.activate(id)
    assert s.view() == before
    assert client.object_get(id) == version


def _binary_in_a_sandbox(s: SyncSession, client: SyncClient) -> str:
    """A file that only a sandbox can read, of which ``s`` knows a binary version."""
    s.configure(mounts=[Mount(agent_prefix="/far", canonical_prefix="/x", filesystem_id="box")])
    id = s.read("/far/a", content=b"\x00").object
    s.deactivate(id)
    return id


@pytest.mark.requirement("SES-5")
def test_activating_a_deleted_file_fails_and_changes_nothing(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("x")
    id = s.read("a.py").object
    s.deactivate(id)
    (tree / "a.py").unlink()
    client.file_index(s.id, "a.py", cause="check")
    before, version = s.view(), client.object_get(id)
    with refused("content_unavailable"):
        s.activate(id)
    assert (s.view(), client.object_get(id)) == (before, version)


@pytest.mark.requirement("SES-6")
def test_deactivating_the_inactive_and_unpinning_the_unpinned_are_errors_that_say_so(s: SyncSession) -> None:
    id = call(s)
    s.deactivate(id)
    before = s.view()
    with refused("not_active"):
        s.deactivate(id)
    with refused("not_pinned"):
        s.unpin(id)
    assert s.view() == before
    with pytest.raises(CallFailed, match="is not active"):
        s.deactivate(id)
    with pytest.raises(CallFailed, match="is not pinned"):
        s.unpin(id)


@pytest.mark.requirement("SES-6")
def test_the_moves_that_are_done_already_change_nothing_and_say_so(s: SyncSession, tree: Path) -> None:
    (tree / "a.py").write_text("x")
    id = s.read("a.py").object
    assert s.pin(id).changed
    before = s.view()
    for move in (s.activate, s.pin, s.pool_add):
        done = move(id)
        assert (done.level, done.pinned, done.changed, done.receipt) == ("active", True, False, None)
    assert s.view() == before


@pytest.mark.requirement("SES-7")
def test_removing_an_object_from_the_pool_takes_it_out_of_active_and_pinned_sets(s: SyncSession) -> None:
    one, two = call(s, "one"), call(s, "two")
    s.pin(one)
    s.pin(two)
    moved = s.pool_remove(one)
    assert (moved.level, moved.pinned, moved.changed) == ("indexed", False, True)
    assert sets(s) == ((one, two), (two,), (two,), (two,))
    assert one not in s.assemble().text
    back = s.pool_add(one)
    assert (back.level, back.pinned) == ("inactive", False)
    assert sets(s) == ((one, two), (two, one), (two,), (two,))


@pytest.mark.requirement("SES-8")
def test_a_user_message_starts_a_turn_and_messages_keep_their_order_tool_results_included(s: SyncSession) -> None:
    s.assistant("Hello.")
    assert s.user("First.").turn == 1
    one = call(s, "one")
    s.append([Message(role="assistant", content="Let me look."), Message(role="toolcall", toolcall=one)])
    two = call(s, "two")
    appended = s.append(
        [
            Message(role="toolcall", toolcall=two),
            Message(role="assistant", content="Done."),
            Message(role="user", content="Second."),
            Message(role="user", content="Third."),
            Message(role="toolcall", toolcall=one),
        ]
    )
    assert appended.turn == 3
    assert s.view().session.turn_count == 3
    assert said(s) == [
        (0, [("assistant", "Hello.")]),
        (
            1,
            [
                ("user", "First."),
                ("assistant", "Let me look."),
                ("toolcall", one),
                ("toolcall", two),
                ("assistant", "Done."),
            ],
        ),
        (2, [("user", "Second.")]),
        (3, [("user", "Third."), ("toolcall", one)]),
    ]


@pytest.mark.requirement("SES-8")
def test_messages_are_kept_as_they_came_and_the_chat_is_read_in_pages(s: SyncSession) -> None:
    texts = ["", "CHAT_MESSAGE role=user\n", "Größe \U0001f600\u2028\x00"]
    for text in texts:
        s.user(text, meta={"usage": {"in": 1}, "model": None})
    page = s.client.session_chat(s.id, limit=2)
    rest = s.client.session_chat(s.id, first_turn=page.next_turn or 0, limit=2)
    assert (page.turn_count, page.next_turn, rest.next_turn) == (3, 3, None)
    messages = [message for turn in (*page.turns, *rest.turns) for message in turn["messages"]]
    assert [message.get("content", "") for message in messages] == texts
    assert all(message["meta"] == {"usage": {"in": 1}, "model": None} for message in messages)


@pytest.mark.requirement("SES-8")
@pytest.mark.parametrize(
    "message",
    [
        Message(role="toolcall"),
        Message(role="toolcall", toolcall="unknown-call"),
        Message(role="user", content="x", toolcall="unknown-call"),
    ],
)
def test_of_messages_with_a_wrong_one_among_them_none_is_kept(s: SyncSession, message: Message) -> None:
    with refused("invalid_params", "not_in_index"):
        s.append([Message(role="user", content="good"), message])
    assert said(s) == []
    assert s.view().session.turn_count == 0


@pytest.mark.requirement("SES-9")
def test_sessions_are_listed_newest_first_with_a_preview_and_by_pages(start, client: SyncClient) -> None:
    made = [start(agent="listed") for _ in range(5)]
    made[1].user("An old question")
    made[1].user("Why does the build fail?")
    made[3].user("A" * 5000)
    call(made[1])
    pages, cursor = [], None
    while True:
        page = client.session_list(agent="listed", limit=2, cursor=cursor)
        pages.append([row.session for row in page.sessions])
        cursor = page.next_cursor
        if cursor is None:
            break
    ids = [s.id for s in reversed(made)]
    assert [id for page in pages for id in page] == ids
    assert max(map(len, pages)) == 2
    rows = {row.session: row for row in client.session_list(agent="listed").sessions}
    row, view = rows[made[1].id], made[1].view().session
    assert row.preview == "Why does the build fail?"
    assert (row.turn_count, row.index_count, row.active_count) == (2, 1, 1)
    assert (row.created_at, row.updated_at, row.state) == (view.created_at, view.updated_at, "active")
    assert rows[made[0].id].preview == ""
    assert 0 < len(rows[made[3].id].preview) < 1000


@pytest.mark.requirement("SES-9")
def test_sessions_are_filtered_by_state_agent_label_and_text(start, client: SyncClient) -> None:
    one = start(agent="filtered", labels={"task": "mend", "area": "core"})
    two = start(agent="filtered", labels={"task": "mend"})
    three = start(agent="filtered-not")
    one.user("Mend the GADGET please")
    two.user("gadget, again")
    two.user("something else")
    three.user("gadget")
    two.pause()

    def listed(**filters: Any) -> set[str]:
        return {row.session for row in client.session_list(limit=1000, **filters).sessions} & {one.id, two.id, three.id}

    assert listed() == {one.id, two.id, three.id}
    assert listed(agent="filtered") == {one.id, two.id}
    assert listed(state="paused") == {two.id}
    assert listed(state="closed") == set()
    assert listed(label="task=mend") == {one.id, two.id}
    assert listed(label="area=core") == {one.id}
    assert listed(label="area=cor") == set()
    assert listed(text="gadget") == {one.id, three.id}
    assert listed(text=one.id) >= {one.id}
    assert listed(agent="filtered", label="task=mend", state="active", text="mend") == {one.id}
    with refused("invalid_params"):
        client.session_list(label="no value")


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


@pytest.mark.requirement("SES-10")
@pytest.mark.parametrize(("state", "code"), [("pause", "session_not_active"), ("close", "session_closed")])
def test_a_session_that_is_set_aside_takes_no_write_and_stays_readable(
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
    assert s.current().context_id == shown.context_id
    assert client.object_list(session=s.id).objects[0].object == id


@pytest.mark.requirement("SES-10")
def test_a_paused_session_goes_on_when_resumed_and_a_closed_one_never(s: SyncSession) -> None:
    s.pause()
    assert s.resume().session.state == "active"
    assert s.user("Here again.").turn == 1
    s.close()
    for again in (s.resume, s.pause):
        with refused("session_closed"):
            again()
    assert s.view().session.state == "closed"


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


@pytest.mark.requirement("SES-12")
def test_resuming_a_session_that_was_not_paused_writes_only_what_changed(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("one\n")
    s.read("a.py")
    before, written = s.view(), client.daemon_status().store.head_seq
    assert s.resume().receipt is None
    assert (s.view(), client.daemon_status().store.head_seq) == (before, written)


@pytest.mark.requirement("SES-13")
def test_nothing_that_one_session_does_shows_in_another(start, tree: Path) -> None:
    (tree / "a.py").write_text("shared\n")
    quiet, busy = start(system_prompt="Quiet."), start(system_prompt="Busy.")
    for s in (quiet, busy):
        s.user("Begin.")
        s.read("a.py")
    before = whole(quiet)
    mine = call(busy, output="told to the busy one\n")
    busy.append([Message(role="toolcall", toolcall=mine), Message(role="user", content="told to it too")])
    busy.set_system_prompt("Told to it.")
    id = busy.resolve("a.py").object
    busy.pin(id)
    busy.pool_remove(id)
    busy.edited("b.py", content="new\n")
    busy.configure(labels={"told": "yes"}, budget_tokens=10, collapse=Collapse(per_turn=0))
    busy.pause()
    assert whole(quiet) == before
    assert "told" not in str(before).lower()
    for move in MOVES:
        with refused("not_in_index"):
            getattr(quiet, move)(mine)
    with refused("not_in_index"):
        quiet.append([Message(role="toolcall", toolcall=mine)])
    assert whole(quiet) == before


@pytest.mark.requirement("SES-14")
def test_an_object_is_named_by_a_unique_prefix_of_eight_characters(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("x")
    file, toolcall = s.read("a.py").object, call(s, "unique-call")
    for id in (file, toolcall):
        for length in (8, 9, len(id)):
            assert client.object_get(id[:length], session=s.id).object.id == id
            assert s.pin(id[:length]).object == id
        assert s.deactivate(id[:8]).object == id
        assert client.object_history(id[:8], session=s.id).versions
        for short in (id[:7], id[:1]):
            with refused("not_in_index"):
                s.activate(short)
            with refused("object_not_found", "not_in_index"):
                client.object_get(short, session=s.id)
    s.append([Message(role="toolcall", toolcall="unique-c")])
    assert said(s) == [(0, [("toolcall", toolcall)])]


@pytest.mark.requirement("SES-14")
def test_an_ambiguous_prefix_is_refused_and_a_whole_id_is_not(s: SyncSession, client: SyncClient) -> None:
    stem = f"ambiguous-{s.id}"
    one, two = s.record(stem, "bash", "1").object, s.record(f"{stem}-more", "bash", "2").object
    before = s.view()
    with refused("ambiguous_id"):
        s.deactivate("ambiguou")
    with refused("ambiguous_id"):
        client.object_get("ambiguou", session=s.id)
    assert s.view() == before
    assert s.deactivate(one).object == one
    assert s.deactivate(f"{stem}-m").object == two


@pytest.mark.requirement("SES-14")
def test_a_prefix_means_only_what_the_session_has_met(start) -> None:
    one, two = start(), start()
    theirs = call(two, "elsewhere")
    with refused("not_in_index"):
        one.activate(theirs[:10])
    mine = one.record("elsewhere-mine", "bash", "").object
    assert one.deactivate("elsewher").object == mine
