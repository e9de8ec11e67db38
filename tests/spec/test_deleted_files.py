"""OBJ: what a deleted file's newest version says, and what stays of it."""

from pathlib import Path

import pytest

from ctxd_client import SyncClient, SyncSession


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
