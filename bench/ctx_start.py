"""Time that a shell waits for the program: ``ctx --version``, and ``ctx current`` beside a daemon that never answers.

Each is the shortest of some runs, since what else the machine does only adds. A bare interpreter is shown beside them.
"""

import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from bench import running
from bench.figures import Figure

VERSION_GOAL_S = 0.5
CURRENT_GOAL_S = 0.2

CTX = str(Path(sysconfig.get_path("scripts"), "ctx"))
NOT_FOUND = 3


def run() -> Iterator[Figure]:
    """Return the seconds of both commands."""
    runs = 5 if running.quick() else 20
    bare = shortest([sys.executable, "-c", ""], runs, exit_code=0)
    version = shortest([CTX, "--version"], runs, exit_code=0)
    with running.folder() as place, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(place / "silent.sock"))
        silent.listen(runs)
        current = shortest([CTX, "current"], runs, exit_code=NOT_FOUND, CTXD_SOCKET=str(place / "silent.sock"))
    detail = f"s, shortest of {runs}; a bare interpreter takes {bare:.3f}"
    yield Figure(name="start_version", value=version, goal=VERSION_GOAL_S, better="lower", detail=detail)
    yield Figure(name="start_current", value=current, goal=CURRENT_GOAL_S, better="lower", detail=detail)


def shortest(command: list[str], runs: int, *, exit_code: int, **environ: str) -> float:
    """Return the seconds of the fastest run. Raises: RuntimeError if one ends with another exit code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CTXD_", "GIT_"))}
    took: list[float] = []
    for _ in range(runs):
        began = time.perf_counter()
        done = subprocess.run(command, env=kept | environ, capture_output=True, timeout=60)
        took.append(time.perf_counter() - began)
        if done.returncode != exit_code:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode()}")
    return min(took)
