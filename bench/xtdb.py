"""What the daemon makes of an XTDB node, over what a bare program does with the same node.

The node is a real one on RocksDB, its log and documents flushed at each transaction, in a JVM as it ships.

``xtdb_batching``: documents a second that the daemon brings to the node, over a bare loop that submits the very same
documents 500 a transaction, each transaction after the one before, and waits for the last; and over a bare loop with
one document a transaction, awaited each. The daemon's are a backlog that was acknowledged while the node stood still,
so that acknowledging costs it nothing meanwhile. Each has a node of its own; all of them take turns. Expected order of
growth: O(1) a document.

``xtdb_down_ack``: p99 of acknowledged writes while the node stands still (SIGSTOP), over while it runs. Writes come at
a fixed rate that leaves processors idle, since a node that runs takes its share of them.

``xtdb_catchup``: how fast a backlog drains while 50 writes a second continue, over those 50.

``xtdb_bulk``: 10,000 objects as a session that comes from another host reads them, decoded to versions, over one bare
query for the same documents, decoded and no more.

``xtdb_start``: seconds from the start of a node on an empty RocksDB until it serves.
"""

import asyncio
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench.figures import Figure
from bench.running import Caller, folder, quick, serving
from bench.xtdb_node import Bare, node
from ctxd import sqlite_file
from ctxd.backends.xtdb import documents as xtdb_documents
from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.messages import Op, PutDoc
from ctxd.store import journal
from ctxd.store.journal import read_versions

CONTENT_BYTES = 500
CALLS_PER_BATCH = 50
BATCHED = 500
"""Documents of one transaction of the bare loop."""

WARM_SHARE = 40
"""One in so many documents comes before those that are measured, on either side."""

ALONE = 200
"""Documents of the loop that submits them one by one."""

OBJECTS = 10_000
INGEST_PER_S = 50
ACK_PER_S = 200
LATEST = "9999-12-31T00:00:00.000Z"


def calls(session: str, first: int, count: int) -> bytes:
    """Lines of so many tool calls, numbered from ``first``."""
    content = "x" * CONTENT_BYTES
    lines = [
        msgspec.json.encode(
            {
                "jsonrpc": "2.0",
                "id": number,
                "method": "toolcall.record",
                "params": {
                    "session": session,
                    "tool": "bash",
                    "args": {"command": "make test"},
                    "op_id": f"{session}.{number}",
                    "id": f"{session}-{number}",
                    "content": f"{session} {content} {number}",
                },
            }
        )
        for number in range(first, first + count)
    ]
    return b"\n".join(lines) + b"\n"


class Writer(Caller):
    """A connection that records tool calls in a session of its own."""

    def __init__(self, path: Path, session: str) -> None:
        super().__init__(path)
        self._name = session
        self._count = 0
        self.call("session.create", agent="bench", session=session)

    def record(self, count: int) -> float:
        """Record so many calls, all in flight at once. Returns the seconds until the last was acknowledged."""
        began = time.perf_counter()
        self._file.write(calls(self._name, self._count, count))
        self._file.flush()
        for _ in range(count):
            if b'"error"' in (answer := self._file.readline()):
                raise RuntimeError(answer.decode())
        self._count += count
        return time.perf_counter() - began


@contextmanager
def daemon(place: Path, name: str, socket: str) -> Iterator[Path]:
    """A daemon that projects to the node on ``socket``, with its state in the folder ``name``: its socket."""
    path = place / f"{name}.sock"
    arguments = ["-m", "ctxd", "run", "--state-dir", str(place / name), "--socket", str(path)]
    with serving([*arguments, "--store", "xtdb", "--store-url", f"unix:{socket}"], path):
        yield path


def progress(caller: Caller) -> tuple[int, int]:
    """The newest row that the node has, and the newest there is."""
    status = msgspec.convert(caller.call("daemon.status"), dict)["store"]
    return status["projection"]["seq"], status["head_seq"]


