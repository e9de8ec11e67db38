"""Transcript files: detects the format from the content, and reads the events. Sources are only read.

A harness may write to a file while it is read: only complete JSON lines are read, and databases are opened read-only.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from ctxd.transcripts import claude_code, codex, codex_exec, opencode, pi
from ctxd.transcripts.opencode_storage import StoredSession, export_records, numbered, stored_sessions
from ctxd.transcripts.record_decoding import Entry, Line, Record, decoded, lines, records_of
from ctxd.transcripts.source_lines import open_source
from ctxd.transcripts.transcript_files import Skipped

Format = Literal[
    "claude-code",
    "claude-stream-json",
    "codex",
    "codex-events",
    "codex-exec-json",
    "pi",
    "pi-json-mode",
    "opencode-export",
    "opencode-run-json",
    "opencode-sqlite",
    "opencode",
]

_PEEKED: Final = 20
"""Lines from which the format is detected."""

HEADLESS: Final[frozenset[Format]] = frozenset(
    {"claude-stream-json", "codex-exec-json", "pi-json-mode", "opencode-run-json"}
)
"""Formats of the output of one run. Several runs may continue one session."""

ROLLOUTS: Final[frozenset[Format]] = frozenset({"codex", "codex-events"})
"""Formats of codex's rollout files."""

LINE_READERS: Final[dict[Format, Callable[[Iterable[Line]], Iterator[Entry]]]] = {
    "claude-code": claude_code.read_session,
    "claude-stream-json": claude_code.read_session,
    "codex": codex.read_rollout,
    "codex-events": codex.read_events,
    "codex-exec-json": codex_exec.read_exec,
    "pi": pi.read_session,
    "pi-json-mode": pi.read_stream,
    "opencode": opencode.read_session,
    "opencode-run-json": opencode.read_run,
}
"""Reader of each format of JSON lines. ``codex-events``: a rollout whose conversation is in its ``event_msg`` records.
``opencode``: one line for each record of ``opencode_storage``."""

_SESSION_MARKS: Final = frozenset({"uuid", "message", "messageId", "operation"})
_ITEM_MARKS: Final = frozenset({"role", "call_id", "summary", "action"})
_ROLLOUT_TYPES: Final = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_EXEC_TYPES: Final = frozenset(
    {
        "thread.started",
        "turn.started",
        "turn.completed",
        "turn.failed",
        "item.started",
        "item.updated",
        "item.completed",
    }
)
_STREAM_TYPES: Final = frozenset({"system", "user", "assistant", "result", "stream_event"})
_PI_STREAM: Final = ("agent_", "turn_", "message_", "tool_execution_", "auto_")
_PI_STREAM_TYPES: Final = frozenset(
    {f"{kind}_{moment}" for kind in ("agent", "turn", "message", "tool_execution") for moment in ("start", "end")}
)


class UnknownFormat(Exception):
    """The file is not a transcript of a known harness."""


def read(path: Path) -> tuple[Format, Iterator[Entry]]:
    """Return the format of the transcript at ``path``, and its events in the order of the file.

    The file stays open until the iterator ends. Memory: one line, or one message of a database; an export as a whole.
    Raises: UnknownFormat; ValueError for a damaged export or a line that is too long; OSError, sqlite3.Error, EOFError
    and zstd's error; also while iterating.
    """
    with open_source(path) as file:
        start = file.read(16)
    if start.startswith(b"SQLite format 3"):
        return "opencode-sqlite", _rows(stored_sessions(path))
    damage: ValueError | None = None
    if path.suffix == ".json":
        try:
            return _of_document(path, decoded(path.read_bytes()))
        except ValueError as error:
            damage = error
    with open_source(path) as file:
        first = [line.record for line in islice(lines(file), _PEEKED) if line.record is not None]
    format = format_of(first)
    if format is None and damage is not None:
        raise damage
    if format is None:
        raise UnknownFormat(f"{path}: not a transcript of Claude Code, codex, pi or opencode")
    if format == "codex":
        with open_source(path) as file:
            format = format if codex.conversation_in_events(file) is None else "codex-events"
    return format, _file_entries(path, LINE_READERS[format])


