"""Purge: the only write that removes content, with a record of the removal.

In one transaction, every version of the object, and every other version with exactly the same text, is replaced by one
that is marked ``purged`` and has no content, also in the bodies of the journal rows that wrote it. The text is
overwritten and dropped. A row is appended that records the entities and, for each rewritten row, its sequence, its
original hash and its new hash. The chain stays the same; only recorded rows may differ from it.

An entity that is purged in part, such as a chat's segments, is restated: its versions are replaced in the same way by
versions without that part, with a new text. So is an entity that merely has the same text and cannot do without one:
its new text is the minimum that it needs.

Every step uses an index (entity, text hash, journal sequence), so the cost depends on the purged data, not on the size
of the store. ``secure_delete`` makes SQLite zero freed space in the database file. It does not zero the old place of a
row moved within a page or to another page, where a later purge would miss the copy; so no row that holds text is ever
deleted or made longer, only replaced in place. Data outside the database is removed after the transaction, or at the
next start if that was interrupted: the artifacts, and the write-ahead log, which holds older pages until it is
truncated. A projection evicts the recorded entities (``journal.Body.purged``).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import msgspec
from blake3 import blake3

from ctxd import sqlite_file
from ctxd.backends.sqlite import SqliteBackend
from ctxd.backends.stored_version import Version
from ctxd.errors import CtxdError
from ctxd.failpoints import hit
from ctxd.objects.commit_document import commit_hash
from ctxd.objects.document import Content, Document, decode_content, decode_document, encode_content, encode_document
from ctxd.objects.generated_ids import COMMIT_PREFIX
from ctxd.objects.hashing import content_hash
from ctxd.objects.version_state import is_purged
from ctxd.store import commit_index, journal
from ctxd.store.chain_snapshots import FOLDER
from ctxd.store.migrations import COPIES
from ctxd.store.state_directory import StateDir
from ctxd.store.write_types import Purged, PurgeRequest, Restate

KIND: Final = "object.purge"
"""The kind of a row that records a purge."""

ARTIFACT: Final = "artifact:"
"""Prefix of the ids of artifacts; their address follows."""

ARTIFACT_TAG: Final = "artifact_tag:"
"""Prefix of the ids of artifact tags; their name follows."""

COMMITS_OF: Final = "commit@"
"""Prefix of a session's id in ``PurgeRequest.within``: the commits of the session."""

_PENDING: Final = "purge.pending"
_KEPT: Final = ("file_type", "tool", "status", "chat_ref")
"""Payload fields that a purged version keeps, because its line in a context shows them."""

