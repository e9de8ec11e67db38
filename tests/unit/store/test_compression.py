"""A lone write is compressed with its commit, others once the store is idle; all are read, purged and checked alike."""

import os
import random
import re
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from ctxd import limits, sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.errors import CtxdError
from ctxd.failpoints import armed
from ctxd.objects.document import AsOf
from ctxd.objects.version_state import is_purged
from ctxd.store import journal, schema
from ctxd.store.backup import backup, restore
from ctxd.store.compression import Compression
from ctxd.store.damage_checks import check
from ctxd.store.purge import KIND
from ctxd.store.rebuild import rebuild_tables
from ctxd.store.verify import search, verify
from ctxd.store.version_reads import Reader
from ctxd.store.write_types import PurgeRequest, Write
from tests.unit.store.documents import document, write
from tests.unit.store.running import running, verified
from tests.unit.store.test_journal_followers import take

pytestmark = pytest.mark.anyio
OLD_STATE = Path(__file__).parents[2] / "data" / "state" / "ab26cfa.tar.xz"


def text(n: int) -> str:
    """A text, no two lines of which are alike."""
    return "".join(f"line {line} of {n} is {line * 7919 * (n + 3)}\n" for line in range(60))


def target(n: int):
    return document("target", text(n), tool="bash", args=text(n + 100), status="ok")


def pair(n: int) -> Write:
    return write(target(n), document(f"other{n}", text(n + 200), tool="cat", args=text(n + 300)))


async def fill(store, count: int = 3, *, first: int = 0, busy: bool = False) -> None:
    """Write one after the other, or all at once."""
    pending = []
    for n in range(first, first + count):
        pending.append(store.submit(pair(n)))
        if not busy:
            await pending[-1].wait()
    for each in pending:
        await each.wait()


def stored(root: Path) -> tuple[list[bytes], list[tuple[int, bytes]]]:
    """The bodies, and the sizes and texts, as they are in the file."""
    with closing(sqlite_file.open_reader(root / "state.db")) as connection:
        bodies = connection.execute("SELECT body FROM journal ORDER BY seq").fetchall()
        texts = connection.execute("SELECT size, bytes FROM content ORDER BY rowid").fetchall()
    return [body for (body,) in bodies], texts


def forms(root: Path) -> tuple[list[bool], list[bool]]:
    """True for each body, and for each text, that is compressed."""
    bodies, texts = stored(root)
    return [body[0] == 0 for body in bodies], [data is not None and len(data) < size for size, data in texts]


def files_with(parts: list[bytes], root: Path) -> set[str]:
    """The files that hold 24 bytes of one of ``parts``, cut from its start on."""
    wanted = [part[at : at + 24] for part in parts for at in range(16, len(part) - 24, 24)]
    files = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {path.name for path, data in files.items() if any(part in data for part in wanted)}


def asked(*ids: str) -> Write:
    return Write(kind=KIND, principal="p", purge=PurgeRequest(ids, lambda hashed: hashed))


@pytest.fixture
def idle(monkeypatch):
    """A function that waits until a store has nothing left to do; it is idle 10 ms after a write."""
    monkeypatch.setattr(limits, "CHECKPOINT_IDLE_S", 0.01)

    async def wait(store) -> None:
        tidied, tidy = threading.Event(), store._journal_writer.tidy

        def tidy_and_note() -> None:
            tidy()
            tidied.set()

        with monkeypatch.context() as patched:
            patched.setattr(store._journal_writer, "tidy", tidy_and_note)
            # Also a store that is tidy already begins again after a write.
            await store.submit(write(document("wake", None, n=store.next_seq))).wait()
            assert await run_sync(tidied.wait, 30)

    return wait


