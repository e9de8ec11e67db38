"""Reads of durable versions: the connection for them, and the interface for reads as of a time."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from blake3 import blake3

from ctxd import sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.backends.sqlite import SqliteBackend
from ctxd.backends.stored_version import DamagedVersion, Version
from ctxd.errors import CtxdError
from ctxd.objects.document import ALL, NOW, AsOf, Content, HistoryPage, IdPage, Stored, decode_content, decode_document
from ctxd.store import journal
from ctxd.store.write_types import Change, StoredWrite
from ctxd.worker_threads import Lane
from ctxd_protocol.object_types import Receipt

T = TypeVar("T")

_HEADS_READ: Final = 500
"""Heads per query: few, so that the rows are still in the processor's cache when they are decoded."""


@contextmanager
def read_errors() -> Iterator[None]:
    """Translate errors of a damaged or failing disk into ``CtxdError`` ``corrupt`` and ``store_failed``, and exhausted
    descriptors or memory into ``disk_full``."""
    try:
        with sqlite_file.faults():
            yield
    except (sqlite_file.FileDamaged, sqlite_file.SqlFailed, DamagedVersion, ValueError, TypeError) as error:
        raise CtxdError("corrupt", f"the database is damaged: {error}") from error
    except sqlite_file.DiskFull as error:
        raise CtxdError("disk_full", f"the store cannot be read now: {error}", hint=error.hint) from error
    except sqlite_file.DiskFailed as error:
        raise CtxdError("store_failed", f"the store cannot be read: {error}") from error


def run_read(function: Callable[[], T]) -> T:
    """Call ``function`` under ``read_errors`` and return its result."""
    with read_errors():
        return function()


def to_stored(version: Version) -> Stored | None:
    """Convert a version to the form that the rest of the daemon uses, without content; None for a deletion.

    Raises: CtxdError ``corrupt`` if its document cannot be read.
    """
    return next(iter(all_stored((version,))), None)


def all_stored(versions: Iterable[Version]) -> list[Stored]:
    """As ``to_stored`` for many versions, without deletions. One call each would be a tenth of a read's time."""
    found = []
    for version in versions:
        body, content = version.body, version.content
        if body is None:
            continue
        try:
            document = decode_document(version.id, body)
        except (ValueError, TypeError) as error:
            raise CtxdError("corrupt", f"the document of {version.id} in write {version.tx} is damaged") from error
        stored = Stored(
            document=document,
            content_ref=None if content is None else content.hex(),
            valid_time=version.valid_time,
            tx=version.tx,
            tx_time=version.tx_time,
        )
        found.append(stored)
    return found


class KeyIndex(NamedTuple):
    """An index for look-ups in ``table``: its columns, the column ``number`` of a row, and the position ``last`` of its
    maximum in the result of ``Reader.last_keys``."""

    what: str
    table: str
    name: str
    number: str
    columns: tuple[str, ...]
    last: int

    def query(self, *, by_index: bool) -> str:
        """The query for the keys after a given one, from the index or the table; rows start with the number."""
        columns = ", ".join(self.columns)
        places = ",".join("?" for _ in self.columns)
        given = f"{self.columns[0]} IS NOT NULL"
        if by_index:
            source = f"INDEXED BY {self.name} WHERE ({columns})>({places}) AND {given} AND {self.number}<=?"
            return f"SELECT {self.number}, {columns} FROM {self.table} {source} ORDER BY {columns} LIMIT ?"
        source = f"NOT INDEXED WHERE {self.number}>? AND {self.number}<=? AND {given}"
        return f"SELECT {self.number}, {columns} FROM {self.table} {source} ORDER BY {self.number} LIMIT ?"


KEY_INDEXES: Final = (
    KeyIndex("entities", "entity", "sqlite_autoindex_entity_1", "n", ("id",), 0),
    KeyIndex("operation ids", "journal", "journal_op", "seq", ("op_id", "principal"), 1),
)


