"""IDX: from a file and its content to an object and its versions."""

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctxd_client import CallFailed, SyncClient, SyncSession, connect_sync
from ctxd_protocol.session_types import Mount
from tests.client.running import Running
from tests.spec.refusal import refused

ROUNDS = 20
"""Changes that two sessions index at the same moment."""


def versions(client: SyncClient, id: str) -> int:
    return len(client.object_history(id, corrections=True).versions)


def content(client: SyncClient, id: str) -> str | None:
    return client.object_get(id).object.payload["content"]


@pytest.mark.requirement("IDX-1")
@pytest.mark.parametrize("cause", ["read", "edit"])
def test_a_new_file_becomes_an_object_with_one_version_in_index_pool_and_active_set(
    s: SyncSession, client: SyncClient, tree: Path, cause: str
) -> None:
    (tree / "a.py").write_text("x = 1\n")
    assert not s.resolve("a.py").known
    found = client.file_index(s.id, "a.py", cause=cause)
    assert (found.outcome, found.kind, found.char_count) == ("created", "text", 6)
    assert found.receipt is not None
    assert s.resolve("a.py").known
    assert versions(client, found.object) == 1
    version = client.object_get(found.object).object
    assert (version.type, version.state, version.tx) == ("file", "present", found.receipt.seq)
    assert version.payload == {"content": "x = 1\n", "file_type": "py", "char_count": 6}
    view = s.view().session
    assert view.session_index == view.metadata_pool == view.active_set == (found.object,)
    assert view.pinned_set == ()


@pytest.mark.requirement("IDX-1")
def test_files_enter_the_sets_in_the_order_they_were_read(s: SyncSession, tree: Path) -> None:
    ids = []
    for name in ("c.py", "a.py", "b.py"):
        (tree / name).write_text(name)
        ids.append(s.read(name).object)
    view = s.view().session
    assert view.session_index == view.metadata_pool == view.active_set == tuple(ids)


@pytest.mark.own_daemon
@pytest.mark.requirement("IDX-2")
@pytest.mark.parametrize("again", ["read", "edit", "check", "content"])
def test_an_unchanged_file_answers_unchanged_and_writes_nothing(
    s: SyncSession, client: SyncClient, tree: Path, again: str
) -> None:
    (tree / "a.py").write_text("x = 1\n")
    first = s.read("a.py")
    before, written = s.view(), client.daemon_status().store.head_seq
    (tree / "a.py").write_text("x = 1\n")
    (tree / "a.py").chmod(0o600)
    second = s.read("a.py", content="x = 1\n") if again == "content" else client.file_index(s.id, "a.py", cause=again)
    assert (second.object, second.outcome, second.receipt) == (first.object, "unchanged", None)
    assert (second.source_hash, second.char_count) == (first.source_hash, first.char_count)
    assert client.daemon_status().store.head_seq == written
    assert versions(client, first.object) == 1
    assert s.view() == before


