"""Discovery of sessions in the files of a harness: the type of each source, and its lines. Sources are only read."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import IO, Any, Final, NamedTuple

import msgspec

from ctxd.transcripts.claude_code import forked_after, relocated_to, with_answer
from ctxd.transcripts.claude_sidecars import agents_folder, reason_to_skip, spawn_keys
from ctxd.transcripts.codex import directory_in, records_in
from ctxd.transcripts.format_detection import Format, format_of
from ctxd.transcripts.harness_labels import HIDDEN, IMPORTED, NATIVE_CHARS_MAX, NATIVE_SESSION, SPAWNED_BY
from ctxd.transcripts.harness_names import HARNESS_OF, HarnessCommand
from ctxd.transcripts.opencode_storage import (
    StoredSession,
    created_at,
    export_records,
    folder_sessions,
    has_known_tables,
    stored_sessions,
)
from ctxd.transcripts.record_decoding import Record, as_text, decoded, milliseconds, number_of, record_of, records_of
from ctxd.transcripts.source_lines import SourceLine, open_source, source_lines
from ctxd.transcripts.transcript_files import Skipped, is_of_source, source_reason
from ctxd_protocol.ids import captured_session_id

_PEEKED: Final = 40
_PEEKED_BYTES: Final = 4 * 1024 * 1024
_LEAD_IN_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a file of Claude Code that are searched for the first record of the conversation."""

_SEARCHED_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a file that are searched for the first record."""

_TAIL_BYTES: Final = 256 * 1024
_FORMATS: Final[dict[HarnessCommand, tuple[Format, ...]]] = {
    "claude": ("claude-code", "claude-stream-json"),
    "codex": ("codex", "codex-events", "codex-exec-json"),
    "pi": ("pi", "pi-json-mode"),
    "opencode": ("opencode", "opencode-run-json"),
}
_HIDDEN: Final = frozenset({"guardian", "review", "memory_consolidation"})
"""Kinds of codex threads that the harness does not list."""


class Transcript(NamedTuple):
    """A source of lines. ``path`` is its name, ``file`` its file, ``native`` the harness's id of ``session``.

    ``agent``: the sub-agent of ``session`` whose chain it is; ``spawn_keys``: the names by which its caller knows it.
    ``began``: when it was spawned, in ms since 1970, in case its caller names it nowhere. ``after``: the id of the
    caller's message after which it begins as a fork. ``root``: equal in two sources if one begins with a copy of the
    other. ``parent``: the session that spawned it, or that it continues; ``base``: the byte in the parent's source at
    which it continues. ``first_own``: the first ordinal that is not copied from the parent. ``is_copy``: it begins with
    lines of another session. ``origin``: that session, if the lines name
    it. ``hidden``: the kind of a thread that the harness does not list. ``early_splits``: see ``source_lines``.
    """

    path: str
    file: Path
    format: Format
    session: str
    native: str
    workdir: str = ""
    agent: str = ""
    spawn_keys: tuple[str, ...] = ()
    root: str = ""
    parent: str = ""
    base: int | None = None
    first_own: int = 0
    is_spawned: bool = False
    began: int | None = None
    after: str = ""
    is_copy: bool = False
    origin: str = ""
    hidden: str = ""
    early_splits: int = 0
    stored: StoredSession | None = None

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its session that describe the source."""
        labels = {NATIVE_SESSION: self.native[:NATIVE_CHARS_MAX], IMPORTED: str(self.file)[:1024]}
        if self.is_spawned and self.parent:
            labels[SPAWNED_BY] = self.parent
        if self.hidden:
            labels[HIDDEN] = self.hidden
        return labels


def transcripts(harness: HarnessCommand, path: Path) -> Iterator[Transcript | Skipped]:
    """Yield the sources in a candidate; a database or a folder of opencode holds several."""
    try:
        if harness == "opencode" and path.is_dir():
            yield from _all_stored(path, folder_sessions(path))
            return
        with open_source(path) as file:
            start = file.read(16) if path.suffix != ".zst" else b""
        if start.startswith(b"SQLite format 3"):
            yield from _all_stored(path, stored_sessions(path))
            if not has_known_tables(path):
                yield Skipped(str(path), "a database without the tables of opencode that this version of ctxd reads")
        elif path.suffix == ".json":
            yield _of_document(harness, path)
        else:
            yield _of_lines(harness, path)
    except Exception as error:
        if not is_of_source(error):
            raise
        yield Skipped(str(path), source_reason(error))


TAIL_BYTES: Final = 16 * 1024
"""Bytes at the end of an earlier reading that must be unchanged if the next reading is to continue there."""


