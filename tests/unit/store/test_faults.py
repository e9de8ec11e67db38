"""A disk that is full stops writes until it has room; a disk that fails stops the daemon. Nobody is told a lie."""

import ctypes
import errno
import os
import resource
import shutil
import stat
from contextlib import contextmanager

import anyio
import apsw
import pytest

from ctxd import failpoints, limits, sqlite_file, worker_threads
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.clock import SystemClock
from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf, Page
from ctxd.store.idempotency import Resend
from ctxd.store.journal_writer import JournalWriter
from ctxd.store.purge import KIND
from ctxd.store.verify import verify
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import NOT_CACHED, PurgeRequest, StoreFailed, Write
from ctxd.worker_threads import NoThread
from tests.small_disk import mounted
from tests.unit.store.documents import damage_index, document, write
from tests.unit.store.running import put, running, verified
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


async def failure(pending):
    with pytest.raises(CtxdError) as caught:
        await pending.wait()
    return caught.value.code, caught.value.outcome


@pytest.mark.parametrize(
    "place", ["journal.begin=error:ENOSPC*3", "journal.insert=error:ENOSPC*1", "journal.commit=error:EDQUOT*2"]
)
async def test_a_full_disk_fails_the_group_and_later_writes_until_there_is_room(root, monkeypatch, place):
    monkeypatch.setattr(limits, "PROBE_S", 0.05)
    async with running(root) as store:
        await store.submit(write(document("t1", "kept"))).wait()
        lost = []
        store.on_lost(lost.append)
        with failpoints.armed(place):
            first = store.submit(write(document("t1", "a"), op_id="op", request=b"q"))
            assert store.peek("t1").tx == first.seq
            second = store.submit(write(document("t2", "b"), session="s2"))
            assert await failure(first) == ("disk_full", "not_applied")
            assert await failure(second) == ("disk_full", "not_applied")
            assert lost == [{"s1", "s2"}]
            assert store.peek("t1") is NOT_CACHED
            assert store.status().state == "read_only"
            with pytest.raises(CtxdError) as caught:
                store.submit(write(document("t3")))
            assert (caught.value.code, caught.value.outcome) == ("disk_full", "not_applied")
            assert (await store.get("t1", content=True)).document.content == "kept"
            assert await store.replay(("host", "op"), Resend("toolcall.record", "s1", b"q")) is None

            await until(lambda: store.status().state == "ok")
            again = await store.submit(write(document("t1", "a"), op_id="op", request=b"q")).wait()
            assert again.seq == 2
    report = verified(root)
    assert report.rows == 2


async def test_ids_of_a_failed_transaction_are_usable_by_later_writes(root, monkeypatch):
    monkeypatch.setattr(limits, "PROBE_S", 0.05)
    async with running(root) as store:
        with failpoints.armed("journal.commit=error:ENOSPC*1"):
            assert await failure(store.submit(write(document("t1", "lost")))) == ("disk_full", "not_applied")
        await until(lambda: store.status().state == "ok")
        await store.submit(write(document("t2", "second"))).wait()
        await store.submit(write(document("t1", "first"))).wait()
    async with running(root) as store:
        found = await store.bulk(("t1", "t2"), content=True)
        assert [stored.document.content for stored in found.values()] == ["first", "second"]
    verified(root)


async def test_a_start_on_a_full_disk_answers_reads_and_takes_writes_once_there_is_room(root, monkeypatch):
    monkeypatch.setattr(limits, "PROBE_S", 0.05)
    async with running(root) as store:
        await store.submit(write(document("t1", "kept"))).wait()
    with failpoints.armed("journal.begin=error:ENOSPC*2"):
        async with running(root) as store:
            assert store.status().state == "read_only"
            assert (await store.get("t1", content=True)).document.content == "kept"
            await until(lambda: store.status().state == "ok")
            await store.submit(write(document("t2"))).wait()
            assert store.incarnation == 2
    verified(root)


async def test_a_full_disk_under_an_artifact_fails_its_write_and_leaves_nothing(root, monkeypatch):
    monkeypatch.setattr(limits, "PROBE_S", 0.05)
    async with running(root) as store:
        large = "x" * (2 * 1024 * 1024)
        with failpoints.armed("art.write=error:ENOSPC*1"), pytest.raises(CtxdError) as caught:
            await store.keep(document("t1", large))
        assert (caught.value.code, caught.value.outcome) == ("disk_full", "not_applied")
        assert store.status().state == "ok", "small writes may still fit"
        await store.submit(write(await store.keep(document("t1", large)))).wait()
    *_, report = verify(root)
    assert (report.problems, report.artifacts, report.orphan_artifacts) == ([], 1, 0)


