"""Acknowledged means durable: a real daemon under load, killed at random moments and at every named place of its write
path.

``CTXD_KILLS`` sets the number of random kills, ``CTXD_SEED`` repeats a run's choices. Every failure prints its seed.
"""

import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from ctxd import failpoints
from tests.crash.daemon import DaemonProcess, NotReady, daemon_process
from tests.crash.history import History, Key, check
from tests.crash.journal import chains
from tests.crash.load import LoadClient, Recorder, read_list, read_object

KILLS = int(os.environ.get("CTXD_KILLS", "200"))
CLIENTS = 12
SESSIONS = 4
KILLS_PER_SESSION = 20
"""Kills after which the clients go on in new sessions, so that lists stay short enough to be read often."""

LOAD_S = (0.005, 0.12)
"""Seconds of load between two kills, least and most."""

DURING_START = 0.1
"""Share of kills that strike a daemon that is not up yet."""

LARGE = 0.05
"""Share of tool calls whose output is too large for the database."""

ENDED_BY_SIGTERM = {"checkpoint.start", "checkpoint.end", "drain.start"}
IN_ANOTHER_PROCESS = {"backup.copy"}
IN_THE_DAEMON = sorted(failpoints.NAMES - IN_ANOTHER_PROCESS)

pytestmark = pytest.mark.timeout(420)


class Storm:
    """One daemon, its clients, and the choices of one seed."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.seed = int(os.environ.get("CTXD_SEED", random.SystemRandom().randrange(2**32)))
        print(f"CTXD_SEED={self.seed}")
        self.rng = random.Random(self.seed)
        self.daemon = daemon
        self.recorder = Recorder(daemon.socket, self.seed)
        self._generations = 0

    async def new_sessions(self) -> None:
        self._generations += 1
        await self.recorder.create_sessions(*(f"s{self._generations}-{n}" for n in range(SESSIONS)))

    async def start(self) -> None:
        await self.daemon.start()
        self.recorder.daemon_is_up()

    async def kill(self) -> None:
        self.recorder.daemon_is_down()
        assert await self.daemon.kill() == -signal.SIGKILL, self.daemon.said()

    async def under_load(self, nemesis: Callable[[], Awaitable[None]], *, large: float = 0.0) -> None:
        """Run clients while ``nemesis`` does its work; the daemon is up when it returns, and every client has ended."""
        await self.start()
        await self.new_sessions()
        async with anyio.create_task_group() as tasks:
            for number in range(CLIENTS):
                tasks.start_soon(LoadClient(self.recorder, f"c{number}", large=large).run)
            await nemesis()
            self.recorder.stopping = True

    async def judge(self) -> None:
        """Assert that nothing that was promised is broken: the state as it lies on disk, and the history."""
        assert await self.daemon.stop() == 0, self.daemon.said()
        code, report = await self.daemon.verify()
        assert code == 0, report
        journal = chains(self.daemon.state_dir)
        await self.daemon.start()
        history = History(self.recorder.events, await self._finals(), journal)
        assert await self.daemon.stop() == 0, self.daemon.said()
        print(dict(sorted(self.recorder.counts.items())))
        assert check(history)[:10] == []

    async def _finals(self) -> dict[str, dict[Key, tuple[str, ...]]]:
        keys = sorted({(event.session, event.list) for event in self.recorder.events})
        latest = max(event.receipt.vt for event in self.recorder.events if event.receipt is not None)
        async with await self.recorder.connect() as wire:
            return {
                "session": {key: await read_list(wire, *key) for key in keys},
                "object": {key: await read_object(wire, *key) for key in keys},
                "as of the end": {key: await read_object(wire, *key, latest + 3_600_000) for key in keys},
            }


@pytest.mark.anyio
async def test_no_acknowledged_write_is_lost_or_applied_twice_over_random_kills(tmp_path: Path) -> None:
    with daemon_process(tmp_path) as daemon:
        storm = Storm(daemon)

        async def nemesis() -> None:
            for number in range(1, KILLS + 1):
                await anyio.sleep(storm.rng.uniform(*LOAD_S))
                await storm.kill()
                if storm.rng.random() < DURING_START:
                    daemon.launch()
                    await anyio.sleep(storm.rng.uniform(0, 0.4))
                    await storm.kill()
                await storm.start()
                if number % KILLS_PER_SESSION == 0:
                    await storm.new_sessions()

        await storm.under_load(nemesis)
        assert storm.recorder.counts["resent"] > KILLS / 4, "too few calls were in flight when the daemon was killed"
        await storm.judge()


@pytest.mark.anyio
async def test_no_acknowledged_write_is_lost_or_applied_twice_over_a_kill_at_every_failpoint(tmp_path: Path) -> None:
    with daemon_process(tmp_path) as daemon:
        storm = Storm(daemon)

        async def die_at(name: str, number: int) -> None:
            storm.recorder.daemon_is_down()
            try:
                await daemon.start(failpoints=f"{name}=kill@{number}")
            except NotReady:
                assert daemon.exit_code == -signal.SIGKILL, f"{name}: {daemon.said()}"
                return
            storm.recorder.daemon_is_up()
            if name in ENDED_BY_SIGTERM:
                await anyio.sleep(0.1)
                daemon.send(signal.SIGTERM)
            code = await daemon.ended()
            assert code == -signal.SIGKILL, f"{name}=kill@{number} was not hit, exit code {code}: {daemon.said()}"

        async def nemesis() -> None:
            for name in IN_THE_DAEMON:
                await storm.kill()
                for number in (1, 1 if name in ENDED_BY_SIGTERM else storm.rng.randint(2, 8)):
                    await die_at(name, number)
                await storm.start()

        await storm.under_load(nemesis, large=LARGE)
        await storm.judge()


@pytest.mark.anyio
async def test_a_backup_that_is_killed_leaves_the_state_as_it_was_and_the_next_one_works(tmp_path: Path) -> None:
    with daemon_process(tmp_path) as daemon:
        storm = Storm(daemon)

        async def backup(target: Path, **env: str) -> int:
            command = [sys.executable, "-m", "ctxd", "backup", str(target), "--state-dir", str(daemon.state_dir)]
            done = await anyio.run_process(command, check=False, env={**os.environ, **env})
            return done.returncode

        async def nemesis() -> None:
            await anyio.sleep(0.2)
            for number in range(2):
                code = await backup(tmp_path / f"killed{number}", CTXD_FAILPOINTS="backup.copy=kill")
                assert code == -signal.SIGKILL, "backup.copy was not hit"
            assert await backup(tmp_path / "whole") == 0

        await storm.under_load(nemesis)
        await storm.judge()


def test_every_failpoint_is_killed_at_by_this_suite() -> None:
    """The kills above assert that their place was hit; this holds the list of places to the registry."""
    assert {*IN_THE_DAEMON, *IN_ANOTHER_PROCESS} == failpoints.NAMES
