"""What a purge costs those who do not purge, and what the size of the store adds to it.

Expected order of growth: O(what is purged), whatever else is stored.

``purge`` is a ratio, measured in one run: the p99 of a client that reads and writes at a steady pace while another one
purges tool calls one after the other, over its p99 on the quiet daemon, in a store of 400 MB. Quiet and purging times
take turns, and the lowest p99 of either counts. ``purge_growth`` is the median time of one purge in that store over
that in a store of 40 MB. A purge is acknowledged durable and complete: nothing of the text is left in any file.
"""

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench import running
from bench.figures import Figure
from bench.isolation import loading, measured, p99

STORE_BYTES = 400_000_000
TEXT_BYTES = 40_000
SMALLER = 10
"""Times that the other store is smaller."""

PAUSE_S = 0.5
"""Pause between two purges: as two clients make that purge once a second."""

FILLERS = 8


def fill(path: Path, total: int) -> int:
    """Record tool calls of ``total`` bytes of text, no two the same. Returns: how many."""
    count = total // TEXT_BYTES
    step = -(-count // FILLERS)

    def record(first: int) -> None:
        with running.Caller(path) as caller:
            for number in range(first, min(first + step, count)):
                text = f"line {number} of what is kept for the bench\n" * (TEXT_BYTES // 40)
                caller.call("toolcall.record", session="filled", id=f"c{number}", tool="t", args={}, content=text)

    with running.Caller(path) as caller:
        caller.call("session.create", agent="bench", session="filled")
    threads = [threading.Thread(target=record, args=[first]) for first in range(0, count, step)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count


def wait_for_index(path: Path) -> None:
    """Return once the search index has all texts: a purge has to erase their words there too."""
    with running.Caller(path) as caller:
        while caller.call("daemon.status")["search"]["lag_rows"]:
            time.sleep(0.2)


class Purging:
    """A client that purges tool calls one after the other while it is entered; ``seconds`` is what each took."""

    def __init__(self, path: Path, ids: Iterator[str]) -> None:
        self._path = path
        self._ids = ids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._purge)
        self.seconds: list[float] = []

    def _purge(self) -> None:
        with running.Caller(self._path) as caller:
            while not self._stop.wait(PAUSE_S):
                began = time.perf_counter()
                done = caller.call("object.purge", object=next(self._ids))
                self.seconds.append(time.perf_counter() - began)
                if not done["complete"]:
                    raise RuntimeError(f"a purge is not complete: {done['residue']}")

    def __enter__(self) -> "Purging":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def sample(victim: subprocess.Popen[bytes], path: Path, ids: Iterator[str], seconds: float) -> dict[str, list[float]]:
    """One quiet and one purging time. Returns: p99s by kind and side in seconds, and how long purges took."""
    quiet = measured(victim, seconds)
    with Purging(path, ids) as purging:
        busy = measured(victim, seconds)
    return {
        "quiet reads": [p99(quiet.reads)],
        "quiet writes": [p99(quiet.writes)],
        "busy reads": [p99(busy.reads)],
        "busy writes": [p99(busy.writes)],
        "purges": purging.seconds,
    }


def store_of(total: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Every sample of a store of ``total`` bytes."""
    with running.folder() as place, ExitStack() as stack:
        path = place / "ctxd.sock"
        stack.enter_context(running.daemon(path, place / "state"))
        ids = (f"c{number}" for number in range(fill(path, total)))
        wait_for_index(path)
        victim = stack.enter_context(loading("victim", path))
        measured(victim, 0.5)
        samples = [sample(victim, path, ids, seconds) for _ in range(rounds)]
    return {name: [value for each in samples for value in each[name]] for name in samples[0]}


def run() -> Iterator[Figure]:
    """See the module."""
    rounds, seconds = (4, 1.5) if running.quick() else (8, 2.0)
    small = store_of(STORE_BYTES // SMALLER, rounds, seconds)
    large = store_of(STORE_BYTES, rounds, seconds)
    for name, found in (("small", small), ("large", large)):
        print(f"  {name}: purge {statistics.median(found['purges']) * 1e3:.1f} ms", file=sys.stderr, flush=True)
    kinds = ("reads", "writes")
    best = {f"{side} {kind}": min(large[f"{side} {kind}"]) for side in ("quiet", "busy") for kind in kinds}
    ratios = {kind: best[f"busy {kind}"] / best[f"quiet {kind}"] for kind in kinds}
    detail = "p99 beside purges over quiet p99 in a 400 MB store: " + ", ".join(
        f"{kind} {best[f'busy {kind}'] * 1e3:.2f} ms over {best[f'quiet {kind}'] * 1e3:.2f} ms" for kind in kinds
    )
    yield Figure(name="purge", value=max(ratios.values()), goal=2.0, better="lower", detail=detail)
    times = [statistics.median(found["purges"]) * 1e3 for found in (small, large)]
    detail = f"median purge {times[1]:.1f} ms in 400 MB over {times[0]:.1f} ms in 40 MB, complete and durable"
    yield Figure(name="purge_growth", value=times[1] / times[0], goal=1.2, better="lower", detail=detail)