@pytest.mark.requirement("DUR-16")
async def test_a_lone_write_is_compressed_and_read_as_it_was_written(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
        await store.submit(write(document("short", "a few words", n=1))).wait()
    assert forms(root) == ([True] * 3 + [False], [True] * 6 + [False])
    async with running(root) as store:
        history = await store.history("target", content=True)
        assert [each.document.content for each in history] == [text(0), text(1), text(2)]
        assert [each.document.payload["args"] for each in history] == [text(100), text(101), text(102)]
        assert (await store.get("target", AsOf(tx=2), content=True)) == history[1]
        follower = await store.follow("test")
        assert await take(follower.rows(), 4) == [1, 2, 3, 4]
        assert [change.seq for change in await store.changes(after=0, limit=10)] == [1, 2, 3, 4]
    verified(root)


@pytest.mark.requirement("DUR-16")
async def test_busy_writes_are_stored_as_they_come_and_compressed_once_the_store_is_idle(tmp_path, idle, monkeypatch):
    root = tmp_path / "state"
    monkeypatch.setattr(limits, "CHECKPOINT_IDLE_S", 30.0)
    async with running(root) as store:
        await fill(store, 9, busy=True)
        # Also one that comes alone, a moment after them.
        await fill(store, 1, first=9)
        assert forms(root) == ([False] * 10, [False] * 20)
        before = await store.history("target", content=True)
    monkeypatch.setattr(limits, "CHECKPOINT_IDLE_S", 0.01)
    # Not whole bodies: their hashes are elsewhere too.
    plain = [text(n + more).encode() for n in range(10) for more in (0, 100, 200, 300)]
    assert files_with(plain, root) == {"state.db"}
    async with running(root) as store:
        await idle(store)
        assert forms(root) == ([True] * 10 + [False], [True] * 20)
        assert await store.history("target", content=True) == before
        assert files_with(plain, root) == set(), "nothing is left of what was replaced"
    verified(root)


@pytest.mark.requirement("DUR-16")
async def test_a_store_that_is_never_idle_is_compressed_a_little_with_each_second(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "COMPRESSION_BACKLOG_ROWS", 8)
    monkeypatch.setattr(limits, "WITNESS_S", 0.0)
    monkeypatch.setattr(limits, "CHECKPOINT_IDLE_S", 30.0)
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store, 6, busy=True)
        assert not any(forms(root)[0])
        for n in range(3):
            await fill(store, 6, first=6 * n + 6, busy=True)
        assert any(forms(root)[0])
    verified(root)


@pytest.mark.requirement("DUR-16")
async def test_a_write_waits_for_one_step_at_most(tmp_path, idle, monkeypatch):
    root = tmp_path / "state"
    calls: list[str] = []
    third = threading.Event()
    async with running(root) as store:
        monkeypatch.setattr(limits, "COMPRESSED_STEP_BYTES", 2_000)
        writer = store._journal_writer
        compress, commit = writer.compress, writer.commit

        def step() -> bool:
            calls.append("step")
            if calls.count("step") == 3:
                third.set()
            return compress()

        def committed(entries):
            calls.append("commit")
            return commit(entries)

        await fill(store, 40, busy=True)
        monkeypatch.setattr(writer, "compress", step)
        monkeypatch.setattr(writer, "commit", committed)
        assert await run_sync(third.wait, 30)
        pending = store.submit(write(document("late", "now")))
        at = len(calls)
        await pending.wait()
        assert calls[at:].index("commit") <= 1
        await idle(store)
    assert forms(root)[0][:40] == [True] * 40
    verified(root)


async def test_a_step_holds_few_bytes_and_a_large_value_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "CHECKPOINT_IDLE_S", 30.0)
    monkeypatch.setattr(limits, "COMPRESSED_BYTES_MAX", 400_000)
    root = tmp_path / "state"
    async with running(root) as store:
        texts = [f"{n} " * (200_000 if n % 3 == 0 else 100_000) for n in range(12)]
        for pending in [store.submit(write(document(f"d{n}", each))) for n, each in enumerate(texts)]:
            await pending.wait()
    with closing(sqlite_file.open_writer(root / "state.db")) as connection:
        compression = Compression(connection)
        compression.went_on(compression.next())
        tracemalloc.start()
        counts = []
        while (step := compression.next()) is not None:
            counts.append(len(step.shorter))
            compression.went_on(step)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert counts == [1] * len(counts) and len(counts) > 8
    assert peak < 2_000_000


@pytest.mark.requirement("DUR-16")
async def test_a_full_disk_stops_compression_and_no_write(tmp_path, idle, monkeypatch):
    root = tmp_path / "state"
    async with running(root) as store:
        monkeypatch.setattr(limits, "CHECKPOINT_IDLE_S", 30.0)
        await fill(store, 5, busy=True)
        monkeypatch.setattr(limits, "CHECKPOINT_IDLE_S", 0.01)
        # The first pass is that of the write that wakes it.
        with armed("journal.precommit=error:ENOSPC@2"):
            await idle(store)
        assert not any(forms(root)[0]) and store.status().state == "ok"
        await idle(store)
        assert forms(root)[0][:5] == [True] * 5
    verified(root)


