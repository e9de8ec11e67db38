"""What is damaged is found or was never used; what was acknowledged and is gone is called a loss."""

import random
import shutil

import pytest

from ctxd import sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.errors import CtxdError, StateDirError
from ctxd.store import journal
from ctxd.store.idempotency import Resend
from ctxd.store.journal import read_versions
from ctxd.store.verify import Report, digest, verify
from ctxd.store.version_reads import Reader
from ctxd_protocol.object_types import Receipt
from tests.unit.store.documents import damage_index, document, write
from tests.unit.store.running import damage_artifacts, put, running

pytestmark = pytest.mark.anyio
IDS = [f"t{n}" for n in range(40)] + [f"segment:s1#{n:010d}" for n in range(40)]


def problems(root):
    *_, report = verify(root)
    return report


async def fill(store, count=40):
    for n in range(count):
        text = f"{n} " * (600_000 if n == 7 else 400)
        puts = (document(f"t{n}", text, tool="bash"), document(f"segment:s1#{n:010d}", type="segment", n=n))
        pending = await put(store, *puts, op_id=f"op{n}", request=b"q", result=b"r", knows=(f"t{n}",))
        await pending.wait()
    return pending.receipt


@pytest.fixture
async def root(tmp_path):
    async with running(tmp_path / "state") as store:
        await fill(store)
    return tmp_path / "state"


async def test_an_undamaged_store_has_no_problems_and_every_row_is_counted(root):
    report = problems(root)
    assert (report.problems, report.rows, report.versions, report.contents, report.artifacts) == ([], 40, 80, 40, 1)
    assert report.worst is None and report.head_seq == 40


async def test_a_running_store_can_be_verified(tmp_path):
    async with running(tmp_path / "state") as store:
        receipt = await fill(store)
        report = problems(tmp_path / "state")
        assert report.problems == [] and report.head_chain == receipt.chain
        await store.submit(write(document("after"))).wait()


async def test_a_missing_state_differs_from_damage(tmp_path):
    with pytest.raises(StateDirError) as caught:
        problems(tmp_path)
    assert caught.value.exit_code == 10


async def test_the_digest_of_the_versions_is_that_of_the_journal_s_fold(root):
    connection = sqlite_file.open_reader(root / "state.db")
    folded = digest(version for row in journal.read_rows(connection, after=0) for version in read_versions(row))
    connection.close()
    assert problems(root).digest == folded


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE journal SET body=zeroblob(length(body)) WHERE seq=5", "does not match its hash"),
        ("UPDATE journal SET principal='other' WHERE seq=5", "does not match its hash"),
        ("UPDATE journal SET tx_time=tx_time+1 WHERE seq=5", "does not match its hash"),
        ("UPDATE journal SET chain=zeroblob(32) WHERE seq=5", "breaks the chain"),
        ("DELETE FROM journal WHERE seq=5", "row 5 is missing"),
        ("DELETE FROM journal WHERE seq=40", "row 40 was acknowledged"),
        ("UPDATE version SET body=zeroblob(length(body)) WHERE tx=5", "is damaged"),
        ("DELETE FROM version WHERE tx=5", "differ from the journal"),
        (
            "INSERT INTO version SELECT entity, vt, tx+100, tx_time, body, content, crc FROM version WHERE tx=5",
            "damaged",
        ),
        ("UPDATE entity SET id='other' WHERE id='t5'", "is damaged"),
        ("UPDATE content SET bytes=zeroblob(length(bytes)) WHERE size=800", "does not match its hash"),
        ("DELETE FROM content WHERE size=800", "is missing"),
        ("DELETE FROM knows WHERE object=1", "in the journal, but not stored"),
        ("INSERT INTO knows VALUES (1, 1)", "stored, but not in the journal"),
        ("UPDATE meta SET value=zeroblob(8) WHERE name='incarnation'", "count of starts"),
        ("UPDATE meta SET value=zeroblob(32) WHERE name='genesis'", "breaks the chain"),
    ],
)
@pytest.mark.requirement("DUR-6")
async def test_each_kind_of_damage_is_named(root, damage, words):
    connection = sqlite_file.open_writer(root / "state.db")
    connection.execute(damage).fetchall()
    assert connection.changes()
    connection.close()
    report = problems(root)
    assert any(words in problem.message for problem in report.problems), report.problems
    assert report.worst == ("data_loss" if "acknowledged" in words else "damage")


@pytest.mark.requirement("DUR-6")
async def test_an_operation_that_its_index_does_not_lead_to_is_named(root):
    damage_index(root, "journal_op", b"op17", b"op1x")
    messages = [problem.message for problem in problems(root).problems]
    assert "operation op17 of row 18 is not found by its id" in messages


def test_a_loss_after_a_thousand_warnings_is_the_worst_finding():
    report = Report()
    for n in range(1_500):
        report.note("warning", f"warning {n}")
    report.note("data_loss", "a row is missing")
    report.note("data_loss", "another one is missing")
    assert report.worst == "data_loss" and len(report.problems) == 1_001


