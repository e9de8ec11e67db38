"""Storage of opencode: reads sessions from databases of both generations, exports and folders of JSON files as records.

A record is one message with its parts, or one row; ``opencode.read_session`` converts records to events. Sources are
only read: databases are opened read-only, as opencode may be writing to them.
"""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from ctxd.transcripts.opencode import message_info
from ctxd.transcripts.record_decoding import DAMAGED, Line, Record, as_text, decoded, number_of, record_of, records_of
from ctxd.transcripts.source_lines import open_source
from ctxd.transcripts.transcript_files import Skipped, source_reason

_LOCKED_S: Final = 5.0
"""Seconds to wait for a writer's lock."""

_FIRST: Final = frozenset({"session", "message", "part"})
_SECOND: Final = frozenset({"session_v2", "session_message"})
"""Tables of the two generations."""

_CONTENT_TYPES: Final = ("agent-switched", "model-switched")
"""Types of rows that ``session_message`` may have before it holds messages."""

STATE: Final = "session_state"
"""Member of the record with the changing columns of a session's row: the last record, so that others stay the same."""

_FIXED: Final = frozenset(
    {
        "id", "parent_id", "parentID", "slug", "directory", "version", "time_created", "fork_session_id",
        "fork_boundary",
    }
)  # fmt: skip
_SUMS: Final = re.compile(r"time|time_(updated|viewed|idle)|(cost|tokens|summary)(_\w+)?")
"""Members that change with each message and are derived from the messages."""


class StoredSession(NamedTuple):
    """A session: its id, the session that spawned it, and a stamp that changes with its content; an empty stamp means
    unknown.

    ``records`` reads it; raises OSError, sqlite3.Error. ``fork``: the session whose messages it begins with.
    ``created``: when the session was created, in ms since 1970; None if it is not recorded. ``copied_from``: as
    ``fork``, for a session that does not name it; the messages have other ids.
    """

    id: str
    parent: str
    workdir: str
    stamp: str
    records: Callable[[], Iterator[Record]]
    fork: str = ""
    created: int | None = None
    copied_from: str = ""


def numbered(records: Iterable[Record]) -> Iterator[Line]:
    """Yield records as lines, numbered from 0, the record of the session."""
    for number, record in enumerate(records):
        yield Line(number, record)


def stored_sessions(path: Path) -> Iterator[StoredSession | Skipped]:
    """Yield the sessions of a database; ``Skipped`` for one whose id is not text. If the tables of both
    generations have a session, the second is read: the first does not change after the upgrade. Raises:
    sqlite3.Error."""
    with closing(_opened(path)) as database:
        tables = _tables(database)
        newer = set[object]()
        if _SECOND <= tables:
            stamps = _stamps(database, "session_message", f"WHERE type NOT IN {_CONTENT_TYPES!r}")
            for id, stamp in stamps.items():
                newer.add(id)
                if not isinstance(id, str):
                    yield _without_text_id(path, id)
                    continue
                row = _row(database, "session_v2", id)
                stamp = stamp and f"{stamp} {row.get('time_updated')}"
                yield _session(id, row, stamp, lambda id=id: _second_generation(path, id))  # type: ignore[misc]
        if _FIRST <= tables:
            stamps, messages = _stamps(database, "part"), _stamps(database, "message")
            forks = _unnamed_forks(database)
            for (id,) in database.execute("SELECT id FROM session ORDER BY id").fetchall():
                if id not in newer and not isinstance(id, str):
                    yield _without_text_id(path, id)
                elif id not in newer:
                    row = _row(database, "session", id)
                    stamp = (
                        f"{stamps.get(id)} {messages.get(id)} {row['time_updated']}" if "time_updated" in row else ""
                    )
                    found = _session(id, row, stamp, lambda id=id: _first_generation(path, id))  # type: ignore[misc]
                    yield found._replace(copied_from=forks.get(id, ""))


def _without_text_id(path: Path, id: object) -> Skipped:
    return Skipped(f"{path}#{id}", "a session whose id is not text")


def has_known_tables(path: Path) -> bool:
    """Return True if a database has the tables of a known generation, with or without sessions. Raises:
    sqlite3.Error."""
    with closing(_opened(path)) as database:
        tables = _tables(database)
    return tables >= _FIRST or tables >= _SECOND


def _tables(database: sqlite3.Connection) -> set[str]:
    return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _stamps(database: sqlite3.Connection, table: str, where: str = "") -> dict[object, str]:
    """Return a stamp for each session, by id, that changes with its rows; empty stamps if the rows have no times."""
    columns = {column[1] for column in database.execute(f"PRAGMA table_info({table})")}
    found = [f"max({name})" for name in ("seq", "time_updated") if name in columns]
    wanted = f"SELECT session_id, {', '.join(['count(*)', *found])} FROM {table} {where} GROUP BY session_id"
    is_stamped = {"session_id", "time_updated"} <= columns
    if "session_id" not in columns:
        return {}
    rows = database.execute(f"{wanted} ORDER BY session_id").fetchall()
    return {id: " ".join(map(str, stamp)) if is_stamped else "" for id, *stamp in rows}