async def test_a_damaged_row_neither_stops_the_store_nor_is_hidden(tmp_path, idle):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store, 6, busy=True)
    with closing(sqlite_file.open_writer(root / "state.db")) as connection:
        connection.execute("UPDATE journal SET body=printf('%02000d', 1) WHERE seq=2").fetchall()
        connection.execute("UPDATE journal SET body=zeroblob(length(body)) WHERE seq=3").fetchall()
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('compressed:content', zeroblob(0))").fetchall()
        connection.execute("DELETE FROM meta WHERE name='compressed:journal'").fetchall()
    *_, report = verify(root)
    before = [problem.message for problem in report.problems]
    assert before
    with closing(sqlite_file.open_writer(root / "state.db")) as connection:
        compression = Compression(connection)
        while (step := compression.next()) is not None:
            compression.replace(step)
            compression.went_on(step)
    *_, report = verify(root)
    assert [problem.message for problem in report.problems] == before
    assert forms(root)[0] == [True, False, True, True, True, True]


@pytest.mark.requirement("SEC-8")
@pytest.mark.parametrize("busy", [False, True])
async def test_a_purge_leaves_no_byte_of_a_compressed_row(tmp_path, idle, busy):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store, busy=busy)
        plain = [text(n + more).encode() for n in range(3) for more in (0, 100)] if busy else []
        await idle(store)
        bodies, texts = stored(root)
        purged = [*bodies[:3], *(data for _, data in texts[::2])]
        assert files_with(purged, root) and search(root, [text(101)[:600].encode()], lambda *_: None) == ["state.db"]
        others = [await store.get(f"other{n}", content=True) for n in range(3)]
        await store.submit(asked("target")).wait()
        assert await store.purge_residue() == ()
        assert files_with([*purged, *plain], root) == set()
        assert all(is_purged(each.document) for each in await store.history("target"))
        assert [await store.get(f"other{n}", content=True) for n in range(3)] == others
    assert [len(body) for body in stored(root)[0][:3]] == [len(body) for body in bodies[:3]], "no row is moved"
    verified(root)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    gone, there = [tmp_path / "gone", tmp_path / "there"]
    gone.write_text(text(1))
    there.write_text(text(201))
    command = [sys.executable, "-m", "ctxd", "verify", "--state-dir", str(root), "--absent"]
    codes = []
    for path in (gone, there):
        done = await run_sync(partial(subprocess.run, [*command, path], env=environ, capture_output=True, timeout=60))
        codes.append(done.returncode)
    assert codes == [0, 1]


@pytest.mark.requirement("SEC-8")
@pytest.mark.parametrize("seed", range(3))
async def test_no_purge_of_random_rows_in_either_form_leaves_a_byte(tmp_path, idle, seed):
    """Rows of all lengths, some compressed when they are purged and some not, each with a text of its own."""
    rng = random.Random(seed)
    root = tmp_path / "state"

    def words(n: int, part: str) -> str:
        lines = rng.choice([1, 5, 10, 18, 25, 150])
        return "".join(f"<{part}{n}:{line}:{rng.getrandbits(48):012x}>" for line in range(lines))

    async with running(root) as store:
        left = list(range(400))
        for n in left:
            puts = [document(f"d{n}", words(n, "text"), tool="x", args=words(n, "args"))]
            if n % 7 == 0:
                # Documents of such a row are stored with their versions.
                puts.append(document(f"other{n}", args=f"{n} " * 3_000))
            pending = store.submit(write(*puts))
            if rng.random() < 0.3:
                await pending.wait()
            if rng.random() < 0.01:
                await idle(store)
        for _ in range(4):
            gone = rng.sample(left, 80)
            left = [n for n in left if n not in gone]
            await store.submit(asked(*(f"d{n}" for n in gone))).wait()
            if rng.random() < 0.5:
                await idle(store)
            assert await store.purge_residue() == ()
            # Marks of four bytes, such as "<t6:", occur in a megabyte of compressed data by chance.
            data = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
            assert not [n for n in gone if f"<text{n}:".encode() in data or f"<args{n}:".encode() in data]
            found = await store.bulk([f"d{n}" for n in left], content=True)
            assert all(f"<text{n}:0" in found[f"d{n}"].document.content for n in left)
    verified(root)


_CUT = """
import sys
from pathlib import Path
import anyio
from tests.unit.store.running import running
from tests.unit.store.test_compression import asked, fill
from ctxd import limits
from ctxd.failpoints import armed

async def main(root, point, what):
    async with running(root) as store:
        await fill(store, 3, busy=what == "step")
        with armed(f"{point}=kill"):
            if what == "step":
                limits.CHECKPOINT_IDLE_S = 0.001
            await fill(store, 1) if what == "write" else None
            await store.submit(asked("target")).wait() if what == "purge" else None
            await store.purge_residue()
            await anyio.sleep_forever()

limits.CHECKPOINT_IDLE_S = 0.2 if sys.argv[3] == "step" else 30
anyio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
"""