@pytest.mark.parametrize(
    ("place", "error"),
    [
        *((place, "EIO") for place in ("journal.insert", "journal.flush", "journal.postcommit")),
        *((place, "EIO") for place in ("art.fsync", "art.dirsync")),
        ("journal.postcommit", "ENOSPC"),
    ],
)
async def test_a_failed_disk_ends_the_store_and_acknowledges_nothing_more(root, place, error):
    store = VersionStore(root, SystemClock())
    errors = []

    async def run(*, task_status):
        try:
            await store.run(task_status=task_status)
        except StoreFailed as failed:
            errors.append(failed)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            await group.start(run)
            await store.submit(write(document("t1", "kept"))).wait()
            with failpoints.armed(f"{place}=error:{error}*1"):
                with pytest.raises(CtxdError) as caught:
                    await (await put(store, document("t2", "x" * (2 * 1024 * 1024)))).wait()
                outcome = "not_applied" if place.startswith("art.") else "unknown"
                assert (caught.value.code, caught.value.outcome) == ("store_failed", outcome)
                await until(lambda: errors)
    for operation in (store.get("t1"), store.heads(["t1"]), store.scan("t")):
        with pytest.raises(CtxdError) as caught:
            await operation
        assert caught.value.code == "store_failed"
    with pytest.raises(CtxdError, match="failpoint"):
        store.submit(write(document("t3")))
    async with running(root) as store:
        assert (await store.get("t1")) is not None
        # Only what failed after its commit may be there, and then it is there whole.
        assert ((await store.get("t2", content=True)) is not None) == (place == "journal.postcommit")
    verified(root)


async def test_an_exception_in_a_waiter_stops_neither_others_nor_the_store(root):
    def raising(_):
        raise ValueError("a fault of its own")

    async with running(root) as store:
        faults, told = [], []
        store.on_fault(faults.append)
        store.on_fault(raising)
        store.on_durable(raising)
        store.on_durable(lambda landed: told.append(len(landed)))
        store.on_lost(raising)
        store.on_lost(lambda sessions: told.append(sessions))
        first, second = store.submit(write(document("t1"))), store.submit(write(document("t2")))
        done = []
        for callback in (raising, done.append):
            first.on_done(callback)
        second.on_done(done.append)
        assert (await second.wait()).seq == 2
        assert (done, told) == ([first, second], [2])
        assert [str(fault) for fault in faults] == ["a fault of its own"] * 2

        with failpoints.armed("journal.commit=error:ENOSPC*1"):
            lost = store.submit(write(document("t3"), session="s"))
            lost.on_done(raising)
            assert await failure(lost) == ("disk_full", "not_applied")
        assert told[-1] == {"s"}
        assert len(faults) == 4
        assert (await store.get("t2")) is not None


async def test_writes_queued_behind_a_failed_disk_were_not_applied(root, monkeypatch):
    monkeypatch.setattr(limits, "COMMIT_WRITES_MAX", 1)
    store = VersionStore(root, SystemClock())
    # The first flush counts the start.
    with anyio.fail_after(30), failpoints.armed("journal.flush=error:EIO*1@2"):
        with pytest.raises(BaseExceptionGroup) as caught:
            async with anyio.create_task_group() as group:
                await group.start(store.run)
                pendings = [store.submit(write(document(f"t{n}"))) for n in range(3)]
        assert caught.group_contains(StoreFailed, match="failpoint")
    outcomes = [await failure(pending) for pending in pendings]
    assert outcomes == [("store_failed", "unknown"), ("store_failed", "not_applied"), ("store_failed", "not_applied")]


async def test_a_fault_after_the_commit_leaves_the_outcome_unknown(root):
    store = VersionStore(root, SystemClock())
    # No fault of the disk: it stands for a mistake of the program's own.
    with anyio.fail_after(30), failpoints.armed("journal.ack=error:EIO*1"):
        with pytest.raises(BaseExceptionGroup):
            async with anyio.create_task_group() as group:
                await group.start(store.run)
                pending = store.submit(write(document("t1")))
    assert await failure(pending) == ("draining", "unknown")
    async with running(root) as store:
        assert (await store.get("t1")) is not None


