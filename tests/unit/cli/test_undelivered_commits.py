"""Files of commits that wait for the daemon: order, progress, locks, damage and their bound."""

import os
import resource
from pathlib import Path

import pytest
from msgspec.structs import replace

from ctxd.cli import undelivered_commits
from ctxd.cli.undelivered_commits import (
    PREVIOUS,
    NoRoom,
    QueuedCommit,
    UndeliveredFile,
    erase_undelivered,
    folder_of,
    left_over,
    new_path,
)


def commit(number: int, size: int = 10) -> QueuedCommit:
    return QueuedCommit(
        op_id=f"capture-{number}", parent=PREVIOUS if number else None, delta=b"\x00\xff" * size, commit_type="delta",
        checkpoint="explicit", summary="", messages=1, tokens=2, session=None, template="", ticket="", thread="",
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_path(folder_of("/run/a.sock", {"XDG_STATE_HOME": str(tmp_path)}), 5, "id")


def test_commits_round_trip_while_others_are_added(path):
    with UndeliveredFile(path) as file:
        assert file.oldest() is None
        file.append(commit(0))
        file.append(commit(1))
        assert file.oldest() == file.oldest() == commit(0)
        file.append(commit(2))
        assert file.undelivered() == [commit(0), commit(1), commit(2)]
        assert file.waiting == 3, "none is delivered"


def test_the_oldest_commit_follows_deliveries_also_of_commits_that_were_not_read(path):
    with UndeliveredFile(path) as file:
        for number in range(3):
            file.append(commit(number))
        assert file.oldest() == commit(0)
        file.note_delivered("ctx-00000001")
        file.note_delivered("ctx-00000002")
        assert file.oldest() == commit(2)
        file.note_delivered("ctx-00000003")
        assert file.oldest() is None
        file.append(commit(3))
        assert file.oldest() == commit(3)


def test_a_reopened_file_continues_after_the_last_delivered_commit(path):
    with UndeliveredFile(path) as file:
        for number in range(4):
            file.append(commit(number))
        file.note_parent("ctx-00000001")
        file.note_delivered("ctx-00000002")
        file.note_delivered("ctx-00000003")
    with UndeliveredFile(path) as file:
        assert (file.waiting, file.parent) == (2, "ctx-00000003")
        assert file.undelivered() == [commit(2), commit(3)]


def test_a_commit_torn_by_a_kill_is_dropped_and_the_file_stays_usable(path):
    with UndeliveredFile(path) as file:
        file.append(commit(0))
        file.append(commit(1))
    path.write_bytes(path.read_bytes()[:-5])
    with UndeliveredFile(path) as file:
        assert file.undelivered() == [commit(0)]
        file.append(commit(2))
    with UndeliveredFile(path) as file:
        assert file.undelivered() == [commit(0), commit(2)]


def test_a_damaged_file_is_named(path):
    path.write_bytes(b"{}\n")
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        UndeliveredFile(path)


def test_one_process_at_a_time_has_a_file(path):
    with UndeliveredFile(path), pytest.raises(BlockingIOError):
        UndeliveredFile(path)
    with UndeliveredFile(path):
        pass


def test_all_files_together_are_bounded(path, tmp_path, monkeypatch):
    monkeypatch.setattr(undelivered_commits, "BYTES_MAX", 8 * 1024)
    other = new_path(folder_of("/run/b.sock", {"XDG_STATE_HOME": str(tmp_path)}), 6, "id")
    with UndeliveredFile(path) as file, UndeliveredFile(other) as second:
        file.append(commit(0, size=2000))
        with pytest.raises(NoRoom, match="is its limit"):
            second.append(commit(0, size=2000))
        second.append(commit(0, size=100))
        assert (file.waiting, second.waiting) == (1, 1)
    assert left_over(path.parent) == [path]


@pytest.mark.requirement("CAP-8")
def test_a_file_that_another_capture_removes_meanwhile_does_not_count(path, monkeypatch):
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda folder, name: [*glob(folder, name), path.with_name("removed.jsonl")])
    with UndeliveredFile(path) as file:
        file.append(commit(0))
        assert file.undelivered() == [commit(0)]


def test_a_full_disk_leaves_no_partial_commit(path):
    """The process's limit on the size of a file stands for the disk's end; Python ignores its signal."""
    with UndeliveredFile(path) as file:
        file.append(commit(0))
        before = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                file.append(commit(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == before
        file.append(commit(2))
        assert file.undelivered() == [commit(0), commit(2)]


def test_directories_are_accessible_only_to_their_owner(path):
    assert [os.stat(each).st_mode & 0o777 for each in (path.parent, path.parent.parent)] == [0o700, 0o700]


@pytest.mark.requirement("CMT-19")
def test_erasing_a_session_keeps_other_sessions_and_delivered_commits(path):
    environ = {"HOME": str(path.parents[2] / "home"), "XDG_STATE_HOME": str(path.parents[2])}
    others = new_path(path.parent, 6, "other")
    with UndeliveredFile(path) as file, UndeliveredFile(others) as mixed:
        for number in range(3):
            file.append(replace(commit(number), session="s1"))
        for number, session in enumerate(("s1", "s2", "s1", "s2")):
            mixed.append(replace(commit(number), session=session))
        mixed.note_delivered("ctx-00000001")
        assert erase_undelivered("s1", environ) == 0, "both are in use"
    assert erase_undelivered("s1", environ) == 3 + 1
    assert not path.exists() and left_over(path.parent) == [others]
    with UndeliveredFile(others) as mixed:
        assert mixed.parent == "ctx-00000001"
        assert [each.session for each in mixed.undelivered()] == ["s2", "s2"]


@pytest.mark.requirement("CMT-19")
def test_commits_in_the_default_state_directory_are_erased_too(path, tmp_path):
    home = tmp_path / "home"
    waiting = new_path(folder_of("/run/other.sock", {"HOME": str(home)}), 7, "cron")
    with UndeliveredFile(waiting) as file:
        file.append(replace(commit(0), session="s1"))
    assert erase_undelivered("s1", {"HOME": str(home), "XDG_STATE_HOME": str(path.parents[2])}) == 1
    assert not waiting.exists()


@pytest.mark.requirement("CMT-19")
def test_a_damaged_file_is_reported_after_the_others_are_erased(path):
    environ = {"HOME": str(path.parents[2] / "home"), "XDG_STATE_HOME": str(path.parents[2])}
    with UndeliveredFile(path) as file:
        file.append(replace(commit(0), session="s1"))
    new_path(path.parent, 1, "damaged").write_bytes(b"no commit\n")
    with pytest.raises(ValueError, match="is damaged"):
        erase_undelivered("s1", environ)
    assert not path.exists()


def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(path):
    os.mkfifo(path)
    with pytest.raises(ValueError, match="not a regular file"):
        UndeliveredFile(path)