async def killed(root: Path, point: str, what: str) -> None:
    """Run a store that writes rows, and is killed at ``point`` of one write more, a purge or a step of compression."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _CUT, str(root), point, what]
    assert (await run_sync(partial(subprocess.run, command, env=environ, timeout=60))).returncode == -9


@pytest.mark.requirement("SEC-9")
@pytest.mark.parametrize("point", ["purge.rewrite", "purge.unlink", "purge.truncate", "checkpoint.end"])
async def test_a_purge_of_compressed_rows_that_is_killed_is_whole_or_not_begun(tmp_path, point):
    root = tmp_path / "state"
    async with running(tmp_path / "same") as store:
        await fill(store, 3)
    texts = [data for _, data in stored(tmp_path / "same")[1]]
    await killed(root, point, "purge")
    async with running(root) as store:
        versions = await store.history("target")
        assert len(versions) == 3 and len({is_purged(stored.document) for stored in versions}) == 1
        if not is_purged(versions[0].document):
            await store.submit(asked("target")).wait()
        assert await store.purge_residue() == ()
        assert files_with(texts[::2], root) == set() and files_with(texts[1::2], root)
    verified(root)


@pytest.mark.requirement("DUR-16")
@pytest.mark.parametrize(
    "point", ["journal.begin", "journal.precommit", "journal.flush", "journal.postcommit", "checkpoint.start"]
)
async def test_a_step_that_is_killed_leaves_every_row_readable_and_is_made_again(tmp_path, point, idle):
    root = tmp_path / "state"
    await killed(root, point, "step")
    verified(root)
    async with running(root) as store:
        history = await store.history("target", content=True)
        assert [each.document.content for each in history] == [text(0), text(1), text(2)]
        await idle(store)
        assert forms(root)[0][:3] == [True] * 3
    verified(root)


@pytest.mark.requirement("DUR-1")
@pytest.mark.parametrize(
    ("point", "rows"), [("journal.insert", 3), ("journal.precommit", 3), ("journal.postcommit", 4)]
)
async def test_a_compressed_write_that_is_killed_is_whole_or_not_there(tmp_path, point, rows):
    root = tmp_path / "state"
    await killed(root, point, "write")
    async with running(root) as store:
        history = await store.history("target", content=True)
        assert [each.document.content for each in history] == [text(0), text(1), text(2), text(0)][:rows]
        assert forms(root) == ([True] * rows, [True] * 6)
    verified(root)


@pytest.mark.requirement("DUR-6")
@pytest.mark.parametrize(("table", "column", "key"), [("journal", "body", "seq"), ("content", "bytes", "rowid")])
@pytest.mark.parametrize("at", [0, 1, 3, 5, 6, 200, -9])
async def test_a_flipped_bit_of_a_compressed_value_is_damage_and_never_served(tmp_path, table, column, key, at):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
    connection = sqlite_file.open_writer(root / "state.db")
    ((packed,),) = connection.execute(f"SELECT {column} FROM {table} WHERE {key}=1")
    damaged = bytearray(packed)
    damaged[at] ^= 0x10
    connection.execute(f"UPDATE {table} SET {column}=? WHERE {key}=1", (bytes(damaged),)).fetchall()
    connection.close()
    *_, report = verify(root)
    assert report.worst == "damage"
    with closing(Reader(root / "state.db", ArtifactStore(root / "artifacts"))) as reader:
        assert check(reader, 0).damage
    async with running(root) as store:
        with pytest.raises(CtxdError) as caught:
            await store.get("target", AsOf(tx=1), content=True)
    assert caught.value.code == "corrupt"


@pytest.mark.parametrize("times", [500, 5_000], ids=["deflate", "Zstandard"])
def test_a_damaged_size_takes_no_memory(times):
    body = b"\x95" + b"a text " * times
    packed = bytearray(sqlite_file.pack_body(body))
    assert len(packed) < len(body) // 20
    assert sqlite_file.unpack_body(bytes(packed) + bytes(9)) == body
    for at in range(1, 6):
        damaged = bytearray(packed)
        damaged[at] ^= 0xFF
        with pytest.raises(ValueError, match="compressed data is damaged"):
            sqlite_file.unpack_body(bytes(damaged))
    for size in (2**40, len(body) - 1, len(body) + 1):
        with pytest.raises(ValueError, match="hold"):
            sqlite_file.unpack_content(size, bytes(packed[5:]))


@pytest.mark.requirement("DUR-7")
async def test_a_backup_and_rebuilt_tables_have_compressed_rows(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
        before = await store.history("target", content=True)
        await run_sync(backup, root, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    rebuild_tables(tmp_path / "restored" / "state.db", lambda done: None)
    assert forms(tmp_path / "restored") == forms(root)
    async with running(tmp_path / "restored") as store:
        assert await store.history("target", content=True) == before
    verified(tmp_path / "restored")


@pytest.mark.requirement("DUR-11")
async def test_rows_of_the_schema_before_are_compressed_once_the_store_is_idle(tmp_path, idle):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
        before = await store.history("target", content=True)
    connection = sqlite_file.open_writer(root / "state.db")
    for rowid, size, data in connection.execute("SELECT rowid, size, bytes FROM content").fetchall():
        whole = sqlite_file.unpack_content(size, data)
        connection.execute("UPDATE content SET bytes=? WHERE rowid=?", (whole, rowid)).fetchall()
    for seq, body in connection.execute("SELECT seq, body FROM journal").fetchall():
        connection.execute("UPDATE journal SET body=? WHERE seq=?", (journal.body_of(body), seq)).fetchall()
    connection.execute("DELETE FROM meta WHERE name LIKE 'compressed:%'; PRAGMA user_version=6").fetchall()
    sqlite_file.checkpoint(connection, truncate=True)
    connection.close()
    assert not any(forms(root)[0])
    async with running(root) as store:
        assert await store.history("target", content=True) == before
        await idle(store)
        assert await store.history("target", content=True) == before
    assert forms(root)[0][:3] == [True] * 3
    assert sqlite_file.user_version(root / "state.db") == schema.SCHEMA_VERSION
    verified(root)


@pytest.mark.requirement("DUR-11")
async def test_a_first_version_state_is_compressed_without_changing_its_content(tmp_path, idle):
    with tarfile.open(OLD_STATE) as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / "state"
    root.chmod(0o700)

    async def everything(store):
        changes = await store.changes(after=0, limit=1_000)
        return [await store.history(id, content=True) for id in sorted({id for each in changes for id, _ in each.puts})]

    async with running(root) as store:
        before = await everything(store)
        await idle(store)
        assert any(forms(root)[0])
        assert [each for each in await everything(store) if each[0].document.id != "wake"] == before
    verified(root)


LONG = (4_600, 5_000, 8_000, 8_190, 20_000, 40_000)
SHORT = (1, 600, 700, 833, 1_500, 3_900, 4_061, 4_500)


@pytest.mark.requirement("SEC-8")
@pytest.mark.parametrize("seed", range(4))
def test_no_other_row_moves_when_a_value_is_shortened_as_far_as_it_may_be(tmp_path, seed):
    """A row that moves leaves a copy in its old place, which the file then has beside the row itself."""
    chosen = random.Random(seed)
    marks = [b"mark of %5d" % n for n in range(4_000)]
    with closing(sqlite_file.open_writer(tmp_path / "state.db")) as connection:
        connection.execute("CREATE TABLE t(n INTEGER PRIMARY KEY, number INTEGER, mark BLOB, name TEXT, value BLOB)")
        connection.execute("BEGIN")
        for n, mark in enumerate(marks):
            number = chosen.choice([0, 1, -1, 127, 128, -129, 1 << 22, 1 << 40, None])
            size = chosen.choice(LONG) if chosen.random() < 0.3 else chosen.randrange(500, 800)
            value = bytes(size + chosen.randrange(30))
            connection.execute("INSERT INTO t VALUES(?,?,?,?,?)", (n, number, mark, "é" * chosen.randrange(60), value))
        rows = connection.execute("SELECT n, NULL, number, mark, name, value FROM t").fetchall()
        for n, *row in rows:
            if len(row[4]) > 4_000:
                wanted = chosen.choice(SHORT)
                length = sqlite_file.shortened_length(row, 4, wanted)
                assert min(wanted, len(row[4])) <= length <= len(row[4])
                connection.execute("UPDATE t SET value=? WHERE n=?", (bytes(length), n))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert sorted(re.findall(rb"mark of [ \d]{5}", (tmp_path / "state.db").read_bytes())) == marks


@pytest.mark.requirement("DUR-16")
def test_a_value_is_padded_by_less_than_a_page_and_only_if_rows_would_move():
    def least(length: int, wanted: int) -> int:
        return sqlite_file.shortened_length([None, bytes(length)], 1, wanted)

    assert [least(size, 700) for size in (701, 3_000, 4_000)] == [700] * 3, "these are wholly in their pages"
    assert least(40_000, 20) == 20 and least(40_000, 39_999) == 39_999
    padded = [least(length, wanted) - wanted for length in range(5_000, 30_000, 97) for wanted in (500, 1_500, 4_500)]
    assert 0 <= min(padded) and max(padded) < 4_096
