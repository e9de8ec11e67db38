"""Transcript files: the format of each by its content, and its events. Sources are only read.

A harness may write to a file while it is read: of JSON lines the complete ones count, databases are opened read-only.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

from ctxd.transcripts import claude_code, codex, opencode, pi
from ctxd.transcripts.records import DAMAGED, Entry, Line, Record, decoded, lines, opaque, record_of
from ctxd_protocol.event_types import OpaqueEvent

Format = Literal[
    "claude-code",
    "claude-stream-json",
    "codex",
    "codex-exec-json",
    "pi",
    "pi-json-mode",
    "opencode-export",
    "opencode-run-json",
    "opencode-sqlite",
]

_PEEKED: Final = 20
"""Records by which a format is known."""

_LINE_READERS: Final[dict[Format, Callable[[Iterable[Line]], Iterator[Entry]]]] = {
    "claude-code": claude_code.read_session,
    "claude-stream-json": claude_code.read_stream,
    "codex": codex.read_rollout,
    "codex-exec-json": codex.read_exec,
    "pi": pi.read_session,
    "pi-json-mode": pi.read_stream,
    "opencode-run-json": opencode.read_run,
}
_SESSION_MARKS: Final = frozenset({"sessionId", "uuid", "message", "leafUuid", "messageId", "operation"})
_PI_STREAM: Final = ("agent_", "turn_", "message_", "tool_execution_", "auto_")


class UnknownFormat(Exception):
    """The file is not a transcript of a known harness."""


def read(path: Path) -> tuple[Format, Iterator[Entry]]:
    """Return the format of the transcript at ``path``, and its events in the order of the file.

    The file stays open until the iterator ends. Memory: a line, or one session of a database; an export is held whole.
    Raises: UnknownFormat; OSError, sqlite3.Error, here and while iterating.
    """
    with path.open("rb") as file:
        start = file.read(16)
    if start.startswith(b"SQLite format 3"):
        return "opencode-sqlite", _database(path)
    if path.suffix == ".json":
        document = decoded(path.read_bytes())
        if isinstance(document, dict) and isinstance(document.get("messages"), list):
            return "opencode-export", opencode.read_export(document)
        raise UnknownFormat(f"{path}: a JSON document without messages; opencode export writes one with them")
    with path.open("rb") as file:
        first = [line.record for line in islice(lines(file), _PEEKED) if line.record is not None]
    format = format_of(first)
    if format is None:
        raise UnknownFormat(f"{path}: not a transcript of Claude Code, codex, pi or opencode")
    return format, _file_entries(path, _LINE_READERS[format])


def format_of(first: Iterable[Record]) -> Format | None:
    """Return the format that the first records of a file of JSON lines show; None if none does."""
    records = list(first)
    # Records of a session file may lack every mark of it, so that any other format is tried first.
    found: Format | None = next((format for format in map(_format_of, records) if format is not None), None)
    if found is None and any(_SESSION_MARKS & record.keys() for record in records):
        return "claude-code"
    return found


def _format_of(record: Record) -> Format | None:
    kind = record.get("type")
    if not isinstance(kind, str):
        return "codex" if {"id", "timestamp", "instructions"} <= record.keys() else None
    if "payload" in record:
        return "codex"
    if kind.startswith(("thread.", "turn.", "item.")):
        return "codex-exec-json"
    if kind == "session" and "sessionId" not in record:
        return "pi"
    if "part" in record or "sessionID" in record:
        return "opencode-run-json"
    if "session_id" in record and "sessionId" not in record:
        return "claude-stream-json"
    return "pi-json-mode" if kind.startswith(_PI_STREAM) else None


def _file_entries(path: Path, reader: Callable[[Iterable[Line]], Iterator[Entry]]) -> Iterator[Entry]:
    with path.open("rb") as file:
        yield from reader(lines(file))


# --- databases of opencode ---


def _database(path: Path) -> Iterator[Entry]:
    """Yield the events of every session; ``line`` is the number of the session's message from 1.

    Of a session that both generations of tables hold, the second is read: the first is frozen at the upgrade.
    """
    database = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
    try:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        newer: set[str] = set()
        if {"session_v2", "session_message"} <= tables:
            rows = database.execute("SELECT DISTINCT session_id FROM session_message ORDER BY session_id")
            newer = {id for (id,) in rows}
            yield from chain.from_iterable(_second_generation(database, id) for id in sorted(newer))
        if {"session", "message", "part"} <= tables:
            older = [id for (id,) in database.execute("SELECT id FROM session ORDER BY id") if id not in newer]
            yield from chain.from_iterable(_first_generation(database, id) for id in older)
    finally:
        database.close()


def _second_generation(database: sqlite3.Connection, session: str) -> Iterator[Entry]:
    yield Entry(0, opaque("session", {"id": session}))
    rows = database.execute("SELECT id, type, data FROM session_message WHERE session_id = ? ORDER BY seq", (session,))
    for number, (id, kind, data) in enumerate(rows, 1):
        row = _object(data)
        events = [OpaqueEvent(kind=DAMAGED, data=data)] if DAMAGED in row else opencode.row_events(kind, row, id)
        yield from (Entry(number, event) for event in events)


def _first_generation(database: sqlite3.Connection, session: str) -> Iterator[Entry]:
    found = database.execute("SELECT * FROM session WHERE id = ?", (session,))
    names = [column[0] for column in found.description]
    yield Entry(0, opaque("session", dict(zip(names, found.fetchone(), strict=True))))
    in_order = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
    messages = database.execute(in_order, (session,))
    for number, (id, data) in enumerate(messages, 1):
        rows = database.execute("SELECT id, data FROM part WHERE message_id = ? ORDER BY id", (id,))
        parts = [{**_object(part), "id": part_id} for part_id, part in rows]
        events = opencode.message_events({**_object(data), "id": id}, parts)
        yield from (Entry(number, event) for event in events)


def _object(data: str | bytes) -> Record:
    """Return the object of a column; text that is not JSON becomes the member ``damaged``, so that it is kept."""
    try:
        return record_of(decoded(data.encode() if isinstance(data, str) else data))
    except ValueError:
        return {"type": DAMAGED, DAMAGED: str(data)}