def can_continue(source: Transcript, size: int, tail: bytes) -> bool:
    """Return True if reading can continue after the first ``size`` bytes, which were read before and ended with
    ``tail``. Always False for compressed files, and for sources other than files of JSON lines."""
    if source.stored is not None or source.file.suffix == ".zst" or not size:
        return False
    with open_source(source.file) as file:
        if file.seek(0, os.SEEK_END) < size:
            return False
        file.seek(size - len(tail))
        return file.read(len(tail)) == tail and tail.endswith(b"\n")


def lines_of(source: Transcript, start: int = 0) -> Iterator[SourceLine]:
    """Yield the lines of a source from byte ``start`` on. Raises: OSError, sqlite3.Error, EOFError, ValueError,
    ZstdError."""
    if source.stored is None:
        with open_source(source.file) as file:
            if start:
                file.seek(start)
            yield from source_lines(file, start, source.early_splits)
        return
    end = 0
    for record in source.stored.records():
        raw = msgspec.json.encode(record) + b"\n"
        end += len(raw)
        yield SourceLine(end, raw, dict(record), raw)


def lines_at(source: Transcript, starts: Iterable[int]) -> Iterator[SourceLine]:
    """Yield the lines that begin at the bytes ``starts``, in the order of the source. Cost: in a plain file, these
    lines and short gaps between them; otherwise all lines up to the last one. Raises: as ``lines_of``."""
    wanted = sorted(set(starts))
    if source.stored is not None or source.file.suffix == ".zst":
        yield from _chosen(lines_of(source), 0, wanted)
        return
    with open_source(source.file) as file:
        for run in _runs(wanted):
            # A part of a long line can only be read after the parts before it.
            begin = _line_start(file, run[0])
            file.seek(begin)
            yield from _chosen(source_lines(file, begin, source.early_splits), begin, run)


_NEAR_BYTES: Final = 1024 * 1024


def _runs(starts: Sequence[int]) -> Iterator[list[int]]:
    """Yield ``starts`` in runs with at most ``_NEAR_BYTES`` between them, which are read in one pass."""
    run: list[int] = []
    for start in starts:
        if run and start - run[-1] > _NEAR_BYTES:
            yield run
            run = []
        run.append(start)
    if run:
        yield run


def _chosen(lines: Iterable[SourceLine], start: int, wanted: Sequence[int]) -> Iterator[SourceLine]:
    left = deque(wanted)
    found = iter(lines)
    while left and (line := next(found, None)) is not None:
        if start == left[0]:
            left.popleft()
            yield line
        start = line.end


def _line_start(file: IO[bytes], place: int) -> int:
    """Return the byte at which the line with the byte ``place`` begins."""
    while place:
        piece = min(place, _TAIL_BYTES)
        file.seek(place - piece)
        found = file.read(piece).rfind(b"\n")
        if found >= 0:
            return place - piece + found + 1
        place -= piece
    return 0


def _session(harness: HarnessCommand, native: str, path: Path) -> str:
    """Return the session id for ``native``, the same as for the harness's hooks; without ``native``, an id for the
    file."""
    return captured_session_id(HARNESS_OF[harness], native or f"file-{path}")


def _all_stored(path: Path, sessions: Iterable[StoredSession | Skipped]) -> Iterator[Transcript | Skipped]:
    return (each if isinstance(each, Skipped) else _stored(path, each) for each in sessions)


def _stored(path: Path, session: StoredSession) -> Transcript:
    id = _session("opencode", session.id, path)
    parent = session.parent or session.fork or session.copied_from
    return Transcript(
        f"{path}#{session.id}", path, "opencode", id, session.id, session.workdir, root=id,
        parent=_session("opencode", parent, path) if parent else "", is_spawned=bool(session.parent),
        began=session.created if session.parent else None, is_copy=bool(session.fork or session.copied_from),
        stored=session,
    )  # fmt: skip


def with_origin(source: Transcript, native: str) -> Transcript:
    """Return the session of a database as a fork of the session ``native`` that it does not name; of none if empty."""
    assert source.stored is not None, "it is in a database"
    return _stored(source.file, source.stored._replace(copied_from=native))


def _of_document(harness: HarnessCommand, path: Path) -> Transcript | Skipped:
    """Return the session in a JSON document: an export of opencode, or headless output, as one array or as JSON
    lines."""
    try:
        document = _document(path)
    except ValueError as error:
        found = _of_lines(harness, path)
        return Skipped(str(path), str(error)) if isinstance(found, Skipped) else found
    if isinstance(document, list) or records_in(document):
        return _of_array(harness, path, _listed(document))
    if harness == "opencode" and isinstance(document, dict) and isinstance(document.get("messages"), list):
        return _export(path, record_of(document.get("info")))
    if isinstance(document, dict) and "messages" not in document and "type" in document:
        is_answered = len(with_answer([document])) > 1
        return _of_array(harness, path, [document]) if is_answered else _of_lines(harness, path)
    return Skipped(str(path), "a JSON document without messages; opencode export writes one with them")


