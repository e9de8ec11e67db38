"""Followers meet every durable row in order and go on where they stopped; the scrub finds damage that nothing reads."""

import errno
import os
import shutil
import tempfile
import threading
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from ctxd import limits, sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.artifacts.packs import Packs
from ctxd.errors import CtxdError
from ctxd.store.damage_checks import check
from ctxd.store.head_witness import Head, WitnessFile
from ctxd.store.purge import KIND
from ctxd.store.version_reads import Reader
from ctxd.store.write_types import PurgeRequest, Write
from tests.unit.store.documents import document, write
from tests.unit.store.running import put, running, verified
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def take(rows, count):
    found = []
    with anyio.fail_after(30):
        async with aclosing(rows):
            async for row in rows:
                found.append(row.seq)
                if len(found) == count:
                    break
    return found


async def test_a_follower_gets_every_durable_row_once_and_continues_after_its_mark(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        follower = await store.follow("test")
        async with anyio.create_task_group() as group:
            found = []

            async def follow():
                found.extend(await take(follower.rows(), 600))

            group.start_soon(follow)
            for n in range(600):
                store.submit(write(document(f"t{n}", f"{n}")))
        assert found == list(range(1, 601))
        follower.mark(580)
    async with running(root) as store:
        follower = await store.follow("test")
        assert follower.after == 580 and await take(follower.rows(), 20) == list(range(581, 601))
        assert (await store.follow("another")).after == 0
    verified(root)


@pytest.mark.requirement("SRC-1")
async def test_followers_read_new_rows_once_per_delay_and_also_while_writes_continue(tmp_path, monkeypatch):
    delay, wakes, seq = 0.2, [], 0
    monkeypatch.setattr(limits, "FOLLOWERS_DELAY_S", delay)
    async with running(tmp_path / "state") as store, anyio.create_task_group() as group:
        follower = await store.follow("test")

        async def follow():
            while True:
                await follower.wait(seq)
                wakes.append(seq)
                await until(lambda: seq > wakes[-1])

        group.start_soon(follow)
        began = anyio.current_time()
        while len(wakes) < 5:
            assert anyio.current_time() < began + 30, "writes that never pause hold the followers up"
            await store.submit(write(document(f"t{seq}", f"{seq}"))).wait()
            seq += 1
        assert anyio.current_time() - began >= 4 * delay and seq > 2 * len(wakes)
        group.cancel_scope.cancel()


@pytest.mark.requirement("SRC-1")
async def test_followers_read_the_last_row_once_writes_have_paused(tmp_path, monkeypatch):
    async with running(tmp_path / "state") as store:
        follower = await store.follow("test")
        for number in (1, 2):
            await store.submit(write(document(f"t{number}", f"{number}"))).wait()
        with anyio.fail_after(10):
            await follower.wait(1)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(limits, "SCRUB_DELAY_S", 0.0)
    monkeypatch.setattr(limits, "SCRUB_PAUSE_S", 0.01)
    monkeypatch.setattr(limits, "SCRUB_BYTES_PER_S", 1 << 40)
    monkeypatch.setattr(limits, "WITNESS_S", 0.0)
    # The damage below is not what a start looks at.
    monkeypatch.setattr(limits, "TAIL_VERIFIED_ROWS", 0)


DAMAGE = {
    "journal row": "UPDATE journal SET body=zeroblob(length(body)) WHERE seq=2",
    "version": "UPDATE version SET body=zeroblob(length(body)) WHERE tx=2",
    "missing version": "DELETE FROM version WHERE tx=2",
    "text": "UPDATE content SET bytes=zeroblob(size) WHERE size=6",
    "compressed text": "UPDATE content SET bytes=x'00' WHERE size=6",
    "missing text": "DELETE FROM content WHERE size=6",
    "artifact": None,
}


@pytest.mark.requirement("DUR-12")
@pytest.mark.parametrize("damage", DAMAGE)
async def test_the_scrub_reports_damage_that_no_read_has_met(tmp_path, quick, damage):
    root = tmp_path / "state"
    async with running(root) as store:
        for n, text in enumerate(("first", "second", "x" * (2 * 1024 * 1024), "last")):
            await (await put(store, document(f"t{n}", text), op_id=f"op{n}", request=b"q")).wait()
        await until(lambda: store.status().scrubbed_ms is not None)
        assert store.status().damage == ()
    if DAMAGE[damage] is None:
        shutil.rmtree(root / "artifacts")
    else:
        connection = sqlite_file.open_writer(root / "state.db")
        connection.execute(DAMAGE[damage]).fetchall()
        connection.close()
    async with running(root) as store:
        await until(lambda: store.status().damage)
        assert store.status().state == "ok" and store.status().reason
        await store.submit(write(document("more", "text"))).wait()


FILE_DAMAGE = {
    "witness flipped": ("head", lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:]),
    "witness missing": ("head", None),
    "witness of another journal": ("head", lambda data: acknowledged(99)),
    "key flipped": ("secrets.key", lambda data: bytes([data[0] ^ 1]) + data[1:]),
    "key missing": ("secrets.key", None),
}


