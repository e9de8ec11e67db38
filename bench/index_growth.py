"""Indexing many files in one session: time and bytes grow with what is indexed, not with what was indexed before.

Expected order of growth: O(n) in files, for time and for stored bytes. A file costs its document, its text once, and a
delta of the session; the session's state is written whole only when its deltas have outgrown it, which makes O(1) a
file. So ten times the files may take at most twelve times the time and bytes (n log n of the B-trees is in that),
where rewriting the session for each file would take a hundred times.

The daemon reads the files itself, over its socket, with every write acknowledged after its flush.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure
from bench.running import Caller, daemon, folder, quick

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


def indexed(place: Path, files: int) -> tuple[float, int]:
    """Seconds to index so many files in one session, and the bytes of state that they came to."""
    source = place / f"tree{files}"
    paths = tree(source, files)
    socket, state = place / f"g{files}.sock", place / f"g{files}"
    with daemon(socket, state):
        with Caller(socket) as caller:
            caller.call("session.create", agent="bench", session="growth", workdir=str(source))
            began = time.perf_counter()
            for path in paths:
                caller.call("file.index", session="growth", path=str(path))
            seconds = time.perf_counter() - began
    stored = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    print(f"  {files:,} files: {seconds:.2f} s, {stored / 2**20:.1f} MiB stored", file=sys.stderr, flush=True)
    return seconds, stored


def run() -> Iterator[Figure]:
    """See the module."""
    sizes = (300, 1_000, 3_000) if quick() else SIZES
    with folder() as place:
        measured = {files: indexed(place, files) for files in sizes}
    small, large = sizes[0], sizes[-1]
    detail = ", ".join(
        f"{files:,}: {seconds:.2f} s {stored / 2**20:.1f} MiB" for files, (seconds, stored) in measured.items()
    )
    time_ratio = measured[large][0] / measured[small][0]
    bytes_ratio = measured[large][1] / measured[small][1]
    yield Figure(name="index_growth_time", value=time_ratio, goal=RATIO_MAX, better="lower", detail=detail)
    yield Figure(name="index_growth_bytes", value=bytes_ratio, goal=RATIO_MAX, better="lower", detail=detail)
    amplification = measured[large][1] / (large * FILE_BYTES)
    yield Figure(
        name="index_bytes_over_content", value=amplification, goal=4.0, better="lower", detail=f"{large:,} files"
    )
    thousand = measured[1_000][0]
    yield Figure(name="index_1000_files_s", value=thousand, goal=2.0, better="lower", detail="one call a file, in turn")
