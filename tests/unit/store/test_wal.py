"""The write-ahead log is copied beside the writer, begins again before it is long, and tells of a disk that failed."""

import threading

import anyio
import apsw
import pytest

from ctxd import limits, sqlite_file
from ctxd.sqlite_file import WriteAheadLog
from ctxd.store.head_witness import Head, WitnessFile
from ctxd.store.journal_writer import JournalWriter
from ctxd.store.purge import KIND
from ctxd.store.write_types import PurgeRequest, Write
from tests.unit.store.documents import document, write
from tests.unit.store.running import running

WAIT_S = 30
ROW = bytes(10_000)


class Writer:
    """A database of rows, and the log of its one writing connection."""

    def __init__(self, place):
        self.path = place / "db"
        self.connection = sqlite_file.open_writer(self.path)
        self.connection.execute("CREATE TABLE rows(row)").fetchall()
        self.witness = WitnessFile(place / "head")
        self.log = WriteAheadLog(self.path, self.connection, lambda: self.witness.sync())

    def write(self, rows):
        for _ in range(rows):
            self.connection.execute("INSERT INTO rows VALUES (?)", (ROW,))

    def close(self):
        self.log.close()
        self.connection.close()
        self.witness.close()


@pytest.fixture
def writer(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "CHECKPOINT_BYTES", 100_000)
    monkeypatch.setattr(limits, "LOG_BYTES", 400_000)
    made = Writer(tmp_path)
    yield made
    made.close()


class Copies:
    """Copies beside ``connection``: how often they began; each waits while ``go`` is not set, and raises ``fault``."""

    def __init__(self, connection, monkeypatch):
        self.connection, self.copy, self.fault = connection, sqlite_file.checkpoint, None
        self.began, self.inline, self.go = threading.Semaphore(0), 0, threading.Event()
        self.ended = threading.Semaphore(0)
        monkeypatch.setattr(sqlite_file, "checkpoint", self)

    def __call__(self, connection, *, truncate):
        if connection is self.connection:
            self.inline += 1
            return self.copy(connection, truncate=truncate)
        self.began.release()
        assert self.go.wait(WAIT_S)
        try:
            if self.fault is not None:
                raise self.fault
            return self.copy(connection, truncate=truncate)
        finally:
            self.ended.release()


@pytest.fixture
def copies(writer, monkeypatch):
    made = Copies(writer.connection, monkeypatch)
    yield made
    made.go.set()


def until_copied(log):
    """Wait until the copy that was begun has been seen to end by ``shorten``."""
    pause = threading.Event()
    for _ in range(WAIT_S * 100):
        if log.is_copied:
            return
        log.shorten()
        pause.wait(0.01)
    raise AssertionError("the copy does not end")


def test_a_grown_log_is_copied_while_the_writer_continues(writer, copies):
    writer.write(2)
    writer.log.shorten()
    assert not copies.began.acquire(blocking=False)
    writer.write(10)
    writer.log.shorten()
    assert copies.began.acquire(timeout=WAIT_S)
    writer.write(12)
    writer.log.shorten()
    assert copies.inline == 0
    before = writer.path.stat().st_size
    copies.go.set()
    assert copies.ended.acquire(timeout=WAIT_S)
    assert writer.path.stat().st_size > before + 100_000


def test_a_long_log_begins_again_once_it_was_copied(writer):
    longest = 0
    for _ in range(200):
        writer.write(5)
        writer.log.shorten()
        longest = max(longest, writer.log.size)
    assert 400_000 <= longest < 2_000_000
    assert writer.connection.execute("SELECT count(*) FROM rows").fetchone() == (1000,)


def test_a_log_that_restarted_with_as_many_pages_as_before_is_not_copied_yet(writer):
    writer.write(1)
    for n in range(3):
        writer.connection.execute("UPDATE rows SET row=?", (bytes([n]) * len(ROW),)).fetchall()
        assert not writer.log.is_copied
        writer.log.copy(truncate=True)
        assert writer.log.is_copied and writer.log.size == 0


def test_the_writer_waits_for_a_copy_that_falls_far_behind(writer, copies):
    writer.write(12)
    writer.log.shorten()
    assert copies.began.acquire(timeout=WAIT_S)
    writer.write(50)
    threading.Timer(0.1, copies.go.set).start()
    writer.log.shorten()
    assert copies.ended.acquire(blocking=False)
    assert copies.inline == 1
    assert writer.log.is_copied


def test_the_witness_is_on_the_disk_after_a_copy(writer, copies, monkeypatch):
    synced = []
    monkeypatch.setattr(WitnessFile, "sync", lambda self: synced.append(self))
    writer.witness.write(Head(1, bytes(32)), sync=False)
    copies.go.set()
    writer.write(12)
    writer.log.shorten()
    writer.log.close()
    assert synced == [writer.witness]


@pytest.mark.parametrize(
    ("fault", "raised"), [(apsw.IOError("bad"), sqlite_file.DiskFailed), (apsw.FullError("full"), sqlite_file.DiskFull)]
)
def test_an_error_of_a_copy_is_raised_once_by_the_next_call(writer, copies, fault, raised):
    copies.fault = fault
    writer.write(12)
    writer.log.shorten()
    copies.go.set()
    assert copies.ended.acquire(timeout=WAIT_S)
    with pytest.raises(raised):
        until_copied(writer.log)
    writer.log.copy(truncate=True)
    assert writer.log.size == 0


def test_emptying_waits_for_the_copy_that_is_made(writer, copies):
    writer.write(12)
    writer.log.shorten()
    assert copies.began.acquire(timeout=WAIT_S)
    threading.Timer(0.1, copies.go.set).start()
    writer.log.copy(truncate=True)
    assert copies.ended.acquire(blocking=False)
    assert writer.log.size == 0


@pytest.mark.anyio
async def test_a_store_stops_writing_after_a_copy_whose_disk_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "CHECKPOINT_BYTES", 100_000)

    def fail(connection, *, truncate):
        raise apsw.IOError("the disk is gone")

    with pytest.raises(ExceptionGroup) as caught:
        async with running(tmp_path / "state") as store:
            monkeypatch.setattr(sqlite_file, "checkpoint", fail)
            for number in range(100):
                await store.submit(write(document("a", "text" * 20_000, n=number))).wait()
    assert "the disk is gone" in repr(caught.value)


@pytest.mark.anyio
async def test_a_write_is_acknowledged_before_the_log_is_emptied_for_a_purge(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "PURGE_RETRY_S", 3600.0)  # Only a write takes the next step of the purge.
    begun, may_end, empty_log = threading.Event(), threading.Event(), JournalWriter._empty_log

    def hold(journal_writer: JournalWriter) -> None:
        begun.set()
        assert may_end.wait(60)
        empty_log(journal_writer)

    async with running(tmp_path / "state") as store:
        await store.submit(write(document("purged", "a secret"))).wait()
        monkeypatch.setattr(JournalWriter, "_empty_log", hold)
        try:
            purge = PurgeRequest(("purged",), lambda source_hash: source_hash)
            await store.submit(Write(kind=KIND, principal="p", purge=purge)).wait()
            with anyio.fail_after(20):
                while not begun.is_set():
                    await store.submit(write(document("beside", f"{anyio.current_time()}"))).wait()
                    await anyio.sleep(0.05)
        finally:
            may_end.set()
        assert await store.purge_residue() == ()
