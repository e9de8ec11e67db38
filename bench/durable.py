"""What an acknowledged, durable write costs over the disk's own price for it.

Expected order of growth: O(1) a write, whatever was written before; group commit makes the flush O(1/connections) a
write.

``durable_writes`` is a ratio, measured side by side in one run: ``toolcall.record`` calls of 1.5 KB that the daemon
acknowledges at 50 closed-loop connections, over what a bare server commits of the same rows (``bench.bare_commit`` says
which) with the same settings under the same load process (``bench.closed_loop``). Both have write-ahead log and
``synchronous=FULL``; each answer is sent after its flush. Either server has one processor to itself, the load has
another. The two take turns, and the median of the rounds' ratios counts. This kind of machine flushes in less than
0.1 ms, so the other two figures are taken with 2 ms more for each flush.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.closed_loop import Measured
from bench.figures import Figure
from bench.running import cpu_seconds, folder, quick, serving

CONNECTIONS = 50
CONTENT_BYTES = 1500
RUN = "run"
"""How names of sessions and calls begin: alike in every run, so that all rows are of equal length."""

SLOW_FLUSH = "journal.flush=sleep:2ms"


@contextmanager
def processor(place: int) -> Iterator[None]:
    """What is started inside stays on one of this process's processors: 0 for a server, -1 for the load."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[place]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)


def load(socket: Path, seconds: float) -> Measured:
    """One run of the load process."""
    command = [sys.executable, "-m", "bench.closed_loop", str(socket), "--seconds", str(seconds), "--run", RUN]
    command += ["--connections", str(CONNECTIONS), "--content-bytes", str(CONTENT_BYTES)]
    with processor(-1):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    measured = msgspec.json.decode(done.stdout, type=Measured)
    if measured.errors:
        raise RuntimeError(f"{measured.errors} of {measured.writes} calls failed")
    return measured


class Round(NamedTuple):
    """One run of the load against one server, and the processor time of that server for each write, in microseconds."""

    load: Measured
    cpu_us: float


def one_round(socket: Path, arguments: list[str], seconds: float, *, failpoints: str = "") -> Round:
    """Load a new server, ``python ARGUMENTS``, that nobody else uses."""
    with ExitStack() as stack:
        with processor(0):
            process = stack.enter_context(serving(arguments, socket, failpoints=failpoints))
        before = cpu_seconds(process.pid)
        measured = load(socket, seconds)
        return Round(measured, (cpu_seconds(process.pid) - before) / measured.answered * 1e6)


def daemon_round(place: Path, name: str, seconds: float, *, failpoints: str = "") -> Round:
    """Load a new daemon, whose state is in the folder ``name`` afterwards."""
    socket = place / f"{name}.sock"
    arguments = ["-m", "ctxd", "run", "--state-dir", str(place / name), "--socket", str(socket)]
    return one_round(socket, arguments, seconds, failpoints=failpoints)


def side_by_side(place: Path, seconds: float, rounds: int) -> list[tuple[Round, Round]]:
    """Rounds of the daemon and of the bare server, in turns. Each begins on an empty database."""
    daemon_round(place, "model", 1.0)
    model = place / "model" / "state.db"
    pairs = []
    for number in range(rounds):
        bare = place / f"b{number}.sock"
        arguments = ["-m", "bench.bare_commit", str(bare), str(place / f"b{number}.db"), str(model)]
        pairs.append((daemon_round(place, f"d{number}", seconds), one_round(bare, arguments, seconds)))
        for name, (measured, cpu_us) in zip(("daemon", "bare"), pairs[-1], strict=True):
            print(
                f"  {name} {measured.per_second:,.0f}/s, {cpu_us:.0f} us of processor each", file=sys.stderr, flush=True
            )
    return pairs


def run() -> Iterator[Figure]:
    """See the module."""
    seconds, rounds = (1.0, 5) if quick() else (1.5, 9)
    with folder() as place:
        yield from _figures(side_by_side(place, seconds, rounds))
        slow = [daemon_round(place, f"slow{n}", seconds, failpoints=SLOW_FLUSH).load for n in range(3)]
    best = max(slow, key=lambda measured: measured.per_second)
    detail = f"{CONNECTIONS} connections, closed loop, 2 ms added to each flush, p50 {best.p50_ms:.1f} ms"
    yield Figure(name="durable_writes_2ms", value=best.per_second, goal=1500, better="higher", detail=detail)
    yield Figure(name="durable_writes_2ms_p99", value=best.p99_ms, goal=60, better="lower", detail="ms; " + detail)


def _figures(pairs: list[tuple[Round, Round]]) -> Iterator[Figure]:
    median = statistics.median
    rates = [median(pair[side].load.per_second for pair in pairs) for side in (0, 1)]
    ratio = median(ours.load.per_second / bare.load.per_second for ours, bare in pairs)
    detail = f"{rates[0]:,.0f}/s, bare group commit {rates[1]:,.0f}/s; {CONNECTIONS} connections, WAL, sync FULL"
    yield Figure(name="durable_writes", value=ratio, goal=0.55, better="higher", detail=detail)
    ours_us, bare_us = (median(pair[side].cpu_us for pair in pairs) for side in (0, 1))
    detail = f"us of processor a write, bare group commit {bare_us:.0f} us"
    yield Figure(name="durable_writes_cpu", value=ours_us, goal=None, better="lower", detail=detail)
