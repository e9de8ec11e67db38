"""Runs benches and says whether every figure meets its goal: ``python -m bench [NAME...] [--json] [--quick]``.

A bench is a module of this package in ``BENCHES`` with ``run() -> Iterator[Figure]``. Figures go to standard output,
progress to standard error. ``--quick`` sets ``CTXD_BENCH_QUICK=1``: shorter runs, the same goals. Exit code 1 if a
figure misses its goal or a bench fails, 2 for a wrong name.
"""

import argparse
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator

import msgspec

from bench.figures import Figure

BENCHES = (
    "rpc", "daemon_start", "assembly", "window", "window_replay", "tokens", "request_caching", "resume", "durable",
    "isolation", "flood", "memory", "index_growth", "discovery", "file_tracking", "sandboxes", "restart", "ctx_start",
    "secrets", "purge", "hook", "search", "session_ls", "forks", "commits", "adapters", "materialize", "artifacts",
    "imports", "state_size", "xtdb", "hosts",
)  # fmt: skip


def figures(name: str) -> Iterator[Figure]:
    """The figures of one bench, as they come."""
    yield from importlib.import_module(f"bench.{name}").run()


def row(figure: Figure) -> str:
    """One line of the table."""
    goal = "" if figure.goal is None else f"{'>=' if figure.better == 'higher' else '<='} {figure.goal:,g}"
    verdict = "" if figure.goal is None else "ok" if figure.ok else "MISSED"
    return f"{figure.name:<34} {figure.value:>14,.3f}  {goal:<14} {verdict:<7} {figure.detail}"


def line(figure: Figure) -> bytes:
    """One JSON object for a program."""
    return msgspec.json.encode({**msgspec.structs.asdict(figure), "ok": figure.ok})


def run_all(names: list[str], *, as_json: bool) -> bool:
    """Run the benches one after the other, print what they measure, and say whether all of it was ok."""
    all_ok = True
    for name in names:
        began = time.monotonic()
        print(f"bench {name} ...", file=sys.stderr, flush=True)
        try:
            for figure in figures(name):
                all_ok &= figure.ok
                print(line(figure).decode() if as_json else row(figure), flush=True)
        except Exception:  # noqa: BLE001  # one broken bench must not hide the others' figures
            traceback.print_exc()
            all_ok = False
        print(f"bench {name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return all_ok


def main() -> int:
    """Parse the command line and run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(BENCHES)}; all if none is named")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}")
    if arguments.quick:
        os.environ["CTXD_BENCH_QUICK"] = "1"
    with tempfile.TemporaryDirectory(prefix="ctxd-bench-cache-") as cache:
        # Search indexes of the daemons that are measured: not among those of whoever runs the benches.
        os.environ["CTXD_CACHE_DIR"] = cache
        return 0 if run_all(arguments.names or list(BENCHES), as_json=arguments.json) else 1


if __name__ == "__main__":
    sys.exit(main())
