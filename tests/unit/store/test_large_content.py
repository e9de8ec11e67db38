"""Large content is durable before its write is accepted: no other write waits for it, and none of it is left over."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.to_thread import run_sync
from blake3 import blake3

from ctxd import sqlite_file
from ctxd.artifacts import artifact_store as artifacts
from ctxd.artifacts import packs
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.artifacts.packs import Packs, records
from ctxd.errors import CtxdError
from ctxd.failpoints import armed, hit
from ctxd.store.purge import KIND
from ctxd.store.write_types import PurgeRequest, Write
from tests.unit.sessions.world import record, world
from tests.unit.store.documents import document, write
from tests.unit.store.running import put, running, verified
from tests.waiting import until

pytestmark = pytest.mark.anyio

LARGE = "a line of a long output\n" * 60_000
BOUND_S = 30.0


class Gate:
    """Stops a write to the artifact store at its flush."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def hit(self, name: str) -> None:
        if name == "art.fsync":
            self.reached.set()
            assert self.open.wait(BOUND_S)

    async def wait(self) -> None:
        assert await run_sync(self.reached.wait, BOUND_S)


@pytest.fixture
def gate(monkeypatch):
    gate = Gate()
    monkeypatch.setattr(packs, "hit", gate.hit)
    yield gate
    gate.open.set()


def names(root: Path) -> list[str]:
    return list(ArtifactStore(root / "artifacts").names())


@pytest.fixture
def stored(monkeypatch) -> list[str]:
    """An entry for each content that came as far as its file's name, whatever became of it."""
    links: list[str] = []
    monkeypatch.setattr(artifacts, "hit", lambda name: links.append(name) if name == "art.index" else hit(name))
    return links


async def until_gone(root: Path) -> None:
    await until(lambda: not names(root))


def purge(*ids: str) -> Write:
    return write(kind=KIND, purge=PurgeRequest(ids, lambda text: blake3(text.encode()).hexdigest()))


@pytest.mark.requirement("DUR-14")
async def test_other_sessions_commit_while_large_content_waits_for_the_disk(tmp_path: Path, gate: Gate) -> None:
    async with world(tmp_path / "state") as w:
        for session in ("s1", "s2"):
            await w.call("session.create", agent="a", session=session)
        done: list[str] = []

        async def record_large() -> None:
            await record(w, "s1", "large", LARGE)
            done.append("large")

        async with anyio.create_task_group() as group:
            group.start_soon(record_large)
            await gate.wait()
            with anyio.fail_after(BOUND_S / 2):
                small = await record(w, "s2", "small")
                await w.store.wait_for_writes()
            assert w.store.head().seq == small.receipt.seq and done == []
            gate.open.set()
        found = await w.store.get("large", content=True)
        assert found is not None and found.document.content == LARGE and found.tx == small.receipt.seq + 1
    assert verified(tmp_path / "state").orphan_artifacts == 0


@pytest.mark.requirement("DUR-14")
async def test_a_commit_of_sixty_megabytes_writes_none_of_them(tmp_path: Path, monkeypatch) -> None:
    text = "x" * 60 * 1024 * 1024
    async with running(tmp_path / "state") as store:
        kept = await store.keep(document("large", text))
        threads: list[int] = []
        monkeypatch.setattr(packs, "hit", lambda _: threads.append(threading.get_ident()))
        await store.submit(write(kept)).wait()
        assert threads == []
        assert (await store.get("large", content=True)).document.content == text
    assert (tmp_path / "state" / "state.db").stat().st_size < 1_000_000


async def test_an_artifact_of_any_size_is_read_by_its_address_and_stays_while_a_version_refers_to_it(
    tmp_path: Path,
) -> None:
    root = tmp_path / "state"
    async with running(root) as store:
        kept, unused = await store.put_artifact(b"\0\xff small"), await store.put_artifact(b"unused")
        assert kept.ref == blake3(b"\0\xff small").hexdigest() and await store.get_artifact(kept.ref) == b"\0\xff small"
        ref = kept.ref
        await store.submit(write(msgspec.structs.replace(document("delta", None), artifact=kept))).wait()
        del kept, unused
        await until(lambda: names(root) == [ref])
        assert (await store.get("delta")).content_ref == ref
    async with running(root) as store:
        assert await store.get_artifact(ref) == b"\0\xff small"
        with pytest.raises(CtxdError) as missing:
            await store.get_artifact("0" * 64)
        assert missing.value.code == "corrupt"