def acknowledged(seq):
    """The content of a witness that row ``seq`` was acknowledged, with another chain."""
    with tempfile.TemporaryDirectory() as folder:
        witness = WitnessFile(Path(folder) / "head")
        for _ in range(2):
            witness.write(Head(seq, bytes(32)), sync=False)
        witness.close()
        return (Path(folder) / "head").read_bytes()


@pytest.mark.requirement("DUR-10")
@pytest.mark.parametrize("damage", FILE_DAMAGE)
async def test_the_scrub_reports_damage_of_the_witness_and_of_the_key_in_a_running_daemon(tmp_path, quick, damage):
    name, changed = FILE_DAMAGE[damage]
    path = tmp_path / "state" / name
    async with running(tmp_path / "state") as store:
        for n in range(2):
            await store.submit(write(document(f"t{n}", "text"))).wait()
        passed = store.status().scrubbed_ms
        await until(lambda: store.status().scrubbed_ms != passed)
        assert store.status().damage == ()
        path.unlink() if changed is None else path.write_bytes(changed(path.read_bytes()))
        await until(lambda: store.status().damage)
        assert name in store.status().damage[0] or "row 99 was acknowledged once" in store.status().damage[0]
        assert store.status().state == "ok"


@pytest.mark.requirement("DUR-12")
@pytest.mark.parametrize("what", ["head", "artifacts"])
async def test_descriptor_exhaustion_neither_ends_the_scrub_nor_counts_as_damage(tmp_path, quick, monkeypatch, what):
    refused, read, read_pack = [], Path.read_bytes, Packs.read

    def refuse_once(path):
        if not refused and path.name == "head":
            refuse()
        return read(path)

    def refuse():
        refused.append(what)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def refuse_pack_once(packs, location):
        return refuse() if not refused else read_pack(packs, location)

    async with running(tmp_path / "state") as store:
        await (await put(store, document("t", "x" * (2 * 1024 * 1024)))).wait()
        if what == "head":
            monkeypatch.setattr(Path, "read_bytes", refuse_once)
        else:
            monkeypatch.setattr(Packs, "read", refuse_pack_once)
        await until(lambda: refused)
        passed = store.status().scrubbed_ms
        await until(lambda: store.status().scrubbed_ms != passed)
        assert store.status().damage == ()


@pytest.mark.requirement("DUR-12")
async def test_a_key_that_the_daemon_may_not_read_is_reported(tmp_path, quick, monkeypatch):
    read = Path.read_bytes

    def denied(path):
        if path.name == "secrets.key":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path)

    async with running(tmp_path / "state") as store:
        await store.submit(write(document("t", "text"))).wait()
        monkeypatch.setattr(Path, "read_bytes", denied)
        await until(lambda: store.status().damage)
        assert "secrets.key" in store.status().damage[0]


@pytest.mark.requirement("DUR-12")
async def test_an_artifact_purged_during_its_check_is_not_damage(tmp_path, monkeypatch):
    root = tmp_path / "state"
    reached, released, read = threading.Event(), threading.Event(), ArtifactStore.check

    def slow(artifacts, ref):
        reached.set()
        assert released.wait(10)
        return read(artifacts, ref)

    async with running(root) as store:
        await (await put(store, document("t", "x" * (2 * 1024 * 1024)))).wait()
        kept = ArtifactStore(root / "artifacts")
        reader = Reader(root / "state.db", kept)
        monkeypatch.setattr(ArtifactStore, "check", slow)
        found = []

        async def check_rows():
            found.append(await run_sync(check, reader, 0))

        async with anyio.create_task_group() as group:
            group.start_soon(check_rows)
            assert await run_sync(reached.wait, 10)
            await store.submit(Write(kind=KIND, principal="p", purge=PurgeRequest(("t",), lambda text: text))).wait()
            await until(lambda: not list(kept.names()))
            released.set()
        reader.close()
    assert [step.damage for step in found] == [()]


async def test_a_text_purged_between_two_scrub_reads_is_not_damage(tmp_path, monkeypatch):
    async with running(tmp_path) as store:
        await (await put(store, document("t1", "the secret"))).wait()
        await store.wait_for_writes()
        codes = iter(("corrupt", "purged"))

        def contents(refs):
            raise CtxdError(next(codes), f"{refs} cannot be read")

        monkeypatch.setattr(store._reader, "contents", contents)
        assert check(store._reader, 0).damage == ()
        assert list(codes) == []
