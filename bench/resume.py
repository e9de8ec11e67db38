"""Opening a session again: against reading its rows out of SQLite and decoding them, which nothing can save.

Expected order of growth: O(n) in the session's objects and turns, for both. Opening is what a daemon does for a session
that it has not in memory: head, segments, fold, and the newest version of every object of the index. The floor reads
the session's rows, all columns but the check sum, through a connection of its own with two statements, its segments by
range and its objects by id, takes the document of each out of its journal row, and decodes it, without keeping any.
Both run in this process, in turn, on the same file; the store is started anew for each opening, so that none of its
caches help. A start drops the file from the system's cache, so it is read whole before each opening: both find its
pages in memory, none in their own cache.
"""

import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import apsw
import msgspec

from bench.figures import Figure
from bench.running import folder, quick
from ctxd.clock import SystemClock
from ctxd.objects.document import decode_document, file_text, toolcall
from ctxd.objects.generated_ids import file_id
from ctxd.sessions import chat_operations, file_operations, toolcall_operations
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.registry import Sessions
from ctxd.sessions.stored_session import SessionSettings
from ctxd.sqlite_file import unpack_body
from ctxd.store.version_store import VersionStore
from ctxd_protocol.event_types import PromptEvent, ResponseEvent
from ctxd_protocol.object_types import FilesystemSource

SIZES = (1_000, 3_000, 10_000)
OBJECTS_PER_TURN = 20
GOAL = 1.5
SETTLE_S = 0.5
"""What a store does for itself after a start is not part of opening a session."""
HOST = "f" * 64
SESSION = "bench"
CALL = WriteRequest("bench", "host")

_ROW = "e.id, v.body, (SELECT j.body FROM journal AS j WHERE j.seq=v.tx), v.vt, v.tx, v.tx_time, v.content"
_journal_row = msgspec.msgpack.Decoder(list[Any]).decode
_NEWEST = "JOIN version AS v ON v.rowid=(SELECT rowid FROM version WHERE entity=e.n ORDER BY vt DESC, tx DESC LIMIT 1)"
_SEGMENTS = f"""SELECT {_ROW} FROM entity AS e {_NEWEST}
    WHERE e.id BETWEEN 'segment:{SESSION}#' AND 'segment:{SESSION}$' ORDER BY e.id"""
_OBJECTS = f"SELECT {_ROW} FROM json_each(?) AS wanted JOIN entity AS e ON e.id=wanted.value {_NEWEST}"


def file_in_turn(live: LiveSession, number: int) -> None:
    """A file that the agent reads."""
    source = FilesystemSource(HOST, f"/work/project/src/package{number % 50}/module{number}.py")
    text = f"# module {number}\n" + "value = 1\n" * 20
    document = file_text(file_id(source), source, text, f"{number:064x}")
    live.submit(CALL, file_operations.read_delta(live.state, document.id), puts=(document,))


def call_in_turn(live: LiveSession, number: int) -> None:
    """A tool call of the agent."""
    id = f"call_{number:08d}abcdef|fc_{number:016x}"
    document = toolcall(
        id, tool="bash", args={"command": f"make test{number}"}, content=f"ok {number}", chat_ref="chat:bench"
    )
    live.submit(CALL, toolcall_operations.call_delta(live.state, id, live.settings.collapse), puts=(document,))


async def build(root: Path, objects: int) -> None:
    """A session of so many objects, half files and half tool calls, 20 a turn, each its own write."""
    async with anyio.create_task_group() as group:
        store = VersionStore(root, SystemClock())
        await group.start(store.run)
        sessions = Sessions(store, SystemClock(), host_filesystem_id=HOST)
        await sessions.start()
        settings = SessionSettings(agent="bench", principal="host", created_at=0, ordinal=0, filesystem_id=HOST)
        await sessions.create(CALL, SESSION, settings, "Be brief.")
        live = await sessions.live(SESSION)
        for turn in range(objects // OBJECTS_PER_TURN):
            said = (PromptEvent(text=f"do step {turn}"), ResponseEvent(text="On it. " * 20))
            live.submit(CALL, chat_operations.append_delta(live.state, SESSION, said, live.settings.collapse))
            for number in range(turn * OBJECTS_PER_TURN, (turn + 1) * OBJECTS_PER_TURN):
                (file_in_turn if number % 2 else call_in_turn)(live, number)
            if live.barrier is not None:
                await live.barrier.wait()
        await store.drain()
        group.cancel_scope.cancel()


async def opened(root: Path, objects: int) -> tuple[float, list[str]]:
    """Seconds to open the session in a store that has just been started, and the ids in its index."""
    async with anyio.create_task_group() as group:
        store = VersionStore(root, SystemClock())
        await group.start(store.run)
        sessions = Sessions(store, SystemClock(), host_filesystem_id=HOST)
        await sessions.start()
        await anyio.sleep(SETTLE_S)
        for path in root.glob("*.db*"):
            path.read_bytes()
        gc.collect()
        began = time.perf_counter()
        live = await sessions.live(SESSION)
        heads = await store.heads(live.state.index)
        seconds = time.perf_counter() - began
        assert len(heads) == objects and all(heads.values())
        assert live.state.turn == objects // OBJECTS_PER_TURN
        group.cancel_scope.cancel()
    return seconds, list(live.state.index)


def floor(database: Path, ids: list[str]) -> float:
    """Seconds to read the segments and ``ids`` and decode them."""
    wanted = msgspec.json.encode([f"session:{SESSION}", *ids]).decode()
    gc.collect()
    began = time.perf_counter()
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    rows = [*connection.execute(_SEGMENTS), *connection.execute(_OBJECTS, (wanted,))]
    decoded = [decode_document(row[0], _journal_row(unpack_body(row[2]))[4][row[1]][1]) for row in rows]
    seconds = time.perf_counter() - began
    connection.close()
    assert len(decoded) > 2 * len(ids)
    return seconds


async def measured(place: Path, objects: int, rounds: int) -> tuple[float, float]:
    """Least seconds of opening and of the floor, taken in turn: what other programs take of the machine only adds."""
    root = place / f"state{objects}"
    await build(root, objects)
    (database,) = root.glob("state.db")
    pairs = []
    for _ in range(rounds):
        seconds, ids = await opened(root, objects)
        pairs.append((seconds, floor(database, ids)))
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def run() -> Iterator[Figure]:
    """See the module."""
    sizes = (300, 1_000, 3_000) if quick() else SIZES
    found: dict[int, tuple[float, float]] = {}
    with folder() as place:
        for objects in sizes:
            found[objects] = anyio.run(measured, place, objects, 7)
            opening, reading = found[objects]
            print(
                f"  {objects:,} objects: {opening * 1e3:.1f} ms, rows {reading * 1e3:.1f} ms",
                file=sys.stderr,
                flush=True,
            )
    largest = sizes[-1]
    for objects, (opening, reading) in found.items():
        yield Figure(
            name=f"resume_over_rows_{objects}",
            value=opening / reading,
            goal=GOAL if objects == largest else None,
            better="lower",
            detail=f"{opening * 1e3:.1f} ms to open, {reading * 1e3:.1f} ms to read and decode its rows",
        )
    per_object = [opening / objects for objects, (opening, _) in found.items()]
    yield Figure(
        name="resume_growth",
        value=per_object[-1] / per_object[0],
        goal=1.5,
        better="lower",
        detail=f"time an object at {largest:,} over that at {sizes[0]:,}: 1 is linear",
    )
