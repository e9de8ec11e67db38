"""Cost of a flooding client to the others.

``isolation`` is a ratio, measured in one run: the p99 of a client that calls at a steady pace, while another process
sends calls without end on four connections, over its p99 on the quiet daemon. Reads and durable writes of the victim
are measured apart, and so are floods of several kinds: the worst pair counts. The daemon has one
processor to itself; victim and flood share the other, and the flood stands back there. Quiet and flooded times take
turns, and the lowest p99 of either counts: what else the machine does only adds, and it adds more to a busy daemon.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench import running
from bench.durable import processor
from bench.figures import Figure
from bench.isolation_load import CONNECTIONS, METHODS, Taken

GOAL = 2.0


def run() -> Iterator[Figure]:
    """See the module."""
    rounds, seconds = (4, 1.0) if running.quick() else (6, 1.5)
    with running.folder() as place, ExitStack() as stack:
        path = place / "ctxd.sock"
        with processor(0):
            stack.enter_context(running.daemon(path, place / "state"))
        victim = stack.enter_context(loading("victim", path))
        measured(victim, 0.5)
        ratios: dict[str, float] = {}
        for flood in METHODS:
            pairs = [side_by_side(victim, path, flood, seconds) for _ in range(rounds)]
            for kind in ("reads", "writes"):
                quiet, flooded = (min(p99(getattr(pair[side], kind)) for pair in pairs) for side in (0, 1))
                name = f"{kind} beside a flood of {flood}"
                ratios[name] = flooded / quiet
                detail = f"p99 {flooded * 1e3:.2f} ms over {quiet * 1e3:.2f} ms"
                print(f"  {name}: {detail}", file=sys.stderr, flush=True)
        worst = max(ratios, key=lambda name: ratios[name])
        others = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        detail = f"p99 over quiet p99, {CONNECTIONS} flooding connections: {others}"
        yield Figure(name="isolation", value=ratios[worst], goal=GOAL, better="lower", detail=detail)


def side_by_side(victim: subprocess.Popen[bytes], path: Path, flood: str, seconds: float) -> tuple[Taken, Taken]:
    """The victim's measurements on the quiet daemon, and then beside the flood."""
    quiet = measured(victim, seconds)
    with loading(flood, path) as flooder:
        measured(victim, 0.3)
        flooded = measured(victim, seconds)
        if flooder.poll() is not None:
            raise RuntimeError(f"the flood of {flood} ended by itself")
    return quiet, flooded


@contextmanager
def loading(role: str, path: Path, *session: str) -> Iterator[subprocess.Popen[bytes]]:
    """A load process, ended afterwards; a flood is of ``session``, if one is given."""
    command = [sys.executable, "-m", "bench.isolation_load", role, str(path), *session]
    with (
        processor(-1),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def measured(victim: subprocess.Popen[bytes], seconds: float) -> Taken:
    """One measurement by the victim."""
    assert victim.stdin is not None and victim.stdout is not None, "both are pipes"
    victim.stdin.write(b"%f\n" % seconds)
    victim.stdin.flush()
    return msgspec.json.decode(victim.stdout.readline(), type=Taken)


def p99(taken: list[float]) -> float:
    """The 99th percentile of an ordered list."""
    return taken[len(taken) * 99 // 100]
