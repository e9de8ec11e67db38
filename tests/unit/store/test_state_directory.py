"""A state directory has one owner, and nobody else can reach into it."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from ctxd import file_writes, sqlite_file
from ctxd.clock import SystemClock
from ctxd.errors import StateDirError
from ctxd.store import state_directory
from ctxd.store.version_store import VersionStore
from tests.unit.store.documents import document, write
from tests.unit.store.running import put, running
from tests.unit.store.synced import noting_syncs


def test_a_new_directory_is_accessible_only_to_its_owner(tmp_path):
    held = state_directory.hold(tmp_path / "a" / "state")
    assert stat.S_IMODE(held.root.stat().st_mode) == 0o700
    held.close()


@pytest.mark.anyio
async def test_every_entry_of_a_new_directory_is_on_the_disk_and_those_of_the_folders_above_it(tmp_path):
    with noting_syncs() as synced:
        async with running(tmp_path / "a" / "b" / "state") as store:
            await (await put(store, document("t1", "x" * (2 << 20)))).wait()
            assert synced.lost(tmp_path) == []


def test_a_directory_whose_maker_died_before_its_entry_was_on_the_disk_is_synced(tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    with noting_syncs() as synced:
        state_directory.hold(tmp_path / "state").close()
    assert "state" in synced.entries[tmp_path]


def test_a_directory_below_one_that_may_not_be_read_is_held(tmp_path, monkeypatch):
    (tmp_path / "state").mkdir(mode=0o700)

    def refused(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(state_directory, "sync_folder", refused)
    monkeypatch.setattr(file_writes, "sync_folder", refused)
    state_directory.hold(tmp_path / "state").close()
    state_directory.hold(tmp_path / "new" / "state").close()


def test_a_second_holder_is_refused_and_names_the_first(tmp_path):
    held = state_directory.hold(tmp_path / "state")
    program = f"""
from pathlib import Path
from ctxd.errors import StateDirError
from ctxd.store import state_directory
from ctxd.store.version_store import VersionStore
try:
    state_directory.hold(Path({str(tmp_path / "state")!r}))
except StateDirError as error:
    print(error.exit_code, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"75 {tmp_path / 'state'} is in use by process {os.getpid()}"
    held.close()
    state_directory.hold(tmp_path / "state").close()


@pytest.mark.anyio
async def test_every_file_of_the_state_is_closed_to_others_from_the_start(tmp_path):
    before = os.umask(0o022)
    try:
        async with running(tmp_path / "state") as store:
            await store.submit(write(document("t1"))).wait()
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").glob("state.db*")}
    finally:
        os.umask(before)
    assert modes == {"state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600}


@pytest.mark.anyio
async def test_two_stores_on_one_directory_are_refused(tmp_path):
    async with running(tmp_path / "state") as store:
        with pytest.raises(StateDirError) as caught:
            await VersionStore(tmp_path / "state", SystemClock()).run()
        assert caught.value.exit_code == 75
        await store.submit(write(document("t1"))).wait()


def test_a_directory_that_others_may_enter_is_refused(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o750)
    with pytest.raises(StateDirError, match="open to others") as caught:
        state_directory.hold(tmp_path / "state")
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(("mode", "safe"), [(0o755, True), (0o775, False), (0o777, False), (0o1777, True)])
def test_a_folder_above_that_others_may_write_is_refused_unless_sticky_and_root_s(tmp_path, mode, safe):
    above = tmp_path / "above"
    (above / "state").mkdir(parents=True, mode=0o700)
    (above / "state").chmod(0o700)
    above.chmod(mode)
    if safe and (mode & 0o1000) and os.geteuid() != 0:
        pytest.skip("only root can make a sticky folder of root's")
    if safe:
        state_directory.check_safe(above / "state")
    else:
        with pytest.raises(StateDirError, match="written by others"):
            state_directory.check_safe(above / "state")


@pytest.mark.anyio
async def test_a_file_of_a_newer_program_is_not_touched(tmp_path):
    root = tmp_path / "state"
    async with running(root):
        pass
    connection = sqlite_file.open_writer(root / "state.db")
    connection.execute("PRAGMA user_version=99")
    sqlite_file.checkpoint(connection, truncate=True)
    connection.close()
    before = (root / "state.db").read_bytes()
    with pytest.raises(StateDirError, match="newer ctxd") as caught:
        await VersionStore(root, SystemClock()).run()
    assert caught.value.exit_code == 78
    assert (root / "state.db").read_bytes() == before


@pytest.mark.anyio
async def test_a_file_that_is_not_a_database_is_rejected(tmp_path):
    root = tmp_path / "state"
    root.mkdir(mode=0o700)
    (root / "state.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StateDirError, match="no SQLite database") as caught:
        await VersionStore(root, SystemClock()).run()
    assert caught.value.exit_code == 74


@pytest.mark.parametrize("place", ["file", "file/below", "link"])
def test_an_impossible_state_directory_is_rejected_with_its_path(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(StateDirError, match=f"cannot keep state in .*{place.partition('/')[0]}") as refused:
        state_directory.hold(tmp_path / place)
    assert refused.value.exit_code == 73


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    state_directory.hold(tmp_path / "state").close()
    (tmp_path / "state" / "LOCK").unlink()
    (tmp_path / "state" / "LOCK").symlink_to(tmp_path / "victim")
    with pytest.raises(StateDirError):
        state_directory.hold(tmp_path / "state")
    assert not (tmp_path / "victim").exists()
