"""What was acknowledged is durable: over kills, damage, backups and disks that fail, with the real executables."""

import json
import os
import shutil
import sqlite3
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import DaemonFault, connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.commits import ImportedDelta
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.session_types import Message
from tests import programs
from tests.client.running import Running
from tests.crash.daemon import DaemonProcess, daemon_process
from tests.crash.wire import Gone, Refused, Wire

CTXD = Path(sysconfig.get_path("scripts")) / "ctxd"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon_process(tmp_path) as made:
        yield made


def ctxd(*words: object) -> subprocess.CompletedProcess[str]:
    """``ctxd`` in a process of its own."""
    return programs.run("ctxd", words)


def verified(state: Path) -> tuple[int, Any]:
    """Exit code and report of ``ctxd verify``."""
    done = ctxd("verify", "--state-dir", state, "--json")
    return done.returncode, json.loads(done.stdout)


def contents(s: SyncSession) -> list[str]:
    return [
        message["content"] for turn in s.client.session_chat(s.id, limit=1000).turns for message in turn["messages"]
    ]


@pytest.mark.requirement("DUR-1")
def test_each_write_that_was_acknowledged_is_there_once_after_each_of_many_kills(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        s = client.session("s", agent="a")
        kept: list[str] = []
        for number in range(3):
            for step in range(5):
                text = f"{number}.{step}"
                s.user(text)
                s.record(f"call {text}", "bash", text * 100)
                kept.append(text)
            daemon.kill()
            daemon.start()
            assert contents(s) == kept
            assert list(s.view().session.session_index) == [f"call {text}" for text in kept]
            for text in kept:
                assert client.object_get(f"call {text}").object.payload["content"] == text * 100


@pytest.mark.anyio
@pytest.mark.requirement("DUR-1")
@pytest.mark.parametrize(("place", "passes"), [("journal.precommit", 3), ("journal.postcommit", 3), ("journal.ack", 2)])
async def test_a_write_that_was_cut_short_is_applied_once_when_it_is_sent_again(
    process: DaemonProcess, place: str, passes: int
) -> None:
    await process.start(failpoints=f"{place}=kill@{passes}")
    call = {"session": "s", "messages": [{"role": "user", "content": "once"}], "op_id": "o"}
    async with await Wire.open(process.socket) as wire:
        await wire.call("session.create", agent="a", session="s")
        with pytest.raises(Gone):
            await wire.call("session.append", **call)
    await process.ended()
    await process.start()
    async with await Wire.open(process.socket) as wire:
        first = await wire.call("session.append", **call)
        assert (await wire.call("session.append", **call)) == first
        chat = await wire.call("session.chat", session="s")
    assert [turn["messages"] for turn in chat["turns"] if turn["messages"]] == [[{"role": "user", "content": "once"}]]


def writes(client: SyncClient, tree: Path) -> Iterator[Receipt | None]:
    """The receipt of every kind of write."""
    for name in ("a", "b.py", "c"):
        (tree / name).write_text(name)
    yield client.session_create("a", session="w", workdir=str(tree)).receipt
    s = client.session("w")
    yield s.configure(labels={"k": "v"}).receipt
    yield s.append([Message(role="user", content="x")]).receipt
    yield s.set_system_prompt("two").receipt
    read = s.read("a")
    yield read.receipt
    id = read.object
    for step in (s.pin, s.unpin, s.deactivate, s.activate, s.pool_remove, s.pool_add):
        yield step(id).receipt
    yield s.record("c-1", "bash", "out").receipt
    yield s.observe("ls", "b.py\n").receipt
    yield s.discover(["c"]).receipt
    assembled = s.assemble()
    yield assembled.receipt
    yield s.usage({"input": 1, "output": 1}, context_id=assembled.context_id, model="claude-sonnet-5").receipt
    yield s.set_entry("mode", "plan").receipt
    yield s.delete_entry("mode").receipt
    made = client.commit_checkpoint("claude-code-v1", '{"n":1}\n', session="w")
    yield made.receipt
    given = ImportedDelta(size=8, parent=made.commit.commit)
    yield client.commit_import("w", "claude-code-v1", b'{"n":2}\n', [given]).receipt
    yield client.commit_annotate(made.commit.commit, "It works.").receipt
    yield client.commit_tag(made.commit.commit, "works").receipt
    yield client.object_purge("c-1").receipt
    artifact = client.artifact_put(data=b"bytes")
    yield artifact.receipt
    yield client.artifact_tag("latest", artifact=artifact.artifact).receipt
    box = client.sandbox_register([s.id], grants=(), ttl_s=600)
    yield box.receipt
    yield client.sandbox_renew(box.sandbox.sandbox).receipt
    yield client.sandbox_release(box.sandbox.sandbox).receipt
    hooked = {"session_id": "w", "hook_event_name": "UserPromptSubmit", "prompt": "go"}
    yield client.session_hook("pi", json.dumps(hooked)).receipt
    yield s.fork(fork="w-fork").receipt
    yield client.session_annotate(s.id, title="Named").receipt
    yield s.pause().receipt
    yield s.resume().receipt
    yield s.close().receipt
    yield s.remove().receipt
    yield s.restore().receipt


@pytest.mark.requirement("DUR-2")
def test_every_acknowledged_write_carries_its_sequence_the_chain_there_and_its_valid_time(
    tmp_path: Path, tree: Path
) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        receipts: list[Receipt] = []
        for receipt in writes(client, tree):
            assert receipt is not None, f"write {len(receipts)} had no receipt"
            receipts.append(receipt)
            status = client.daemon_status().store
            assert (receipt.seq, receipt.chain) == (status.head_seq, status.head_chain)
            assert client.last_receipt == receipt
        assert len(receipts) == sum(method.writes for method in METHODS.values()), "each method that writes"
        assert [receipt.seq for receipt in receipts] == sorted({receipt.seq for receipt in receipts})
        assert len({receipt.chain for receipt in receipts}) == len(receipts)
        times = [receipt.vt for receipt in receipts]
        assert times == sorted(times)
        rows = client.object_history("session:w").versions
        assert {(receipt.seq, receipt.vt) for receipt in receipts} >= {(row.tx, row.valid_time) for row in rows}
        for receipt in receipts:
            client.hello(last_receipt=receipt)
    assert verified(tmp_path / "state")[0] == 0


@pytest.mark.anyio
@pytest.mark.requirement("DUR-3")
async def test_without_disk_space_reads_work_and_writes_resume_once_there_is_room(
    process: DaemonProcess,
) -> None:
    await process.start(failpoints="journal.commit=error:ENOSPC*1@4")
    async with await Wire.open(process.socket) as wire:
        await wire.call("session.create", agent="a", session="s")
        await wire.call("session.append", session="s", messages=[{"role": "user", "content": "kept"}])
        with pytest.raises(Refused) as refused:
            await wire.call("session.append", session="s", messages=[{"role": "user", "content": "refused"}])
        assert (refused.value.code, refused.value.outcome, refused.value.retryable) == (
            "disk_full",
            "not_applied",
            True,
        )
        status = await wire.call("daemon.status")
        assert (status["state"], status["store"]["state"]) == ("degraded", "read_only")
        assert status["store"]["reason"]
        assert (await wire.call("session.chat", session="s"))["turn_count"] == 1
    with connect_sync(process.socket) as client:
        s = client.session("s")
        s.user("again")  # the client repeats it until the daemon takes writes
        assert contents(s) == ["kept", "again"]
        assert client.daemon_status().store.state == "ok"


@pytest.mark.requirement("DUR-6")
def test_verify_detects_every_kind_of_damage(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        s = client.session("s", agent="a", system_prompt="Be brief.")
        for number in range(20):
            s.user(f"message {number}")
            s.record(f"call-{number}", "bash", f"output {number}\n")
        s.record("large", "bash", "large\n" * 180_000)
        assert verified(tmp_path / "state")[0] == 0, "also beside the running daemon"
    state = tmp_path / "state"
    code, report = verified(state)
    assert (code, report["worst"], report["problems"]) == (0, None, [])
    assert report["rows"] > 40
    damages = list(damaged_copies(state, tmp_path))
    assert len(damages) > 4
    for name, copy in damages:
        code, report = verified(copy)
        assert code in (2, 3), f"{name} was not found"
        assert report["problems"]


def damaged_copies(state: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Copies of ``state``, in each of which one byte of one column of one row, or of an artifact, is another."""
    with closing(sqlite3.connect(f"file:{state}/state.db?mode=ro", uri=True)) as opened:
        tables = [row[0] for row in opened.execute("select name from sqlite_schema where type = 'table'")]
        columns = {
            table: [
                row[1] for row in opened.execute(f"pragma table_info({table})") if row[2].upper() in ("BLOB", "TEXT")
            ]
            for table in tables
            if table in ("journal", "content", "version")
        }
    for table, names in columns.items():
        for column in names:
            copy = folder / f"damaged-{table}-{column}"
            shutil.copytree(state, copy)
            if change_one_byte(copy / "state.db", table, column):
                yield f"{table}.{column}", copy
    copy = folder / "damaged-artifact"
    shutil.copytree(state, copy)
    (artifact,) = (copy / "artifacts" / "packs").iterdir()
    data = bytearray(artifact.read_bytes())
    data[len(data) // 2] ^= 1
    artifact.write_bytes(data)
    yield "an artifact", copy


def with_one_bit_changed(value: int | str | bytes) -> int | str | bytes:
    if isinstance(value, int):
        return value ^ 1
    data = bytearray(value.encode() if isinstance(value, str) else value)
    data[len(data) // 2] ^= 1
    return data.decode(errors="replace") if isinstance(value, str) else bytes(data)


def change_one_byte(database: Path, table: str, column: str) -> bool:
    """Change the middle row's value by one bit; false if it has none."""
    with closing(sqlite3.connect(database)) as opened:
        found = opened.execute(
            f"select rowid, {column} from {table} where length({column}) > 0 order by rowid"
        ).fetchall()
        if not found:
            return False
        row, value = found[len(found) // 2]
        opened.execute(f"update {table} set {column} = ? where rowid = ?", (with_one_bit_changed(value), row))
        opened.commit()
    return True


@pytest.mark.requirement("DUR-7")
def test_a_backup_of_a_running_daemon_answers_the_same_once_it_is_restored(tmp_path: Path, tree: Path) -> None:
    (tree / "a.py").write_text("one\n")
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        s = client.session("s", agent="a", system_prompt="Be brief.", workdir=str(tree))
        s.user("go")
        s.read("a.py")
        s.record("large", "bash", "large\n" * 180_000)
        s.assemble()
        (tree / "a.py").write_text("two\n")
        s.assemble()
        before = answers(client)
        done = ctxd("backup", tmp_path / "backup", "--state-dir", tmp_path / "state", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["head_seq"] == client.daemon_status().store.head_seq
        s.user("after the backup")
    other = tmp_path / "other"
    other.mkdir()
    restored = ("restore", tmp_path / "backup", "--state-dir", other / "state")
    assert programs.run("ctxd", restored, env={"CTXD_FAILPOINTS": "restore.copy=kill@2"}).returncode == -9
    refused = ctxd("run", "--state-dir", other / "state", "--socket", tmp_path / "socket")
    assert refused.returncode == 73 and "was interrupted; run ctxd restore again" in refused.stderr
    done = ctxd(*restored)
    assert done.returncode == 0, done.stderr
    with Running(other, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        assert answers(client) == before
        client.session("s").user("life goes on")
    assert ctxd("restore", tmp_path / "backup", "--state-dir", other / "state").returncode != 0, "never over a state"


def answers(client: SyncClient) -> list[object]:
    """All that a client can read of session ``s``."""
    s = client.session("s")
    shown = [client.context_show("s", number=each.number) for each in s.assemblies().assemblies]
    objects = [client.object_get(id) for id in s.view().session.session_index]
    histories = [client.object_history(item.object.id) for item in objects]
    return [s.view().session, s.chat(), shown, objects, histories, s.notices(), s.plan()]


@pytest.mark.requirement("DUR-8")
def test_a_journal_behind_a_clients_receipt_becomes_read_only(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            s = client.session("s", agent="a")
            s.user("kept")
        daemon.__exit__()
        shutil.copytree(tmp_path / "state", tmp_path / "old")
        daemon.start()
        with connect_sync(daemon.socket) as client:
            s = client.session("s")
            s.user("acknowledged, and about to be lost")
            receipt = client.last_receipt
            daemon.__exit__()
            shutil.rmtree(tmp_path / "state")
            os.rename(tmp_path / "old", tmp_path / "state")
            daemon.start()
            with pytest.raises(DaemonFault) as caught:
                s.user("more")
            assert caught.value.code == "data_loss"
        with connect_sync(daemon.socket) as other:
            status = other.daemon_status()
            assert (status.state, status.store.state) == ("degraded", "read_only")
            assert receipt is not None
            assert str(receipt.seq) in status.store.reason
            with pytest.raises(DaemonFault) as caught:
                other.session("s").user("nobody writes on")
            assert caught.value.code == "data_loss"
            assert contents(other.session("s")) == ["kept"], "what is there can be read"