_OF_CONTENT: Final = frozenset({"summary", "secrets"})
"""Fields that a purged commit's payload loses; the others describe its place in a chain."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[bytes]).decode


def purged_document(document: Document, keyed: Callable[[str], str]) -> Document:
    """Return the purged form of ``document``: with a keyed source hash, without text."""
    kept = document.payload.keys() - _OF_CONTENT if document.type == "commit" else _KEPT
    payload: dict[str, Any] = {name: value for name, value in document.payload.items() if name in kept}
    if document.type == "file":
        payload["char_count"] = 0
    payload["purged"] = True
    return msgspec.structs.replace(
        document,
        payload=payload,
        content=None,
        content_hash=content_hash(payload, None),
        source_hash=None if document.source_hash is None else keyed(document.source_hash),
    )


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """The stored result of a purge: the entities, and the numbers of versions and texts that it destroyed."""

    ids: tuple[str, ...]
    versions: int
    texts: int


def decode_counts(result: bytes) -> Counted:
    """Decode the stored result of a purge. Raises: msgspec.DecodeError."""
    return msgspec.msgpack.decode(result, type=Counted)


def apply(
    connection: sqlite_file.Connection, versions: SqliteBackend, purge: PurgeRequest, seq: int, request: bytes
) -> Purged:
    """Purge within the open transaction, on behalf of row ``seq``, whose body is part of the result.

    Raises: CtxdError corrupt, unsupported for content that cannot be read; then roll back what was written.
    """
    if purge.unreferenced:
        purge.ids = _unreferenced(versions, purge.ids)
    if purge.reclaimed is not None:
        purge.ids = unknown_elsewhere(connection, purge.ids, purge.reclaimed)
    found = _own(versions, purge.ids) if purge.reclaimed is not None else _targets(versions, purge.ids)
    written = {_key(version): _instead(connection, version, purge) for version in found}
    shared = {version.content for version in written.values() if version.content is not None}
    spared = sum(version.content is not None for version in written.values())
    dropped = {version.content for version in found if version.content is not None} - shared
    text_count = len(dropped) + purge.messages
    if purge.restate is not None:
        for version, document, content in _restated(connection, versions, purge, purge.restate):
            found.append(version)
            written[_key(version)] = _rewritten(version, document, content)
            if version.content is not None and version.content != content:
                dropped.add(version.content)
    if purge.restate is not None or purge.reclaimed is not None:
        dropped -= _still_referenced(versions, dropped, written)
    texts = tuple(sorted(dropped))
    hit("purge.rewrite")
    places: dict[tuple[str, int, int], int] = {}
    rows = [
        _rewrite_row(connection, tx, seq, written, places, purge.reclaimed)
        for tx in sorted({version.tx for version in found})
    ]
    versions.rewrite(list(written.values()), [places[key] for key in written])
    if commits := {version.id for version in found if version.id.startswith(COMMIT_PREFIX)}:
        # The newest version of a commit may not be among those written.
        commit_index.fill(connection, versions, versions.as_of(sorted(commits)))
    _drop_texts(connection, texts, {version.content for version in found if version.id.startswith(ARTIFACT)})
    ids = tuple(dict.fromkeys((*purge.ids, *(version.id for version in found))))
    for id in ids:
        connection.execute("DELETE FROM signature WHERE entity=(SELECT n FROM entity WHERE id=?)", (id,))
    count = len(found) - spared
    result = msgspec.msgpack.encode(Counted(ids, count, text_count))
    reclaims = purge.unreferenced or purge.reclaimed is not None
    body = journal.encode_purge(request, result, journal.PurgeRecord(ids, tuple(rows), reclaims))
    return Purged(ids, count, texts, text_count, body)


def _unreferenced(versions: SqliteBackend, ids: Iterable[str]) -> tuple[str, ...]:
    """The artifacts among ``ids`` that are not pinned, and whose bytes no other version has."""
    return tuple(
        version.id
        for version in versions.as_of(tuple(ids))
        if version.content is not None
        and _payload(version).get("policy") != "pin"
        and all(other.id == version.id for other in versions.with_content((version.content,)))
    )


def _payload(version: Version) -> dict[str, Any]:
    assert version.body is not None, "a deletion has no payload"
    return decode_document(version.id, version.body).payload


def _own(versions: SqliteBackend, ids: Iterable[str]) -> list[Version]:
    """Every version of ``ids`` that is not purged yet."""
    return [
        version
        for id in dict.fromkeys(ids)
        for version in versions.history(id, corrections=True)
        if version.body is not None and not is_purged(decode_document(version.id, version.body))
    ]


def _targets(versions: SqliteBackend, ids: Iterable[str]) -> list[Version]:
    """Every version of ``ids`` that is not purged yet, and every version of other entities with one of their texts."""
    wanted = frozenset(ids)
    own = _own(versions, wanted)
    texts = {version.content for version in own if version.content is not None}
    if not texts:
        return own
    return [*own, *(version for version in versions.with_content(sorted(texts)) if version.id not in wanted)]


def with_same_text(connection: sqlite_file.Connection, id: str) -> list[str]:
    """The ids of the other entities that a purge of ``id`` erases: a version has the text of one of its versions."""
    versions = SqliteBackend(connection)
    texts = {version.content for version in versions.history(id, corrections=True) if version.content is not None}
    return list(dict.fromkeys(other.id for other in versions.with_content(sorted(texts)) if other.id != id))


def restated_by(connection: sqlite_file.Connection, ids: Iterable[str], restate: Restate) -> list[str]:
    """Those of ``ids`` of which ``restate`` changes a version. Raises: CtxdError corrupt; as ``restate``."""
    versions, found = SqliteBackend(connection), list[str]()
    for id in ids:
        for version in versions.history(id, corrections=True):
            if version.body is not None and _restated_one(connection, version, restate) is not None:
                found.append(id)
                break
    return found


def _restated_one(connection: sqlite_file.Connection, version: Version, restate: Restate) -> Document | None:
    assert version.body is not None, "a deletion has no document"
    text = None if version.content is None else _inline(connection, version.content)
    try:
        return restate(decode_document(version.id, version.body, text))
    except (ValueError, msgspec.MsgspecError) as error:
        raise CtxdError("corrupt", f"{version.id} cannot be read: {error}") from error


def _key(version: Version) -> tuple[str, int, int]:
    return version.id, version.valid_time, version.tx


def _restated(
    connection: sqlite_file.Connection, versions: SqliteBackend, purge: PurgeRequest, restate: Restate
) -> Iterator[tuple[Version, Document, bytes | None]]:
    """Every version of an entity within ``purge`` that ``restate`` changes, its replacement, and the text of that.

    Raises: CtxdError corrupt for one that cannot be read; as ``restate``.
    """
    for name in purge.within:
        for id in _within(connection, name, purge.searched):
            for version in versions.history(id, corrections=True):
                if version.body is None:
                    continue
                text = None if version.content is None else _inline(connection, version.content)
                try:
                    document = restate(decode_document(id, version.body, text))
                except (ValueError, msgspec.MsgspecError) as error:
                    raise CtxdError("corrupt", f"{id} cannot be read: {error}") from error
                if document is None:
                    continue
                if text is None and version.content is not None:
                    # Not in the database: it must be a large commit that a client made. Its content is purged by its
                    # own id.
                    hashed = commit_hash(document.payload, version.content.hex())
                    yield version, msgspec.structs.replace(document, content_hash=hashed), version.content
                else:
                    yield version, document, _keep_text(connection, document.content)


def nothing_purged() -> bytes:
    """The body of the row of a purge that failed."""
    return journal.encode_purge(b"", b"", journal.PurgeRecord((), ()))


def _within(connection: sqlite_file.Connection, name: str, searched: int) -> list[str]:
    if name.startswith(COMMITS_OF):
        return commit_index.of_session(connection, name.removeprefix(COMMITS_OF), searched)
    return entities(connection, name) if name[-1] == "#" else [name]


def _inline(connection: sqlite_file.Connection, ref: bytes) -> Content | None:
    found = connection.execute("SELECT size, bytes FROM content WHERE hash=?", (ref,)).fetchone()
    return None if found is None or found[1] is None else decode_content(sqlite_file.unpack_content(*found))


def _keep_text(connection: sqlite_file.Connection, text: Content | None) -> bytes | None:
    if text is None:
        return None
    # In the database even if it is now longer than the limit for a text there. The commit thread must not write an
    # artifact: a removal that has claimed the same one waits for this transaction.
    data = encode_content(text)
    ref = blake3(data).digest()
    row = (ref, len(data), data)
    connection.execute("INSERT OR IGNORE INTO content(hash, size, bytes) VALUES (?,?,?)", row)
    return ref


def _still_referenced(
    versions: SqliteBackend, texts: Set[bytes], written: Mapping[tuple[str, int, int], Version]
) -> set[bytes]:
    """Those of ``texts`` that a version still has after the versions in ``written`` are replaced."""
    now = {version.content for version in written.values()}
    for version in versions.with_content(sorted(texts)):
        now.add(written.get(_key(version), version).content)
    return {text for text in texts if text in now}


def _instead(connection: sqlite_file.Connection, version: Version, purge: PurgeRequest) -> Version:
    """Return the replacement of ``version``, one of the targets: without text, unless ``purge.sharing`` keeps some."""
    assert version.body is not None, "a deletion has no content"
    document = decode_document(version.id, version.body)
    if purge.sharing is not None and version.id not in purge.ids and version.content is not None:
        text = _inline(connection, version.content)
        # Entities that need a text have one small enough for the database.
        left = None if text is None else purge.sharing(msgspec.structs.replace(document, content=text))
        if left is not None:
            return _rewritten(version, left, _keep_text(connection, left.content))
    gone = purged_document(document, purge.keyed)
    if purge.reclaimed is not None:
        # Another host may have a copy and bring it back.
        payload = {**gone.payload, "reclaimed": True}
        gone = msgspec.structs.replace(gone, payload=payload, content_hash=content_hash(payload, None))
    return _rewritten(version, gone, None)


def _rewritten(version: Version, document: Document, content: bytes | None) -> Version:
    return msgspec.structs.replace(version, body=encode_document(document), content=content)


def _rewrite_row(
    connection: sqlite_file.Connection,
    tx: int,
    record: int,
    written: Mapping[tuple[str, int, int], Version],
    places: dict[tuple[str, int, int], int],
    reclaimed: str | None,
) -> journal.Rewritten:
    """Replace the versions in row ``tx`` by those ``written``, on behalf of row ``record``. The positions of its
    documents are added to ``places``."""
    (row,) = journal.read_rows(connection, after=tx - 1, limit=1)
    body = journal.decode_body(row.body)
    puts, keys = [], []
    for put in body.puts:
        keys.append((put.id, row.vt if put.valid_time is None else put.valid_time, row.seq))
        version = written.get(keys[-1])
        if version is not None:
            put = msgspec.structs.replace(put, document=version.body or b"", content=version.content)
        puts.append(put)
    # A digest of the parameters, or hashes in the result, would allow guessing a short text.
    after = msgspec.structs.replace(body, request=b"", result=_without_hashes(body.result), puts=tuple(puts))
    (length,) = connection.execute("SELECT length(body) FROM journal WHERE seq=?", (tx,)).fetchone() or (0,)
    size = length
    if reclaimed is not None and row.session == reclaimed:
        _forget_known(connection, body.knows, reclaimed)
        after = msgspec.structs.replace(after, knows=())
        stored: Any = connection.execute(f"SELECT {journal.STORED} FROM journal WHERE seq=?", (tx,)).fetchone()
        least = len(journal.encode_rewritten(after, 0))
        size = sqlite_file.shortened_length(stored, journal.STORED_BODY, least)
    encoded = journal.encode_rewritten(after, size)
    places.update(zip(keys, range(len(keys)), strict=True))
    # A body of the same size overwrites the old one page by page, and nothing moves. A body that was compressed may be
    # longer now, but fits once it is compressed again; the zeros after it are not read.
    fitting = encoded if len(encoded) <= length else sqlite_file.pack_body(encoded).ljust(length, b"\0")
    connection.execute("UPDATE journal SET body=? WHERE seq=?", (fitting, row.seq)).fetchall()
    name = journal.rewritten_name(row.seq)
    connection.execute("INSERT OR REPLACE INTO meta(name, value) VALUES (?,?)", (name, record.to_bytes(8, "big")))
    return journal.Rewritten(row.seq, row.b3, journal.hash_of(row, encoded))


_KNOWN: Final = "(SELECT n FROM entity WHERE id=?)"


def unknown_elsewhere(connection: sqlite_file.Connection, ids: Iterable[str], session: str) -> tuple[str, ...]:
    """Those of ``ids`` that are in no session's index except that of ``session``."""
    query = f"SELECT 1 FROM knows WHERE object={_KNOWN} AND session IS NOT {_KNOWN} LIMIT 1"
    return tuple(id for id in ids if connection.execute(query, (id, f"session:{session}")).fetchone() is None)


