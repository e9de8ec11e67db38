"""What many sandboxes cost, and what one that floods costs the others.

``sandboxes_memory`` and ``sandboxes_idle``: ``COUNT`` sandboxes are registered, each with a session and a live
connection that has greeted; resident memory of the daemon in MB, and its processor time per second while nobody says
anything. Both are expected to grow with the number of sandboxes; memory is shown at three sizes.

``sandbox_isolation``: as ``bench.isolation``, the victim on the host's socket, the flood on those of four sandboxes
with the usual quota: most of what they send is refused. ``sandbox_isolation_unmetered``: one sandbox whose quota lets
all of it through; shown, not held to a goal.
"""

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench import running
from bench.durable import processor
from bench.figures import Figure
from bench.isolation import loading, measured, p99
from bench.isolation_load import METHODS

COUNT = 1000
SIZES = (250, 500, COUNT)
MEMORY_MB_GOAL = 500
IDLE_GOAL = 0.3
ISOLATION_GOAL = 2.0
FLOODERS = 4
FILESYSTEM = "b" * 64
ROOMY = {"connections": 64, "in_flight": 10_000, "requests_per_s": 10_000_000, "writes_per_s": 10_000_000}


def run() -> Iterator[Figure]:
    """See the module."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield from crowd()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield neighbours("sandbox_isolation", FLOODERS, {}, ISOLATION_GOAL)
    yield neighbours("sandbox_isolation_unmetered", 1, ROOMY, None)


def crowd() -> Iterator[Figure]:
    """Memory and idle time of many."""
    with running.folder() as place, ExitStack() as stack:
        path = place / "ctxd.sock"
        process = stack.enter_context(running.daemon(path, place / "state"))
        host = stack.enter_context(running.Caller(path))
        at: dict[int, float] = {0: resident_mb(process.pid)}
        for number in range(COUNT):
            held = stack.enter_context(socket.socket(socket.AF_UNIX))
            held.connect(registered(host, f"s-{number}"))
            held.sendall(b'{"jsonrpc":"2.0","id":1,"method":"hello"}\n')
            held.recv(65_536)
            if number + 1 in SIZES:
                at[number + 1] = resident_mb(process.pid)
        seconds = 3.0 if running.quick() else 10.0
        time.sleep(1.0)
        before = running.cpu_seconds(process.pid)
        time.sleep(seconds)
        idle = (running.cpu_seconds(process.pid) - before) / seconds
        grown = ", ".join(f"{count}: {size:.0f} MB" for count, size in at.items())
        yield Figure(
            name="sandboxes_memory", value=at[COUNT], goal=MEMORY_MB_GOAL, better="lower",
            detail=f"MB resident with {COUNT} sandboxes and connections; {grown}",
        )  # fmt: skip
        yield Figure(
            name="sandboxes_idle", value=idle, goal=IDLE_GOAL, better="lower", detail=f"of a core, over {seconds:g} s"
        )


def neighbours(figure: str, flooders: int, quota: dict[str, int], goal: float | None) -> Figure:
    """What so many flooding sandboxes with ``quota`` cost a client of the host."""
    rounds, seconds = (3, 1.0) if running.quick() else (5, 1.5)
    with running.folder() as place, ExitStack() as stack:
        path = place / "ctxd.sock"
        with processor(0):
            stack.enter_context(running.daemon(path, place / "state"))
        host = stack.enter_context(running.Caller(path))
        boxes = [(f"box-{number}", registered(host, f"box-{number}", quota=quota)) for number in range(flooders)]
        victim = stack.enter_context(loading("victim", path))
        measured(victim, 0.5)
        ratios: dict[str, float] = {}
        for flood in METHODS:
            taken: list[list[tuple[float, float]]] = [[], []]
            for _ in range(rounds):
                quiet = measured(victim, seconds)
                with ExitStack() as flooding:
                    for session, box in boxes:
                        flooding.enter_context(loading(flood, Path(box), session))
                    measured(victim, 0.5)
                    flooded = measured(victim, seconds)
                for side, found in enumerate((quiet, flooded)):
                    taken[side].append((p99(found.reads), p99(found.writes)))
            for kind, name in enumerate(("reads", "writes")):
                least = [min(each[kind] for each in side) for side in taken]
                ratios[f"{name} beside {flood}"] = least[1] / least[0]
                print(f"  {name} beside {flood}: {least[1] * 1e3:.2f} over {least[0] * 1e3:.2f} ms", file=sys.stderr)
    worst = max(ratios, key=lambda name: ratios[name])
    detail = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return Figure(
        name=figure, value=ratios[worst], goal=goal, better="lower",
        detail=f"p99 over quiet p99 beside {flooders} sandboxes of 4 connections each: {detail}",
    )  # fmt: skip


def registered(host: running.Caller, *sessions: str, **settings: object) -> str:
    """The socket of a new sandbox with new sessions."""
    for session in sessions:
        host.call("session.create", agent="bench", session=session, filesystem_id=FILESYSTEM)
    box = host.call("sandbox.register", sessions=sessions, **settings)["sandbox"]
    return str(json.loads(json.dumps(box))["socket"])


def resident_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