class Reader:
    """One read-only connection and its queries. Not for two threads at a time. ``reads_once``: as for
    ``open_reader``."""

    def __init__(self, path: Path, artifacts: ArtifactStore, *, reads_once: bool = False) -> None:
        self.connection = sqlite_file.open_reader(path, reads_once=reads_once)
        self.versions = SqliteBackend(self.connection)
        self.artifacts = artifacts
        self.rewritten = journal.rewriting(self.connection)
        """See ``journal.rewriting``."""

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def heads(self, ids: Iterable[str], sized_above: int) -> tuple[dict[str, Stored | None], dict[str, int]]:
        """Return the newest version of each of ``ids``, and the bytes of encoded documents above ``sized_above``."""
        heads: dict[str, Stored | None] = dict.fromkeys(ids)
        sizes: dict[str, int] = {}
        wanted = list(heads)
        for first in range(0, len(wanted), _HEADS_READ):
            versions = self.versions.as_of(wanted[first : first + _HEADS_READ])
            for stored in all_stored(versions):
                heads[stored.document.id] = stored
            for version in versions:
                if version.body is not None and len(version.body) > sized_above:
                    sizes[version.id] = len(version.body)
        self.versions.require_versions(id for id, head in heads.items() if head is None)
        return heads, sizes

    def operations(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], StoredWrite]:
        """Return the durable writes under the ``(principal, op_id)`` keys."""
        found = {}
        query = "SELECT seq FROM journal WHERE op_id=? AND principal=?"
        for principal, op_id in keys:
            place = self.connection.execute(query, (op_id, principal)).fetchone()
            if place is not None:
                (row,) = self._rows(place[0] - 1, 1)
                receipt = Receipt(row.seq, row.chain.hex(), row.vt)
                found[principal, op_id] = StoredWrite(row.kind, row.session, journal.decode_body(row.body), receipt)
        return found

    def _rows(self, after: int, limit: int) -> list[journal.Row]:
        chain = journal.chain_at(self.connection, after)
        rows = list(journal.read_rows(self.connection, after=after, limit=limit))
        fault = journal.first_fault(rows, self.rewritten, after=after, chain=chain or b"") if rows else None
        if fault is not None:
            raise CtxdError("corrupt", fault)
        return rows

    def content_size(self, row: journal.Row) -> int:
        """The size of the texts that ``row`` refers to, in bytes; 0 if the row cannot be read."""
        try:
            refs = {put.content for put in journal.decode_body(row.body).puts if put.content is not None}
        except (ValueError, TypeError):
            return 0
        query = "SELECT size FROM content WHERE hash=?"
        found = [self.connection.execute(query, (ref,)).fetchone() for ref in refs]
        return sum(int(size[0]) for size in found if size is not None)

    def follower_mark(self, name: str) -> int:
        """The sequence that the follower ``name`` marked last; 0 for a new follower."""
        found = self.connection.execute(
            "SELECT value FROM meta WHERE name=?", (journal.follower_name(name),)
        ).fetchone()
        return 0 if found is None else int.from_bytes(found[0], "big")

    def rows_after(self, after: int, limit: int) -> list[journal.Row]:
        """The rows after ``after``, verified. Raises: CtxdError ``corrupt``."""
        return self._rows(after, limit)

    def last_keys(self) -> tuple[int, int]:
        """The greatest number of an entity, and the greatest journal sequence."""
        query = "SELECT coalesce((SELECT max(n) FROM entity), 0), coalesce((SELECT max(seq) FROM journal), 0)"
        entity, seq = self.connection.execute(query).fetchone() or (0, 0)
        return int(entity), int(seq)

    def keys(
        self, index: "KeyIndex", last: tuple[int, int], limit: int, *, by_index: bool
    ) -> Iterator[tuple[tuple[str | tuple[str, ...], int], ...]]:
        """Walk the keys of ``index`` up to the number given by ``last``, at most ``limit`` at a time; blocks.

        Yields: ``(key, number)`` of each key, read from the table or, with ``by_index``, from the index.
        """
        bound = last[index.last]
        after: tuple[Any, ...] = ("", "")[: len(index.columns)] if by_index else (0,)
        query = index.query(by_index=by_index)
        execute: Callable[..., Any] = self.connection.execute
        while rows := execute(query, (*after, bound, limit)).fetchall():
            after = rows[-1][1:] if by_index else rows[-1][:1]
            # Keys in the form of the Bloom filter: an id, or a principal and its operation id.
            yield tuple((row[1] if len(row) == 2 else row[:0:-1], row[0]) for row in rows)

    def entity_ids(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Return at most ``limit`` entities after number ``after``, each as number and id."""
        query = "SELECT n, id FROM entity WHERE n>? ORDER BY n LIMIT ?"
        return [(int(n), str(id)) for n, id in self.connection.execute(query, (after, limit))]

    def contents(self, refs: Iterable[str]) -> dict[str, Content]:
        """Return the contents ``refs`` by hash.

        Raises: CtxdError ``corrupt`` if one is missing or does not match its hash; ``purged`` if a purge removed it.
        """
        texts = {}
        for ref in refs:
            try:
                texts[ref] = self._content(ref)
            except CtxdError as error:
                self._require_damaged(ref, error)
                raise
        return texts

    def _require_damaged(self, ref: str, error: CtxdError) -> None:
        """Raise ``purged`` if a purge caused ``error``: the caller may have read the version before the purge."""
        if error.code == "corrupt" and not self.versions.with_content((bytes.fromhex(ref),)):
            hint = "Send the call again: it returns the text that remains."
            message = f"content {ref} was purged while it was read"
            raise CtxdError("purged", message, hint=hint, outcome="not_applied") from error

    def _content(self, ref: str) -> Content:
        row = self.connection.execute("SELECT size, bytes FROM content WHERE hash=?", (bytes.fromhex(ref),)).fetchone()
        if row is None:
            raise CtxdError("corrupt", f"content {ref} is referenced but missing")
        size, stored = row
        if stored is None:
            return decode_content(self.artifacts.read(ref))
        try:
            data = sqlite_file.unpack_content(size, stored)
        except ValueError as error:
            raise CtxdError("corrupt", f"content {ref} does not match its hash: {error}") from error
        if blake3(data).hexdigest() != ref:
            raise CtxdError("corrupt", f"content {ref} does not match its hash")
        return decode_content(data)

    def referenced(self, refs: Iterable[str]) -> set[str]:
        """Those of the content hashes ``refs`` that versions refer to."""
        query = "SELECT 1 FROM content WHERE hash=?"
        return {ref for ref in refs if self.connection.execute(query, (bytes.fromhex(ref),)).fetchone() is not None}

    def referring(self, ref: str) -> list[str]:
        """The ids of the entities that have a version with the content ``ref``."""
        return list(dict.fromkeys(version.id for version in self.versions.with_content((bytes.fromhex(ref),))))

    def check(self, ref: str) -> None:
        """Compare the content ``ref`` with its hash, in pieces if it is large. Raises: as ``contents``."""
        row = self.connection.execute(
            "SELECT bytes IS NULL FROM content WHERE hash=?", (bytes.fromhex(ref),)
        ).fetchone()
        if row is None or not row[0]:
            self.contents((ref,))
            return
        try:
            self.artifacts.check(ref)
        except CtxdError as error:
            self._require_damaged(ref, error)
            raise

    def valid_time(self, tx: int) -> int:
        """The valid time of the newest journal row at or below ``tx``; 0 before the first."""
        query = "SELECT vt FROM journal WHERE seq<=? ORDER BY seq DESC LIMIT 1"
        found = self.connection.execute(query, (tx,)).fetchone()
        return 0 if found is None else int(found[0])

    def knowing(self, object_id: str) -> list[str]:
        """The ids of the sessions that have ``object_id`` in their index, in order."""
        query = """SELECT s.id FROM entity AS o JOIN knows ON knows.object=o.n JOIN entity AS s ON s.n=knows.session
            WHERE o.id=? ORDER BY s.id"""
        return [id.removeprefix("session:") for (id,) in self.connection.execute(query, (object_id,))]

    def signatures(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The stored stat signatures of ``ids``; those without one are left out."""
        query = """SELECT e.id, sig FROM json_each(?) AS wanted JOIN entity AS e ON e.id=wanted.value
            JOIN signature ON signature.entity=e.n"""
        return dict(self.connection.execute(query, (json.dumps(list(ids)),)))

    def changes(self, after: int, limit: int) -> list[Change]:
        """The journal rows after ``after`` as changes, in order."""
        return [
            Change(
                row.seq,
                row.kind,
                row.session,
                row.principal,
                row.vt,
                tuple((version.id, version.valid_time) for version in journal.read_versions(row)),
            )
            for row in self._rows(after, limit)
        ]


class AsOfReads(Protocol):
    """Reads of one journal's versions by both times, with the meaning that ``SqliteBackend`` gives them.

    All raise CtxdError ``corrupt`` or ``store_failed``. Cancel: safe.
    """

    async def as_of(self, ids: Sequence[str], at: AsOf = NOW) -> list[Version]:
        """See ``SqliteBackend.as_of``."""
        ...

    async def history(
        self, id: str, at: AsOf = NOW, page: HistoryPage = ALL, *, corrections: bool = False
    ) -> list[Version]:
        """See ``SqliteBackend.history``."""
        ...

    async def query(
        self, query: str, arguments: Sequence[Any], at: AsOf, *, limit: int, timeout_s: float
    ) -> "QueryRows":
        """The first ``limit`` rows of a Datalog query, as of ``at``.

        Raises: CtxdError ``unsupported``, ``invalid_params``, ``timeout``, ``store_unavailable`` as well.
        """
        ...


class QueryRows(msgspec.Struct, frozen=True):
    """Rows of a Datalog query. ``complete``: there are no more. ``tx``: the newest journal row visible to it."""

    rows: list[list[Any]]
    complete: bool
    tx: int


class EmbeddedReads:
    """``AsOfReads`` of durable versions in the embedded tables, one call at a time on a thread."""

    def __init__(self, reader: Reader, lane: Lane) -> None:
        """``lane`` serialises all users of ``reader``."""
        self.reader = reader
        self.lane = lane

    async def valid_time(self, tx: int) -> int:
        """The valid time of the newest journal row at or below ``tx``; 0 before the first. Raises: as the reads."""
        return await self.lane.run(run_read, lambda: self.reader.valid_time(tx))

    async def wrote_past(self, valid_time: int, after: int) -> int:
        """See ``SqliteBackend.wrote_past``. Raises: as the reads."""
        versions = self.reader.versions
        return await self.lane.run(run_read, lambda: versions.wrote_past(valid_time, after))

    async def query(self, query: str, arguments: Sequence[Any], at: AsOf, *, limit: int, timeout_s: float) -> QueryRows:
        """Refuse: the embedded tables have no query language. Raises: CtxdError ``unsupported``."""
        hint = 'Project to an XTDB node: ctxd migrate --to xtdb, then set store = "xtdb" in ctxd.toml.'
        raise CtxdError("unsupported", "the embedded store has no Datalog queries", hint=hint, outcome="not_applied")

    async def as_of(self, ids: Sequence[str], at: AsOf = NOW) -> list[Version]:
        """See ``AsOfReads.as_of``."""
        versions = self.reader.versions

        def read() -> list[Version]:
            found = versions.as_of(list(ids), at)
            if len(found) < len(ids):
                versions.require_versions({*ids}.difference(version.id for version in found))
            return found

        return await self.lane.run(run_read, read)

    async def history(
        self, id: str, at: AsOf = NOW, page: HistoryPage = ALL, *, corrections: bool = False
    ) -> list[Version]:
        """See ``AsOfReads.history``."""
        versions = self.reader.versions

        def read() -> list[Version]:
            found = versions.history(id, at, page, corrections=corrections)
            if not found and page.after is None:
                versions.require_versions((id,))
            return found

        return await self.lane.run(run_read, read)

    async def scan(self, prefix: str, at: AsOf = NOW, page: IdPage = ALL, *, size: int | None = None) -> list[Version]:
        """See ``SqliteBackend.scan``. Raises: as the reads."""
        return await self.lane.run(run_read, lambda: self.reader.versions.scan(prefix, at, page, size=size))
