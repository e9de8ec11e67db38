"""What the daemon says of itself, in this process, with a clock that a test sets."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

import anyio
import pytest

from ctxd import memory_trim
from ctxd.daemon import Daemon
from ctxd.daemon_options import Options
from ctxd.observe.logs import open_log
from ctxd_client import connect
from tests.unit.store.running import SteppingClock

pytestmark = pytest.mark.anyio
NOW = 1_900_000_000_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def serving(folder: Path, clock: SteppingClock) -> AsyncIterator[Daemon]:
    options = Options(socket=folder / "ctxd.sock", state_dir=folder / "state")
    daemon = Daemon(options, clock, open_log(stream=StringIO()))
    async with anyio.create_task_group() as group:
        await group.start(daemon.run)
        with anyio.fail_after(20):
            yield daemon
        group.cancel_scope.cancel()


async def test_a_clock_that_ran_ahead_once_degrades_the_daemon_until_it_has_caught_up(tmp_path: Path) -> None:
    clock = SteppingClock(NOW)
    async with serving(tmp_path, clock) as daemon, connect(daemon.status().socket) as client:
        await client.session_create("a", session="s1")
        assert (daemon.status().state, daemon.status().store.reason) == ("ready", "")
        clock.wall = NOW + 600_000
        await client.session_create("a", session="s2")
        clock.wall = NOW
        status = await client.daemon_status()
        assert (status.state, status.store.state) == ("degraded", "ok")
        assert "ahead of the host's clock" in status.store.reason
        await client.session_create("a", session="s3")
        clock.wall = NOW + 600_000
        assert (await client.daemon_status()).state == "ready"


@pytest.mark.requirement("IMP-12")
async def test_the_daemon_trims_its_memory_when_commits_have_made_it_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed = threading.Event()
    sizes = iter(range(0, 1 << 40, 2 * memory_trim.GROWTH_BYTES))
    monkeypatch.setattr(memory_trim, "PAUSE_S", 0.01)
    monkeypatch.setattr(memory_trim, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(memory_trim, "trim", trimmed.set)
    async with serving(tmp_path, SteppingClock(NOW)) as daemon, connect(daemon.status().socket) as client:
        await client.session_create("a", session="s1")
        assert not trimmed.is_set()
        await client.commit_checkpoint("raw", "text")
        with anyio.fail_after(10):
            while not trimmed.is_set():
                await anyio.sleep(0.01)
