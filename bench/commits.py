"""Context commits: the cost of a checkpoint by depth, the bytes of a chain, and the first look-up of an instant.

Every checkpoint is one call over the socket, acknowledged after its flush (``synchronous=FULL``). Expected order of
growth: a checkpoint is O(1) in the depth of its chain, storage O(n) in its deltas, a look-up O(log n) in all commits.

``checkpoint_latency`` is the median of a checkpoint of 1.3 KB at depth 1,000 over that of LangGraph's SQLite
checkpointer with the same messages at that depth, in turns, both flushed: ours is timed at the client, over the socket,
LangGraph's within its own process. It needs ``make .venv-langgraph``.

``checkpoint_growth`` is the median at depth 10,000 over that at depth 100, of checkpoints that alternate between both
chains, so that other work on the machine meets both. ``resolve_cold`` is the first look-up after
a start over the same query of SQLite on the same rows, by a connection of its own; both with the file's pages out of
the system's cache.

``delta_isolation`` is the 99th percentile of recorded tool calls of one client while another one commits a delta of
64 MB, which is an artifact already, over that of the same calls alone; alone and beside in turns. Every call is
acknowledged after its flush.
"""

import base64
import contextlib
import json
import os
import socket as socketlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import apsw
import cbor2
import msgspec

from bench import artifacts
from bench.figures import Figure
from bench.recorded_sessions import ROOT
from bench.running import Caller, daemon, folder, quick

DELTA_BYTES = 1_300
CHAIN = 1_000
SHALLOW = 100
ROUNDS = 200
BATCH = 100
STARTS = 5
LANGGRAPH = Path(".venv-langgraph/bin/python").absolute()
AT = "2035-01-01T00:00:00Z"

_BARE = """SELECT e.id FROM context_commit AS c JOIN entity AS e ON e.n=c.entity WHERE c.principal=? AND c.at<=?
    ORDER BY c.at DESC, c.entity DESC LIMIT 1"""