@pytest.mark.parametrize(
    ("disk_mib", "nearly_full_kib", "enough_kib"),
    [(100_000, 32 * 1024 - 4, 32 * 1024), (16, 816, 820)],
    ids=["a disk", "a small disk"],
)
async def test_too_little_free_space_stops_writes_before_the_disk_is_full(
    root, monkeypatch, disk_mib, nearly_full_kib, enough_kib
):
    monkeypatch.setattr(limits, "PROBE_S", 0.05)
    monkeypatch.setattr(limits, "WITNESS_S", 0.0)
    async with running(root) as store:
        free, real = [], os.statvfs(root)

        def disk(path):
            left = (enough_kib if free else nearly_full_kib) // 4
            return os.statvfs_result((4096, 4096, disk_mib * 256, left, left, *real[5:]))

        monkeypatch.setattr("os.statvfs", disk)
        await store.submit(write(document("t1"))).wait()
        await until(lambda: store.status().state == "read_only")
        assert "nearly full" in store.status().reason
        free.append(True)
        await until(lambda: store.status().state == "ok")
        await store.submit(write(document("t2"))).wait()


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path / "disk", 12) as place:
        yield place


async def test_a_disk_that_is_really_full_loses_nothing_and_is_used_again_when_it_has_room(small_disk, monkeypatch):
    monkeypatch.setattr(limits, "PROBE_S", 0.05)
    monkeypatch.setattr(limits, "CHECKPOINT_IDLE_S", 0.05)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 * 1024 * 1024))
    root = small_disk / "state"
    async with running(root) as store:
        acknowledged = []
        refused = False
        for n in range(400):
            try:
                await store.submit(write(document(f"t{n}", str(n) * 20_000))).wait()
                acknowledged.append(f"t{n}")
            except CtxdError as error:
                assert (error.code, error.outcome) == ("disk_full", "not_applied")
                refused = True
                break
        assert refused and acknowledged
        assert len(await store.bulk(acknowledged, AsOf(tx=len(acknowledged)))) == len(acknowledged)
        ballast.unlink()
        await until(lambda: store.status().state == "ok")
        await store.submit(write(document("after", "y"))).wait()
        assert list(await store.bulk([*acknowledged, "after"], content=True)) == [*acknowledged, "after"]
    report = verified(root)
    assert report.rows == len(acknowledged) + 1


async def test_a_missing_descriptor_for_an_artifact_rejects_the_write_and_a_retry_succeeds(root, monkeypatch):
    monkeypatch.setattr(limits, "PROBE_S", 0.05)
    async with running(root) as store:
        large = "x" * (2 * 1024 * 1024)
        with failpoints.armed("art.write=error:EMFILE*1"), pytest.raises(CtxdError) as caught:
            await store.keep(document("t1", large))
        assert (caught.value.code, caught.value.outcome) == ("disk_full", "not_applied")
        assert "limit of open files" in caught.value.hint
        await store.submit(write(await store.keep(document("t1", large)))).wait()


_PWRITE = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, use_errno=True
)


@contextmanager
def failing_writes(number):
    """Every write of SQLite to a file fails with the error ``number`` of the system."""

    def fail(*_):
        ctypes.set_errno(number)
        return -1

    entry = _PWRITE(fail)
    system = apsw.VFS("test-faults", base="unix")
    # SQLite calls the one or the other, by how it was built.
    names = [name for name in ("pwrite", "pwrite64") if system.xGetSystemCall(name)]
    for name in names:
        system.xSetSystemCall(name, ctypes.cast(entry, ctypes.c_void_p).value)
    try:
        yield
    finally:
        for name in names:
            system.xSetSystemCall(name, 0)
        system.unregister()


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EFBIG, errno.ENOSPC])
async def test_a_quota_that_refuses_a_write_of_sqlite_is_a_full_disk(root, monkeypatch, number):
    monkeypatch.setattr(limits, "PROBE_S", 0.05)
    async with running(root) as store:
        await store.submit(write(document("t1", "kept"))).wait()
        with failing_writes(number):
            assert await failure(store.submit(write(document("t2", "lost")))) == ("disk_full", "not_applied")
        await until(lambda: store.status().state == "ok")
        await store.submit(write(document("t2", "kept as well"))).wait()
    report = verified(root)
    assert report.rows == 2


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EMFILE, "limit of open files"),
        (errno.ENFILE, "fs.file-max"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "limit of a file's size"),
        (errno.ENOMEM, "memory"),
        (errno.ENOSPC, "Free space on the filesystem"),
    ],
)
async def test_a_refused_write_names_the_remedy_for_the_lacking_resource(root, monkeypatch, number, remedy):
    monkeypatch.setattr(limits, "PROBE_S", 3600)
    async with running(root) as store:
        await store.submit(write(document("t1", "kept"))).wait()
        lacking = store.submit(write(document("t2", "lost")))
        with failpoints.armed(f"journal.insert=error:{errno.errorcode[number]}*1"):
            with pytest.raises(CtxdError) as caught:
                await lacking.wait()
        assert caught.value.code == "disk_full" and remedy in caught.value.hint
        with pytest.raises(CtxdError) as caught:
            store.submit(write(document("t3", "refused")))
        assert caught.value.code == "disk_full" and remedy in caught.value.hint