def _of_array(harness: HarnessCommand, path: Path, records: list[Record]) -> Transcript | Skipped:
    known = _of_records(harness, path, records[:_PEEKED])
    if isinstance(known, Skipped):
        return known
    stored = StoredSession(known.native, "", known.workdir, "", lambda: iter(_listed(_document(path))))
    return known._replace(stored=stored)


def _listed(document: object) -> list[Record]:
    """Return the records of a document that lists them, or that is one."""
    return records_in(document) or with_answer(records_of(document if isinstance(document, list) else [document]))


def _export(path: Path, info: Record) -> Transcript:
    stored = StoredSession(
        as_text(info.get("id")), as_text(info.get("parentID")), as_text(info.get("directory")), "",
        lambda: export_records(record_of(_document(path))), created=created_at(info),
    )  # fmt: skip
    return _stored(path, stored)._replace(path=str(path))


def _document(path: Path) -> Any:  # noqa: ANN401 - any JSON value
    with open_source(path) as file:
        return decoded(file.read())


def _of_lines(harness: HarnessCommand, path: Path) -> Transcript | Skipped:
    if harness == "claude" and (reason := reason_to_skip(path)):
        return Skipped(str(path), reason)
    records: list[Record] = []
    is_empty, has_begun = True, False
    with open_source(path) as file:
        for number, line in enumerate(source_lines(file), 1):
            is_empty = is_empty and not line.to_store
            if line.record is not None:
                is_placed = "uuid" in line.record
                # Settings may precede the first message of Claude Code.
                has_begun |= harness != "claude" or is_placed or line.end > _LEAD_IN_BYTES
                if is_placed or len(records) < _PEEKED:
                    records.append(line.record)
            # Damaged lines or a long line may precede the first record.
            if has_begun and (number >= _PEEKED or line.end > _PEEKED_BYTES):
                break
            if line.end > _SEARCHED_BYTES:
                break
    return Skipped(str(path), "no complete line") if is_empty else _of_records(harness, path, records)


def _of_records(harness: HarnessCommand, path: Path, records: list[Record]) -> Transcript | Skipped:
    """Return the session that begins with ``records``."""
    format = format_of(records)
    if format is None or format not in _FORMATS[harness]:
        other = next((name for name, formats in _FORMATS.items() if format in formats), "")
        reason = f"a transcript of {other} ({format}): use ctx import {other}"
        return Skipped(str(path), "not a transcript" if format is None else reason)
    known = Transcript(str(path), path, format, "", "")
    match format:
        case "claude-code":
            return _claude_code(known, records)
        case "codex":
            return _codex(known, records)
        case "pi":
            return _pi(known, records)
        case _:
            native = next(filter(None, map(_headless_session, records)), "")
            id = _session(harness, native, known.file)
            workdir = next((as_text(each.get("cwd")) for each in records if as_text(each.get("cwd"))), "")
            return known._replace(session=id, native=native, workdir=workdir, root=id)


def _headless_session(record: Record) -> str:
    """Return the session that a record of headless output names; empty without one."""
    if "msg" in record:
        # The first versions of codex number each line with its request.
        return as_text(record_of(record["msg"]).get("session_id"))
    names = ("session_id", "thread_id", "sessionID", "id")
    return next((as_text(record[name]) for name in names if as_text(record.get(name))), "")


def _claude_code(known: Transcript, records: list[Record]) -> Transcript:
    """Return the source of a session file. Its session is in the file name, else in the last record: a copied beginning
    has that of another session."""
    path = known.file
    agent = next((as_text(each.get("agentId")) for each in records if as_text(each.get("agentId"))), "")
    placed = [each for each in records if "uuid" in each]
    is_agent = path.stem.startswith("agent-") or (bool(placed) and all(each.get("isSidechain") for each in placed))
    native = path.stem if _is_uuid(path.stem) else _last_session(path)
    if is_agent:
        folder = agents_folder(path)
        if folder is not None and _is_uuid(folder.parent.name):
            native = folder.parent.name
        agent = agent or path.stem.removeprefix("agent-")
    root = next((as_text(each.get("uuid")) for each in records if each.get("uuid")), "")
    began_in = next((as_text(each.get("cwd")) for each in records if as_text(each.get("cwd"))), "")
    first = next((as_text(each.get("sessionId")) for each in records if as_text(each.get("sessionId"))), "")
    forked = next((record_of(each["forkedFrom"]) for each in records if "forkedFrom" in each), None)
    origin = as_text((forked or {}).get("sessionId")) or first
    is_copy = forked is not None or first not in ("", native)
    return known._replace(
        session=_session("claude", native or first, path),
        native=native or first,
        workdir=next(filter(None, map(relocated_to, reversed(records))), began_in),
        agent=agent if is_agent else "",
        spawn_keys=spawn_keys(path, agent) if is_agent else (),
        after=next(filter(None, map(forked_after, records)), "") if is_agent else "",
        root=root,
        is_copy=is_copy,
        origin=_session("claude", origin, path) if is_copy and origin not in ("", native) else "",
    )


