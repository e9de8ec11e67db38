"""Indexing many files in one session: time and bytes grow with what is indexed, not with what was indexed before.

Expected order of growth: O(n) in files, for time and for stored bytes. A file costs its document, its text once, and a
delta of the session; the session's state is written whole only when its deltas have outgrown it, which makes O(1) a
file. So ten times the files may take at most twelve times the time and bytes (n log n of the B-trees is in that),
where rewriting the session for each file would take a hundred times.

The daemon reads the files itself, over its socket, with every write acknowledged after its flush. The ratio of times
is of the daemon's processor time, which other work on the machine hardly changes; wall time stands beside it.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure
from bench.running import Caller, cpu_seconds, daemon, folder, quick

SIZES = (1_000, 3_000, 10_000)
FILE_BYTES = 1024
RATIO_MAX = 12.0


def tree(place: Path, files: int) -> list[Path]:
    """A tree of distinct files of 1 KiB, a hundred a directory."""
    paths = []
    for number in range(files):
        path = place / f"part{number // 100:03d}" / f"module{number:05d}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = f"# module {number} of {files}\n" + f"value_{number} = {number * number}\n" * 60
        path.write_text(text[: FILE_BYTES - 1] + "\n")
        paths.append(path)
    return paths


class Indexed(NamedTuple):
    """What it took to index files in one session: wall seconds, the daemon's processor seconds, bytes of state."""

    seconds: float
    cpu_seconds: float
    stored: int

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s ({self.cpu_seconds:.2f} s processor), {self.stored / 2**20:.1f} MiB"


def indexed(place: Path, files: int) -> Indexed:
    """Index so many files in one session of a daemon of their own."""
    source = place / f"tree{files}"
    paths = tree(source, files)
    socket, state = place / f"g{files}.sock", place / f"g{files}"
    with daemon(socket, state) as process:
        with Caller(socket) as caller:
            caller.call("session.create", agent="bench", session="growth", workdir=str(source))
            began, cpu_began = time.perf_counter(), cpu_seconds(process.pid)
            for path in paths:
                caller.call("file.index", session="growth", path=str(path))
            seconds, cpu = time.perf_counter() - began, cpu_seconds(process.pid) - cpu_began
    stored = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    result = Indexed(seconds, cpu, stored)
    print(f"  {files:,} files: {result}", file=sys.stderr, flush=True)
    return result


def run() -> Iterator[Figure]:
    """See the module."""
    sizes = (300, 1_000, 3_000) if quick() else SIZES
    with folder() as place:
        measured = {files: indexed(place, files) for files in sizes}
    small, large = measured[sizes[0]], measured[sizes[-1]]
    detail = "; ".join(f"{files:,} files: {what}" for files, what in measured.items())
    time_ratio = large.cpu_seconds / small.cpu_seconds
    yield Figure(name="index_growth_time", value=time_ratio, goal=RATIO_MAX, better="lower", detail=detail)
    bytes_ratio = large.stored / small.stored
    yield Figure(name="index_growth_bytes", value=bytes_ratio, goal=RATIO_MAX, better="lower", detail=detail)
    over = large.stored / (sizes[-1] * FILE_BYTES)
    detail = f"{sizes[-1]:,} files of {FILE_BYTES} bytes"
    yield Figure(name="index_bytes_over_content", value=over, goal=4.0, better="lower", detail=detail)
    thousand = measured[1_000].seconds
    yield Figure(name="index_1000_files_s", value=thousand, goal=2.0, better="lower", detail="one call a file, in turn")
