"""How long the daemon takes from its start to its first answer: with an empty journal, and with 1,000,000 rows in it.

Expected order of growth: O(1). A start opens the file, recomputes the newest 10,000 hashes, and reads nothing else.

Both figures are wall time from starting ``python -m ctxd run`` to the answer to ``hello``, imports included, median of
some starts with bytecode in place, as an installation has it. The pages of the database are dropped from the system's
cache before each.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from bench.figures import Figure
from bench.running import environment
from ctxd import sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.backends.sqlite import SqliteBackend
from ctxd.backends.stored_version import Version
from ctxd.clock import SystemClock
from ctxd.objects.document import Document, encode_document
from ctxd.objects.generated_ids import session_of
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.store import journal, state_directory
from ctxd.store.head_witness import Head, WitnessFile
from ctxd.store.journal_writer import JournalWriter

ROWS = 1_000_000
ROWS_QUICK = 100_000
STARTS = 5
READY_S_MAX = 30.0
SEGMENTS_OF_A_SESSION = 500
ROWS_OF_A_TRANSACTION = 20_000


def conversation_line(seq: int) -> Document:
    """A short segment, for journal row ``seq``."""
    session = f"session-{seq // SEGMENTS_OF_A_SESSION:06d}"
    id = f"segment:{session}#{seq % SEGMENTS_OF_A_SESSION:010d}"
    payload = {"messages": [{"role": "assistant", "content": f"line {seq} of a conversation of ordinary length"}]}
    return Document(
        id=id,
        type="segment",
        identity_hash=identity_hash("segment", None, id),
        content_hash=content_hash(payload, None),
        payload=payload,
    )


def generate(root: Path, rows: int, document: Callable[[int], Document] = conversation_line) -> None:
    """Fill the new state directory ``root`` with ``rows`` journal rows of one document each, that of its sequence: a
    valid chain, and all that a verification looks for, written without a flush a row."""
    held = state_directory.hold(root)
    witness = WitnessFile(held.witness)
    journal_writer = JournalWriter(held, ArtifactStore(held.artifacts), SystemClock())
    journal_writer.begin()
    chain = journal_writer.head.chain
    journal_writer.close(tidy=True)
    connection = sqlite_file.open_writer(held.database)
    connection.execute("PRAGMA synchronous=OFF").fetchall()
    backend = SqliteBackend(connection)
    for first in range(1, rows + 1, ROWS_OF_A_TRANSACTION):
        last = min(first + ROWS_OF_A_TRANSACTION, rows + 1)
        connection.execute("BEGIN")
        chain = _add(connection, backend, map(document, range(first, last)), first, chain)
        connection.execute("COMMIT")
        sqlite_file.checkpoint(connection, truncate=True)
    connection.close()
    witness.write(Head(rows, chain), sync=True)
    witness.close()
    held.close()
    os.sync()


def _add(
    connection: sqlite_file.Connection, backend: SqliteBackend, documents: Iterable[Document], first: int, chain: bytes
) -> bytes:
    lines, versions, places = [], list[Version](), list[int | None]()
    for seq, document in enumerate(documents, first):
        id, session = document.id, session_of(document.id)
        put = journal.Put(id, encode_document(document), None)
        at = 1_700_000_000_000 + seq
        columns = (1, "host", session, "session.append", f"op-{seq}", at, at)
        body = journal.encode_body(b"q" * 16, b"{}", (), (put,))
        b3 = journal.row_hash(*columns, body)
        chain = journal.link(chain, seq, b3)
        lines.append((seq, *columns, body, b3, chain))
        made, found = journal.versions((put,), at, seq, at, len(body))
        versions += made
        places += found
    sqlite_file.insert_rows(connection, f"INSERT INTO journal({journal.COLUMNS})", "(?,?,?,?,?,?,?,?,?,?,?)", lines)
    backend.append(versions, places)
    return chain


def ready_s(root: Path, place: Path) -> float:
    """Seconds from starting a daemon on the state directory ``root`` to its answer to ``hello``. ``place`` is a folder
    for its socket."""
    if (root / "state.db").exists():
        sqlite_file.forget_cached_pages(root / "state.db")
    path = place / "ready.sock"
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "ctxd", "run", "--socket", str(path), "--state-dir", str(root)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while not _answers(path):
            if process.poll() is not None or time.monotonic() - began > READY_S_MAX:
                raise RuntimeError(f"the daemon did not answer: {process.stderr.read().decode()[-2000:]}")
            time.sleep(0.002)
        return time.monotonic() - began
    finally:
        process.terminate()
        process.communicate()
        path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        if peer.connect_ex(str(path)) != 0:
            return False
        peer.settimeout(READY_S_MAX)
        peer.sendall(b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{}}\n')
        with peer.makefile("rb") as lines:
            return "result" in msgspec.json.decode(lines.readline() or b"{}")


def run() -> Iterator[Figure]:
    rows = ROWS_QUICK if os.environ.get("CTXD_BENCH_QUICK") == "1" else ROWS
    with tempfile.TemporaryDirectory(prefix="ctxd-bench-") as made:
        place = Path(made)
        ready_s(place / "first", place)  # Of a checkout that was never started this compiles every module.
        empty = [ready_s(place / f"empty{number}", place) for number in range(STARTS)]
        yield Figure(
            name="ready_empty",
            value=statistics.median(empty),
            goal=0.5,
            better="lower",
            detail=f"s, median of {STARTS} starts, new state directory",
        )
        generate(place / "full", rows)
        size = (place / "full" / "state.db").stat().st_size
        full = [ready_s(place / "full", place) for _ in range(STARTS)]
        yield Figure(
            name="ready_million",
            value=statistics.median(full),
            goal=2.0,
            better="lower",
            detail=f"s, median of {STARTS} starts, {rows:,} journal rows, {size / 1e6:,.0f} MB, cold cache",
        )
