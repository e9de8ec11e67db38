"""What a restart of the daemon costs its clients.

``restart`` is the 99th percentile, in seconds, of how long the calls of twelve clients took that were under way while a
daemon under a service manager was restarted: as often by SIGTERM as by SIGKILL, 100 times each, the worse of the two.
The sockets stay with the manager, so clients wait instead of being refused, and send again what was not answered.
The run fails when a write that was acknowledged is lost, or any is applied twice: a checker judges the whole history.
"""

import signal
from collections.abc import Iterator

import anyio

from bench import running
from bench.figures import Figure
from tests.crash.supervised import Restarts, SupervisedDaemon, answered, p99, restarts_wanted

GOAL_S = 2.0


def run() -> Iterator[Figure]:
    """See the module."""
    with running.folder() as place:
        daemon = SupervisedDaemon(place)
        try:
            restarts = Restarts(daemon, restarts_wanted(10 if running.quick() else 100))
            anyio.run(restarts.run)
        finally:
            daemon.manager.close()
    told = []
    worst = 0.0
    for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGKILL, "SIGKILL")):
        stalls, windows = restarts.stalls(number), restarts.windows[number]
        mean = sum(ready - began for began, ready in windows) / len(windows)
        worst = max(worst, p99(stalls))
        told.append(f"{len(windows)} {name}: p99 {p99(stalls):.2f} s, max {stalls[-1]:.2f} s, down {mean:.2f} s")
    writes = answered(restarts.storm.recorder.events)
    detail = f"{'; '.join(told)}; {writes:,} acknowledged writes, none lost or doubled"
    yield Figure(name="restart", value=worst, goal=GOAL_S, better="lower", detail=detail)
