"""The folder of the search index: whose it is, and what becomes of those that nobody uses any more."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from ctxd import sqlite_file
from ctxd.search import index_folder
from ctxd.search.index_folder import prepare


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return made(tmp_path / "state")


def made(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


def used(state: Path, cache: Path | None) -> Path:
    """The folder of ``state`` with an index in it."""
    folder, reason = prepare(state, cache)
    assert reason == ""
    (folder / "search.db").write_bytes(b"words")
    return folder


def test_the_index_is_private_in_the_cache_directory_and_found_again(state: Path, tmp_path: Path) -> None:
    folder = used(state, tmp_path / "cache")
    assert folder.parent == tmp_path / "cache"
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert (state / "search" / "search.db").read_bytes() == b"words"
    assert used(state, tmp_path / "cache") == folder
    (tmp_path / "link").symlink_to(state)
    assert used(tmp_path / "link", tmp_path / "cache") == folder, "another way to write the same directory"


def test_two_state_directories_never_share_an_index(state: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "other")
    assert used(state, tmp_path / "cache") != used(other, tmp_path / "cache")
    assert (state / "search" / "search.db").exists()


@pytest.mark.requirement("SRC-5")
@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_an_index_without_its_state_directory_is_removed_by_the_next_start(
    state: Path, tmp_path: Path, how: str
) -> None:
    folder = used(state, tmp_path / "cache")
    state.rename(tmp_path / "elsewhere")
    if how == "removed":
        (tmp_path / "elsewhere" / "search").unlink()
    elif how == "replaced":
        made(state)
    used(made(tmp_path / "other"), tmp_path / "cache")
    assert not folder.exists()
    if how == "moved":
        assert used(tmp_path / "elsewhere", tmp_path / "cache").exists()


def test_foreign_entries_in_the_cache_directory_are_kept(state: Path, tmp_path: Path) -> None:
    cache = made(tmp_path / "cache")
    (cache / ("0" * 16)).mkdir()
    (cache / "state").symlink_to(tmp_path / "nowhere")
    (cache / "abcdef").write_text("a file")
    used(state, cache)
    assert len(list(cache.iterdir())) == 4


@pytest.mark.requirement("SRC-5")
def test_a_copy_of_the_state_directory_leaves_the_index_of_the_original(state: Path, tmp_path: Path) -> None:
    folder = used(state, tmp_path / "cache")
    copy = made(tmp_path / "copy")
    (copy / "search").symlink_to(folder)
    assert used(copy, tmp_path / "cache") != folder
    assert (state / "search" / "search.db").exists()


@pytest.mark.requirement("SRC-5")
def test_a_program_that_follows_links_copies_the_state_directory_with_its_index_once(
    state: Path, tmp_path: Path
) -> None:
    folder = used(state, tmp_path / "cache")
    copy = Path(shutil.copytree(state, tmp_path / "copy"))
    assert (copy / "search" / "search.db").read_bytes() == b"words" and not (copy / "search").is_symlink()
    assert used(copy, tmp_path / "cache") != folder
    assert (copy / "search").is_symlink() and (state / "search" / "search.db").exists()


def test_a_folder_whose_owner_was_lost_in_a_power_cut_is_used_again(state: Path, tmp_path: Path) -> None:
    folder = used(state, tmp_path / "cache")
    (folder / "owner").write_bytes(b"")
    used(made(tmp_path / "other"), tmp_path / "cache")
    assert folder.exists(), "without an owner it may be one that is just being made"
    assert used(state, tmp_path / "cache") == folder
    assert (folder / "owner").read_bytes() == os.fsencode(state)


def test_the_index_leaves_a_cache_directory_that_is_not_used_any_more(state: Path, tmp_path: Path) -> None:
    first = used(state, tmp_path / "first")
    second = used(state, tmp_path / "second")
    assert not first.exists() and second.parent.name == "second"
    inside = used(state, None)
    assert not second.exists() and inside == state / "search" and not inside.is_symlink()
    again = used(state, tmp_path / "first")
    assert (state / "search").is_symlink() and again == first


@pytest.mark.requirement("SRC-5")
@pytest.mark.parametrize(
    "fault", ["a file", "open to others", "a link to nowhere", "a link to itself", "may not be written"]
)
def test_where_the_cache_directory_cannot_be_used_it_is_in_the_state_directory(
    state: Path, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    match fault:
        case "a file":
            cache.write_text("")
        case "open to others":
            made(cache).chmod(0o777)
        case "a link to nowhere":
            cache.symlink_to("/proc/nowhere/at all")
        case "a link to itself":
            cache.symlink_to(cache)
        case _:

            def refuse(folder: Path) -> None:
                raise PermissionError(13, os.strerror(13), str(folder))

            # Whoever runs the tests may be root, who may write everywhere.
            monkeypatch.setattr(index_folder, "make_folder", refuse)
    folder, reason = prepare(state, cache)
    assert folder == state / "search" and folder.is_dir() and not folder.is_symlink()
    assert reason.startswith(f"the cache directory {cache} cannot be used: ")


@pytest.mark.requirement("SRC-5")
def test_a_read_only_index_is_rebuilt_in_the_state_directory(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(state, tmp_path / "cache")

    def refuse(path: Path, *_: object) -> None:
        raise OSError(30, os.strerror(30), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    folder, reason = prepare(state, tmp_path / "cache")
    assert folder == state / "search" and not folder.is_symlink() and "Read-only file system" in reason


def test_a_full_disk_does_not_move_the_index(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = used(state, tmp_path / "cache")

    def full(folder: Path) -> None:
        raise OSError(28, os.strerror(28), str(folder))

    monkeypatch.setattr(index_folder, "make_folder", full)
    with pytest.raises(sqlite_file.DiskFull):
        prepare(state, tmp_path / "cache")
    assert (state / "search").readlink() == folder


def test_the_index_that_an_earlier_version_kept_beside_the_journal_is_removed(state: Path, tmp_path: Path) -> None:
    for name in ("search.db", "search.db-wal", "search.db-shm"):
        (state / name).write_bytes(b"words")
    used(state, tmp_path / "cache")
    assert [path.name for path in state.iterdir()] == ["search"]
