"""Cost of the RPC layer over a bare server: pipelined calls, one call at a time, and idle connections.

Both servers are processes of their own and answer ``context.current`` with the same bytes; this process loads them in
turn, so that what else the machine does falls on both. Requests are made beforehand and answers are counted by their
line ends.
"""

import contextlib
import os
import resource
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench import running
from bench.figures import Figure

BURST = 500
"""Requests sent in one go."""

WINDOW = 8 * BURST
"""Requests on their way at a time: enough that the server never waits, less than what its write buffer holds."""

THROUGHPUT_GOAL = 0.5
LATENCY_GOAL = 1.6
IDLE_MB_GOAL = 100.0
IDLE_CONNECTIONS = 1000

REQUEST = b'{"jsonrpc":"2.0","id":%d,"method":"context.current","params":{}}\n'


def run() -> Iterator[Figure]:
    """The three figures of the RPC layer."""
    with running.folder() as folder, _pair(folder) as (ours, bare, ours_pid, bare_pid):
        yield _connections(ours, ours_pid)  # First: memory that a load has left free would be taken again unseen.
        with _placed((ours_pid, bare_pid), apart=True):
            yield _throughput(ours, bare, ours_pid, bare_pid)
        with _placed((ours_pid, bare_pid), apart=False):
            yield _latency(ours, bare)


@contextlib.contextmanager
def _pair(folder: Path) -> Iterator[tuple[Path, Path, int, int]]:
    """Sockets and process ids of the daemon and of a bare server that answers the same."""
    ours, bare = folder / "ctxd.sock", folder / "bare.sock"
    with running.serving(["-m", "ctxd", "run", "--ephemeral", "--socket", str(ours)], ours) as daemon:
        with running.Caller(ours) as caller:
            result = msgspec.json.encode(caller.call("context.current")).decode()
        with running.serving(["-m", "bench.bare_rpc", str(bare), result], bare) as other:
            assert _answer(ours) == _answer(bare), "both servers answer the same bytes"
            yield ours, bare, daemon.pid, other.pid


@contextlib.contextmanager
def _placed(servers: tuple[int, ...], *, apart: bool) -> Iterator[None]:
    """Both servers on one processor, and this process on another one or on the same.

    Left to itself the scheduler puts either server beside the load or away from it for whole runs at a time, and the
    wake-up of an idle processor, some 50 us, then drowns what is measured.
    """
    processors = sorted(os.sched_getaffinity(0))
    try:
        for pid in servers:
            os.sched_setaffinity(pid, {processors[0]})
        os.sched_setaffinity(0, {processors[-1] if apart else processors[0]})
        yield
    finally:
        for pid in (0, *servers):
            os.sched_setaffinity(pid, processors)


def _throughput(ours: Path, bare: Path, ours_pid: int, bare_pid: int) -> Figure:
    rounds, seconds = (3, 0.3) if running.quick() else (9, 0.8)
    measured = []
    with _connected(ours) as to_ours, _connected(bare) as to_bare:
        for _ in range(rounds):
            bare_rate, bare_cost = _pipelined(to_bare, seconds, bare_pid)
            our_rate, our_cost = _pipelined(to_ours, seconds, ours_pid)
            measured.append((our_rate / bare_rate, our_rate, bare_rate, our_cost, bare_cost))
    value, ours_s, bare_s, ours_us, bare_us = _median_round(measured)
    detail = f"{ours_s:,.0f}/s over {bare_s:,.0f}/s; server CPU {ours_us:.2f} over {bare_us:.2f} us a request"
    return Figure(name="rpc_throughput", value=value, goal=THROUGHPUT_GOAL, better="higher", detail=detail)


def _latency(ours: Path, bare: Path) -> Figure:
    rounds, calls = (3, 500) if running.quick() else (9, 2000)
    measured = []
    with _connected(ours) as to_ours, _connected(bare) as to_bare:
        for _ in range(rounds):
            bare_us = _one_by_one(to_bare, calls)
            our_us = _one_by_one(to_ours, calls)
            measured.append((our_us / bare_us, our_us, bare_us))
    value, ours_p50, bare_p50 = _median_round(measured)
    detail = f"p50 {ours_p50:.1f} us over {bare_p50:.1f} us"
    return Figure(name="rpc_latency", value=value, goal=LATENCY_GOAL, better="lower", detail=detail)


def _median_round(measured: list[tuple[float, ...]]) -> tuple[float, ...]:
    """The round whose ratio, its first number, is the median: what it measured belongs together.

    The median of each column apart would be of a round that never was. Of an even count, the lower one of the middle.
    """
    return sorted(measured)[(len(measured) - 1) // 2]


def _connections(ours: Path, pid: int) -> Figure:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * IDLE_CONNECTIONS)), hard))
    before = _resident_mb(pid)
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            held = stack.enter_context(_connected(ours))
            held.sendall(REQUEST % 1)
            assert held.recv(4096).endswith(b"\n"), "every connection is served"
        value = _resident_mb(pid) - before
    detail = f"{IDLE_CONNECTIONS} connections that each made one call, above {before:.0f} MB without"
    return Figure(name="connections", value=value, goal=IDLE_MB_GOAL, better="lower", detail=detail)


def _connected(path: Path) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.connect(str(path))
    return connected


def _answer(path: Path) -> bytes:
    with _connected(path) as held:
        held.sendall(REQUEST % 7)
        return held.recv(65536)


def _pipelined(held: socket.socket, seconds: float, pid: int) -> tuple[float, float]:
    """Answers a second, and the server's CPU microseconds for each, over ``seconds``."""
    burst = b"".join(REQUEST % number for number in range(BURST))
    on_their_way = answered = 0
    cpu, began = _cpu_s(pid), time.perf_counter()
    end = began + seconds
    while (sending := time.perf_counter() < end) or on_their_way:
        while sending and on_their_way <= WINDOW - BURST:
            held.sendall(burst)
            on_their_way += BURST
        count = held.recv(1 << 18).count(b"\n")
        on_their_way -= count
        answered += count
    return answered / (time.perf_counter() - began), (_cpu_s(pid) - cpu) / answered * 1e6


def _one_by_one(held: socket.socket, calls: int) -> float:
    """The median of ``calls`` round trips, in microseconds."""
    taken = []
    for number in range(calls):
        request = REQUEST % number
        began = time.perf_counter_ns()
        held.sendall(request)
        held.recv(4096)
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken) / 1000


def _cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