def _unnamed_forks(database: sqlite3.Connection) -> dict[str, str]:
    """Return the forks of the first generation, each with its ``_origins``."""
    columns = {column[1] for column in database.execute("PRAGMA table_info(session)")}
    times = {column[1] for column in database.execute("PRAGMA table_info(message)")}
    if not {"directory", "parent_id", "time_created"} <= columns or not {"session_id", "time_created"} <= times:
        return {}
    rows = database.execute(
        "SELECT session.id, session.time_created, directory, begun FROM session JOIN "
        "(SELECT session_id, min(time_created) AS begun FROM message GROUP BY session_id) ON session_id = session.id "
        "WHERE parent_id IS NULL ORDER BY session.time_created, session.id"
    ).fetchall()
    return _origins(rows, partial(_message_times, database))


def _origins(
    sessions: Iterable[tuple[str, object, object, object]], message_times: Callable[[str], Iterable[object]]
) -> dict[str, str]:
    """Return the forks among ``sessions``, each with the session whose messages it begins with.

    A fork has copies of messages from before it was created, under other ids and at the same times. If several
    sessions have them, it begins like the one that has most of them; of those, like the oldest. ``sessions``: the id,
    the time of creation, the directory and the time of the first message of each, the oldest first.
    """
    times_of = cache(message_times)  # A session may have many forks.
    alike = defaultdict[tuple[object, object], list[str]](list)
    forks: dict[str, str] = {}
    for id, created, directory, begun in sessions:
        older = alike[directory, begun]
        if older and isinstance(begun, int) and isinstance(created, int) and begun < created:
            own = times_of(id)
            forks[id] = max(older, key=lambda other: _common(own, times_of(other)))
        older.append(id)
    return forks


