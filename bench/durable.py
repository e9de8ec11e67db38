"""What an acknowledged, durable write costs over the disk's own price for it.

Expected order of growth: O(1) a write, whatever was written before; group commit makes the flush O(1/connections) a
write.

``durable_writes`` is a ratio, measured side by side in one run: ``toolcall.record`` calls of 1.5 KB that the daemon
acknowledges at 50 closed-loop connections, over what a bare server commits of the same rows, same tables, same bytes,
with the same settings (``bench.bare_commit``), under the same load process (``bench.closed_loop``). Both have
write-ahead log and ``synchronous=FULL``; each answer is sent after its flush. The two take turns, and the best round of
each counts: what else the machine does only takes away. This kind of machine flushes in less than 0.1 ms, so the other
two figures are taken with 2 ms more for each flush.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.closed_loop import Measured
from bench.figures import Figure
from bench.running import cpu_seconds, daemon, folder, quick, serving

CONNECTIONS = 50
CONTENT_BYTES = 1500
SLOW_FLUSH = "journal.flush=sleep:2ms"


def load(socket: Path, run: str, seconds: float) -> Measured:
    """One run of the load process."""
    command = [sys.executable, "-m", "bench.closed_loop", str(socket), "--seconds", str(seconds), "--run", run]
    command += ["--connections", str(CONNECTIONS), "--content-bytes", str(CONTENT_BYTES)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    measured = msgspec.json.decode(done.stdout, type=Measured)
    if measured.errors:
        raise RuntimeError(f"{measured.errors} of {measured.writes} calls failed")
    return measured


class Round(NamedTuple):
    """One run of the load against one server, and the processor time of that server for each write, in microseconds."""

    load: Measured
    cpu_us: float


def one_round(process: subprocess.Popen[bytes], socket: Path, seconds: float) -> Round:
    """Load a server that nobody else uses."""
    before = cpu_seconds(process.pid)
    measured = load(socket, "run", seconds)
    return Round(measured, (cpu_seconds(process.pid) - before) / measured.answered * 1e6)


def side_by_side(place: Path, seconds: float, rounds: int) -> tuple[list[Round], list[Round]]:
    """Rounds of the daemon and of the bare server, in turns. Each begins on an empty database."""
    model = place / "model"
    with daemon(place / "model.sock", model):
        load(place / "model.sock", "model", 1.0)
    ours, theirs = [], []
    for number in range(rounds):
        socket = place / f"d{number}.sock"
        with daemon(socket, place / f"d{number}") as process:
            ours.append(one_round(process, socket, seconds))
        bare = place / f"b{number}.sock"
        arguments = ["-m", "bench.bare_commit", str(bare), str(place / f"b{number}.db"), str(database(model))]
        with serving(arguments, bare) as process:
            theirs.append(one_round(process, bare, seconds))
        for name, (measured, cpu_us) in (("daemon", ours[-1]), ("bare", theirs[-1])):
            print(
                f"  {name} {measured.per_second:,.0f}/s, {cpu_us:.0f} us of processor each", file=sys.stderr, flush=True
            )
    return ours, theirs


def database(state: Path) -> Path:
    """The one database file below a state directory."""
    (found,) = [path for path in state.rglob("*.db") if path.stat().st_size]
    return found


def run() -> Iterator[Figure]:
    """See the module."""
    seconds, rounds = (1.0, 3) if quick() else (1.5, 6)
    with folder() as place:
        ours, theirs = side_by_side(place, seconds, rounds)
        best = max(ours, key=lambda one: one.load.per_second).load.per_second
        bare = max(theirs, key=lambda one: one.load.per_second).load.per_second
        detail = f"{best:,.0f}/s, bare group commit {bare:,.0f}/s; {CONNECTIONS} connections, WAL, sync FULL"
        yield Figure(name="durable_writes", value=best / bare, goal=0.5, better="higher", detail=detail)
        cpu = min(one.cpu_us for one in ours)
        detail = f"us of processor a write, bare group commit {min(one.cpu_us for one in theirs):.0f} us"
        yield Figure(name="durable_writes_cpu", value=cpu, goal=None, better="lower", detail=detail)
        with daemon(place / "slow.sock", place / "slow", failpoints=SLOW_FLUSH):
            slow = max((load(place / "slow.sock", f"run{n}", seconds) for n in range(3)), key=lambda m: m.per_second)
    detail = f"{CONNECTIONS} connections, closed loop, 2 ms added to each flush, p50 {slow.p50_ms:.1f} ms"
    yield Figure(name="durable_writes_2ms", value=slow.per_second, goal=1500, better="higher", detail=detail)
    yield Figure(name="durable_writes_2ms_p99", value=slow.p99_ms, goal=60, better="lower", detail="ms; " + detail)
