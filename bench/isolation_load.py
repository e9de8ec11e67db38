"""The two sides of ``bench.isolation``, each a process of its own.

Run as ``python -m bench.isolation_load ROLE SOCKET [SESSION]``.

``victim`` prompts itself with lines on its standard input, each the seconds of one measurement, and answers each with
one JSON object: sorted latencies in seconds of reads and of durable writes, one call at a time at a steady pace. The
other roles send calls on ``CONNECTIONS`` connections as fast as they are taken, read answers and look at none, until
their standard input ends.
"""

import os
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec

from bench.running import Caller

CONNECTIONS = 4
PACE_S = 0.004
"""Pause after a read and a write: slow enough to load nothing, fast enough for a p99 within two seconds."""

FLOODING_NICENESS = 10
"""How far the flood stands back from the victim on the processor they share: what is measured is the daemon."""

SESSION = "flooded"
METHODS = {
    "reads": (b"session.get", b""),
    "short reads": (b"context.current", b""),
    "writes": (b"session.append", b',"messages":[{"role":"assistant","content":"flood"}]'),
}
"""What is sent without end, by role."""

CALL = b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":{"session":"%s"%s}}\n'
CALLS = 64
"""Calls sent in one go."""


class Taken(msgspec.Struct, frozen=True):
    """Seconds that reads and durable writes took, each in order of length."""

    reads: list[float]
    writes: list[float]


def measure(caller: Caller, seconds: float) -> Taken:
    """Call at the steady pace for so many seconds."""
    reads: list[float] = []
    writes: list[float] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        began = time.perf_counter()
        caller.call("session.get", session="victim")
        read = time.perf_counter()
        caller.call("session.append", session="victim", messages=[{"role": "assistant", "content": "probe"}])
        reads.append(read - began)
        writes.append(time.perf_counter() - read)
        time.sleep(PACE_S)
    return Taken(sorted(reads), sorted(writes))


def be_victim(path: Path) -> None:
    """Measure once for each line of standard input, which holds the seconds."""
    with Caller(path) as caller:
        for session in ("victim", SESSION):
            caller.call("session.create", agent="bench", session=session)
        for line in sys.stdin:
            print(msgspec.json.encode(measure(caller, float(line))).decode(), flush=True)


def throw_away(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def flood(path: Path, lines: bytes) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    threading.Thread(target=throw_away, args=[connection], daemon=True).start()
    while True:
        connection.sendall(lines)


def be_flooder(path: Path, lines: bytes) -> None:
    """Flood until standard input ends."""
    os.nice(FLOODING_NICENESS)
    for _ in range(CONNECTIONS):
        threading.Thread(target=flood, args=[path, lines], daemon=True).start()
    sys.stdin.read()


def main() -> None:
    role, path = sys.argv[1], Path(sys.argv[2])
    if role == "victim":
        be_victim(path)
    else:
        method, params = METHODS[role]
        session = sys.argv[3] if len(sys.argv) > 3 else SESSION
        be_flooder(path, b"".join(CALL % (number, method, session.encode(), params) for number in range(CALLS)))


if __name__ == "__main__":
    main()