@pytest.mark.requirement("DUR-8")
async def test_a_journal_diverging_from_acknowledged_rows_is_data_loss_and_read_only(root, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(root, other)
    for place, text in ((root, "acknowledged"), (other, "written instead")):
        async with running(place) as store:
            await store.submit(write(document("last", text))).wait()
    (other / "head").write_bytes((root / "head").read_bytes())
    message = "row 41 of the journal is not the one that was acknowledged"
    report = problems(other)
    assert [(problem.severity, problem.message) for problem in report.problems] == [("data_loss", message)]
    async with running(other) as store:
        assert store.status().state == "read_only" and store.status().reason.endswith(message)
        with pytest.raises(CtxdError) as caught:
            store.submit(write(document("more", "text")))
        assert caught.value.code == "data_loss"


async def test_a_damaged_artifact_is_named(root):
    (ref,) = ArtifactStore(root / "artifacts").names()
    damage_artifacts(root)
    assert any(f"artifact {ref} cannot be read" in problem.message for problem in problems(root).problems)


async def served(root):
    """Everything a fresh daemon would answer, or None where it refuses."""
    try:
        reader = Reader(root / "state.db", ArtifactStore(root / "artifacts"))
    except Exception:  # noqa: BLE001  # a refusal of any kind
        return dict.fromkeys(IDS)
    answers = {}
    for id in IDS:
        try:
            head = reader.heads([id], 0)[0][id]
            text = None if head.content_ref is None else reader.contents([head.content_ref])[head.content_ref]
            answers[id] = (head, text)
        except Exception:  # noqa: BLE001
            answers[id] = None
    reader.close()
    return answers


@pytest.mark.requirement("DUR-6")
async def test_a_flipped_bit_is_found_or_changes_no_answer_and_is_never_served(tmp_path):
    chance = random.Random(7)
    original = tmp_path / "original"
    async with running(tmp_path / "live") as store:
        await fill(store)
        # As a kill would leave it: part of the data is in the write-ahead log only.
        shutil.copytree(tmp_path / "live", original)
    right = await served(original)
    assert None not in right.values()
    found = 0
    for trial in range(45):
        copy = tmp_path / f"copy{trial}"
        shutil.copytree(original, copy)
        name = ("state.db", "state.db-wal", "state.db-wal", "head", "artifacts")[trial % 5]
        path = copy / name if name != "artifacts" else next((copy / name / "packs").iterdir())
        data = bytearray(path.read_bytes())
        if not data:
            continue
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.chmod(0o600)
        path.write_bytes(data)
        answers = await served(copy)
        report = problems(copy)
        if report.problems:
            found += 1
            wrong = [id for id in IDS if answers[id] not in (None, right[id]) and answers[id] != right[id]]
            assert wrong == [], f"trial {trial}: {name} served something that was never written"
        else:
            assert answers == right, f"trial {trial}: {name} was damaged unnoticed"
        shutil.rmtree(copy)
    assert found >= 10


async def test_a_truncated_write_ahead_log_is_data_loss_and_makes_the_store_read_only(tmp_path):
    async with running(tmp_path / "live") as store:
        last = await fill(store, 5)
        shutil.copytree(tmp_path / "live", tmp_path / "cut")
    log = tmp_path / "cut" / "state.db-wal"
    log.write_bytes(log.read_bytes()[:-5_000])
    assert problems(tmp_path / "cut").worst == "data_loss"
    async with running(tmp_path / "cut") as store:
        assert "data_loss" in store.status().reason
        assert f"row {last.seq} was acknowledged" in store.status().reason
        with pytest.raises(CtxdError) as caught:
            store.submit(write(document("t1")))
        assert caught.value.code == "data_loss"
        assert (await store.get("t1")) is not None
    assert problems(tmp_path / "cut").worst == "data_loss", "the end of the daemon must not cover the loss up"


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.requirement("DUR-8")
async def test_a_receipt_that_the_journal_cannot_show_stops_writes(root, ahead):
    async with running(root) as store:
        head = store.head()
        store.check_receipt(head)
        assert await store.replay(("host", "op1"), Resend("toolcall.record", "s1", b"q")) is not None
        assert store.status().state == "ok"
        store.check_receipt(Receipt(head.seq + 1 if ahead else 3, "0" * 64, head.vt))
        # The comparison is made on the next trip to the journal, and this takes part in it.
        assert await store.replay(("host", "op2"), Resend("toolcall.record", "s1", b"q")) is not None
        assert store.status().state == "read_only" and "data_loss" in store.status().reason
        with pytest.raises(CtxdError):
            store.submit(write(document("t1")))


async def test_a_damaged_tail_stops_writes_at_the_start(root):
    connection = sqlite_file.open_writer(root / "state.db")
    connection.execute("UPDATE journal SET kind='other' WHERE seq=39").fetchall()
    connection.close()
    async with running(root) as store:
        assert store.status().state == "read_only"
        assert "row 39" in store.status().reason
