"""Transcript files: the format of each by its content, and its events. Sources are only read.

A harness may write to a file while it is read: of JSON lines the complete ones count, databases are opened read-only.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from ctxd.transcripts import claude_code, codex, opencode, pi
from ctxd.transcripts.opencode_storage import StoredSession, export_records, numbered, stored_sessions
from ctxd.transcripts.records import Entry, Line, Record, decoded, lines

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
    "opencode",
]

_PEEKED: Final = 20
"""Records by which a format is known."""

LINE_READERS: Final[dict[Format, Callable[[Iterable[Line]], Iterator[Entry]]]] = {
    "claude-code": claude_code.read_session,
    "claude-stream-json": claude_code.read_stream,
    "codex": codex.read_rollout,
    "codex-exec-json": codex.read_exec,
    "pi": pi.read_session,
    "pi-json-mode": pi.read_stream,
    "opencode": opencode.read_session,
    "opencode-run-json": opencode.read_run,
}
"""Reader of each format of JSON lines. ``opencode``: a line for each row, see ``opencode_storage``."""

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
        return "opencode-sqlite", _rows(stored_sessions(path))
    if path.suffix == ".json":
        document = decoded(path.read_bytes())
        if isinstance(document, dict) and isinstance(document.get("messages"), list):
            return "opencode-export", opencode.read_session(numbered(export_records(document)))
        raise UnknownFormat(f"{path}: a JSON document without messages; opencode export writes one with them")
    with path.open("rb") as file:
        first = [line.record for line in islice(lines(file), _PEEKED) if line.record is not None]
    format = format_of(first)
    if format is None:
        raise UnknownFormat(f"{path}: not a transcript of Claude Code, codex, pi or opencode")
    return format, _file_entries(path, LINE_READERS[format])


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
    if not isinstance(kind, str) and record.keys() & {"session", "row", "parts"}:
        return "opencode"
    if not isinstance(kind, str):
        return "codex" if {"id", "timestamp", "instructions"} <= record.keys() else None
    if "payload" in record:
        return "codex"
    if kind.startswith(("thread.", "turn.", "item.")):
        return "codex-exec-json"
    if (kind == "session" and "sessionId" not in record) or {"id", "parentId", "timestamp"} <= record.keys():
        return "pi"
    if "part" in record or "sessionID" in record:
        return "opencode-run-json"
    if "session_id" in record and "sessionId" not in record:
        return "claude-stream-json"
    return "pi-json-mode" if kind.startswith(_PI_STREAM) else None


def _rows(sessions: Iterable[StoredSession]) -> Iterator[Entry]:
    """Yield the events of every session; ``line`` is the number of the session's message from 1."""
    for session in sessions:
        yield from opencode.read_session(numbered(session.records()))


def _file_entries(path: Path, reader: Callable[[Iterable[Line]], Iterator[Entry]]) -> Iterator[Entry]:
    with path.open("rb") as file:
        yield from reader(lines(file))
