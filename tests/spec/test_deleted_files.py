"""OBJ: the newest version of a deleted file, and the parts of it that remain."""

from pathlib import Path

import pytest

from ctxd_client import SyncClient, SyncSession
from tests.spec.refusal import refused


@pytest.mark.requirement("OBJ-10")
def test_a_deleted_files_newest_version_is_a_tombstone_and_its_past_stays(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("there\n")
    read = s.read("a.py")
    there = client.object_get(read.object).object
    (tree / "a.py").unlink()
    gone = client.file_index(s.id, "a.py", cause="check")
    assert (gone.object, gone.outcome, gone.kind, gone.char_count) == (read.object, "deleted", "missing", 0)
    newest = client.object_get(read.object).object
    assert newest.state == "deleted"
    assert newest.payload == {"file_type": "py", "char_count": 0, "deleted": True, "content": None}
    assert (newest.id, newest.source, newest.identity_hash) == (there.id, there.source, there.identity_hash)
    assert [row.state for row in client.object_history(read.object).versions] == ["present", "deleted"]
    assert client.object_get(read.object, tx=there.tx).object == there
    assert s.view().session.active_set == (read.object,)


@pytest.mark.requirement("OBJ-10")
def test_a_deletion_is_noted_once_and_a_file_that_is_back_is_the_same_object(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("there\n")
    id = s.read("a.py").object
    (tree / "a.py").unlink()
    assert [client.file_index(s.id, "a.py", cause="check").outcome for _ in range(2)] == ["deleted", "unchanged"]
    (tree / "a.py").write_text("there\n")
    back = s.read("a.py")
    assert (back.object, back.outcome) == (id, "updated")
    assert [row.state for row in client.object_history(id).versions] == ["present", "deleted", "present"]


@pytest.mark.requirement("IDX-9")
def test_an_edit_of_a_known_file_that_is_gone_is_its_deletion(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("there\n")
    id = s.read("a.py").object
    sets_before = s.view().session.active_set
    (tree / "a.py").unlink()
    gone = s.edited("a.py")
    assert (gone.object, gone.outcome, gone.kind) == (id, "deleted", "missing")
    assert client.object_get(id).object.state == "deleted"
    assert s.view().session.active_set == sets_before
    again = s.edited("a.py")
    assert (again.outcome, again.receipt) == ("unchanged", None)


@pytest.mark.requirement("IDX-9")
def test_a_deletion_is_the_reporting_sessions_own_even_if_a_tracker_found_it_first(start, tree: Path) -> None:
    (tree / "a.py").write_text("there\n")
    author, reader = start(), start()
    id = author.read("a.py").object
    start_seq = reader.read("a.py").receipt
    assert start_seq is not None
    (tree / "a.py").unlink()
    author.edited("a.py")
    told = reader.notices(after=start_seq.seq).notices
    assert [(notice.object, notice.change, notice.by_session) for notice in told][-1] == (id, "deleted", author.id)


@pytest.mark.requirement("IDX-9")
def test_an_edit_of_a_missing_file_that_the_session_does_not_know_is_refused(start, tree: Path) -> None:
    (tree / "a.py").write_text("there\n")
    other, s = start(), start()
    other.read("a.py")
    (tree / "a.py").unlink()
    with refused("file_not_found"):
        s.edited("a.py")
    with refused("file_not_found"):
        s.edited("never.py")


@pytest.mark.requirement("IDX-9")
def test_an_edit_of_a_file_without_its_directory_is_not_a_deletion(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "src").mkdir()
    (tree / "src" / "a.py").write_text("there\n")
    id = s.read("src/a.py").object
    (tree / "src").rename(tree / "away")
    with refused("file_not_found"):
        s.edited("src/a.py")
    assert client.object_get(id).object.state == "present"
