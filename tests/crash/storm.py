"""A daemon, clients that load it while something is done to it, and the judgement afterwards."""

import os
import random
import signal
from collections.abc import Awaitable, Callable

import anyio

from tests.crash.daemon import DaemonProcess
from tests.crash.history_check import History, Key, check
from tests.crash.journal import chains
from tests.crash.load import LoadClient, Recorder, read_list, read_object

CLIENTS = 12
SESSIONS = 4


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
        try:
            async with anyio.create_task_group() as tasks:
                for number in range(CLIENTS):
                    tasks.start_soon(LoadClient(self.recorder, f"c{number}", large=large).run)
                await nemesis()
                self.recorder.stopping = True
        except BaseException as failure:
            failure.add_note(self.daemon.said())
            raise

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
