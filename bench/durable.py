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

import msgspec

from bench.closed_loop import Measured
from bench.figures import Figure
from bench.running import daemon, folder, quick, serving

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


def side_by_side(place: Path, seconds: float, rounds: int) -> list[tuple[Measured, Measured]]:
    """Pairs of (daemon, bare server), measured in turns. Each run starts on an empty database."""
    model = place / "model"
    with daemon(place / "model.sock", model):
        load(place / "model.sock", "model", 1.0)
    pairs = []
    for number in range(rounds):
        with daemon(place / f"d{number}.sock", place / f"d{number}"):
            ours = load(place / f"d{number}.sock", "run", seconds)
        bare = place / f"b{number}.sock"
        arguments = ["-m", "bench.bare_commit", str(bare), str(place / f"b{number}.db"), str(database(model))]
        with serving(arguments, bare):
            theirs = load(bare, "run", seconds)
        print(f"  daemon {ours.per_second:,.0f}/s, bare {theirs.per_second:,.0f}/s", file=sys.stderr, flush=True)
        pairs.append((ours, theirs))
    return pairs


def database(state: Path) -> Path:
    """The one database file below a state directory."""
    (found,) = [path for path in state.rglob("*.db") if path.stat().st_size]
    return found


def run() -> Iterator[Figure]:
    """See the module."""
    seconds, rounds = (1.0, 3) if quick() else (1.5, 6)
    with folder() as place:
        pairs = side_by_side(place, seconds, rounds)
        ours = max(pair[0].per_second for pair in pairs)
        bare = max(pair[1].per_second for pair in pairs)
        yield Figure(
            name="durable_writes",
            value=ours / bare,
            goal=0.5,
            better="higher",
            detail=f"{ours:,.0f}/s, bare group commit {bare:,.0f}/s; {CONNECTIONS} connections, WAL, sync FULL",
        )
        with daemon(place / "slow.sock", place / "slow", failpoints=SLOW_FLUSH):
            slow = max((load(place / "slow.sock", f"run{n}", seconds) for n in range(3)), key=lambda m: m.per_second)
    detail = f"{CONNECTIONS} connections, closed loop, 2 ms added to each flush, p50 {slow.p50_ms:.1f} ms"
    yield Figure(name="durable_writes_2ms", value=slow.per_second, goal=1500, better="higher", detail=detail)
    yield Figure(name="durable_writes_2ms_p99", value=slow.p99_ms, goal=60, better="lower", detail="ms; " + detail)