@pytest.mark.requirement("IDX-2")
def test_a_file_that_another_session_indexed_is_unchanged_and_enters_the_sets(
    start, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("x = 1\n")
    one, two = start(), start()
    id = one.read("a.py").object
    found = two.read("a.py")
    assert (found.object, found.outcome) == (id, "unchanged")
    assert found.receipt is not None
    assert versions(client, id) == 1
    assert two.view().session.active_set == (id,)


@pytest.mark.requirement("IDX-3")
@pytest.mark.parametrize("cause", ["read", "edit", "check"])
@pytest.mark.parametrize("text", ["x = 2\n", "", "other\nand longer\n"], ids=["same size", "empty", "longer"])
def test_a_changed_file_gets_one_new_version_under_the_same_id(
    s: SyncSession, client: SyncClient, tree: Path, cause: str, text: str
) -> None:
    (tree / "a.py").write_text("x = 1\n")
    first = s.read("a.py")
    old = client.object_get(first.object).object
    (tree / "a.py").write_text(text)
    second = client.file_index(s.id, "a.py", cause=cause)
    assert (second.object, second.outcome, second.char_count) == (first.object, "updated", len(text))
    assert second.source_hash != first.source_hash
    new = client.object_get(first.object).object
    assert new.payload["content"] == text
    assert new.content_hash != old.content_hash
    assert (new.source, new.identity_hash) == (old.source, old.identity_hash)
    assert versions(client, first.object) == 2


@pytest.mark.requirement("IDX-3")
def test_a_change_of_binary_content_is_a_version_too(s: SyncSession, client: SyncClient, tree: Path) -> None:
    outcomes = []
    for raw in (b"\x00one", b"\x00two", b"text", b"\x00two"):
        (tree / "a").write_bytes(raw)
        outcomes.append(s.read("a").outcome)
    assert outcomes == ["created", "updated", "updated", "updated"]
    assert versions(client, s.resolve("a").object) == 4


@pytest.mark.requirement("IDX-4")
def test_two_sessions_that_index_one_change_at_once_make_one_version(
    daemon: Running, start, client: SyncClient, tree: Path
) -> None:
    sessions = [start() for _ in range(2)]
    barrier = threading.Barrier(2, timeout=30)
    outcomes: list[list[str]] = [[], []]

    def work(number: int) -> None:
        with connect_sync(daemon.socket) as own:
            for round in range(ROUNDS):
                if barrier.wait() == 0:
                    (tree / "a.py").write_text(f"{round}\n" * 200)
                barrier.wait()
                outcomes[number].append(own.file_index(sessions[number].id, "a.py").outcome)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    pairs = [sorted(pair) for pair in zip(*outcomes, strict=True)]
    assert pairs == [["created", "unchanged"], *[["unchanged", "updated"]] * (ROUNDS - 1)]
    assert versions(client, sessions[0].resolve("a.py").object) == ROUNDS


@pytest.mark.requirement("IDX-4")
def test_two_sessions_that_meet_one_new_file_at_once_make_one_stub(daemon: Running, start, tree: Path) -> None:
    names = [f"{number}.py" for number in range(200)]
    for name in names:
        (tree / name).write_text("x")
    sessions = [start() for _ in range(2)]
    barrier = threading.Barrier(2, timeout=30)

    def work(s: SyncSession) -> list[str]:
        with connect_sync(daemon.socket) as own:
            barrier.wait()
            return [found.outcome for found in own.file_discover(s.id, names).objects]

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(work, sessions)
    assert [sorted(pair) for pair in zip(one, two, strict=True)] == [["created", "unchanged"]] * 200
    assert sessions[0].view().session.metadata_pool == sessions[1].view().session.metadata_pool


@pytest.mark.requirement("IDX-5")
def test_the_daemon_reads_the_file_when_the_caller_sends_nothing(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("on disk\n")
    assert content(client, s.read("a.py").object) == "on disk\n"


@pytest.mark.requirement("IDX-5")
def test_content_that_the_caller_sends_is_taken_as_it_is(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("on disk\n")
    id = s.read("a.py", content="sent\r\n").object
    assert content(client, id) == "sent\r\n"
    empty = s.read("a.py", content="")
    assert (empty.outcome, content(client, id)) == ("updated", "")
    raw = s.read("a.py", content=b"as bytes\n")
    assert (raw.outcome, raw.kind, content(client, id)) == ("updated", "text", "as bytes\n")
    binary = s.read("a.py", content=b"\xff")
    assert (binary.kind, content(client, id)) == ("binary", "/w==")


@pytest.mark.requirement("IDX-5")
def test_the_same_content_is_unchanged_in_every_encoding(start, tree: Path) -> None:
    (tree / "a.py").write_text("same\n")
    assert start().read("a.py").outcome == "created"
    assert start().read("a.py", content="same\n").outcome == "unchanged"
    assert start().read("a.py", content=b"same\n").outcome == "unchanged"


@pytest.mark.requirement("IDX-5")
def test_a_file_unreadable_to_the_daemon_is_indexed_from_sent_content(start, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("the host's\n")
    s = start(filesystem_id="sandbox")
    with refused("source_unreachable"):
        s.read(f"{tree}/a.py")
    id = s.read(f"{tree}/a.py", content="the sandbox's\n").object
    assert content(client, id) == "the sandbox's\n"


@pytest.mark.requirement("IDX-5")
@pytest.mark.parametrize("given", [{"content": "x", "content_base64": "eA=="}, {"content_base64": "no base64!"}])
def test_content_without_exactly_one_form_is_rejected(
    s: SyncSession, client: SyncClient, given: dict[str, str]
) -> None:
    with refused("invalid_params"):
        client.file_index(s.id, "a.py", **given)
    assert s.view().session.session_index == ()


@pytest.mark.own_daemon
@pytest.mark.requirement("IDX-6")
@pytest.mark.parametrize("cause", ["read", "edit", "check"])
@pytest.mark.parametrize("path", ["none.py", "no/such/directory/a.py", "file/a.py", "dangling"])
def test_a_missing_file_fails_and_makes_no_object(
    s: SyncSession, client: SyncClient, tree: Path, path: str, cause: str
) -> None:
    (tree / "file").write_text("x")
    (tree / "dangling").symlink_to("nowhere")
    before, written = s.view(), client.daemon_status().store.head_seq
    with refused("file_not_found"):
        client.file_index(s.id, path, cause=cause)
    assert client.daemon_status().store.head_seq == written
    assert s.view() == before
    place = s.resolve(path)
    assert not place.known
    with refused("object_not_found"):
        client.object_get(place.object)


@pytest.mark.requirement("IDX-6")
def test_reading_a_known_file_that_is_gone_fails_and_leaves_its_version(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("x")
    id = s.read("a.py").object
    (tree / "a.py").unlink()
    with refused("file_not_found"):
        s.read("a.py")
    assert versions(client, id) == 1
    assert content(client, id) == "x"


@pytest.mark.requirement("IDX-7")
def test_a_file_missing_from_an_existing_directory_is_deleted(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "src").mkdir()
    (tree / "src" / "a.py").write_text("x")
    id = s.read("src/a.py").object
    (tree / "src" / "a.py").unlink()
    found = client.file_index(s.id, "src/a.py", cause="check")
    assert (found.outcome, found.kind, found.source_hash) == ("deleted", "missing", None)
    assert client.object_get(id).object.state == "deleted"


@pytest.mark.requirement("IDX-7")
@pytest.mark.parametrize("how", ["directory gone", "directory moved", "directory is a file", "dangling symlink"])
def test_a_file_missing_for_another_reason_is_orphaned_and_keeps_its_version(
    s: SyncSession, client: SyncClient, tree: Path, how: str
) -> None:
    place = tree / "src"
    place.mkdir()
    (place / "a.py").write_text("x")
    id = s.read("src/a.py").object
    match how:
        case "directory gone":
            shutil.rmtree(place)
        case "directory moved":
            place.rename(tree / "elsewhere")
        case "directory is a file":
            shutil.rmtree(place)
            place.write_text("a file")
        case "dangling symlink":
            (place / "a.py").unlink()
            (place / "a.py").symlink_to("nowhere")
    before = client.object_get(id)
    found = client.file_index(s.id, "src/a.py", cause="check")
    assert (found.object, found.outcome, found.receipt) == (id, "orphaned", None)
    assert client.session_resume(s.id).reconciled.orphaned == (id,)
    assert client.object_get(id) == before
    assert versions(client, id) == 1


@pytest.mark.requirement("IDX-7")
def test_a_file_that_only_its_agent_can_read_is_orphaned_and_not_deleted(start, client: SyncClient) -> None:
    s = start(filesystem_id="sandbox", workdir="/")
    id = s.read("/no/such/a.py", content="x").object
    assert client.file_index(s.id, "/no/such/a.py", cause="check").outcome == "orphaned"
    assert content(client, id) == "x"


@pytest.mark.requirement("IDX-7")
def test_an_orphan_whose_directory_is_back_is_unchanged(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "src").mkdir()
    (tree / "src" / "a.py").write_text("x")
    s.read("src/a.py")
    (tree / "src").rename(tree / "away")
    assert client.file_index(s.id, "src/a.py", cause="check").outcome == "orphaned"
    (tree / "away").rename(tree / "src")
    assert client.file_index(s.id, "src/a.py", cause="check").outcome == "unchanged"


@pytest.mark.requirement("IDX-8")
def test_discovery_makes_an_unread_stub_that_is_known_but_not_active(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("x = 1\n")
    (found,) = s.discover(["a.py"]).objects
    assert (found.path, found.outcome) == ("a.py", "created")
    assert found.object == s.resolve("a.py").object
    version = client.object_get(found.object).object
    assert (version.state, version.source_hash) == ("unread", None)
    assert version.payload == {"file_type": "py", "char_count": 0, "content": None}
    view = s.view().session
    assert view.session_index == view.metadata_pool == (found.object,)
    assert view.active_set == ()


@pytest.mark.requirement("IDX-8")
def test_discovery_never_touches_a_version_that_was_read(start, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("x = 1\n")
    reader, other = start(), start()
    id = reader.read("a.py").object
    before = client.object_get(id)
    (tree / "a.py").write_text("x = 2\n")
    for s in (reader, other):
        (found,) = s.discover(["a.py"]).objects
        assert (found.object, found.outcome) == (id, "unchanged")
    assert client.object_get(id) == before
    assert versions(client, id) == 1
    assert reader.view().session.active_set == (id,)
    assert (other.view().session.metadata_pool, other.view().session.active_set) == ((id,), ())


@pytest.mark.own_daemon
@pytest.mark.requirement("IDX-8")
def test_discovering_again_writes_nothing(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("x")
    assert s.discover(["a.py"]).receipt is not None
    before, written = s.view(), client.daemon_status().store.head_seq
    again = s.discover(["a.py", "./a.py", f"{tree}/a.py"])
    assert [found.outcome for found in again.objects] == ["unchanged"] * 3
    assert again.receipt is None
    assert (s.view(), client.daemon_status().store.head_seq) == (before, written)


@pytest.mark.requirement("IDX-8")
def test_reading_a_stub_is_its_next_version(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("x = 1\n")
    (stub,) = s.discover(["a.py"]).objects
    read = s.read("a.py")
    assert (read.object, read.outcome) == (stub.object, "updated")
    assert [row.state for row in client.object_history(read.object).versions] == ["unread", "present"]
    assert s.view().session.active_set == (read.object,)


@pytest.mark.requirement("IDX-8")
def test_a_stub_is_made_through_a_mount_under_its_canonical_path(start, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("x")
    boxed = start(workdir="/w", mounts=[Mount(agent_prefix="/w", canonical_prefix=str(tree))], filesystem_id="box")
    (found,) = boxed.discover(["a.py"]).objects
    assert found.object == start().resolve(f"{tree}/a.py").object


@pytest.mark.requirement("IDX-10")
def test_files_of_the_daemon_and_its_process_are_not_read(kept: Running, tree: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (tree / "key").symlink_to(state / "secrets.key")
    (tree / "environ").symlink_to("/proc/self/environ")
    paths = [
        "/proc/self/environ", "/proc/thread-self/comm", "/proc/mounts",
        str(state / "secrets.key"), str(state / "state.db"), str(tree / "key"), str(tree / "environ"),
    ]  # fmt: skip
    with connect_sync(kept.socket) as client:
        s = client.session("s", agent="a", workdir=str(tree))
        for path in paths:
            with pytest.raises(CallFailed, match="it is a file of the daemon") as denied:
                s.read(path)
            assert denied.value.code == "unsupported"
        seen = client.tool_observe("s", "cat key environ /proc/self/environ", "text\n")
        assert all(client.object_get(each.object).object.payload["content"] is None for each in seen.objects)
        threads = [each.name for each in Path(f"/proc/{kept.pid}/task").iterdir() if each.name != str(kept.pid)]
        for thread in threads:
            with pytest.raises(CallFailed, match="it is a file of the daemon"):
                s.read(f"/proc/{thread}/environ")
        assert threads, "the daemon has read files in one"
        assert s.read(f"/proc/{os.getpid()}/comm").outcome == "created", "another process"
