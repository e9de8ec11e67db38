"""A purge leaves no byte of what an entity said, wherever it is cut, and everything else as it was."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync
from blake3 import blake3

from ctxd import limits, sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.artifacts.packs import Packs
from ctxd.errors import CtxdError
from ctxd.failpoints import armed
from ctxd.objects.document import AsOf
from ctxd.objects.version_state import is_purged
from ctxd.store import damage_checks, journal
from ctxd.store.backup import backup, restore
from ctxd.store.idempotency import Resend
from ctxd.store.purge import KIND
from ctxd.store.verify import verify
from ctxd.store.version_reads import Reader
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import PurgeRequest, Write
from ctxd_protocol.limits import CONTENT_INLINE_BYTES_MAX
from tests.unit.store.documents import document, write
from tests.unit.store.running import put, running

pytestmark = pytest.mark.anyio
SMALL = "the-secret-in-a-small-text-9f8e7d6c"
LARGE = "the-secret-in-a-large-text-1a2b3c4d"
IN_ARGS = "the-secret-in-the-arguments-5e6f7a8b"
NEEDLES = [SMALL, LARGE, IN_ARGS]
POINTS = [
    "journal.begin", "purge.rewrite", "journal.precommit", "journal.commit", "journal.postcommit", "purge.unlink",
    "purge.truncate", "checkpoint.start", "checkpoint.end",
]  # fmt: skip


def keyed(source_hash: str) -> str:
    return blake3(bytes.fromhex(source_hash), key=bytes(32)).hexdigest()


def small(part: int = 0) -> str:
    return f"{part} {SMALL}\n" * 300


def large() -> str:
    return f"{LARGE} {'x' * 90}\n" * 12_000


async def fill(store):
    """Versions of ``target`` in every form that a text is kept in, between those of others."""
    for n in range(30):
        await store.submit(write(document(f"other{n}", f"text {n} " * 200, tool="bash"))).wait()
        if n in (5, 15):
            await store.submit(
                write(document("target", small(n), tool="bash", status="ok", n=n), op_id=f"op{n}")
            ).wait()
    await (await put(store, document("target", large(), tool="bash", args={"key": IN_ARGS}), op_id="op-large")).wait()
    await (await put(store, document("twin", large(), tool="cat", status="ok"))).wait()


def asked(*ids: str) -> Write:
    return Write(kind=KIND, principal="p", purge=PurgeRequest(ids, keyed))


def report_of(root: Path):
    *_, report = verify(root)
    return report


def residue(root: Path) -> set[tuple[str, str]]:
    """Where in the files of the state directory a needle is, compressed rows of the database included."""
    found = [(path.name, path.read_bytes()) for path in root.rglob("*") if path.is_file()]
    connection = sqlite_file.open_reader(root / "state.db")
    found += [("state.db", sqlite_file.unpack_body(body)) for (body,) in connection.execute("SELECT body FROM journal")]
    texts = connection.execute("SELECT size, bytes FROM content WHERE bytes IS NOT NULL")
    found += [("state.db", sqlite_file.unpack_content(*row)) for row in texts]
    connection.close()
    return {(name, needle) for name, data in found for needle in NEEDLES if needle.encode() in data}


@pytest.mark.requirement("SEC-8")
async def test_purged_content_is_in_no_file_and_everything_else_is_unchanged(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
        assert {needle for _, needle in residue(root)} == set(NEEDLES)
        before = await store.bulk([f"other{n}" for n in range(30)], content=True)
        heads = report_of(root)
        write = asked("target")
        receipt = await store.submit(write).wait()
        assert write.purge is not None and write.purge.done is not None
        assert set(write.purge.done.ids) == {"target", "twin"}, "the same text is kept once, so its twin loses it too"
        assert (write.purge.done.versions, len(write.purge.done.texts)) == (4, 3)
        assert await store.purge_residue() == ()
        assert residue(root) == set()
        assert await store.bulk([f"other{n}" for n in range(30)], content=True) == before
        versions = await store.history("target")
        assert len(versions) == 3 and all(is_purged(stored.document) for stored in versions)
        assert all(stored.content_ref is None and "args" not in stored.document.payload for stored in versions)
        assert receipt.seq == heads.head_seq + 1
    report = report_of(root)
    assert report.problems == [] and report.head_chain == receipt.chain
    assert residue(root) == set()
    async with running(root) as store:
        newest = await store.get("target", content=True)
        assert newest is not None and is_purged(newest.document)
    assert report_of(root).problems == []


async def test_the_chain_before_a_purge_is_the_chain_after_it(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
        receipt = store.head()
        await store.submit(asked("target")).wait()
        store.check_receipt(receipt)
        await store.wait_for_writes()
        assert store.status().state == "ok"
    connection = sqlite_file.open_reader(root / "state.db")
    assert journal.chain_at(connection, receipt.seq).hex() == receipt.chain
    (record,) = [row for row in journal.read_rows(connection, after=0) if row.kind == KIND]
    told = journal.decode_body(record.body).purged
    assert told is not None and set(told.ids) == {"target", "twin"} and len(told.rows) == 4
    connection.close()


async def test_a_purged_store_can_be_purged_again_written_backed_up_and_restored(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
        await store.submit(asked("target")).wait()
        again = asked("target")
        await store.submit(again).wait()
        assert again.purge is not None and again.purge.done is not None and again.purge.done.versions == 0
        await (await put(store, document("target", large(), tool="bash"))).wait()
        assert (await store.get("target", content=True)).document.content == large()
    backup(root, tmp_path / "copy")
    assert restore(tmp_path / "copy", tmp_path / "back").problems == []
    async with running(root) as store:
        await store.submit(asked("target")).wait()
    assert residue(root) == set() and report_of(root).problems == []


async def test_writes_around_a_purge_in_one_transaction_are_kept(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        pendings = [
            store.submit(one)
            for one in (
                write(document("a", small(1))),
                write(document("target", small(2), tool="t")),
                asked("target"),
                write(document("b", small(3))),
                write(document("target", "what came later", tool="t")),
            )
        ]
        for pending in pendings:
            await pending.wait()
        assert (await store.get("target", content=True)).document.content == "what came later"
        assert (await store.get("a", content=True)).document.content == small(1)
        versions = await store.history("target")
        assert [is_purged(stored.document) for stored in versions] == [True, False]
    assert report_of(root).problems == []


@pytest.mark.requirement("SEC-8")
@pytest.mark.parametrize("change", ["body", "record", "note", "kind"])
async def test_only_versions_named_by_a_purge_record_may_differ_from_the_chain(tmp_path, change):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
        await store.submit(asked("target")).wait()
    connection = sqlite_file.open_writer(root / "state.db")
    (seq,) = connection.execute("SELECT min(substr(name, 8)) FROM meta WHERE name GLOB 'purged:*'").fetchone()
    match change:
        case "body":
            other = connection.execute("SELECT body FROM journal WHERE seq=1").fetchone()[0]
            connection.execute("UPDATE journal SET body=? WHERE seq=?", (other, seq))
        case "record":
            connection.execute("DELETE FROM journal WHERE kind=?", (KIND,))
        case "note":
            connection.execute("DELETE FROM meta WHERE name GLOB 'purged:*'")
        case "kind":
            connection.execute("UPDATE journal SET principal='somebody' WHERE seq=?", (seq,))
    connection.close()
    assert report_of(root).worst in ("damage", "data_loss")


_PURGING = """
import sys
from pathlib import Path
import anyio
from tests.unit.store.running import put, running
from tests.unit.store.test_purge import asked, fill
from ctxd.failpoints import armed

