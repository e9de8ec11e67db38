"""What the daemon does when the disk or a signal does its worst: it refuses, says so, and loses nothing."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest

from tests.crash.daemon import DaemonProcess, daemon_process
from tests.crash.load import read_list
from tests.crash.storm import Storm
from tests.crash.wire import Gone, Refused, Wire
from tests.small_disk import mounted

DISK_MIB = 96
RESUMES_S_MAX = 30.0

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own with ``DISK_MIB`` of room."""
    with mounted(tmp_path / "disk", DISK_MIB) as place:
        yield place


async def record(wire: Wire, number: int, size: int = 1500) -> str:
    """Keep a tool call in session ``s``; its id."""
    id = f"call-{number}"
    await wire.call("toolcall.record", session="s", id=id, tool="bash", content=f"{number} " + "x" * size)
    return id


async def until_refused(wire: Wire, kept: list[str]) -> Refused:
    """Write until a write is refused; what was acknowledged before goes to ``kept``."""
    for _ in range(20_000):
        try:
            kept.append(await record(wire, len(kept)))
        except Refused as refusal:
            return refusal
    raise AssertionError("no write was refused")


async def until_kept(wire: Wire, kept: list[str]) -> None:
    """Write until a write is taken again."""
    with anyio.fail_after(RESUMES_S_MAX):
        while True:
            try:
                kept.append(await record(wire, len(kept)))
                return
            except Refused as refusal:
                assert refusal.code == "disk_full", refusal
                await anyio.sleep(0.05)


