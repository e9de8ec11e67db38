"""Index of context commits: their place in chains, sessions and the timelines of principals.

It is filled in the transaction that writes a commit, from its document alone, so a rebuild can fill it again. All reads
use an index: their cost depends on the size of the result, not on the number of commits.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from blake3 import blake3

from ctxd import sqlite_file
from ctxd.backends.sqlite import COLUMNS, SqliteBackend, to_versions
from ctxd.backends.stored_version import Version
from ctxd.objects.commit_document import Fields
from ctxd.objects.document import Document, Stored, decode_document
from ctxd.objects.generated_ids import COMMIT_PREFIX
from ctxd.store.version_reads import all_stored

TABLES: Final = """
CREATE TABLE IF NOT EXISTS context_commit(
    entity INTEGER PRIMARY KEY, parent INTEGER, principal TEXT NOT NULL, session TEXT, template TEXT, at INTEGER NOT
    NULL, boundary INTEGER NOT NULL, summarised INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS commit_timeline ON context_commit(principal, at, entity);
CREATE INDEX IF NOT EXISTS commit_of_session ON context_commit(session, at, entity) WHERE session IS NOT NULL;
CREATE INDEX IF NOT EXISTS commit_by_time ON context_commit(at, entity);
CREATE INDEX IF NOT EXISTS commit_children ON context_commit(parent) WHERE parent IS NOT NULL;
CREATE TABLE IF NOT EXISTS commit_tag(
    tag TEXT NOT NULL, entity INTEGER NOT NULL, PRIMARY KEY(tag, entity)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tags_of_commit ON commit_tag(entity);
"""
"""Commits by the number of their entity; ``at`` is the instant in ms since 1970, ``boundary`` 1 for a compaction or a
snapshot."""


_REFS_AT_ONCE: Final = 500
"""Contents looked up by one query."""


def fill(connection: sqlite_file.Connection, backend: SqliteBackend, versions: Sequence[Version]) -> None:
    """Index the commits among ``versions``, which must include the newest version of each. Part of the caller's
    transaction."""
    rows, tags = [], list[tuple[str, int]]()
    for version in sorted(versions, key=lambda version: version.tx):
        if version.body is None or not version.id.startswith(COMMIT_PREFIX):
            continue
        if (one := fields_of(decode_document(version.id, version.body))) is None:
            continue
        numbers = backend.number((version.id, COMMIT_PREFIX + one.parent) if one.parent else (version.id,))
        number, parent = numbers[version.id], numbers.get(COMMIT_PREFIX + one.parent)
        boundary = one.is_boundary
        rows.append((number, parent, one.principal, one.session, one.template, one.at, boundary, bool(one.summary)))
        if one.tags is not None:
            connection.execute("DELETE FROM commit_tag WHERE entity=?", (number,))
            tags = [(tag, other) for tag, other in tags if other != number]
            tags += [(tag, number) for tag in one.tags]
    if not rows:
        return
    sqlite_file.insert_rows(
        connection,
        "INSERT OR REPLACE INTO context_commit(entity, parent, principal, session, template, at, boundary, summarised)",
        "(?,?,?,?,?,?,?,?)",
        rows,
    )
    sqlite_file.insert_rows(connection, "INSERT OR IGNORE INTO commit_tag(tag, entity)", "(?,?)", tags)


def fields_of(document: Document) -> Fields | None:
    """The fields of a commit; None for a tool call of an earlier ctxd whose id has the same prefix.

    Raises: msgspec.ValidationError if it is damaged.
    """
    return msgspec.convert(document.payload, Fields) if document.type == "commit" else None


def clear(connection: sqlite_file.Connection) -> None:
    """Remove all rows."""
    connection.execute("DELETE FROM context_commit").fetchall()
    connection.execute("DELETE FROM commit_tag").fetchall()


class ListedCommit(NamedTuple):
    """A commit in a listing: its entity id, its instant, and its number, which grows with the journal."""

    id: str
    at: int
    number: int


class CommitFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on commits; all must hold. ``without_session``: commits of no session. ``before``: instant and number
    of the last commit of the previous page, newest first; ``after``: the same, oldest first; ``until``: the latest
    instant; ``tx``: the journal sequence by which they must exist."""

    principal: str | None = None
    session: str | None = None
    template: str | None = None
    tag: str | None = None
    parent: str | None = None
    tips: bool = False
    without_session: bool = False
    without_summary: bool = False
    until: int | None = None
    tx: int | None = None
    before: tuple[int, int] | None = None
    after: tuple[int, int] | None = None


def list_commits(
    connection: sqlite_file.Connection, wanted: CommitFilter, limit: int, *, oldest_first: bool = False
) -> list[ListedCommit]:
    """At most ``limit`` commits that match ``wanted``, newest first unless ``oldest_first``."""
    where, values = _conditions(wanted)
    order = "c.at, c.entity" if oldest_first else "c.at DESC, c.entity DESC"
    query = f"""SELECT e.id, c.at, c.entity FROM context_commit AS c JOIN entity AS e ON e.n=c.entity
        WHERE {where} ORDER BY {order} LIMIT ?"""
    return [ListedCommit(*row) for row in connection.execute(query, (*values, limit))]


def newest(connection: sqlite_file.Connection, wanted: CommitFilter) -> Stored | None:
    """The newest version of the newest commit that matches ``wanted``; None if none does. Looks up the version by the
    commit's number, so that the first query after a start reads few pages. Raises: CtxdError ``corrupt``;
    DamagedVersion."""
    where, values = _conditions(wanted)
    query = f"""SELECT {COLUMNS} FROM (
            SELECT c.entity FROM context_commit AS c WHERE {where} ORDER BY c.at DESC, c.entity DESC LIMIT 1
        ) AS found JOIN entity AS e ON e.n=found.entity JOIN version AS v ON v.rowid=(
            SELECT rowid FROM version WHERE entity=found.entity ORDER BY vt DESC, tx DESC LIMIT 1)"""
    return next(iter(all_stored(to_versions(connection.execute(query, values)))), None)


def _conditions(wanted: CommitFilter) -> tuple[str, list[Any]]:
    where, values = ["1"], list[Any]()
    for column in ("principal", "session", "template"):
        if (value := getattr(wanted, column)) is not None:
            where.append(f"c.{column}=?")
            values.append(value)
    if wanted.tag is not None:
        where.append("c.entity IN (SELECT entity FROM commit_tag WHERE tag=?)")
        values.append(wanted.tag)
    if wanted.parent is not None:
        where.append("c.parent=(SELECT n FROM entity WHERE id=?)")
        values.append(wanted.parent)
    is_tip = "NOT EXISTS(SELECT 1 FROM context_commit AS child WHERE child.parent=c.entity)"
    flags = (
        (wanted.tips, is_tip),
        (wanted.without_session, "c.session IS NULL"),
        (wanted.without_summary, "c.summarised=0"),
    )
    where += [condition for holds, condition in flags if holds]
    made_by = "(SELECT min(v.tx) FROM version AS v WHERE v.entity=c.entity)<=?"
    for limit_of, condition in ((wanted.until, "c.at<=?"), (wanted.tx, made_by)):
        if limit_of is not None:
            where.append(condition)
            values.append(limit_of)
    if wanted.before is not None:
        where.append("(c.at, c.entity)<(?,?)")
        values += wanted.before
    if wanted.after is not None:
        where.append("(c.at, c.entity)>(?,?)")
        values += wanted.after
    return " AND ".join(where), values


_WALK: Final = """WITH RECURSIVE chain(entity, parent, boundary) AS (
    SELECT entity, parent, boundary FROM context_commit WHERE entity=(SELECT n FROM entity WHERE id=:tip)
    UNION ALL SELECT up.entity, up.parent, up.boundary FROM chain JOIN context_commit AS up ON up.entity=chain.parent
        WHERE up.entity<chain.entity AND NOT (chain.boundary AND :to_boundary) AND chain.entity IS NOT :last
    LIMIT :limit)"""
"""A parent has a smaller number than its children, so the walk ends even if the index is damaged."""

_CHAIN: Final = f"{_WALK} SELECT e.id FROM chain JOIN entity AS e ON e.n=chain.entity"

_CHAIN_BEYOND: Final = f"""{_WALK} SELECT e.id, (SELECT min(v.tx) FROM version AS v WHERE v.entity=chain.entity)
    FROM chain CROSS JOIN context_commit AS c ON c.entity=chain.entity CROSS JOIN entity AS e ON e.n=chain.entity
    WHERE c.session IS NULL OR c.session NOT IN (SELECT value FROM json_each(:sessions))"""

_CHAIN_VERSIONS: Final = f"""{_WALK} SELECT {COLUMNS}, (SELECT size FROM content WHERE hash=v.content)
    FROM chain CROSS JOIN entity AS e ON e.n=chain.entity CROSS JOIN version AS v ON v.rowid=(
        SELECT rowid FROM version WHERE entity=chain.entity ORDER BY vt DESC, tx DESC LIMIT 1)"""


def chain(
    connection: sqlite_file.Connection, tip: str, *, to_boundary: bool = False, last: str = "", limit: int = -1
) -> list[str]:
    """The ids of ``tip`` and its ancestors, in that order: up to the root, to the nearest ``boundary``, or to ``last``,
    each included."""
    return [id for (id,) in connection.execute(_CHAIN, _place(connection, tip, to_boundary, last, limit))]


def chain_beyond(
    connection: sqlite_file.Connection,
    tip: str,
    sessions: Collection[str],
    *,
    to_boundary: bool = False,
    last: str = "",
) -> list[tuple[str, int]]:
    """The commits of ``chain`` that belong to none of ``sessions``: the id and journal sequence of each."""
    place = _place(connection, tip, to_boundary, last, -1)
    return list(connection.execute(_CHAIN_BEYOND, {**place, "sessions": msgspec.json.encode(list(sessions)).decode()}))


def chain_versions(
    connection: sqlite_file.Connection, tip: str, *, to_boundary: bool = False, last: str = "", limit: int = -1
) -> list[tuple[Stored, int]]:
    """As ``chain``, in one read: the newest version of each commit, and its content's size in bytes, 0 without one.

    Raises: CtxdError ``corrupt``; DamagedVersion.
    """
    rows = list(connection.execute(_CHAIN_VERSIONS, _place(connection, tip, to_boundary, last, limit)))
    stored = all_stored(to_versions(row[:-1] for row in rows))
    return [(each, row[-1] or 0) for each, row in zip(stored, rows, strict=True)]


def _place(connection: sqlite_file.Connection, tip: str, to_boundary: bool, last: str, limit: int) -> dict[str, Any]:
    number = connection.execute("SELECT n FROM entity WHERE id=?", (last,)).fetchone()
    end = None if number is None else number[0]
    return {"tip": tip, "to_boundary": to_boundary, "last": end, "limit": limit}


class SessionCommit(NamedTuple):
    """A commit of a session and its parent, by number. ``is_named``: it has a tag, or a child outside the session."""

    number: int
    id: str
    parent: int | None
    is_named: bool


def named_commits(connection: sqlite_file.Connection, session: str) -> list[SessionCommit]:
    """All commits of ``session``, children before their parents."""
    query = """SELECT c.entity, e.id, c.parent, EXISTS(SELECT 1 FROM commit_tag AS t WHERE t.entity=c.entity)
        OR EXISTS(SELECT 1 FROM context_commit AS child WHERE child.parent=c.entity AND child.session IS NOT c.session)
        FROM context_commit AS c JOIN entity AS e ON e.n=c.entity WHERE c.session=? ORDER BY c.entity DESC"""
    return [
        SessionCommit(number, id, parent, bool(named))
        for number, id, parent, named in connection.execute(query, (session,))
    ]


def children(connection: sqlite_file.Connection, id: str, limit: int) -> list[str]:
    """The ids of at most ``limit`` commits whose parent is ``id``, oldest first."""
    query = """SELECT e.id FROM context_commit AS c JOIN entity AS e ON e.n=c.entity
        WHERE c.parent=(SELECT n FROM entity WHERE id=?) ORDER BY c.entity LIMIT ?"""
    return [child for (child,) in connection.execute(query, (id, limit))]


def content_sizes(connection: sqlite_file.Connection, refs: Iterable[str]) -> dict[str, int]:
    """The sizes of the contents ``refs`` in bytes, also of those in the artifact store, without missing ones."""
    query = "SELECT size FROM content WHERE hash=?"
    found = {ref: connection.execute(query, (bytes.fromhex(ref),)).fetchone() for ref in dict.fromkeys(refs)}
    return {ref: row[0] for ref, row in found.items() if row is not None}


def holding(connection: sqlite_file.Connection, session: str, refs: Collection[str]) -> list[str]:
    """The ids of the commits of ``session`` with one of the contents ``refs``."""
    found: list[str] = []
    left = [bytes.fromhex(ref) for ref in refs]
    while left:
        some, left = left[:_REFS_AT_ONCE], left[_REFS_AT_ONCE:]
        query = f"""SELECT DISTINCT e.id FROM version AS v CROSS JOIN context_commit AS c ON c.entity=v.entity
            JOIN entity AS e ON e.n=v.entity WHERE v.content IN ({",".join("?" * len(some))}) AND c.session=?"""
        found += [id for (id,) in connection.execute(query, (*some, session))]
    return found


def of_session(connection: sqlite_file.Connection, session: str, after: int = 0) -> list[str]:
    """The ids of the commits of ``session`` with numbers above ``after``."""
    query = "SELECT e.id FROM context_commit AS c JOIN entity AS e ON e.n=c.entity WHERE c.session=? AND c.entity>?"
    return [id for (id,) in connection.execute(query, (session, after))]


def highest_number(connection: sqlite_file.Connection) -> int:
    """The number of the newest commit; 0 without commits."""
    ((number,),) = connection.execute("SELECT ifnull(max(entity), 0) FROM context_commit")
    return int(number)


def row_of(id: str, fields: Fields) -> bytes:
    """A digest of the index rows that the commit ``id`` with the newest ``fields`` should have."""
    parent = COMMIT_PREFIX + fields.parent if fields.parent else None
    place = (fields.principal, fields.session, fields.template, fields.at, fields.is_boundary, bool(fields.summary))
    return _digest((id, parent, *place, sorted(fields.tags or ())))


def rows(connection: sqlite_file.Connection) -> Iterator[tuple[str, bytes]]:
    """Every commit in the index, and the digest of its rows, comparable to ``row_of``."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name='context_commit'").fetchone() is None:
        return
    query = """SELECT c.entity, e.id, p.id, c.principal, c.session, c.template, c.at, c.boundary, c.summarised
        FROM context_commit AS c JOIN entity AS e ON e.n=c.entity LEFT JOIN entity AS p ON p.n=c.parent"""
    for number, id, parent, *place, boundary, summarised in connection.execute(query):
        tags = connection.execute("SELECT tag FROM commit_tag WHERE entity=?", (number,))
        yield id, _digest((id, parent, *place, bool(boundary), bool(summarised), sorted(tag for (tag,) in tags)))


def _digest(row: tuple[Any, ...]) -> bytes:
    return blake3(msgspec.msgpack.encode(row)).digest(16)
