"""What an assembly costs by the size of the metadata pool, in process, over a real store and real files.

Each session has 50 active files of 4 KiB and 1,000 or 10,000 objects in its pool. *Cold* is a session's first
assembly by an assembler that knows nothing of it, the store's own memory being warm; *repeat* is the next one,
nothing having changed: the files are still looked at on the disk. Both end with the encoded answer, text and blocks
included; waiting for the record's flush is left out, as it is the same for both. Expected order of growth: cold
linear in the pool, repeat a tenth of cold at most. Growth is told by processor time, as a neighbour's load stretches
long runs more than short ones; the rest by the clock.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio

from bench.figures import Figure
from ctxd.assembly.assembler import Assembler
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.spec_layout import spec
from ctxd.assembly.token_budget import estimate_tokens
from ctxd.clock import SystemClock
from ctxd.indexing.file_indexer import Indexer
from ctxd.indexing.stub_discovery import discover
from ctxd.models import read_models
from ctxd.sessions import chat_operations, file_operations
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.registry import Sessions
from ctxd.sessions.stored_session import SessionSettings
from ctxd.sources.host_files import HostFiles
from ctxd.store.version_store import VersionStore
from ctxd_protocol.event_types import PromptEvent

SIZES = (1_000, 10_000)
ACTIVE = 50
FILE_BYTES = 4096
HOST = "bench"
QUICK = os.environ.get("CTXD_BENCH_QUICK") == "1"
SAMPLES = 3 if QUICK else 7
FILES_SETTLE_S = 2.5
REPEATS = 20 if QUICK else 100


class Bench:
    """A store with files beside it."""

    def __init__(self, root: Path, store: VersionStore) -> None:
        clock = SystemClock()
        self.root = root
        self.store = store
        self.sessions = Sessions(store, clock, host_filesystem_id=HOST)
        self.indexer = Indexer(store, HostFiles(clock), HOST)
        archive = Archive(store, self.sessions, spec, estimate_tokens, read_models())
        self.assembler = lambda: Assembler(
            store, self.sessions, self.indexer, archive, read_models(), clock, providers={}
        )

    def make_files(self) -> list[Path]:
        paths = [self.root / f"src/module_{n // 100}/file_{n}.py" for n in range(max(SIZES))]
        line = "    return value + other_value  # a line of code as it is\n"
        for number, path in enumerate(paths):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((line * (FILE_BYTES // len(line) + 1))[:FILE_BYTES] if number < ACTIVE else "")
        return paths

    async def session(self, name: str, paths: list[Path]) -> LiveSession:
        """A session that read the first files and discovered all."""
        settings = SessionSettings(agent="bench", principal="bench", created_at=0, ordinal=0, filesystem_id=HOST)
        made = await self.sessions.create(WriteRequest("session.create", "bench"), name, settings, "Be brief.\n" * 100)
        live = made[0]
        live.submit(
            WriteRequest("session.append", "bench"),
            chat_operations.append_delta(live.state, name, [PromptEvent(text="Fix it.")], live.settings.collapse),
        )
        for path in paths[:ACTIVE]:
            read = await self.indexer.index(live.mounts, "/", str(path))
            delta = file_operations.read_delta(live.state, read.object)
            call = WriteRequest("file.index", "bench")
            live.submit(call, delta, puts=read.puts, signatures=read.signatures, floor_vt=read.floor_vt)
        for start in range(0, len(paths), 1000):
            discovered = await discover(
                self.indexer, live.mounts, "/", [str(path) for path in paths[start : start + 1000]]
            )
            delta = file_operations.discover_delta(
                live.state, [one.object for one in discovered if one.object is not None]
            )
            puts = [one.document for one in discovered if one.document is not None]
            pending = live.submit(WriteRequest("file.discover", "bench"), delta, puts=puts)
        await pending.wait()
        return live

    async def measure(self, live: LiveSession) -> tuple[float, float, float]:
        """Milliseconds of the first assembly, of processor time for it, and of a repeat."""
        assembler = self.assembler()
        began, worked = time.perf_counter(), time.process_time()
        made = await assembler.assemble(live, WriteRequest("context.assemble", "bench"))
        made.encoded()
        cold, work = time.perf_counter() - began, time.process_time() - worked
        await made.pending.wait()
        repeats = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            again = await assembler.assemble(live, WriteRequest("context.assemble", "bench"))
            again.encoded()
            repeats.append(time.perf_counter() - began)
            assert again.context.number == made.context.number, "nothing changed, so nothing is recorded"
        return cold * 1e3, work * 1e3, min(repeats) * 1e3


async def measured(root: Path) -> dict[int, list[float]]:
    """Cold by the clock and by processor time, and repeat, in ms, by pool size.

    Each is the least of all samples: what else the machine does only adds.
    """
    store = VersionStore(root / "state", SystemClock())
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        bench = Bench(root, store)
        await bench.sessions.start()
        paths = bench.make_files()
        # A file that was written a moment ago is read at every look; these are to be as old as most.
        await anyio.sleep(FILES_SETTLE_S)
        figures = {}
        # Sizes take turns, so that a slow moment of the machine meets both.
        runs = {size: [] for size in SIZES}
        for sample in range(SAMPLES):
            for size in SIZES:
                live = await bench.session(f"s-{size}-{sample}", paths[:size])
                runs[size].append(await bench.measure(live))
        for size, samples in runs.items():
            figures[size] = [min(values) for values in zip(*samples, strict=True)]
        await store.drain()
        group.cancel_scope.cancel()
    return figures


def run() -> Iterator[Figure]:
    """Growth with the pool, cold and repeated."""
    with tempfile.TemporaryDirectory() as folder:
        figures = anyio.run(measured, Path(folder), backend_options={"use_uvloop": True})
    small, large = (figures[size] for size in SIZES)
    yield Figure(
        name="assemble_growth_cold",
        value=large[1] / small[1],
        goal=12,
        better="lower",
        detail=f"first assembly of {SIZES[1]:,} objects over {SIZES[0]:,}: {large[1]:.1f} and {small[1]:.1f} ms of CPU",
    )
    for size, (cold, _, repeat) in figures.items():
        yield Figure(
            name=f"assemble_growth_repeat_{size}",
            value=repeat / cold,
            goal=0.1,
            better="lower",
            detail=f"unchanged repeat over cold, {size:,} objects, {ACTIVE} active: {repeat:.2f} and {cold:.1f} ms",
        )