def fill(place: Path) -> Path:
    """Take every free byte of the filesystem at ``place``."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (2**20, 2**12):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return ballast


@pytest.mark.anyio
@pytest.mark.requirement("DUR-3")
async def test_a_full_disk_refuses_writes_answers_reads_and_takes_writes_again_by_itself(small_disk: Path) -> None:
    with daemon_process(small_disk) as daemon:
        await daemon.start()
        async with await Wire.open(daemon.socket) as wire:
            await wire.call("session.create", agent="a", session="s")
            kept = [await record(wire, 0)]
            ballast = await anyio.to_thread.run_sync(fill, small_disk)
            refusal = await until_refused(wire, kept)
            assert (refusal.code, refusal.outcome, refusal.retryable) == ("disk_full", "not_applied", True)
            assert (await wire.call("daemon.status"))["store"]["state"] == "read_only"
            assert await read_list(wire, "s", "index") == tuple(kept)
            assert (await wire.call("object.get", object=kept[0]))["object"]["payload"]["content"].startswith("0 x")
            ballast.unlink()
            await until_kept(wire, kept)
            assert (await wire.call("daemon.status"))["store"]["state"] == "ok"
            assert await read_list(wire, "s", "index") == tuple(kept)
            # The log was on the full disk too when writes began to be refused.
            assert "store.writable" in daemon.log.read_text()
        assert await daemon.stop() == 0
        assert (await daemon.verify())[0] == 0


@pytest.mark.anyio
@pytest.mark.requirement("DUR-3", "BOX-4")
async def test_a_sandbox_that_cannot_be_released_for_a_full_disk_stays_whole(small_disk: Path) -> None:
    with daemon_process(small_disk) as daemon:
        await daemon.start()
        async with await Wire.open(daemon.socket) as wire:
            await wire.call("session.create", agent="a", session="s", filesystem_id="b" * 64)
            box = (await wire.call("sandbox.register", sessions=["s"], ttl_s=600))["sandbox"]
            kept: list[str] = []
            ballast = await anyio.to_thread.run_sync(fill, small_disk)
            await until_refused(wire, kept)
            with pytest.raises(Refused) as refusal:
                await wire.call("sandbox.release", sandbox=box["sandbox"])
            assert (refusal.value.code, refusal.value.outcome) == ("disk_full", "not_applied")
            assert Path(box["directory"], "current.json").exists()
            async with await Wire.open(Path(box["socket"])) as inside:
                assert (await inside.call("context.current"))["session"] == "s"
            (listed,) = (await wire.call("sandbox.list"))["sandboxes"]
            assert listed["sandbox"] == box["sandbox"]
            ballast.unlink()
            await until_kept(wire, kept)
            await wire.call("sandbox.release", sandbox=box["sandbox"])
            assert not Path(box["directory"]).exists()
        assert await daemon.stop() == 0


@pytest.mark.anyio
@pytest.mark.requirement("DUR-3")
async def test_a_full_disk_rejects_the_commit_and_later_writes_succeed(daemon: DaemonProcess) -> None:
    await daemon.start(failpoints="journal.commit=error:ENOSPC*2@5")
    async with await Wire.open(daemon.socket) as wire:
        await wire.call("session.create", agent="a", session="s")
        kept: list[str] = []
        refusal = await until_refused(wire, kept)
        assert (refusal.code, refusal.outcome) == ("disk_full", "not_applied")
        assert await read_list(wire, "s", "index") == tuple(kept)
        await until_kept(wire, kept)
        assert await read_list(wire, "s", "index") == tuple(kept)


@pytest.mark.anyio
@pytest.mark.requirement("DUR-4")
async def test_a_failed_flush_ends_the_daemon_and_nothing_that_was_acknowledged_is_lost(tmp_path: Path) -> None:
    with daemon_process(tmp_path) as daemon:
        storm = Storm(daemon)

        async def nemesis() -> None:
            for number in (1, 3, 20):
                storm.recorder.daemon_is_down()
                assert await daemon.stop() == 0
                daemon.launch(failpoints=f"journal.flush=error:EIO@{number}")
                storm.recorder.daemon_is_up()
                assert await daemon.ended() == os.EX_IOERR, daemon.said()
                storm.recorder.daemon_is_down()
                await storm.start()
                await anyio.sleep(0.1)

        await storm.under_load(nemesis)
        await storm.judge()


@pytest.mark.anyio
@pytest.mark.requirement("DUR-4")
async def test_nothing_is_acknowledged_once_a_flush_has_failed(daemon: DaemonProcess) -> None:
    await daemon.start()
    async with await Wire.open(daemon.socket) as wire:
        await wire.call("session.create", agent="a", session="s")
    await daemon.stop()
    await daemon.start(failpoints="journal.flush=error:EIO@2")
    acknowledged: list[str] = []
    async with await Wire.open(daemon.socket) as wire:
        lines = [
            {
                "jsonrpc": "2.0",
                "id": n,
                "method": "toolcall.record",
                "params": {"session": "s", "id": f"c{n}", "tool": "t", "content": ""},
            }
            for n in range(30)
        ]
        await wire.send(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        try:
            while True:
                reply = msgspec.json.decode(await wire.line())
                assert "result" in reply or reply["error"]["data"]["code"] in ("store_failed", "draining"), reply
                if "result" in reply:
                    acknowledged.append(reply["result"]["object"])
        except Gone:
            pass
    assert await daemon.ended() == os.EX_IOERR
    await daemon.start()
    async with await Wire.open(daemon.socket) as wire:
        there = await read_list(wire, "s", "index")
    assert set(acknowledged) <= set(there)
    assert len(acknowledged) < 30


@pytest.mark.anyio
@pytest.mark.requirement("DUR-5")
async def test_a_second_daemon_on_the_same_state_ends_and_names_the_first(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    await daemon.start()
    command = [sys.executable, "-m", "ctxd", "run", "--state-dir", str(daemon.state_dir)]
    for place in (tmp_path / "other.sock", daemon.socket):
        done = await anyio.run_process([*command, "--socket", str(place)], check=False)
        assert done.returncode == os.EX_TEMPFAIL
        assert str(daemon.pid) in (done.stdout + done.stderr).decode()
    async with await Wire.open(daemon.socket) as wire:
        assert (await wire.call("daemon.status"))["pid"] == daemon.pid


@pytest.mark.anyio
@pytest.mark.requirement("OPS-2")
async def test_sigterm_under_load_ends_the_daemon_cleanly_without_loss(tmp_path: Path) -> None:
    with daemon_process(tmp_path) as daemon:
        storm = Storm(daemon)

        async def nemesis() -> None:
            for _ in range(5):
                await anyio.sleep(0.1)
                daemon.send(signal.SIGTERM)
                code = await daemon.ended()
                storm.recorder.daemon_is_down()
                assert code == 0, daemon.said()
                await storm.start()

        await storm.under_load(nemesis)
        await storm.judge()