def _of_document(path: Path, document: object) -> tuple[Format, Iterator[Entry]]:
    """Return the format and the events of an export of opencode, or of headless output as one array."""
    if isinstance(document, dict) and isinstance(document.get("messages"), list):
        return "opencode-export", opencode.read_session(numbered(export_records(document)))
    records = codex.records_in(document) or records_of(document if isinstance(document, list) else [document])
    if (format := format_of(records[:_PEEKED])) is None:
        raise UnknownFormat(f"{path}: a JSON document without messages; opencode export writes one with them")
    answered = claude_code.with_answer(records)
    return format, LINE_READERS[format](Line(number, record) for number, record in enumerate(answered, 1))


def format_of(first: Iterable[Record]) -> Format | None:
    """Return the format that most of the first records of a file of JSON lines indicate; None if none does.

    Records that only one harness writes decide; if there are none, the other records do.
    """
    records = list(first)
    for known_by in (_certain_format, _likely_format):
        # A tie goes to the format that occurs first.
        shown: Counter[Format] = Counter(format for each in records if (format := known_by(each)) is not None)
        if shown:
            return max(shown, key=shown.__getitem__)
    return None


def _certain_format(record: Record) -> Format | None:
    """Return the format of a record that occurs in only one format; None for other records."""
    kind = record.get("type")
    if not isinstance(kind, str):
        return _untyped_format(record)
    if {"sessionId", "parentUuid", "leafUuid"} & record.keys():
        return "claude-code"
    if (kind == "session" and {"version", "cwd", "parentSession"} & record.keys()) or {
        "id",
        "parentId",
        "timestamp",
    } <= record.keys():
        return "pi"
    if kind in _ROLLOUT_TYPES and isinstance(record.get("payload"), dict):
        return "codex"
    if kind in _EXEC_TYPES:
        return "codex-exec-json"
    if isinstance(record.get("sessionID"), str):
        return "opencode-run-json"
    if kind in _STREAM_TYPES and isinstance(record.get("session_id"), str):
        return "claude-stream-json"
    return "pi-json-mode" if kind in _PI_STREAM_TYPES else None


def _untyped_format(record: Record) -> Format | None:
    if record.keys() & {"session", "row", "parts"}:
        return "opencode"
    if isinstance(record.get("msg"), dict) and "type" in record["msg"]:
        return "codex-exec-json"
    return "codex" if {"id", "timestamp", "instructions"} <= record.keys() else None


def _likely_format(record: Record) -> Format | None:
    """Return the format whose records have similar members or types; None without one."""
    kind = record.get("type")
    if not isinstance(kind, str):
        return None
    if "payload" in record or (kind in codex.BARE_ITEMS and _ITEM_MARKS & record.keys()):
        return "codex"
    if kind.startswith(("thread.", "turn.", "item.")):
        return "codex-exec-json"
    if kind == "session":
        return "pi"
    if "part" in record:
        return "opencode-run-json"
    if "session_id" in record:
        return "claude-stream-json"
    if kind.startswith(_PI_STREAM):
        return "pi-json-mode"
    return "claude-code" if _SESSION_MARKS & record.keys() else None


def _rows(sessions: Iterable[StoredSession | Skipped]) -> Iterator[Entry]:
    """Yield the events of all sessions; ``line`` is the number of the record within its session, see ``numbered``."""
    for session in sessions:
        if not isinstance(session, Skipped):
            yield from opencode.read_session(numbered(session.records()))


def _file_entries(path: Path, reader: Callable[[Iterable[Line]], Iterator[Entry]]) -> Iterator[Entry]:
    with open_source(path) as file:
        yield from reader(lines(file))