def until_level(caller: Caller, seconds: float = 300.0) -> None:
    """Return once the node has every row."""
    deadline = time.monotonic() + seconds
    while True:
        seq, head = progress(caller)
        if seq >= head:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the node has {seq} of {head} rows after {seconds:.0f} s")
        time.sleep(0.02)


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """The process ``pid`` does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# --- batching -----------------------------------------------------------------------------------------------------


def documents(state: Path) -> list[Op]:
    """What the projection puts at the node for the journal in ``state``: versions, and the texts they refer to."""
    connection = sqlite_file.open_reader(state / "state.db")
    writer = journal.writer_id(connection)
    ops: list[Op] = []
    for row in journal.read_rows(connection, after=0):
        for version in read_versions(row):
            if version.content is not None:
                query = "SELECT size, bytes FROM content WHERE hash=?"
                ((size, stored),) = connection.execute(query, (version.content,))
                text = sqlite_file.unpack_content(size, stored)
                docs = xtdb_documents.content_docs(version.content, str(text, "utf-8"))
                ops += [PutDoc(doc, xtdb_documents.FIXED_VALID_TIME) for doc in docs]
            ops.append(PutDoc(xtdb_documents.to_doc(version, writer), version.valid_time))
    connection.close()
    return ops


def warm_calls(count: int) -> int:
    """Calls before ``count`` that are measured: at the bare node the same share of the documents comes before."""
    in_flight = CALLS_PER_BATCH // 2
    return count // WARM_SHARE // in_flight * in_flight


def through_the_daemon(place: Path, name: str, count: int) -> float:
    """Seconds in which a daemon brings a backlog of ``count`` tool calls to a new node."""
    with ExitStack() as stack:
        socket, pid = stack.enter_context(node(place, f"{name}-node"))
        path = stack.enter_context(daemon(place, name, socket))
        writer = stack.enter_context(Writer(path, "bench"))
        # What has just been compiled in the JVM, and loaded in the daemon, is not what is measured.
        for _ in range(warm_calls(count) // (CALLS_PER_BATCH // 2)):
            writer.record(CALLS_PER_BATCH // 2)
        until_level(writer)
        with standing_still(pid):
            for _ in range(count // (CALLS_PER_BATCH // 2)):
                writer.record(CALLS_PER_BATCH // 2)
        began = time.perf_counter()
        until_level(writer)
        return time.perf_counter() - began


async def _bare(socket: str, ops: Sequence[Op]) -> tuple[float, float]:
    """Documents a second of the bare loop: ``BATCHED`` a transaction, and one."""
    async with Bare(socket) as bare:
        warm = len(ops) // WARM_SHARE
        await bare.indexed(await bare.submit(ops[:warm]))
        began = time.perf_counter()
        for first in range(warm, len(ops), BATCHED):
            newest = await bare.submit(ops[first : first + BATCHED])
        await bare.indexed(newest)
        batched = (len(ops) - warm) / (time.perf_counter() - began)
        began = time.perf_counter()
        for op in ops[:ALONE]:
            await bare.indexed(await bare.submit([op]))
        return batched, ALONE / (time.perf_counter() - began)


def batching(place: Path) -> Iterator[Figure]:
    """See the module."""
    count, rounds = (2_500, 1) if quick() else (10_000, 3)
    rates: list[tuple[float, float, float]] = []
    for number in range(rounds):
        seconds = through_the_daemon(place, f"d{number}", count)
        ops = documents(place / f"d{number}")
        with node(place, f"b{number}") as (socket, _):
            batched, alone = asyncio.run(_bare(socket, ops))
        # The calls before the node stood still are among the documents, but not in the time.
        ours = len(ops) * count / (count + warm_calls(count)) / seconds
        rates.append((ours, batched, alone))
        told = ", ".join(f"{rate:,.0f}" for rate in rates[-1])
        print(f"  documents/s: daemon, bare {BATCHED} a transaction, bare one: {told}", file=sys.stderr, flush=True)
    ours, batched, alone = (statistics.median(rate[side] for rate in rates) for side in range(3))
    over_batched = statistics.median(rate[0] / rate[1] for rate in rates)
    over_alone = statistics.median(rate[0] / rate[2] for rate in rates)
    detail = f"{ours:,.0f} documents/s indexed, bare loop of {BATCHED} a transaction {batched:,.0f}/s; RocksDB, sync"
    yield Figure(name="xtdb_batching", value=over_batched, goal=0.8, better="higher", detail=detail)
    detail = f"over {alone:,.0f}/s with one document a transaction, awaited"
    yield Figure(name="xtdb_batching_over_single", value=over_alone, goal=20, better="higher", detail=detail)


# --- the node is down ---------------------------------------------------------------------------------------------


def p99_ms(writer: Writer, seconds: float) -> float:
    """The p99 of single writes at a fixed rate, in ms."""
    times = []
    began = time.perf_counter()
    for number in range(int(seconds * ACK_PER_S)):
        time.sleep(max(0.0, began + number / ACK_PER_S - time.perf_counter()))
        times.append(writer.record(1))
    return sorted(times)[len(times) * 99 // 100] * 1e3


def down_ack(writer: Writer, pid: int) -> Figure:
    """See the module."""
    seconds, rounds = (2.0, 3) if quick() else (4.0, 7)
    pairs = []
    for _ in range(rounds):
        running = p99_ms(writer, seconds)
        with standing_still(pid):
            pairs.append((running, p99_ms(writer, seconds)))
        until_level(writer)
        print(f"  p99 ms: node running {pairs[-1][0]:.2f}, stopped {pairs[-1][1]:.2f}", file=sys.stderr, flush=True)
    ratio = statistics.median(stopped / running for running, stopped in pairs)
    running, stopped = (statistics.median(pair[side] for pair in pairs) for side in range(2))
    detail = f"p99 {stopped:.2f} ms over {running:.2f} ms, {ACK_PER_S} writes/s"
    return Figure(name="xtdb_down_ack", value=ratio, goal=1.5, better="lower", detail=detail)


def catchup(path: Path, writer: Writer, pid: int) -> Figure:
    """See the module."""
    count = 2_500 if quick() else 15_000
    with standing_still(pid):
        for _ in range(count // (CALLS_PER_BATCH // 2)):
            writer.record(CALLS_PER_BATCH // 2)
    over = threading.Event()

    def ingest() -> None:
        with Writer(path, "meanwhile") as other:
            while not over.wait(1 / INGEST_PER_S):
                other.record(1)

    thread = threading.Thread(target=ingest)
    thread.start()
    began, first = time.perf_counter(), progress(writer)
    while (now := progress(writer))[0] < first[1]:
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    over.set()
    thread.join()
    rate = (now[0] - first[0]) / seconds
    detail = f"{rate:,.0f} writes/s drained of a backlog of {first[1] - first[0]:,} while {INGEST_PER_S}/s came"
    return Figure(name="xtdb_catchup", value=rate / INGEST_PER_S, goal=5, better="higher", detail=detail)


# --- bulk ---------------------------------------------------------------------------------------------------------


async def _read_here(socket: str, ids: Sequence[str]) -> float:
    async with XtdbClient(f"unix:{socket}") as client:
        began = time.perf_counter()
        docs = await client.entities(ids, valid_time=xtdb_documents.NEWEST_VALID_TIME)
        versions = [xtdb_documents.from_doc(doc) for doc in docs.values()]
        taken = time.perf_counter() - began
    if len(versions) != len(ids):
        raise RuntimeError(f"{len(versions)} of {len(ids)} objects were found")
    return taken


async def _read_bare(socket: str, ids: Sequence[str]) -> float:
    async with Bare(socket) as bare:
        began = time.perf_counter()
        found = await bare.bulk(ids, LATEST)
        taken = time.perf_counter() - began
    if len(found) < len(ids):
        raise RuntimeError(f"{len(found)} of {len(ids)} documents were found")
    return taken


def bulk(socket: str, writer: Writer) -> Figure:
    """See the module."""
    for _ in range(OBJECTS // (CALLS_PER_BATCH // 2)):
        writer.record(CALLS_PER_BATCH // 2)
    until_level(writer)
    ids = [f"bulk-{number}" for number in range(OBJECTS)]
    rounds = 3 if quick() else 9
    pairs = [(asyncio.run(_read_here(socket, ids)), asyncio.run(_read_bare(socket, ids))) for _ in range(rounds + 2)][
        2:
    ]
    ratio = statistics.median(ours / bare for ours, bare in pairs)
    ours, bare = (statistics.median(pair[side] for pair in pairs) for side in range(2))
    detail = f"{OBJECTS:,} objects: {ours * 1e3:.0f} ms, bare query {bare * 1e3:.0f} ms"
    return Figure(name="xtdb_bulk", value=ratio, goal=1.5, better="lower", detail=detail)


def start(place: Path) -> Figure:
    """Seconds until a node on RocksDB serves: the best of three, as the machine may do other work."""
    took = []
    for number in range(3):
        began = time.perf_counter()
        with node(place, f"start{number}"):
            took.append(time.perf_counter() - began)
    detail = "starts in " + ", ".join(f"{seconds:.1f}" for seconds in took) + " s"
    return Figure(name="xtdb_start", value=min(took), goal=6, better="lower", detail=detail)


def run() -> Iterator[Figure]:
    """See the module."""
    with folder() as place:
        yield start(place)
        yield from batching(place)
        with node(place, "node") as (socket, pid), daemon(place, "state", socket) as path:
            with Writer(path, "ack") as writer:
                yield down_ack(writer, pid)
                yield catchup(path, writer, pid)
            with Writer(path, "bulk") as writer:
                yield bulk(socket, writer)