async def main(root, point):
    async with running(root) as store:
        await fill(store)
        with armed(f"{point}=kill"):
            await store.submit(asked("target")).wait()
            await store.purge_residue()
            await anyio.sleep_forever()

anyio.run(main, Path(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.requirement("SEC-9")
@pytest.mark.parametrize("point", POINTS)
async def test_a_purge_that_is_killed_anywhere_is_whole_or_not_begun_and_the_next_start_ends_it(tmp_path, point):
    root = tmp_path / "state"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", _PURGING, str(root), point], env=environ, timeout=60)
    assert killed.returncode == -9
    assert report_of(root).worst in (None, "warning")
    async with running(root) as store:
        versions = await store.history("target")
        assert len(versions) == 3 and len({is_purged(stored.document) for stored in versions}) == 1
        if is_purged(versions[0].document):
            assert await store.purge_residue() == () and residue(root) == set()
        else:
            await store.submit(asked("target")).wait()
            assert await store.purge_residue() == () and residue(root) == set()
    assert report_of(root).problems == []
    assert residue(root) == set()


@pytest.mark.requirement("SEC-8")
async def test_a_purge_scans_no_table(tmp_path):
    """Every query of a purge's transaction is answered by an index: no table is scanned."""
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
        plans: list[str] = []
        connection = store._journal_writer._connection
        explained = sqlite_file.open_reader(root / "state.db")
        seen: set[str] = set()

        def note(cursor, statement, bindings):
            if statement not in seen and statement.lstrip().upper().startswith(
                ("SELECT", "UPDATE", "DELETE", "INSERT")
            ):
                seen.add(statement)
                plans.extend(row[3] for row in explained.execute(f"EXPLAIN QUERY PLAN {statement}", bindings))
            return True

        connection.exec_trace = note
        await store.submit(asked("target")).wait()
        connection.exec_trace = None
        explained.close()
    scans = [plan for plan in plans if plan.startswith("SCAN") and "VALUES CLAUSE" not in plan]
    assert any("version_content" in plan for plan in plans) and scans == []


@pytest.mark.requirement("SEC-8")
async def test_a_reader_of_an_old_snapshot_delays_the_purge_but_no_write(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "PURGE_WAIT_S", 0.05)
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
        reader = sqlite_file.open_reader(root / "state.db")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM version").fetchall()
        with anyio.fail_after(sqlite_file.BUSY_MS / 2000):
            await store.submit(asked("target", "twin")).wait()
            assert "state.db-wal" in await store.purge_residue()
            assert "state.db-wal may hold its text" in report_of(root).problems[0].message
            await store.submit(write(document("more", "text", tool="bash"))).wait()
        reader.execute("COMMIT")
        reader.close()
        with anyio.fail_after(30):
            while await store.purge_residue():
                pass
        assert residue(root) == set()


@pytest.mark.requirement("SEC-8")
async def test_a_text_that_is_written_while_its_artifact_is_removed_is_kept(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill(store)
        with armed("purge.unlink=sleep:200ms"):
            await store.submit(asked("target", "twin")).wait()
            await (await put(store, document("again", large(), tool="bash"))).wait()
            assert await store.purge_residue() == ()
        assert (await store.get("again", content=True)).document.content == large()
    assert report_of(root).problems == []


@pytest.mark.parametrize("missing", [*range(1, 12), 250, 257, 258, 259, 260, 65_530, 65_538, 65_539, 65_540, 70_000])
async def test_a_rewritten_body_has_exactly_the_size_of_the_one_before(missing):
    body = journal.Body(b"", b"{}", ("a",), (journal.Put("x", b"document", None),))
    least = len(journal.encode_rewritten(body, 0))
    encoded = journal.encode_rewritten(body, least + missing)
    assert len(encoded) == least + missing
    assert journal.decode_body(encoded) == body


@pytest.mark.requirement("SEC-8")
async def test_the_record_of_a_purge_is_read_once_for_all_rows_that_it_rewrote(tmp_path, monkeypatch):
    root, rows = tmp_path / "state", 100
    async with running(root) as store:
        for n in range(rows):
            await store.submit(write(document(f"part#{n:010}", said=SMALL))).wait()
        request = PurgeRequest((), keyed, within=("part#",), restate=without_part)
        await store.submit(Write(kind=KIND, principal="p", purge=request)).wait()
    decode, decoded = journal.decode_body, []

    def counted(body):
        found = decode(body)
        decoded.append(found.purged)
        return found

    def records() -> int:
        """The number of records decoded since the last call."""
        count = len([record for record in decoded if record is not None])
        decoded.clear()
        return count

    monkeypatch.setattr(journal, "decode_body", counted)
    async with running(root) as store:
        started = records()
        assert store.status().state == "ok"
        assert len(await store._rows_after(0, rows // 2)) + len(await store._rows_after(rows // 2, rows)) == rows + 1
        assert started == records() == 1
    reader = Reader(root / "state.db", ArtifactStore(root / "artifacts"))
    assert damage_checks.check(reader, 0).damage == () and records() <= 2, "the row itself is checked too"
    reader.close()


def without_part(document_):
    """``document_`` without the part that a purge takes out of it."""
    if SMALL not in (document_.content or "") and SMALL not in str(document_.payload):
        return None
    payload = {**document_.payload, "said": "no more, in more words than there were before"}
    content = None if document_.content is None else document_.content.replace(SMALL, "")
    return document(document_.id, content, document_.type, **payload)


async def assert_restated(store):
    first = await store.get("part#0000000001", content=True)
    assert first.document.content == "before  after" and first.document.payload["said"].startswith("no more")
    assert (await store.get("part#0000000002")).document.payload == {"said": "nothing"}
    assert {stored.document.payload["said"][:7] for stored in await store.history("whole")} == {"no more", "short"}
    # Nothing else loses a text that it shares with what was restated, and no other entity is looked at.
    assert (await store.get("twin", content=True)).document.content == f"before {SMALL} after"
    assert SMALL in (await store.get("part")).document.payload["said"]


@pytest.mark.requirement("SEC-10")
async def test_a_restated_version_keeps_its_other_content_and_nothing_else_changes(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        await fill_parts(store)
        purging = restating()
        await store.submit(purging).wait()
        assert purging.purge.done.ids == ("part#0000000001", "whole") and purging.purge.done.versions == 2
        await assert_restated(store)
    async with running(root) as store:
        await assert_restated(store)
    assert report_of(root).problems == []


@pytest.mark.requirement("SEC-10")
@pytest.mark.parametrize("point", [point for point in POINTS if point != "purge.unlink"])
async def test_a_restatement_is_atomic_wherever_it_is_killed(tmp_path, point):
    root = tmp_path / "state"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", _RESTATING, str(root), point], env=environ, timeout=60)
    assert killed.returncode == -9
    assert report_of(root).worst in (None, "warning")
    async with running(root) as store:
        if SMALL in (await store.get("part#0000000001", content=True)).document.content:
            await store.submit(restating()).wait()
        await assert_restated(store)
    assert report_of(root).problems == []


def restating() -> Write:
    return Write(
        kind=KIND, principal="p", purge=PurgeRequest((), keyed, within=("part#", "whole"), restate=without_part)
    )


async def fill_parts(store):
    shared = f"before {SMALL} after"
    for one in (
        document("part#0000000001", shared, said="a"),
        document("part#0000000002", said="nothing"),
        document("whole", said=f"{SMALL}"),
        document("whole", said="short"),
        document("twin", shared, said="b"),
        document("part", said=SMALL),
    ):
        await store.submit(write(one)).wait()


_RESTATING = (
    _PURGING.replace("asked, fill", "restating, fill_parts")
    .replace("fill(store)", "fill_parts(store)")
    .replace('asked("target")', "restating()")
)


@pytest.mark.requirement("SEC-8")
@pytest.mark.parametrize("delay_s", [0.005, 3600])
async def test_a_failed_removal_is_retried_later_without_blocking_writes(tmp_path, monkeypatch, delay_s):
    # Noticed by the upkeep of an idle store, or by the next write.
    monkeypatch.setattr(limits, "PURGE_RETRY_S", delay_s)
    monkeypatch.setattr(limits, "CHECKPOINT_IDLE_S", delay_s)
    monkeypatch.setattr(limits, "PROBE_S", 0.01)
    refused = []
    erase = Packs.erase

    def refuse_once(packs, locations):
        if len(refused) < 1:
            refused.append(locations)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        erase(packs, locations)

    monkeypatch.setattr(Packs, "erase", refuse_once)
    root = tmp_path / "state"
    async with running(root) as store:
        texts = [f"{number} {large()}" for number in range(3)]
        for number, text in enumerate(texts):
            await (await put(store, document(f"t{number}", text, tool="bash"))).wait()
        await store.submit(asked("t0", "t1", "t2")).wait()
        kept = ArtifactStore(root / "artifacts")
        for number in range(1000):
            if not list(kept.names()):
                break
            with suppress(CtxdError):
                await store.submit(write(document(f"more{number}", "x"))).wait()
            await anyio.sleep(0.01)
        assert len(refused) == 1 and list(kept.names()) == []
        monkeypatch.setattr(limits, "PURGE_RETRY_S", 0.005)
        await store.submit(write(document("last", "x"))).wait()
        assert await store.purge_residue() == ()
        # Nothing of the removal is left that a write of the same text would wait for.
        for number, text in enumerate(texts):
            await (await put(store, document(f"t{number}", text, tool="cat"))).wait()
    assert report_of(root).problems == []


@pytest.mark.requirement("SEC-8")
async def test_a_text_that_is_purged_while_it_is_read_is_not_kept_for_later_reads(tmp_path, monkeypatch):
    root = tmp_path / "state"
    async with running(root) as store:
        await store.submit(write(document("target", small(), tool="bash"))).wait()
        ref = (await store.get("target")).content_ref
    reached, released, contents = threading.Event(), threading.Event(), Reader.contents

    def slow(reader, refs):
        found = contents(reader, refs)
        reached.set()
        assert released.wait(10)
        return found

    monkeypatch.setattr(Reader, "contents", slow)
    async with running(root) as store:
        async with anyio.create_task_group() as group:
            group.start_soon(store.contents, [ref])
            assert await run_sync(reached.wait, 10)
            await store.submit(asked("target")).wait()
            released.set()
        with pytest.raises(CtxdError, match="was purged") as gone:
            await store.contents([ref])
        assert gone.value.code == "purged"


@pytest.mark.parametrize("text", [small(), large()], ids=["in the database", "in a file"])
@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("target", content=True),
        lambda store: store.get("target", AsOf(tx=1), content=True),
        lambda store: newest_of(store.history("target", content=True)),
    ],
    ids=["newest", "past", "history"],
)
@pytest.mark.requirement("SEC-8")
async def test_a_reader_overtaken_by_a_purge_gets_the_purged_version(tmp_path, monkeypatch, read, text):
    root = tmp_path / "state"
    async with running(root) as store:
        await (await put(store, document("target", text, tool="bash"))).wait()
    contents, purges = VersionStore.contents, [asked("target")]

    async def late(store, refs):
        refs = list(refs)
        while purges:
            await store.submit(purges.pop()).wait()
        return await contents(store, refs)

    monkeypatch.setattr(VersionStore, "contents", late)
    # Opened again, so that no cache has the text.
    async with running(root) as store:
        found = await read(store)
    assert purges == []
    assert is_purged(found.document) and found.document.content is None


async def newest_of(history):
    return (await history)[-1]


@pytest.mark.requirement("SEC-8")
async def test_a_text_that_is_lost_while_a_version_refers_to_it_is_still_corrupt(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        await (await put(store, document("target", large(), tool="bash"))).wait()
    shutil.rmtree(root / "artifacts" / "packs")
    async with running(root) as store:
        with pytest.raises(CtxdError, match="cannot be read") as lost:
            await store.get("target", content=True)
        assert lost.value.code == "corrupt"


@pytest.mark.requirement("SEC-10")
@pytest.mark.parametrize("fault", [CtxdError("unsupported", "part#2 is newer", hint="Update."), AssertionError(SMALL)])
async def test_a_purge_that_cannot_read_a_version_fails_alone(tmp_path, fault):
    """The writes beside it in its transaction are durable, and it can be repeated under its operation id."""
    root = tmp_path / "state"

    def restate(found):
        if found.id == "part#0000000002" and faults:
            raise faults[0]
        return without_part(found)

    faults = [fault]
    request = PurgeRequest((), keyed, within=("part#", "whole"), restate=restate)
    purging = Write(kind=KIND, principal="p", session="s", op_id="op", request=b"r", purge=request)
    async with running(root) as store:
        lost, reported = [], []
        store.on_lost(lost.append)
        store.on_fault(reported.append)
        await fill_parts(store)
        before = store.submit(write(document("before", small(1))))
        failing = store.submit(purging)
        after = store.submit(write(document("after", small(2))))
        with pytest.raises(CtxdError, match="nothing was purged") as caught:
            await failing.wait()
        is_known = isinstance(fault, CtxdError)
        assert caught.value.code == ("unsupported" if is_known else "internal_error")
        assert caught.value.outcome == "not_applied" and caught.value.hint and SMALL not in caught.value.message
        assert (await before.wait()).seq + 2 == (await after.wait()).seq
        assert lost == [] and reported == [caught.value]
        assert SMALL in (await store.get("part#0000000001", content=True)).document.content
        assert store.status().state == "ok"
        assert await store.replay(("p", "op"), Resend(KIND, "s", b"r")) is None
        faults.clear()
        await store.submit(purging).wait()
        await assert_restated(store)
    async with running(root) as store:
        await assert_restated(store)
        assert (await store.get("after", content=True)).document.content == small(2)
    assert report_of(root).problems == []


@pytest.mark.requirement("SEC-10")
async def test_a_text_that_a_purge_makes_longer_than_the_limit_is_read_and_purged_again(tmp_path):
    root = tmp_path / "state"

    def longer(found):
        return document("whole", found.content.replace("x", "[purged]")) if "x" in found.content else None

    def shorter(found):
        return document("whole", found.content.replace("[purged]", ""))

    async with running(root) as store:
        await store.submit(write(document("whole", "x" * CONTENT_INLINE_BYTES_MAX))).wait()
        for restate in (longer, shorter):
            request = PurgeRequest((), keyed, within=("whole",), restate=restate)
            await store.submit(Write(kind=KIND, principal="p", purge=request)).wait()
            found = await store.get("whole", content=True)
            assert found.document.content == ("[purged]" * CONTENT_INLINE_BYTES_MAX if restate is longer else "")
    assert report_of(root).problems == []
