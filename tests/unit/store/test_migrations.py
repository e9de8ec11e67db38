"""Migrations of a state directory: copied first, resumed when cut, refused from a newer program."""

import subprocess
import sys

import pytest

from ctxd import limits, sqlite_file
from ctxd.errors import StateDirError
from ctxd.failpoints import armed
from ctxd.store import migrations
from ctxd.store.purge import KIND
from ctxd.store.schema import SCHEMA_VERSION
from ctxd.store.verify import verify
from ctxd.store.write_types import PurgeRequest, Write
from tests.unit.store.documents import document, write
from tests.unit.store.running import running, verified

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DUR-11")]


@pytest.fixture
async def older(tmp_path):
    """A state directory whose database has the first schema."""
    root = tmp_path / "state"
    async with running(root) as store:
        await store.submit(write(document("a", "the text of a", tool="bash"))).wait()
    connection = sqlite_file.open_writer(root / "state.db")
    connection.execute("DROP INDEX version_content; PRAGMA user_version=1")
    sqlite_file.checkpoint(connection, truncate=True)
    connection.close()
    return root


def indexes(root):
    connection = sqlite_file.open_reader(root / "state.db")
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='index'")}
    connection.close()
    return names


@pytest.mark.requirement("SEC-8")
async def test_a_copy_that_a_purge_cannot_erase_yet_is_residue(older, monkeypatch):
    monkeypatch.setattr(limits, "PURGE_WAIT_S", 0.05)
    async with running(older) as store:
        (copy,) = older.glob(migrations.COPIES)
        with armed("purge.unlink=error:ENOSPC"):
            purge = PurgeRequest(("a",), lambda hashed: hashed)
            await store.submit(Write(kind=KIND, principal="p", purge=purge)).wait()
            assert await store.purge_residue() == ("state.db-wal", copy.name)


async def test_a_start_migrates_after_a_copy_and_a_purge_erases_the_copy(older, monkeypatch):
    *_, report = verify(older)
    assert report.worst == "warning" and "ctxd migrate" in report.problems[0].message
    async with running(older) as store:
        (copy,) = older.glob(migrations.COPIES)
        assert sqlite_file.user_version(copy) == 1 and "version_content" in indexes(older)
        assert (await store.get("a", content=True)).document.content == "the text of a"
        await store.submit(Write(kind=KIND, principal="p", purge=PurgeRequest(("a",), lambda hashed: hashed))).wait()
        assert await store.purge_residue() == () and not copy.exists()
    assert sqlite_file.user_version(older / "state.db") == SCHEMA_VERSION
    report = verified(older)


@pytest.mark.parametrize("cut", ["copying", "stepping"])
async def test_a_migration_that_is_cut_resumes(older, monkeypatch, cut):
    def fail(*_, **__):
        raise OSError(5, "cut")

    with monkeypatch.context() as patched:
        if cut == "copying":
            patched.setattr(sqlite_file, "copy", fail)
        else:
            patched.setattr(migrations, "MIGRATIONS", (migrations.Migration(1, "cut", fail),))
        with pytest.raises(sqlite_file.DiskFailed):
            migrations.migrate(older / "state.db")
    # A copy that is cut for want of room gives the room back.
    assert sqlite_file.user_version(older / "state.db") == 1 and not list(older.glob("*.partial"))
    assert migrations.migrate(older / "state.db") is not None
    assert migrations.migrate(older / "state.db") is None and "version_content" in indexes(older)


async def test_a_newer_schema_is_refused_and_nothing_is_touched(older):
    connection = sqlite_file.open_writer(older / "state.db")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    sqlite_file.checkpoint(connection, truncate=True)
    connection.close()
    before = (older / "state.db").read_bytes()
    with pytest.raises(StateDirError) as refused:
        migrations.migrate(older / "state.db")
    assert refused.value.exit_code == 78 and (older / "state.db").read_bytes() == before
    *_, report = verify(older)
    (problem,) = [problem.message for problem in report.problems if "schema" in problem.message]
    assert problem.endswith("verify it with the newer ctxd that wrote it")


async def test_the_command_lists_the_steps_and_takes_them(older):
    def run(*arguments):
        command = [sys.executable, "-m", "ctxd", "migrate", "--state-dir", str(older), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    listed = run("--dry-run")
    assert (
        listed.returncode == 0
        and "schema 1 to 2" in listed.stdout
        and "schema 2 to 3" in listed.stdout
        and list(older.glob(migrations.COPIES)) == []
    )
    done = run()
    assert done.returncode == 0 and "migrated" in done.stdout, done.stderr
    assert "the schema is current" in run("--dry-run").stdout


@pytest.mark.parametrize("version", [1, SCHEMA_VERSION + 1])
async def test_a_schema_that_only_the_log_names_counts(older, tmp_path, version):
    """A first start that was killed at once leaves everything in the write-ahead log, and no version in the header."""
    database = tmp_path / "killed" / "state.db"
    database.parent.mkdir(mode=0o700)
    source, target = sqlite_file.open_reader(older / "state.db"), sqlite_file.open_writer(database)
    sqlite_file.copy(source, target, pages=1000, step=lambda: None)
    target.execute(f"PRAGMA user_version={version}")
    target.close()
    source.close()
    assert database.read_bytes()[60:64] == bytes(4)
    if version > SCHEMA_VERSION:
        with pytest.raises(StateDirError) as refused:
            migrations.migrate(database)
        assert refused.value.exit_code == 78
    else:
        async with running(database.parent) as store:
            assert "version_content" in indexes(database.parent)
            assert (await store.get("a", content=True)).document.content == "the text of a"
        assert sqlite_file.user_version(database) == SCHEMA_VERSION
