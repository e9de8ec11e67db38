"""A backup taken while the store writes is whole, and a restored one says the same."""

import errno
import os
import shutil
import threading
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.to_thread import run_sync

from ctxd import failpoints
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.errors import StateDirError
from ctxd.store.backup import backup, restore
from ctxd.store.purge import KIND
from ctxd.store.state_directory import hold
from ctxd.store.write_types import PurgeRequest, Write
from tests.small_disk import mounted, remount
from tests.unit.store.documents import document, write
from tests.unit.store.running import damage_artifacts, put, running, verified
from tests.unit.store.synced import noting_syncs

pytestmark = pytest.mark.anyio


def digest(root):
    report = verified(root)
    return report.digest


@pytest.fixture
async def root(tmp_path):
    async with running(tmp_path / "state") as store:
        for n in range(50):
            await put(store, document(f"t{n}", f"{n} " * (600_000 if n == 3 else 50)), knows=(f"t{n}",))
        await store.drain()
    return tmp_path / "state"


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, which a test can make read-only."""
    with mounted(tmp_path / "disk", 40) as place:
        yield place


@pytest.mark.requirement("DUR-7")
async def test_a_restored_store_equals_the_original_and_accepts_writes(root, tmp_path):
    manifest = backup(root, tmp_path / "backup")
    report = restore(tmp_path / "backup", tmp_path / "again")
    assert digest(root) == digest(tmp_path / "again") == manifest.digest == report.digest
    async with running(tmp_path / "again") as store:
        assert store.status().state == "ok"
        restored = store.journal_id
        assert (await store.get("t3", content=True)).document.content == "3 " * 600_000
        assert (await store.submit(write(document("t1", "new"))).wait()).seq == 51
    digest(tmp_path / "again")
    async with running(root) as store:
        # What the first daemon acknowledged after the backup is no loss of the restored one.
        assert store.journal_id != restored


@pytest.mark.requirement("DUR-7")
async def test_every_entry_of_a_backup_and_of_a_restored_state_is_synced(root, tmp_path):
    outside = tmp_path / "disk"
    outside.mkdir()
    with noting_syncs() as synced:
        backup(root, outside / "folder" / "backup")
        assert synced.lost(outside) == []
        restore(outside / "folder" / "backup", outside / "host" / "state")
        assert synced.lost(outside) == []


async def test_backup_and_restore_report_their_progress(root, tmp_path):
    told: list[tuple[str, int]] = []
    backup(root, tmp_path / "backup", lambda *step: told.append(step))
    assert told[:2] == [("copying pages", 0), ("copying artifacts", 0)]
    assert {"structure", "journal", "versions", "content"} <= {what for what, _ in told}
    told.clear()
    restore(tmp_path / "backup", tmp_path / "again", lambda *step: told.append(step))
    assert told[:6] == [(what, n) for what in ("comparing files", "copying files") for n in range(3)]
    assert {"structure", "journal", "versions", "content"} <= {what for what, _ in told}


@pytest.mark.parametrize("place", ["", "backup", "artifacts/deep/backup"])
async def test_a_backup_into_the_state_itself_is_refused(root, tmp_path, place):
    (tmp_path / "alias").symlink_to(root)
    before = sorted(root.rglob("*"))
    for destination in (root / place, tmp_path / "alias" / place):
        with pytest.raises(StateDirError, match="in the state directory itself") as caught:
            backup(root, destination)
        assert caught.value.exit_code == 73
    assert sorted(root.rglob("*")) == before


@pytest.mark.requirement("DUR-7")
async def test_a_backup_beside_a_writing_store_is_a_moment_of_it(root, tmp_path):
    async with running(root) as store:
        stop = anyio.Event()
        written = []

        async def keep_writing():
            while not stop.is_set():
                written.append(await store.submit(write(document(f"n{len(written)}", "x" * 3_000))).wait())

        async with anyio.create_task_group() as group:
            group.start_soon(keep_writing)
            while len(written) < 3:
                await anyio.lowlevel.checkpoint()
            manifest = await run_sync(backup, root, tmp_path / "backup")
            stop.set()
    assert 53 <= manifest.head_seq <= 50 + len(written)
    assert manifest.head_chain == written[manifest.head_seq - 51].chain
    restore(tmp_path / "backup", tmp_path / "again")
    assert digest(tmp_path / "again") == manifest.digest


async def test_a_damaged_backup_is_refused(root, tmp_path):
    backup(root, tmp_path / "backup")
    data = bytearray((tmp_path / "backup" / "state.db").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "backup" / "state.db").write_bytes(data)
    with pytest.raises(StateDirError, match="differs from the manifest") as caught:
        restore(tmp_path / "backup", tmp_path / "again")
    assert "restore another backup" in caught.value.remedy


@pytest.mark.parametrize("place", ["file", "file/below", "loop", "loop/below"])
async def test_an_unusable_backup_path_is_named(root, tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StateDirError, match=f"{tmp_path / place} cannot be used: ") as caught:
        backup(root, tmp_path / place)
    assert caught.value.exit_code == 73


async def test_neither_side_writes_into_a_folder_that_is_not_empty(root, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(StateDirError, match="not empty"):
        backup(root, tmp_path / "full")
    backup(root, tmp_path / "backup")
    with pytest.raises(StateDirError, match="not empty") as caught:
        restore(tmp_path / "backup", root)
    assert "interrupted" not in caught.value.remedy


async def test_a_folder_without_manifest_is_not_a_backup(root, tmp_path):
    backup(root, tmp_path / "backup")
    (tmp_path / "backup" / "manifest.json").unlink()
    with pytest.raises(StateDirError, match="not a backup"):
        restore(tmp_path / "backup", tmp_path / "again")


async def test_a_damaged_store_is_not_backed_up_as_if_it_were_whole(root, tmp_path):
    (ref,) = ArtifactStore(root / "artifacts").names()
    damage_artifacts(root)
    told: list[tuple[str, int]] = []
    with pytest.raises(StateDirError, match=f"{ref} cannot be read") as damaged:
        backup(root, tmp_path / "backup", lambda *step: told.append(step))
    assert not (tmp_path / "backup" / "manifest.json").exists()
    assert damaged.value.exit_code == 2
    assert told.count(("copying artifacts", 0)) == 1, "what is damaged stays damaged"
    shutil.rmtree(root / "artifacts")
    told.clear()
    with pytest.raises(StateDirError, match=ref):
        backup(root, tmp_path / "again", lambda *step: told.append(step))
    assert told.count(("copying artifacts", 0)) == 3, "it might have been purged meanwhile"


@pytest.mark.requirement("DUR-6")
async def test_a_state_on_read_only_media_can_be_verified_and_copied(root, disk, tmp_path):
    manifest = backup(root, disk / "backup#1%20?")
    shutil.copytree(root, disk / "state")
    restore(disk / "backup#1%20?", disk / "restored")
    before = sorted(disk.rglob("*"))
    remount(disk, "ro")
    for place in ("backup#1%20?", "state", "restored"):
        assert digest(disk / place) == manifest.digest
    for place in ("state", "restored"):
        assert backup(disk / place, tmp_path / "copies" / place).digest == manifest.digest
    assert restore(disk / "backup#1%20?", tmp_path / "again").digest == manifest.digest
    assert sorted(disk.rglob("*")) == before


@pytest.mark.requirement("DUR-6")
async def test_a_state_on_read_only_media_that_cannot_be_opened_is_not_called_damaged(root, disk, tmp_path):
    async with running(root) as store:
        await store.submit(write(document("new"))).wait()
        # Without the index of its log, as copies often are.
        shutil.copytree(root, disk / "state", ignore=shutil.ignore_patterns("*-shm"))
    assert (disk / "state" / "state.db-wal").stat().st_size
    remount(disk, "ro")
    with pytest.raises(StateDirError, match=f"{disk / 'state'} cannot be verified: ") as refused:
        verified(disk / "state")
    assert refused.value.exit_code == 74 and "copy it to a writable place" in refused.value.remedy
    with pytest.raises(StateDirError, match=f"{disk / 'state'} cannot be copied to ") as refused:
        backup(disk / "state", tmp_path / "backup")
    assert refused.value.exit_code == 74 and "to a writable place" in refused.value.remedy
    remount(disk, "rw")
    assert verified(disk / "state").rows == 51


@pytest.mark.parametrize("kind", ["ENOSPC", "EIO"])
async def test_a_backup_cut_short_by_a_disk_error_is_not_a_backup(root, tmp_path, kind):
    with failpoints.armed(f"backup.copy=error:{kind}@2"):
        with pytest.raises(StateDirError, match=f"{tmp_path / 'backup'}: ") as caught:
            backup(root, tmp_path / "backup")
    assert caught.value.exit_code == 74 and list((tmp_path / "backup").iterdir()) == []
    assert ("no room in" in str(caught.value)) == (kind == "ENOSPC")
    with pytest.raises(StateDirError, match="not a backup"):
        restore(tmp_path / "backup", tmp_path / "again")


@pytest.mark.requirement("DUR-7")
@pytest.mark.parametrize("kind", ["ENOSPC", "EDQUOT", "EIO", "EACCES"])
async def test_a_restore_that_a_disk_cut_short_names_cause_place_and_remedy(root, tmp_path, kind):
    backup(root, tmp_path / "backup")
    with failpoints.armed(f"restore.copy=error:{kind}@2"):
        with pytest.raises(StateDirError, match=f"{tmp_path / 'again'}: ") as caught:
            restore(tmp_path / "backup", tmp_path / "again")
    assert caught.value.exit_code == 74 and caught.value.remedy
    assert ("no room in" in str(caught.value)) == (kind in ("ENOSPC", "EDQUOT"))
    assert {path.name for path in (tmp_path / "again").iterdir()} == {"LOCK", "restoring"}


@pytest.mark.requirement("DUR-7")
async def test_no_copy_is_left_on_a_disk_that_is_full(root, disk, tmp_path):
    manifest = backup(root, tmp_path / "backup")
    size = sum(file.size for file in manifest.files) // 1024
    for kib in (8, 40, 100, size // 2, size - 100, size + 100):
        (disk / "ballast").write_bytes(b"")
        free = shutil.disk_usage(disk).free
        (disk / "ballast").write_bytes(bytes(free - kib * 1024))
        for copy, place in ((backup, root), (restore, tmp_path / "backup")):
            try:
                copy(place, disk / "copy")
            except StateDirError as error:
                assert f"no room in {disk / 'copy'}: " in str(error) and error.exit_code == 74 and error.remedy
            else:
                assert digest(disk / "copy") == manifest.digest
                shutil.rmtree(disk / "copy")
        (disk / "ballast").unlink()
        assert restore(tmp_path / "backup", disk / "copy").digest == manifest.digest
        shutil.rmtree(disk / "copy")


async def test_a_backup_that_cannot_be_read_is_not_called_damaged(root, tmp_path, monkeypatch):
    backup(root, tmp_path / "backup")
    whole, unreadable = Path.open, Path()

    def opened(path, *rest, **named):
        if path == unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(path, *rest, **named)

    monkeypatch.setattr(Path, "open", opened)
    for name in ("state.db", "manifest.json"):
        unreadable = tmp_path / "backup" / name
        with pytest.raises(StateDirError, match=f"{unreadable} cannot be read: Input/output error") as caught:
            restore(tmp_path / "backup", tmp_path / "again")
        assert caught.value.exit_code == 74 and caught.value.remedy


@pytest.mark.requirement("DUR-7")
@pytest.mark.parametrize("place", ["", "new", "artifacts/deep/new"])
async def test_nothing_is_written_into_a_backup(root, tmp_path, place):
    manifest = backup(root, tmp_path / "backup")
    (tmp_path / "alias").symlink_to(tmp_path / "backup")
    before = sorted((tmp_path / "backup").rglob("*"))
    for folder in (tmp_path / "backup" / place, tmp_path / "alias" / place):
        for write_into in (hold, partial(backup, root), partial(restore, tmp_path / "backup")):
            with pytest.raises(StateDirError, match=f"{folder} is (a|in the) backup") as refused:
                write_into(folder)
            assert refused.value.exit_code == 73
            assert f"ctxd restore {tmp_path / 'backup'} --state-dir PATH" in refused.value.remedy
    assert sorted((tmp_path / "backup").rglob("*")) == before
    assert digest(tmp_path / "backup") == backup(tmp_path / "backup", tmp_path / "second").digest == manifest.digest


async def test_a_backup_that_an_earlier_version_ran_on_is_a_state_and_no_backup(root, tmp_path):
    used = tmp_path / "used"
    backup(root, used)
    (used / "LOCK").touch()
    async with running(used) as store:
        await store.submit(write(document("new"))).wait()
    with pytest.raises(StateDirError, match="differs from the manifest") as refused:
        restore(used, tmp_path / "again")
    assert refused.value.exit_code == 2
    assert refused.value.remedy == f"a daemon has used {used}, which is a state directory now: name it with --state-dir"


async def test_a_directory_with_only_a_lock_is_empty_for_a_restore(root, tmp_path):
    manifest = backup(root, tmp_path / "backup")
    hold(tmp_path / "again").close()
    assert restore(tmp_path / "backup", tmp_path / "again").digest == manifest.digest


@pytest.mark.requirement("DUR-7")
async def test_an_interrupted_restore_is_not_a_state_and_is_replaced_by_the_next(root, tmp_path):
    manifest, again = backup(root, tmp_path / "backup"), tmp_path / "again"
    for at in range(1, len(manifest.files) + 1):
        with failpoints.armed(f"restore.copy=error:EIO@{at}"), pytest.raises(StateDirError, match="failpoint"):
            restore(tmp_path / "backup", again)
        with pytest.raises(StateDirError, match="a restore into .* was interrupted") as refused:
            hold(again)
        assert "run ctxd restore again" in refused.value.remedy
    (again / "state.db").write_bytes((tmp_path / "backup" / "state.db").read_bytes()[:8192])
    assert restore(tmp_path / "backup", again).digest == manifest.digest == digest(again)
    hold(again).close()
    with pytest.raises(StateDirError, match="not empty"):
        restore(tmp_path / "backup", again)


@pytest.mark.requirement("DUR-7")
async def test_a_folder_with_an_interrupted_backup_is_named_as_one(root, tmp_path):
    backup(root, tmp_path / "backup")
    with pytest.raises(StateDirError, match="is a backup"):
        backup(root, tmp_path / "backup")
    (tmp_path / "backup" / "manifest.json").unlink()
    with pytest.raises(StateDirError, match="not empty") as part:
        backup(root, tmp_path / "backup")
    (tmp_path / "backup" / "LOCK").touch()
    with pytest.raises(StateDirError, match="not empty") as state:
        backup(root, tmp_path / "backup")
    assert [bool(each.value.remedy) for each in (part, state)] == [True, False]


@pytest.mark.parametrize(
    "changes",
    [
        {"files": [{"path": "../elsewhere", "size": 0, "blake3": ""}]},
        {"files": [{"path": "/etc/passwd", "size": 0, "blake3": ""}]},
        {"files": [{"path": "artifacts/../../elsewhere", "size": 0, "blake3": ""}]},
        {"files": []},
        {"format": 2},
        {"head_seq": -1},
        {"head_chain": "zz"},
    ],
)
async def test_a_manifest_that_no_backup_has_is_refused_before_anything_is_written(root, tmp_path, changes):
    backup(root, tmp_path / "backup")
    (tmp_path / "elsewhere").touch()
    path = tmp_path / "backup" / "manifest.json"
    manifest = msgspec.json.decode(path.read_bytes()) | changes
    if files := changes.get("files"):
        manifest["files"] = [*msgspec.json.decode(path.read_bytes())["files"], *files]
    path.write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(StateDirError, match=r"manifest.*(damaged|names no state\.db)"):
        restore(tmp_path / "backup", tmp_path / "again" / "state")
    assert not (tmp_path / "again").exists()


async def test_a_backup_begins_again_if_a_purge_removes_an_artifact_meanwhile(tmp_path):
    root, purged = tmp_path / "state", threading.Event()
    async with running(root) as store:
        for n in range(2):
            await (await put(store, document(f"t{n}", f"{n}" * (2 * 1024 * 1024), tool="bash"))).wait()

        def step(what, done):
            if what == "copying artifacts" and not purged.is_set():
                anyio.from_thread.run(purge)
                purged.set()

        async def purge():
            for n in range(2):
                await store.submit(
                    Write(kind=KIND, principal="p", purge=PurgeRequest((f"t{n}",), lambda hashed: hashed))
                ).wait()
            assert await store.purge_residue() == ()

        manifest = await anyio.to_thread.run_sync(backup, root, tmp_path / "copy", step)
    assert purged.is_set() and [file.path for file in manifest.files] == ["state.db"]


async def test_restored_files_are_readable_only_by_their_owner(root, tmp_path):
    backup(root, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    modes = {
        str(file.relative_to(tmp_path / "again")): file.stat().st_mode & 0o777
        for file in (tmp_path / "again").rglob("*")
        if file.is_file()
    }
    assert any(path.startswith("artifacts/packs/") for path in modes) and modes.pop("head") & 0o077 == 0
    assert {*modes.values()} == {0o600}