async def test_large_content_that_was_not_kept_is_a_caller_error(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as store:
        with pytest.raises(AssertionError, match="kept"):
            store.submit(write(document("large", LARGE)))
        await store.submit(write(document("small", "x"))).wait()


@pytest.mark.requirement("DUR-14")
async def test_content_of_a_refused_write_is_removed(tmp_path: Path, stored: list[str]) -> None:
    root = tmp_path / "state"
    async with world(root) as w:
        await w.call("session.create", agent="a", session="s")
        await record(w, "s", "c1", "small")
        with pytest.raises(CtxdError) as caught:
            await record(w, "s", "c1", LARGE)
        assert caught.value.code == "toolcall_conflict"
        # Its traceback holds the document.
        assert len(stored) == len(names(root)) == 1
        del caught
        await until_gone(root)
        await record(w, "s", "c2", LARGE)
        # A repeat keeps it once more, and that hold ends unused too.
        assert (await record(w, "s", "c2", LARGE)).outcome == "unchanged"
        await w.store.wait_for_writes()
        assert (await w.store.get("c2", content=True)).document.content == LARGE
    assert len(names(root)) == 1
    assert verified(root).orphan_artifacts == 0


@pytest.mark.requirement("DUR-14")
async def test_content_of_a_write_that_is_lost_is_removed(tmp_path: Path, stored: list[str]) -> None:
    root = tmp_path / "state"
    async with running(root) as store:
        with armed("journal.commit=error:ENOSPC*1"), pytest.raises(CtxdError):
            await (await put(store, document("large", LARGE))).wait()
        assert len(stored) == 1
        await until_gone(root)


@pytest.mark.requirement("DUR-14")
@pytest.mark.parametrize("place", ["art.index", "journal.begin@2", "journal.commit@2"])
async def test_content_that_a_crash_left_over_is_removed_at_the_next_start(tmp_path: Path, place: str) -> None:
    root = tmp_path / "state"
    name, _, nth = place.partition("@")
    command = [sys.executable, "-m", "tests.unit.store.crash_writer", str(root), "18", "1"]
    environment = {"CTXD_FAILPOINTS": f"{name}=kill@{nth or 1}", "PATH": ""}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert await run_sync(process.wait) == -signal.SIGKILL
    assert any(record.data for path in (root / "artifacts" / "packs").iterdir() for record in records(path))
    async with running(root) as store:
        await until_gone(root)
        await (await put(store, document("large", LARGE))).wait()
    async with running(root) as store:
        assert (await store.get("large", content=True)).document.content == LARGE
    assert verified(root).orphan_artifacts == 0


async def test_a_stray_file_among_the_artifacts_stops_neither_the_store_nor_the_removal(tmp_path: Path) -> None:
    root = tmp_path / "state"
    async with running(root) as store:
        await (await put(store, document("large", LARGE))).wait()
    folder = root / "artifacts"
    (folder / "README").write_text("not one of ctxd's")
    (folder / "ff").mkdir(exist_ok=True)
    (folder / "ff" / ("f" * 64)).write_bytes(b"left over")
    async with running(root) as store:
        await until(lambda: len(names(root)) <= 1)
        assert (await store.get("large", content=True)).document.content == LARGE
    assert (folder / "README").exists()


@pytest.mark.requirement("SEC-8")
@pytest.mark.parametrize("is_written", [True, False])
async def test_a_purge_leaves_content_that_another_write_is_about_to_refer_to(tmp_path: Path, is_written: bool) -> None:
    root = tmp_path / "state"
    async with running(root) as store:
        await (await put(store, document("target", LARGE, tool="x"))).wait()
        about = await store.keep(document("other", LARGE, tool="y"))
        await store.submit(purge("target")).wait()
        await store.submit(write(document("more", "x"))).wait()
        assert len(names(root)) == 1
        if is_written:
            await store.submit(write(about)).wait()
            assert (await store.get("other", content=True)).document.content == LARGE
        del about
        with anyio.fail_after(BOUND_S):
            while await store.purge_residue():
                pass
        assert len(names(root)) == is_written
        if is_written:
            await store.submit(purge("other")).wait()
            assert await store.purge_residue() == () and names(root) == []
    verified(root)


@pytest.mark.requirement("SEC-8")
async def test_a_purge_goes_on_after_a_removal_that_had_no_room(tmp_path: Path) -> None:
    root = tmp_path / "state"
    async with running(root) as store:
        await (await put(store, document("target", LARGE, tool="x"))).wait()
        with armed("purge.unlink=error:ENOSPC*1"):
            await store.submit(purge("target")).wait()
            with anyio.fail_after(BOUND_S):
                assert await store.purge_residue() == () and names(root) == []


def test_a_removal_is_claimed_only_while_the_bytes_are_unused(tmp_path: Path) -> None:
    unused: list[str] = []
    store = ArtifactStore(tmp_path / "artifacts", unused.append)
    store.create()
    one, two = store.keep(b"x"), store.keep(b"x")
    ref = one.ref
    assert store.claim_removal([ref]) == []
    del one
    assert (unused, store.claim_removal([ref])) == ([], [])
    two.used = True
    del two
    assert unused == []
    assert (store.claim_removal([ref]), store.claim_removal([ref])) == ([ref], [])
    kept: list[object] = []
    thread = threading.Thread(target=lambda: kept.append(store.keep(b"x")))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive() and kept == []
    store.remove(ref)
    thread.join(BOUND_S)
    assert len(kept) == 1 and store.read(ref) == b"x"
    kept.clear()
    assert unused == [ref]


@pytest.mark.requirement("DUR-14")
async def test_removal_continues_after_a_temporarily_unreadable_index(tmp_path: Path, monkeypatch) -> None:
    refused: list[str] = []
    names_after, erase = ArtifactStore.names_after, Packs.erase

    def refuse_once(what: str) -> None:
        if what not in refused:
            refused.append(what)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Packs, "erase", lambda self, places: (refuse_once("erase"), erase(self, places))[1])
    root = tmp_path / "state"
    async with running(root):
        pass
    # After the start, which looks for temporary files.
    create = ArtifactStore.create

    def names_or_refusal(self: ArtifactStore, after: str, limit: int = 9) -> list[str]:
        with sqlite_file.faults():
            refuse_once("names")
        return names_after(self, after, limit)

    def created(self: ArtifactStore) -> None:
        create(self)
        monkeypatch.setattr(ArtifactStore, "names_after", names_or_refusal)

    monkeypatch.setattr(ArtifactStore, "create", created)
    async with running(root) as store:
        for text in (LARGE, f"another {LARGE}"):
            await store.keep(document("large", text))
            await until(lambda: {"names", "erase"} <= {*refused})
        await until_gone(root)


@pytest.mark.requirement("SEC-8")
async def test_a_temporary_file_that_a_crash_left_over_is_removed_at_the_next_start(tmp_path: Path) -> None:
    root = tmp_path / "state"
    async with running(root) as store:
        await (await put(store, document("large", LARGE))).wait()
    left = root / "artifacts" / names(root)[0][:2] / ".tmp-0123456789abcdef"
    left.parent.mkdir()
    left.write_text("a part of a text")
    async with running(root) as store:
        assert not left.exists()
        assert (await store.get("large", content=True)).document.content == LARGE


def test_a_newer_claim_on_a_removed_artifact_is_not_ended(tmp_path: Path, monkeypatch) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    store.create()
    refs = [store.keep(data).ref for data in (b"x", b"y")]
    claims: list[list[str]] = []
    remove = ArtifactStore.remove

    def claimed_again(self: ArtifactStore, ref: str) -> None:
        remove(self, ref)
        if not claims:
            claims.append(self.claim_removal([ref]))

    monkeypatch.setattr(ArtifactStore, "remove", claimed_again)
    store.remove_unused(store.claim_removal(refs), set())
    assert claims == [refs[1:]]
    assert store.claim_removal(refs) == refs[:1], "the claim that came in between stands"