async def test_a_write_of_sqlite_that_fails_otherwise_ends_the_store(tmp_path):
    connection = sqlite_file.open_writer(tmp_path / "db")
    connection.execute("CREATE TABLE t(x)")
    with failing_writes(errno.EIO), pytest.raises(sqlite_file.DiskFailed), sqlite_file.faults(connection):
        connection.execute("INSERT INTO t VALUES (1)")
    connection.close()


@contextmanager
def file_size_limit(limit):
    """No file of this process grows beyond ``limit`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def fill(store, count):
    for number in range(count):
        await store.submit(write(document(f"t{number}", os.urandom(10_000).hex()))).wait()


async def until_refused(store):
    with anyio.fail_after(30), pytest.raises(CtxdError) as caught:
        for number in range(10_000):
            await store.submit(write(document(f"more{number}", os.urandom(10_000).hex()))).wait()
    assert caught.value.code == "disk_full" and "LimitFSIZE" in caught.value.hint
    with pytest.raises(CtxdError) as caught:
        store.submit(write(document("refused", "x")))
    assert caught.value.code == "disk_full" and "LimitFSIZE" in caught.value.hint
    assert store.status().state == "read_only"


@pytest.fixture
def probes(monkeypatch):
    """The results of the probes of a full disk, which come quickly."""
    results, probe = [], JournalWriter.probe
    monkeypatch.setattr(limits, "PROBE_S", 0.02)
    monkeypatch.setattr(
        JournalWriter, "probe", lambda journal_writer: results.append(probe(journal_writer)) or results[-1]
    )
    return results


@pytest.mark.requirement("DUR-3")
async def test_a_database_at_the_limit_of_a_files_size_refuses_writes_until_the_limit_is_raised(
    root, monkeypatch, probes
):
    monkeypatch.setattr(limits, "CHECKPOINT_IDLE_S", 0.02)
    async with running(root) as store:
        await fill(store, 20)
        await until(lambda: (root / "state.db-wal").stat().st_size == 0)
        monkeypatch.setattr(limits, "CHECKPOINT_BYTES", 100_000)
        with file_size_limit((root / "state.db").stat().st_size + 50_000):
            await until_refused(store)
            await until(lambda: len(probes) >= 3)
            assert not any(probes) and store.status().state == "read_only"
            assert (await store.get("t1", content=True)).document.id == "t1"
        await until(lambda: store.status().state == "ok")
        await store.submit(write(document("last", "x"))).wait()
    verified(root)


async def test_a_store_starts_at_the_limit_of_a_files_size_and_resumes_once_it_is_raised(root, probes):
    async with running(root) as store:
        await fill(store, 20)
    with file_size_limit((root / "state.db").stat().st_size - 50_000):
        async with running(root) as store:
            await until_refused(store)
            assert (await store.get("t1", content=True)).document.id == "t1"
    async with running(root) as store:
        await store.submit(write(document("last", "x"))).wait()
    verified(root)


async def test_a_log_at_the_limit_of_a_files_size_is_emptied_to_make_room(root, probes):
    async with running(root) as store:
        with file_size_limit(3_000_000):
            await until_refused(store)
            # The database has room for what is in the log.
            await until(lambda: store.status().state == "ok")
            await store.submit(write(document("last", "x"))).wait()


@pytest.mark.requirement("DUR-9")
@pytest.mark.parametrize("what", ["everything", "state.db-wal", "replaced", "replaced by a file"])
async def test_after_removal_of_the_state_directory_writes_fail_and_locate_the_remaining_files(root, what):
    async with running(root) as store:
        await store.submit(write(document("t1", "kept"))).wait()
        if what == "everything":
            while root.exists():  # The store may make a file meanwhile.
                shutil.rmtree(root, ignore_errors=True)
        elif what.startswith("replaced"):
            root.rename(root.with_name("elsewhere"))
            root.touch() if what.endswith("file") else root.mkdir()
        else:
            (root / what).unlink()
        assert await failure(store.submit(write(document("t2", "lost")))) == ("data_loss", "not_applied")
        with pytest.raises(CtxdError) as caught:
            store.submit(write(document("t3", "lost")))
        assert caught.value.code == "data_loss" and "/proc/" in caught.value.message
        assert (await store.get("t1", content=True)).document.content == "kept"


@pytest.mark.requirement("DUR-10")
@pytest.mark.parametrize("change", ["missing", "flipped", "empty"])
async def test_loss_or_damage_of_the_head_witness_is_reported(root, change):
    async with running(root) as store:
        await store.submit(write(document("t1", "kept"))).wait()
        await store.submit(write(document("t2", "kept"))).wait()
        assert store.status().damage == ()
    head = root / "head"
    if change == "missing":
        head.unlink()
    elif change == "flipped":
        data = bytearray(head.read_bytes())
        data[12] ^= 1
        head.write_bytes(data)
    else:
        head.write_bytes(b"")
    *_, report = verify(root)
    assert any("head" in problem.message for problem in report.problems)
    async with running(root) as store:
        status = store.status()
        assert status.state == "ok" and "head" in status.reason and len(status.damage) == 1


@pytest.mark.requirement("DUR-10")
@pytest.mark.parametrize(
    ("index", "old", "new"),
    [("journal_op", b"op-lost", b"op-last"), ("sqlite_autoindex_entity_1", b"object-lost", b"object-last")],
)
async def test_an_index_that_does_not_match_its_table_is_found_after_the_start(root, index, old, new):
    async with running(root) as store:
        await store.submit(write(document("object-lost", "kept"), op_id="op-lost", request=b"q")).wait()
        assert store.status().damage == ()
    damage_index(root, index, old, new)
    async with running(root) as store:
        await until(lambda: store.status().damage)
        assert store.status().state == "read_only"
        with pytest.raises(CtxdError) as caught:
            store.submit(write(document("more", "text")))
        assert caught.value.code == "data_loss" and "ctxd verify" in caught.value.message


@pytest.mark.requirement("DUR-10")
async def test_an_object_that_is_known_and_has_no_version_is_corrupt_and_not_missing(root):
    async with running(root) as store:
        await store.submit(write(document("known", "kept"))).wait()
    connection = sqlite_file.open_writer(root / "state.db")
    connection.execute("DELETE FROM version")
    connection.close()
    async with running(root) as store:
        for read in (
            store.heads(["known"]),
            store.history("known"),
            store.get("known", AsOf(valid_time=2**60)),
            store.scan("k"),
            store.scan("", AsOf(valid_time=2**60), Page(limit=1)),
            store.scan("known", page=Page(limit=1, ascending=False)),
        ):
            with pytest.raises(CtxdError) as caught:
                await read
            assert caught.value.code == "corrupt"
        assert await store.get("unknown") is None
        assert await store.scan("unknown") == await store.scan("k", page=Page(after="known")) == []


@pytest.mark.requirement("DUR-10")
@pytest.mark.parametrize("change", ["flipped", "missing"])
async def test_another_key_of_secrets_is_reported(root, change):
    async with running(root) as store:
        await store.submit(write(document("t1", "kept"))).wait()
    key = root / "secrets.key"
    report = verified(root)
    content = key.read_bytes()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.unlink() if change == "missing" else key.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    *_, report = verify(root)
    assert "secrets.key" in report.problems[0].message and report.worst == "damage"
    async with running(root) as store:
        assert "secrets.key" in store.status().reason


async def test_a_verification_tolerates_a_concurrent_purge_of_an_artifact(root):
    async with running(root) as store:
        for n in range(3):
            await (await put(store, document(f"t{n}", f"{n}" * (2 * 1024 * 1024), tool="bash"))).wait()
        reports = verify(root)
        assert next(reports).phase == "structure"
        await store.submit(Write(kind=KIND, principal="p", purge=PurgeRequest(("t1",), lambda hashed: hashed))).wait()
        await until(lambda: len(list(ArtifactStore(root / "artifacts").names())) != 3)
        *_, report = reports
        assert [problem for problem in report.problems if problem.severity != "warning"] == []


async def test_thread_exhaustion_fails_reads_but_neither_writes_nor_the_store(root, monkeypatch):
    def refuse(*_):
        raise NoThread

    monkeypatch.setattr(limits, "CHECKPOINT_BYTES", 10_000)
    monkeypatch.setattr(limits, "SCRUB_DELAY_S", 0.0)
    async with running(root) as store:
        await fill(store, 1)
    async with running(root) as store:
        # The thread that commits has begun.
        await store.submit(write(document("first", "x"))).wait()
        with monkeypatch.context() as patched:
            patched.setattr(worker_threads.ThreadPool, "start", refuse)
            with pytest.raises(CtxdError) as caught:
                await store.heads(["t0"])
            assert caught.value.code == "disk_full"
            await fill(store, 20)
        assert (await store.get("t0", content=True)).document.id == "t0"
        assert store.status().state == "ok" and store.status().damage == ()
    verified(root)
