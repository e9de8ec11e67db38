"""Latency of a client beside a sandbox that sends junk, or reads nothing: p50 and p99 over quiet.

Four connections of one sandbox with the usual quota send, of one kind at a time, blank lines, stray responses,
malformed lines (short, or of 1 MiB and deeply nested), or lines that they do not complete, or they send calls and never
read an answer. The victim is on the host's socket. Server and loads as in ``bench.isolation``.

``python -m bench.flood SOCKET KIND`` is that load, until standard input ends.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import running
from bench.durable import processor
from bench.figures import Figure
from bench.isolation import loading, measured, p99
from bench.isolation_load import FLOODING_NICENESS, Taken
from bench.sandboxes import registered

GOAL = 2.0
CONNECTIONS = 4
SESSION = "box"

_NESTED = b"[" * 60 + b"]" * 60 + b","
KINDS = {
    "blank lines": b"\n" * 65536,
    "stray responses": b'{"jsonrpc":"2.0","id":1,"result":{}}\n' * 1024,
    "malformed lines": b"{]\n" * 16384,
    "long malformed lines": b'{"a":"' + b"x" * 8192 + b'","b":[' + _NESTED * (1000 * 1000 // len(_NESTED)) + b"\n",
    "partial lines": b'{"jsonrpc":"2.0","id":1,"method":"session.append","params":{"x":"' + b"y" * 400_000,
    "unread answers": b'{"jsonrpc":"2.0","id":1,"method":"session.get","params":{}}\n' * 256,
}
"""What is sent without end, by kind."""


def run() -> Iterator[Figure]:
    """See the module."""
    rounds, seconds = (3, 1.0) if running.quick() else (5, 1.5)
    with running.folder() as place, ExitStack() as stack:
        path = place / "ctxd.sock"
        with processor(0):
            stack.enter_context(running.daemon(path, place / "state"))
        host = stack.enter_context(running.Caller(path))
        box = Path(registered(host, SESSION))
        victim = stack.enter_context(loading("victim", path))
        measured(victim, 0.5)
        ratios: dict[str, float] = {}
        for kind in KINDS:
            taken: tuple[list[Taken], list[Taken]] = ([], [])
            for _ in range(rounds):
                taken[0].append(measured(victim, seconds))
                with flooding(box, kind):
                    measured(victim, 0.3)
                    taken[1].append(measured(victim, seconds))
            for name, figure in (("p50", _p50), ("p99", p99)):
                for operation in ("reads", "writes"):
                    quiet, flooded = (min(figure(getattr(one, operation)) for one in side) for side in taken)
                    ratios[f"{name} of {operation} beside {kind}"] = flooded / quiet
                    found = f"{flooded * 1e3:.2f} over {quiet * 1e3:.2f} ms"
                    print(f"  {name} of {operation} beside {kind}: {found}", file=sys.stderr, flush=True)
    worst = max(ratios, key=lambda name: ratios[name])
    p99s = {kind: max(ratios[f"p99 of {name} beside {kind}"] for name in ("reads", "writes")) for kind in KINDS}
    detail = f"{worst}; p99: " + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in p99s.items())
    yield Figure(name="flood", value=ratios[worst], goal=GOAL, better="lower", detail=detail)


def _p50(taken: list[float]) -> float:
    return taken[len(taken) // 2]


@contextmanager
def flooding(box: Path, kind: str) -> Iterator[None]:
    """A flood of ``kind`` on the sandbox's socket ``box``, in a process of its own."""
    command = [sys.executable, "-m", "bench.flood", str(box), kind]
    with processor(-1), subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
            assert process.poll() is None, "the flood continues"
        finally:
            process.kill()


def flood(box: Path, kind: str) -> None:
    """One connection after the other: the daemon ends those that break its rules."""
    data = KINDS[kind]
    while True:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(box))
            if kind != "unread answers":
                threading.Thread(target=_read, args=[connection.dup()], daemon=True).start()
            while True:
                connection.sendall(data)
                if kind == "partial lines":
                    time.sleep(0.001)
        time.sleep(0.001)


def _read(connection: socket.socket) -> None:
    with contextlib.suppress(OSError), connection:
        while connection.recv(1 << 20):
            pass


def main() -> None:
    box, kind = Path(sys.argv[1]), sys.argv[2]
    os.nice(FLOODING_NICENESS)
    for _ in range(CONNECTIONS):
        threading.Thread(target=flood, args=[box, kind], daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