def _common(one: Iterable[object], other: Iterable[object]) -> int:
    """Return how many items both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _message_times(database: sqlite3.Connection, session: str) -> list[object]:
    found = database.execute("SELECT time_created FROM message WHERE session_id = ? ORDER BY time_created", (session,))
    return [time for (time,) in found]


def _session(id: str, row: Record, stamp: str, records: Callable[[], Iterator[Record]]) -> StoredSession:
    parent, fork = as_text(row.get("parent_id")), as_text(row.get("fork_session_id"))
    return StoredSession(
        id, parent, as_text(row.get("directory")), stamp, records, "" if parent else fork, created_at(row)
    )  # fmt: skip


def created_at(row: Record) -> int | None:
    """Return when the session of a row or an export was created, in ms since 1970; None if that is not recorded."""
    return number_of(row.get("time_created")) or number_of(record_of(row.get("time")).get("created"))


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=_LOCKED_S)
    # One row with damaged text must not hide the others.
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    return database


def _row(database: sqlite3.Connection, table: str, id: str) -> Record:
    found = database.execute(f"SELECT * FROM {table} WHERE id = ?", (id,))
    names = [column[0] for column in found.description]
    return {
        name: value if not isinstance(value, bytes) else value.decode("utf-8", "replace")
        for name, value in zip(names, found.fetchone() or (), strict=False)
    }


def _second_generation(path: Path, session: str) -> Iterator[Record]:
    with closing(_opened(path)) as database:
        session_row = _row(database, "session_v2", session) or {"id": session}
        yield _fixed(session_row)
        rows = database.execute(
            "SELECT id, type, seq, data FROM session_message WHERE session_id = ? ORDER BY seq", (session,)
        )
        for id, kind, seq, data in rows:
            row = _object(data)
            yield {"row": id, "type": DAMAGED if DAMAGED in row else kind, "seq": seq, "data": row}
        yield from _state(session_row)


def _first_generation(path: Path, session: str) -> Iterator[Record]:
    with closing(_opened(path)) as database:
        session_row = _row(database, "session", session)
        yield _fixed(session_row)
        messages = database.execute(
            "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id", (session,)
        )
        for id, data in messages:
            rows = database.execute("SELECT id, data FROM part WHERE message_id = ? ORDER BY id", (id,))
            parts = [{**_object(part), "id": part_id} for part_id, part in rows]
            yield {"info": {**_object(data), "id": id}, "parts": parts}
        yield from _state(session_row)


def _fixed(row: Record) -> Record:
    """Return the first record of a session, with the members that never change, so that later records keep their
    places."""
    found = {name: value for name, value in row.items() if name in _FIXED}
    created = record_of(row.get("time")).get("created")
    return {"session": found if created is None else {**found, "time": {"created": created}}}


def reverted(state: Record) -> tuple[str, bool]:
    """Return the first message that a pending revert removes, empty for none, and True if it begins at a part."""
    revert = state.get("revert")
    if isinstance(revert, str | bytes):
        revert = _object(revert)
    return as_text(record_of(revert).get("messageID")), bool(record_of(revert).get("partID"))


def _state(row: Record) -> Iterator[Record]:
    """Yield the last record of a session, with its changing members, if it has any."""
    found = {name: value for name, value in row.items() if name not in _FIXED and not _SUMS.fullmatch(name)}
    times = {name: value for name, value in record_of(row.get("time")).items() if name not in ("created", "updated")}
    found |= {"time": times} if times else {}
    if found := {name: value for name, value in found.items() if value is not None}:
        yield {STATE: found}


def _object(data: object) -> Record:
    """Return the JSON object in a column; another value is kept as text in the member ``damaged``."""
    if not isinstance(data, str | bytes):
        data = str(data)
    try:
        found = decoded(data.encode() if isinstance(data, str) else data)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    return {"type": DAMAGED, DAMAGED: data.decode("latin-1") if isinstance(data, bytes) else data}


# --- documents ---


def export_records(document: Record) -> Iterator[Record]:
    """Yield the records of a document that ``opencode export`` wrote."""
    row = record_of(document.get("info"))
    yield _fixed(row)
    for message in records_of(document.get("messages")):
        yield {"info": record_of(message.get("info")), "parts": records_of(message.get("parts"))}
    yield from _state(row)


def folder_sessions(storage: Path) -> Iterator[StoredSession | Skipped]:
    """Yield the sessions of a folder of JSON files; ``Skipped`` for one with a file that cannot be read. Ids are
    taken from the paths: those in the files may differ."""
    # The first layout has everything below ``session``, in a folder for each project.
    is_first = (storage / "session" / "info").is_dir()
    found: list[tuple[StoredSession, Path]] = []
    begun: dict[str, int | None] = {}
    for file in sorted(storage.glob("session/info/*.json" if is_first else "session/*/*.json")):
        try:
            session, begun[file.stem] = _folder_session(storage, file, is_first=is_first)
        except OSError as error:
            yield Skipped(f"{storage}#{file.stem}", source_reason(error))
        else:
            found.append((session, file))
    files = {session.id: file for session, file in found}
    oldest_first = sorted((each for each, _ in found if not each.parent), key=lambda each: (each.created or 0, each.id))
    forks = _origins(
        ((each.id, each.created, each.workdir, begun[each.id]) for each in oldest_first),
        lambda id: sorted(filter(None, (created_at(_message(each)) for each in _messages(storage, files[id])))),
    )
    for session, _ in found:
        yield session._replace(copied_from=forks.get(session.id, ""))


def _folder_session(storage: Path, file: Path, *, is_first: bool) -> tuple[StoredSession, int | None]:
    """Return the session of the file ``file``, and when its first message was created. Raises: OSError."""
    row = _document(file)
    messages = _messages(storage, file)
    parts = [part for message in messages for part in _parts(storage, file, message)]
    changed = max((each.stat().st_mtime_ns for each in (file, *messages, *parts)), default=0)
    stamp = [len(messages), len(parts), changed]
    directory = as_text(row.get("directory"))
    if is_first:
        paths = (record_of(_message(each).get("path")) for each in messages)
        directory = next((as_text(path.get("cwd")) for path in paths if path.get("cwd")), "")
    session = StoredSession(
        file.stem, as_text(row.get("parentID")), directory, " ".join(map(str, stamp)),
        lambda: _folder_records(storage, file), created=created_at(row),
    )  # fmt: skip
    return session, created_at(_message(messages[0])) if messages else None


def _messages(storage: Path, session: Path) -> list[Path]:
    """Return the files of the messages of the file ``session``."""
    folder = storage / "session" if session.parent.name == "info" else storage
    return sorted((folder / "message" / session.stem).glob("*.json"))


def _parts(storage: Path, session: Path, message: Path) -> list[Path]:
    """Return the files of the parts of a message."""
    is_first = session.parent.name == "info"
    folder = storage / "session" / "part" / session.stem if is_first else storage / "part"
    return sorted((folder / message.stem).glob("*.json"))


def _folder_records(storage: Path, file: Path) -> Iterator[Record]:
    row = {**_document(file), "id": file.stem}
    yield _fixed(row)
    messages = [(path, _document(path)) for path in _messages(storage, file)]

    def created(found: tuple[Path, Record]) -> tuple[int, str]:
        return created_at(message_info(found[1])) or 0, found[0].stem

    for path, info in sorted(messages, key=created):
        yield {
            "info": {**info, "id": path.stem, "sessionID": file.stem},
            "parts": [{**_document(part), "id": part.stem} for part in _parts(storage, file, path)],
        }
    yield from _state(row)


def _message(path: Path) -> Record:
    return message_info(_document(path))


def _document(path: Path) -> Record:
    with open_source(path) as file:
        return _object(file.read())
