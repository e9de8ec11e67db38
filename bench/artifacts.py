"""Bytes that an artifact adds which resembles another one.

``dedup`` is a ratio: bytes that the folder of artifacts grows by for 4 MiB with one byte prepended, over 4 MiB, once
the same 4 MiB without it are stored. The bytes are random, so that compression adds nothing. Expected order of growth:
O(1), a few chunks whatever the size, and a manifest of 36 bytes a chunk. Every put is flushed before it counts.

``artifact_isolation`` is the 99th percentile of recorded tool calls of one client while another one uploads 64 MB in
pieces of 128 KiB, as ``ctx artifact put`` does, and puts them, over that of the same calls alone. The median of several
rounds, alone and beside in turns. Every call is acknowledged after its flush. The uploader is a process of its own, as
another client is.
"""

import base64
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

from bench.figures import Figure
from bench.running import Caller, daemon, folder, quick
from ctxd.artifacts.artifact_store import ArtifactStore

SIZE = 4 * 1024 * 1024
SIZES = (SIZE // 4, SIZE, SIZE * 4)
UPLOAD = 64 * 1024 * 1024
PIECE = 128 * 1024
ALONE_S = 3.0
PAUSE_S = 0.002
FRESH = multiprocessing.get_context("spawn")


def added(size: int) -> int:
    """Bytes that the folder of a store grows by."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "artifacts"
        data = os.urandom(size)
        before = 0
        for each in (data, b"x" + data):
            store = ArtifactStore(root)
            store.create()
            store.keep(each)
            store.close()
            total = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
            before, grown = total, total - before
        return grown


def p99_ms(caller: Caller, name: str, is_over: Callable[[], bool]) -> float:
    """Record tool calls until ``is_over``. Returns: the 99th percentile of their times in ms."""
    times: list[float] = []
    while not is_over():
        began = time.perf_counter()
        number = len(times)
        caller.call(
            "toolcall.record", session="s", id=f"{name}-{number}", tool="bash", content=f"{name} {number} " * 50
        )
        times.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)
    return sorted(times)[len(times) * 99 // 100] * 1000


def upload(caller: Caller, name: str, data: bytes) -> str:
    """Put an artifact in pieces. Returns: its address."""
    at = 0
    while at < len(data):
        piece = base64.b64encode(data[at : at + PIECE]).decode()
        at = int(str(caller.call("artifact.upload", upload=name, offset=at, data=piece)["offset"]))
    return str(caller.call("artifact.put", upload=name)["artifact"])


def upload_random(socket: Path, name: str, started: Event) -> None:
    """Put ``UPLOAD`` random bytes in pieces; ``started`` is set before the first one."""
    with Caller(socket) as caller:
        data = os.urandom(UPLOAD)
        started.set()
        upload(caller, name, data)


def isolation() -> Figure:
    """Others' calls beside an upload."""
    alone, beside = list[float](), list[float]()
    with folder() as place:
        socket = place / "ctxd.sock"
        with daemon(socket, place / "state"), Caller(socket) as other:
            other.call("session.create", session="s", agent="bench", workdir="/")
            for number in range(2 if quick() else 5):
                until = time.monotonic() + ALONE_S
                alone.append(p99_ms(other, f"alone-{number}", lambda until=until: time.monotonic() > until))
                process = FRESH.Process(target=upload_random, args=(socket, f"u{number}", started := FRESH.Event()))
                process.start()
                started.wait()
                beside.append(p99_ms(other, f"beside-{number}", lambda process=process: not process.is_alive()))
                assert process.exitcode == 0, "the upload failed"
    detail = f"flushed; p99 alone {median(alone):.1f} ms, beside 64 MB {median(beside):.1f} ms"
    return Figure(
        name="artifact_isolation", value=median(beside) / median(alone), goal=2, better="lower", detail=detail
    )


def run() -> Iterator[Figure]:
    found = {size: max(added(size) for _ in range(3)) for size in SIZES}
    growth = ", ".join(f"{size >> 20} MiB: {grown:,} bytes" for size, grown in found.items())
    yield Figure(
        name="dedup", value=found[SIZE] / SIZE, goal=0.03, better="lower", detail=f"flushed; worst of 3; {growth}"
    )
    yield isolation()