def _forget_known(connection: sqlite_file.Connection, objects: Iterable[str], session: str) -> None:
    query = f"DELETE FROM knows WHERE object={_KNOWN} AND session={_KNOWN}"
    for id in objects:
        connection.execute(query, (id, f"session:{session}")).fetchall()


def entities(connection: sqlite_file.Connection, prefix: str) -> list[str]:
    """The ids of all entities with ``prefix``, which ends in ``#``, in order."""
    # "$" is the character after "#".
    query = "SELECT id FROM entity WHERE id>=? AND id<? ORDER BY id"
    return [id for (id,) in connection.execute(query, (prefix, f"{prefix[:-1]}$"))]


def reclaimable(connection: sqlite_file.Connection, ids: Iterable[str]) -> int:
    """The bytes that purging ``ids`` frees. Documents that are also stored with their version count twice."""
    entities, size = set[int](), 0
    texts: set[bytes] = set()
    backend = SqliteBackend(connection)
    for id in dict.fromkeys(ids):
        for version in backend.history(id, corrections=True):
            size += len(version.body or b"")
            texts.update(() if version.content is None else (version.content,))
        found = connection.execute("SELECT n FROM entity WHERE id=?", (id,)).fetchone()
        entities.update(found or ())
    for number in entities:
        query = "SELECT coalesce(sum(length(body)), 0) FROM version WHERE entity=? AND typeof(body)='blob'"
        ((stored_beside,),) = connection.execute(query, (number,))
        size += stored_beside
    for text in texts:
        having = connection.execute("SELECT entity FROM version WHERE content=?", (text,))
        if all(number in entities for (number,) in having):
            stored = connection.execute("SELECT ifnull(length(bytes), size) FROM content WHERE hash=?", (text,))
            size += sum(length for (length,) in stored)
    return size


