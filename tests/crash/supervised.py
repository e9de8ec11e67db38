"""A daemon under a service manager that is restarted while clients load it, and how long they stood still for it.

Owns the restarts and the measuring; what was promised is judged as after any other storm.
"""

import math
import os
import signal
import time
from pathlib import Path

import anyio
import anyio.to_thread

from tests.crash.daemon import STOP_S_MAX, DaemonProcess, NotReady
from tests.crash.history_check import Event
from tests.crash.storm import CLIENTS, Storm
from tests.fakes.service_manager import ServiceManager
from tests.waiting import until

LOAD_S = (0.05, 0.4)
"""Seconds of load between two restarts, least and most, from when every client was answered: no call is caught by
two, so that each tells what one restart costs."""

ANSWERED_S_MAX = 30.0
"""Longest wait for every client to be answered after a restart."""

RESTARTS_PER_SESSION = 20
"""Restarts after which the clients go on in new sessions, so that lists stay short enough to be read often."""


class SupervisedDaemon(DaemonProcess):
    """A daemon whose listening socket and whose sandboxes' sockets belong to a manager, which is ``manager``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.manager = ServiceManager(folder)

    def launch(self, *arguments: str, failpoints: str = "") -> None:
        """See ``DaemonProcess.launch``."""
        self.manager.launch(*arguments, failpoints=failpoints)
        self._process = self.manager.process

    async def start(self, *arguments: str, failpoints: str = "") -> float:
        """Start the process and return the seconds until it said that it was ready."""
        began = time.monotonic()
        self.launch(*arguments, failpoints=failpoints)
        try:
            await anyio.to_thread.run_sync(lambda: self.manager.until("READY", seconds=STOP_S_MAX))
        except TimeoutError as error:
            raise NotReady(str(error)) from error
        return time.monotonic() - began


class Restarts:
    """A storm of ``number`` restarts by each of SIGTERM and SIGKILL, in turns."""

    def __init__(self, daemon: SupervisedDaemon, number: int) -> None:
        self.storm = Storm(daemon)
        self._daemon = daemon
        self._number = number
        # From the signal to the next daemon's readiness, by the signal.
        self.windows: dict[int, list[tuple[float, float]]] = {signal.SIGTERM: [], signal.SIGKILL: []}

    async def run(self) -> None:
        """Restart under load, and assert that nothing acknowledged was lost or doubled."""
        await self.storm.under_load(self._nemesis)
        await self.storm.judge()

    async def _nemesis(self) -> None:
        for turn in range(1, 2 * self._number + 1):
            await self._all_answered()
            await anyio.sleep(self.storm.rng.uniform(*LOAD_S))
            number = signal.SIGTERM if turn % 2 else signal.SIGKILL
            began = time.monotonic()
            self._daemon.send(number)
            code = await self._daemon.ended()
            assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL), self._daemon.said()
            await self._daemon.start()
            self.windows[number].append((began, time.monotonic()))
            if turn % RESTARTS_PER_SESSION == 0:
                await self.storm.new_sessions()

    async def _all_answered(self) -> None:
        """Wait until every client has had an answer since now."""
        events, first = self.storm.recorder.events, len(self.storm.recorder.events)
        await until(
            lambda: len({event.client for event in events[first:] if event.type == "ok"}) >= CLIENTS, ANSWERED_S_MAX
        )

    def stalls(self, number: int) -> list[float]:
        """How long the calls took that were under way in a restart by that signal, in seconds, shortest first."""
        events = self.storm.recorder.events
        return sorted(
            event.t1 - event.t0
            for event in events
            if event.type == "ok"
            and any(event.t0 < ready and event.t1 > began for began, ready in self.windows[number])
        )


def p99(times: list[float]) -> float:
    """The 99th percentile of sorted times."""
    return times[math.ceil(len(times) * 0.99) - 1]


def answered(events: list[Event]) -> int:
    """How many writes were acknowledged."""
    return sum(event.op == "append" and event.type == "ok" for event in events)


def restarts_wanted(default: int) -> int:
    """How many restarts by each signal; ``CTXD_RESTARTS`` sets another number."""
    return int(os.environ.get("CTXD_RESTARTS", default))