def chat() -> Iterator[str]:
    """Real chat, a delta's worth at a time; text made of words where there are no transcripts."""
    text = ""
    for path in sorted(ROOT.glob("claude-code/**/*.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                record = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(record, dict) and record.get("type") in ("user", "assistant"):
                text += msgspec.json.encode(record.get("message")).decode()
            while len(text) >= DELTA_BYTES:
                yield text[:DELTA_BYTES]
                text = text[DELTA_BYTES:]
    number = 0
    while True:
        number += 1
        yield "".join(f"word{number * place % 997} " for place in range(DELTA_BYTES // 8))


def delta(text: str) -> bytes:
    """A delta in ``events-v1``."""
    event = {"type": "response", "response": {"content": text}, "timestamp": 1_735_689_600}
    return cbor2.dumps([event], canonical=True)


def checkpoint(caller: Caller, content: bytes, parent: str | None) -> str:
    """The id of a new commit."""
    made = caller.call(
        "commit.checkpoint", format="events-v1", delta_base64=base64.b64encode(content).decode(), session="bench",
        parent=parent, checkpoint="turn_boundary", op_id=os.urandom(16).hex(),
    )  # fmt: skip
    return str(msgspec.convert(made["commit"], dict)["commit"])


def stored(place: Path) -> Figure:
    """Bytes of the database for each byte of the deltas of one chain."""
    socket, state = place / "stored.sock", place / "stored"
    texts = chat()
    deltas = [delta(next(texts)) for _ in range(CHAIN)]
    with daemon(socket, state), Caller(socket) as caller:
        caller.call("session.create", agent="bench", session="bench")
        parent = None
        for each in deltas:
            parent = checkpoint(caller, each, parent)
    size = sum(map(len, deltas))
    # The daemon has emptied the log at its end.
    taken = sum(path.stat().st_size for path in state.glob("state.db*") if not path.name.endswith("-shm"))
    detail = f"{CHAIN:,} checkpoints of {size / CHAIN:,.0f} bytes of real chat; {taken:,} bytes on disk, log emptied"
    return Figure(name="chain_storage", value=taken / size, goal=1.5, better="lower", detail=detail)


def deep(place: Path) -> Iterator[Figure]:
    """The cost of a checkpoint by depth, and the first look-up after a start."""
    depth = 1_000 if quick() else 10_000
    total = 5_000 if quick() else 100_000
    socket, state = place / "deep.sock", place / "deep"
    texts = chat()
    with daemon(socket, state), Caller(socket) as caller:
        caller.call("session.create", agent="bench", session="bench")
        tips: list[str | None] = [None, None]
        for length, number in ((SHALLOW, 0), (depth, 1)):
            for _ in range(length):
                tips[number] = checkpoint(caller, delta(next(texts)), tips[number])
            print(f"  chain of {length:,} commits", file=sys.stderr, flush=True)
        times: list[list[float]] = [[], []]
        for turn in range(2 * ROUNDS):
            began = time.perf_counter()
            tips[turn % 2] = checkpoint(caller, delta(next(texts)), tips[turn % 2])
            times[turn % 2].append(time.perf_counter() - began)
        shallow, far = (1000 * median(each) for each in times)
        detail = f"p50 {far:.2f} ms at depth {depth:,}, {shallow:.2f} ms at {SHALLOW}, alternating; flushed each"
        yield Figure(name="checkpoint_growth", value=far / shallow, goal=1.2, better="lower", detail=detail)
    add(state, total)
    yield resolved(socket, state, total)


def latency(place: Path) -> Figure:
    """The cost of a checkpoint beside that of LangGraph's SQLite checkpointer."""
    depth, rounds = 1_000, 50 if quick() else ROUNDS
    texts = chat()
    messages = [next(texts) for _ in range(depth + rounds)]
    socket, ours, theirs, parent = place / "latency.sock", list[float](), list[float](), None
    with (
        daemon(socket, place / "latency"),
        Caller(socket) as caller,
        subprocess.Popen(
            [LANGGRAPH, "-I", "bench/langgraph_chain.py", str(place / "langgraph.db")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        synchronous = int(process.stdout.readline())
        assert synchronous >= 2, f"LangGraph's database is flushed less than ours: synchronous={synchronous}"
        caller.call("session.create", agent="bench", session="bench")
        for number, text in enumerate(messages):
            content = delta(text)
            began = time.perf_counter()
            parent = checkpoint(caller, content, parent)
            taken = 1000 * (time.perf_counter() - began)
            process.stdin.write(json.dumps(text) + "\n")
            process.stdin.flush()
            other = float(process.stdout.readline())
            if number >= depth:
                ours.append(taken)
                theirs.append(other)
        process.stdin.close()
    mine, his = median(ours), median(theirs)
    detail = f"p50 {mine:.2f} ms, LangGraph's SQLite checkpointer {his:.2f} ms, depth {depth:,}; synchronous=FULL both"
    return Figure(name="checkpoint_latency", value=mine / his, goal=0.5, better="lower", detail=detail)


def add(state: Path, commits: int) -> None:
    """Add commits of one principal to a state without a daemon, by many calls at a time."""
    socket = state.parent / "add.sock"
    with daemon(socket, state), contextlib.closing(socketlib.socket(socketlib.AF_UNIX)) as raw:
        raw.connect(str(socket))
        lines = raw.makefile("rb")
        for first in range(0, commits, BATCH):
            calls = [
                {
                    "jsonrpc": "2.0",
                    "id": number,
                    "method": "commit.checkpoint",
                    "params": {"format": "claude-code-v1", "delta": f'{{"n":{number}}}\n', "session": "bench"},
                }
                for number in range(first, first + BATCH)
            ]
            raw.sendall(msgspec.json.encode(calls) + b"\n")
            answers = msgspec.json.decode(lines.readline())
            assert all("result" in answer for answer in answers), answers[0]


def resolved(socket: Path, state: Path, total: int) -> Figure:
    """The first look-up after a start, over SQLite's own; the median of several starts."""
    database, ours, bare = state / "state.db", [], []
    for _ in range(STARTS):
        forget_pages(database)
        began = time.perf_counter()
        connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
        (id,) = connection.execute(_BARE, (f"uid:{os.getuid()}", 2**60)).fetchone() or ("",)
        bare.append(time.perf_counter() - began)
        connection.close()
        with daemon(socket, state), Caller(socket) as caller:
            caller.call("daemon.status")
            forget_pages(database)
            began = time.perf_counter()
            found = caller.call("commit.resolve", at=AT)
            ours.append(time.perf_counter() - began)
        assert f"commit:{msgspec.convert(found['commit'], dict)['commit']}" == id
    mine, theirs = (1000 * median(each) for each in (ours, bare))
    detail = f"{total:,} commits: {mine:.2f} ms over the socket, {theirs:.2f} ms bare, pages not cached"
    return Figure(name="resolve_cold", value=mine / theirs, goal=3.0, better="lower", detail=detail)


def large_delta(size: int, number: int) -> bytes:
    """Lines of real chat."""
    texts, found = chat(), bytearray(f'{{"number":{number}}}\n'.encode())
    while len(found) < size:
        message = {"role": "user", "content": next(texts)}
        found += msgspec.json.encode({"type": "user", "message": message}) + b"\n"
    return bytes(found)


def isolation(place: Path) -> Figure:
    """Others' calls beside a large delta."""
    alone, beside = list[float](), list[float]()
    socket = place / "isolation.sock"
    with daemon(socket, place / "isolation"), Caller(socket) as other, Caller(socket) as committing:
        other.call("session.create", session="s", agent="bench", workdir="/")
        for number in range(2 if quick() else 5):
            ref = artifacts.upload(committing, f"u{number}", large_delta(artifacts.UPLOAD, number))
            until = time.monotonic() + artifacts.ALONE_S
            alone.append(artifacts.p99_ms(other, f"a{number}", lambda until=until: time.monotonic() > until))
            delta = partial(committing.call, "commit.checkpoint", format="claude-code-v1", artifact=ref, session="s")
            thread = threading.Thread(target=delta)
            thread.start()
            beside.append(artifacts.p99_ms(other, f"b{number}", lambda thread=thread: not thread.is_alive()))
    detail = f"flushed; p99 alone {median(alone):.1f} ms, beside a delta of 64 MB {median(beside):.1f} ms"
    return Figure(name="delta_isolation", value=median(beside) / median(alone), goal=2, better="lower", detail=detail)


def forget_pages(path: Path) -> None:
    """Let the system forget the cached pages of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def run() -> Iterator[Figure]:
    """See the module."""
    with folder() as place:
        yield isolation(place)
        yield stored(place)
        if LANGGRAPH.exists():
            yield latency(place)
        else:
            print("  checkpoint_latency is left out: make .venv-langgraph installs what it needs", file=sys.stderr)
        yield from deep(place)