def find_time_gaps(connection: sqlite_file.Connection, longer_than: int) -> list[tuple[int, int]]:
    """The valid times of each two consecutive rows that are at least ``longer_than`` ms apart, oldest first.

    Cost: a few look-ups per span of that length, whatever the number of rows.
    """
    found: list[tuple[int, int]] = []

    def valid_time(seq: int) -> int:
        ((vt,),) = connection.execute("SELECT vt FROM journal WHERE seq=?", (seq,))
        return int(vt)

    ((first, last),) = connection.execute("SELECT min(seq), max(seq) FROM journal")
    spans = [] if first is None else [(first, valid_time(first), last, valid_time(last))]
    while spans:
        low, began, high, ended = spans.pop()
        if ended - began < longer_than:
            continue
        if high - low <= 1:
            found.append((began, ended))
            continue
        middle = (low + high) // 2
        at = valid_time(middle)
        spans += [(middle, at, high, ended), (low, began, middle, at)]
    return found


def _without_hashes(result: bytes) -> bytes:
    if not result:
        return result
    answer = json.loads(result)
    if isinstance(answer, dict) and answer.get("source_hash") is not None:
        answer["source_hash"] = None
        return json.dumps(answer, separators=(",", ":")).encode()
    return result


def _drop_texts(connection: sqlite_file.Connection, texts: Sequence[bytes], put: Set[bytes | None]) -> None:
    """Drop ``texts``; those in ``put`` are in the artifact store whatever their size."""
    left = set(unfinished(connection))
    for ref in texts:
        found = connection.execute("SELECT bytes IS NULL FROM content WHERE hash=?", (ref,)).fetchone()
        if found is None:
            continue
        (spilled,) = found
        if spilled or ref in put:
            left.add(ref)
        # Do not delete the row: SQLite would move other texts and leave copies in their old places.
        emptied = "UPDATE content SET hash=CAST(rowid AS BLOB), size=0, bytes=x'' WHERE hash=?"
        connection.execute(emptied, (ref,)).fetchall()
    # Even without artifacts to remove, the write-ahead log has to be truncated.
    connection.execute("INSERT OR REPLACE INTO meta(name, value) VALUES (?,?)", (_PENDING, _encode(sorted(left))))


