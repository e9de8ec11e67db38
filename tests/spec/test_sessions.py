"""SES: what a session is, how sessions are listed, what stays apart, and how a session's objects are named."""

from pathlib import Path
from typing import Any

import pytest

from ctxd_client import Conflict, SyncClient, SyncSession
from ctxd_protocol.session_types import Collapse, Message, Mount, Project, SessionView
from tests.spec.refusal import refused
from tests.spec.sessions import MOVES, call, said, whole


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
        project=Project(directory=str(tree)),
    )
    assert made.session == expected
    assert 0 <= made.receipt.vt - made.session.created_at < 60_000
    read = client.session_get("whole.session@1")
    assert (read.session, read.receipt) == (expected, None)
    assert client.object_get(expected.system_prompt_ref).object.payload["content"] == "Be brief."


@pytest.mark.requirement("SES-1")
def test_omitted_settings_get_defaults_and_an_id_is_generated(client: SyncClient) -> None:
    one, two = client.session_create("spec").session, client.session_create("spec").session
    assert one.session != two.session
    assert (one.workdir, one.mounts, one.collapse, one.budget_tokens, one.labels) == ("/", (), Collapse(), None, {})


@pytest.mark.requirement("SES-1")
@pytest.mark.parametrize("name", ["HEAD", "ctx-12345678", "ctx-" + "a" * 64])
def test_a_commit_name_is_not_a_valid_session_id(s: SyncSession, client: SyncClient, name: str) -> None:
    with refused("invalid_params"):
        client.session_create("demo", session=name)
    with refused("invalid_params"):
        client.session_fork(s.id, fork=name)
    with refused("session_not_found"):
        client.session_get(name)
    for near in (f"{name}-x", f"{name.lower()}/b", f"claude-{name}"):
        assert client.session_create("demo", session=near).session.session == near


@pytest.mark.requirement("SES-1")
def test_an_id_is_taken_once(s: SyncSession, client: SyncClient) -> None:
    s.user("mine")
    before = whole(s)
    with refused("session_exists"):
        client.session_create("another", session=s.id, system_prompt="other")
    assert whole(s) == before
    with refused("session_not_found"):
        client.session_get("no-such-session")


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
    assert listed(text="gadget") == {one.id, two.id, three.id}, "the first prompt is the title"
    assert listed(text="something") == {two.id}
    assert listed(text=one.id) >= {one.id}
    assert listed(text="FILTERED-not") == {three.id}, "text is sought in the agent too"
    assert listed(agent="filtered", label="task=mend", state="active", text="mend") == {one.id}
    with refused("invalid_params"):
        client.session_list(label="no value")


@pytest.mark.requirement("SES-13")
def test_sessions_do_not_affect_each_other(start, tree: Path) -> None:
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
def test_an_id_prefix_matches_only_objects_of_the_session(start) -> None:
    one, two = start(), start()
    theirs = call(two, "elsewhere")
    with refused("not_in_index"):
        one.activate(theirs[:10])
    mine = one.record("elsewhere-mine", "bash", "").object
    assert one.deactivate("elsewher").object == mine


@pytest.mark.requirement("SES-15")
@pytest.mark.parametrize(
    "other",
    [
        {"agent": "another"},
        {"workdir": "/elsewhere"},
        {"labels": {"a": "c"}},
        {"budget_tokens": 7},
        {"mounts": {"/m": "/x"}},
        {"collapse": Collapse(per_turn=1)},
        {"secrets": "redact"},
        {"filesystem_id": "box"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_session_that_exists_with_other_arguments_is_a_conflict(start, client: SyncClient, other: Any) -> None:
    s = start(workdir="/work", labels={"a": "b"}, budget_tokens=9)
    fitting: Any = {"agent": "spec", "workdir": "/work/", "labels": {"a": "b"}, "budget_tokens": 9}
    assert client.session(s.id, **fitting).id == s.id
    assert client.session(s.id, agent="spec").id == s.id
    assert client.session(s.id).id == s.id
    with pytest.raises(Conflict, match=next(iter(other))):
        client.session(s.id, **(fitting | other))


@pytest.mark.requirement("SES-15")
def test_a_closed_session_is_a_conflict_for_a_new_one_and_can_be_opened_to_read(
    s: SyncSession, client: SyncClient
) -> None:
    s.close()
    with pytest.raises(Conflict, match="closed"):
        client.session(s.id, agent="spec")
    assert client.session(s.id).view().session.state == "closed"


@pytest.mark.requirement("SES-16")
def test_a_relative_working_directory_is_refused(s: SyncSession, client: SyncClient) -> None:
    with refused("invalid_path"):
        client.session_create("spec", workdir="sub")
    before = s.view()
    with refused("invalid_path"):
        s.configure(workdir="sub")
    assert s.view() == before