def _last_session(path: Path) -> str:
    with open_source(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().split(b"\n")
    for line in reversed(lines):
        try:
            found = as_text(record_of(decoded(line)).get("sessionId"))
        except ValueError:
            continue
        if found:
            return found
    return ""


def _is_uuid(text: str) -> bool:
    return len(text) == 36 and text.count("-") == 4 and all(each in "0123456789abcdef-" for each in text.lower())


def _codex(known: Transcript, records: list[Record]) -> Transcript:
    metas = [record_of(each.get("payload")) for each in records if each.get("type") == "session_meta"]
    meta: Record = metas[0] if metas else records[0]
    path = known.file
    source = record_of(record_of(meta.get("source")).get("subagent"))
    if isinstance(kind := record_of(meta.get("source")).get("subagent"), str):
        source = {"other": kind}
    internal = as_text(record_of(meta.get("source")).get("internal"))
    hidden = _HIDDEN & {as_text(source.get("other")), internal, *source}
    native = as_text(meta.get("id")) or as_text(meta.get("session_id"))
    id = _session("codex", native, path)
    base = record_of(meta.get("history_base"))
    spawn = record_of(source.get("thread_spawn"))
    spawner = as_text(spawn.get("parent_thread_id"))
    parent = as_text(base.get("thread_id")) or as_text(meta.get("forked_from_id")) or spawner
    parent = parent or as_text(meta.get("parent_thread_id"))
    if not parent and len(metas) > 1 and as_text(metas[1].get("id")) not in ("", native):
        parent = as_text(metas[1].get("id"))
    # Some versions copy the whole history of its caller into the file of a sub-agent, without a mark at its end.
    has_copy = bool(spawn.get("forked_from_id")) or parent in {as_text(each.get("id")) for each in metas[1:]}
    has_history = bool(source) and has_copy and not base and parent not in ("", native)
    return known._replace(
        session=id,
        native=native,
        workdir=as_text(meta.get("cwd")) or directory_in(records),
        # A fork shares the root of its origin, even if it is imported first.
        root="" if base else _session("codex", parent, path) if parent and not source else id,
        parent=_session("codex", parent, path) if parent else "",
        origin=_session("codex", parent, path) if has_history else "",
        base=number_of(base.get("end_byte_offset")),
        spawn_keys=tuple(filter(None, (native, as_text(spawn.get("agent_path"))))) if source else (),
        is_spawned=bool(source),
        began=milliseconds(meta.get("timestamp")) if source else None,
        is_copy=bool(parent),
        hidden=", ".join(sorted(hidden)),
        first_own=number_of(meta.get("subagent_history_start_ordinal")) or 0,
    )


def _pi(known: Transcript, records: list[Record]) -> Transcript:
    header = next((each for each in records if each.get("type") == "session"), {})
    entries = (each for each in records if each.get("type") != "session" and as_text(each.get("id")))
    root = next((f"{each['id']} {each.get('timestamp')}" for each in entries), "")
    # The file name also ends with the id, which helps if the header is damaged.
    named = known.file.stem.rpartition("_")[2]
    native = as_text(header.get("id")) or (named if _is_uuid(named) else "")
    id = _session("pi", native, known.file)
    # The path of the file that this one was copied from, ``branchedFrom`` in the first version; its name ends with the
    # session's id.
    copied = as_text(header.get("parentSession")) or as_text(header.get("branchedFrom"))
    origin = PurePath(copied).stem.rpartition("_")[2]
    return known._replace(
        session=id,
        native=native,
        workdir=as_text(header.get("cwd")),
        root=root,
        is_copy=bool(copied),
        origin=_session("pi", origin, known.file) if origin not in ("", native) else "",
    )


def in_groups(sources: Sequence[Transcript]) -> list[list[str]]:
    """Return the paths of sources in groups that share a session, parent, origin or root, in the order of ``sources``.

    Cost: a union-find, with some steps for each source.
    """
    leaders: dict[str, str] = {}

    def leader(key: str) -> str:
        while (above := leaders.setdefault(key, key)) != key:
            leaders[key] = leaders[above]
            key = above
        return key

    for source in sources:
        keys = [f"session {each}" for each in (source.session, source.parent, source.origin) if each]
        keys += [f"root {source.root}"] if source.root else []
        for key in keys[1:]:
            leaders[leader(key)] = leader(keys[0])
    groups = dict[str, list[str]]()
    for source in sources:
        groups.setdefault(leader(f"session {source.session}"), []).append(source.path)
    return [*groups.values()]