def unfinished(connection: sqlite_file.Connection) -> tuple[bytes, ...]:
    """The texts whose artifacts are still to be removed."""
    found = connection.execute("SELECT value FROM meta WHERE name=?", (_PENDING,)).fetchone()
    return () if found is None else tuple(_decode(found[0]))


def is_unfinished(connection: sqlite_file.Connection) -> bool:
    """Return True if a file outside the database may still hold purged content."""
    return connection.execute("SELECT 1 FROM meta WHERE name=?", (_PENDING,)).fetchone() is not None


def residue(connection: sqlite_file.Connection, directory: StateDir) -> tuple[str, ...]:
    """The files that may still hold purged content, relative to the state directory; empty once there are none.
    Raises: OSError."""
    if not is_unfinished(connection):
        return ()
    found = ["state.db-wal"]
    if any(not is_kept(connection, ref) for ref in unfinished(connection)):
        found.append("artifacts/packs")
    if directory.snapshots.dropped():
        found.append(FOLDER)
    return (*found, *sorted(path.name for path in directory.root.glob(COPIES)))


def is_kept(connection: sqlite_file.Connection, ref: bytes) -> bool:
    """Return True if the text ``ref`` was written again after its purge."""
    return connection.execute("SELECT 1 FROM content WHERE hash=?", (ref,)).fetchone() is not None


def finish(connection: sqlite_file.Connection) -> None:
    """Record, in the open transaction, that nothing is left of earlier purges."""
    connection.execute("DELETE FROM meta WHERE name=?", (_PENDING,))
