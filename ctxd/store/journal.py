"""The journal: one hash-chained row per write; everything else can be folded from its rows again.

A row's ``b3`` is BLAKE3 over its other columns and its body; its ``chain`` is BLAKE3 over the chain before it, its
sequence and its ``b3``. Sequences have no gaps. Only a purge changes a row, see ``ctxd.store.purge``. A body holds a
write's whole documents, and its texts by hash. The chain starts from 32 random bytes, so receipts match no other store.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from blake3 import blake3

from ctxd import sqlite_file
from ctxd.backends.stored_version import Version
from ctxd.objects.document import pack_text, unpack_text

HELD: Final = "length(hash)=32"
"""Condition for a row of ``content`` that a purge has not emptied."""

COLUMNS: Final = "seq, incarnation, principal, session, kind, op_id, vt, tx_time, body, b3, chain"
STORED: Final = COLUMNS.replace("seq", "NULL", 1)
"""The stored values of a row: SQLite stores ``seq`` as the row number."""

STORED_BODY: Final = COLUMNS.split(", ").index("body")
_BODY_FORMAT: Final = 1
_REWRITTEN_FORMAT: Final = 2
_PURGE_FORMAT: Final = 3
_RECORDS_KEPT: Final = 4
_SHARE_MIN: Final = 16
_SMALL_BODY: Final = 4_096
_BIN_HEADERS: Final = ((2, 0, 2**8 - 1), (3, 2**8, 2**16 - 1), (5, 2**16, 2**32 - 1))
"""Sizes of MessagePack's headers of byte strings, each with the least and greatest length that it covers."""
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Any])


class Put(msgspec.Struct, frozen=True, gc=False):
    """One version in a body: the entity, its encoded document, and the BLAKE3 of its text (None without text).

    An empty document is a deletion. ``valid_time``: set for a version written at a past time; None is the row's.
    """

    id: str
    document: bytes
    content: bytes | None
    valid_time: int | None = None


class Rewritten(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row whose body a purge replaced: its original hash, which stays in the chain, and its present hash."""

    seq: int
    b3: bytes
    now: bytes


class PurgeRecord(msgspec.Struct, frozen=True, array_like=True):
    """Record of a purge: the entities whose text it destroyed, and the rows that it rewrote. ``reclaims``: the purge
    freed space only; other hosts keep their copies."""

    ids: tuple[str, ...]
    rows: tuple[Rewritten, ...]
    reclaims: bool = False


class Body(msgspec.Struct, frozen=True):
    """Content of a journal row's body. ``purged``: the record of a purge, whose entities a projection evicts."""

    request: bytes
    result: bytes
    knows: tuple[str, ...]
    puts: tuple[Put, ...]
    purged: PurgeRecord | None = None


class Row(msgspec.Struct, frozen=True, gc=False):
    """One journal row, in the order of ``COLUMNS``."""

    seq: int
    incarnation: int
    principal: str
    session: str | None
    kind: str
    op_id: str | None
    vt: int
    tx_time: int
    body: bytes
    b3: bytes
    chain: bytes


def encode_body(request: bytes, result: bytes, knows: Sequence[str], puts: Sequence[Put]) -> bytes:
    """Encode the body of a write: the digest of its parameters, its result, and its versions."""
    packed = [
        (pack_text(put.id), put.document, put.content, *(() if put.valid_time is None else (put.valid_time,)))
        for put in puts
    ]
    return _encoder.encode((_BODY_FORMAT, request, result, [pack_text(id) for id in knows], packed))


def decode_body(body: bytes) -> Body:
    """Decode a body.

    Raises: ValueError for an unknown format.
    """
    version, *fields = _decoder.decode(body)
    if version == _PURGE_FORMAT:
        request, result, record = fields
        return Body(request, result, (), (), msgspec.convert(record, PurgeRecord))
    if version == _REWRITTEN_FORMAT:
        fields = fields[:4]
    elif version != _BODY_FORMAT:
        raise ValueError(f"journal body form {version} is unknown")
    request, result, knows, puts = fields
    return Body(
        request,
        result,
        tuple(map(unpack_text, knows)),
        tuple(Put(unpack_text(id), *fields) for id, *fields in puts),
    )


def encode_purge(request: bytes, result: bytes, record: PurgeRecord) -> bytes:
    """The body of a row that records a purge."""
    return _encoder.encode((_PURGE_FORMAT, request, result, record))


def encode_rewritten(body: Body, size: int) -> bytes:
    """Encode the ``body`` of a row that a purge rewrites, padded with zeros to ``size`` bytes if it is shorter."""
    fields = _decoder.decode(encode_body(body.request, body.result, body.knows, body.puts))
    fields[0] = _REWRITTEN_FORMAT
    missing = size - len(_encoder.encode(fields))
    while missing > 0:
        width = next((width for width, least, most in _BIN_HEADERS if least <= missing - width <= most), None)
        # No byte string and header take exactly this much: a nil takes one byte of it.
        fields.append(None if width is None else bytes(missing - width))
        missing -= 1 if width is None else missing
    return _encoder.encode(fields)


def hash_of(row: Row, body: bytes) -> bytes:
    """The hash of ``row`` if its body were ``body``."""
    return row_hash(row.incarnation, row.principal, row.session, row.kind, row.op_id, row.vt, row.tx_time, body)


def rewritten_name(seq: int) -> str:
    """The key in ``meta`` for the last purge that rewrote row ``seq``; the value is its record's sequence, 8 bytes."""
    return f"purged:{seq}"


def rewriting(connection: sqlite_file.Connection) -> Callable[[int], Rewritten | None]:
    """Return a function from a row's sequence to how a purge rewrote it, or None, from the purge's record. The last
    few records are kept, as one may be long and is needed for each of its rows."""

    @lru_cache(maxsize=_RECORDS_KEPT)
    def record(at: int) -> dict[int, Rewritten]:
        for row in read_rows(connection, after=at - 1, limit=1):
            if row.seq == at and hash_of(row, row.body) == row.b3 and (found := decode_body(row.body).purged):
                return {one.seq: one for one in found.rows}
        return {}

    def find(seq: int) -> Rewritten | None:
        found = connection.execute("SELECT value FROM meta WHERE name=?", (rewritten_name(seq),)).fetchone()
        return None if found is None else record(int.from_bytes(found[0], "big")).get(seq)

    return find


def follower_name(name: str) -> str:
    """The key in ``meta`` for the mark of a follower; the value is a sequence, 8 bytes."""
    return f"follower:{name}"


def row_hash(
    incarnation: int,
    principal: str,
    session: str | None,
    kind: str,
    op_id: str | None,
    vt: int,
    tx_time: int,
    body: bytes,
) -> bytes:
    """The ``b3`` of a row with these columns: 32 bytes."""
    head = _encoder.encode((incarnation, principal, session, kind, op_id, vt, tx_time))
    return blake3(head + body).digest()


def link(chain: bytes, seq: int, b3: bytes) -> bytes:
    """The ``chain`` of row ``seq``, from that of the row before it: 32 bytes."""
    return blake3(chain + seq.to_bytes(8, "big") + b3).digest()


def read_rows(connection: sqlite_file.Connection, *, after: int, limit: int = -1) -> Iterator[Row]:
    """The rows after sequence ``after``, in order. The connection is busy until the iterator ends."""
    query = f"SELECT {COLUMNS} FROM journal WHERE seq>? ORDER BY seq LIMIT ?"
    for row in connection.execute(query, (after, limit)):
        stored = Row(*row)
        body = body_of(stored.body)
        yield stored if body is stored.body else msgspec.structs.replace(stored, body=body)


def body_of(stored: bytes) -> bytes:
    """The body of a row from ``stored``. Damaged bytes are returned as they are, and do not match the row's hash."""
    try:
        return sqlite_file.unpack_body(stored)
    except ValueError:
        return stored


def chain_at(connection: sqlite_file.Connection, seq: int) -> bytes | None:
    """Return the chain hash of row ``seq``, for 0 the start of the chain; None if there is no such row."""
    query = "SELECT chain FROM journal WHERE seq=?" if seq else "SELECT value FROM meta WHERE name='genesis' AND 0=?"
    found = connection.execute(query, (seq,)).fetchone()
    return None if found is None else bytes(found[0])


def newest_at(connection: sqlite_file.Connection, valid_time: int) -> int:
    """The sequence of the newest row with at most ``valid_time``; 0 before the first row. By bisection: valid times of
    rows never decrease."""
    ((low, high),) = connection.execute("SELECT ifnull(min(seq), 1), ifnull(max(seq), 0) FROM journal")
    while low <= high:
        middle = (low + high) // 2
        ((vt,),) = connection.execute("SELECT vt FROM journal WHERE seq=?", (middle,))
        low, high = (middle + 1, high) if vt <= valid_time else (low, middle - 1)
    return int(high)


def journal_id(connection: sqlite_file.Connection) -> str:
    """The id of the journal, in hex. A restored copy has another id: it may diverge from the original."""
    found = connection.execute("SELECT value FROM meta WHERE name='journal'").fetchone()
    return "" if found is None else bytes(found[0]).hex()


def writer_id(connection: sqlite_file.Connection) -> str:
    """The name under which this journal is projected, in hex. A restored copy keeps it."""
    found = connection.execute("SELECT value FROM meta WHERE name='writer'").fetchone()
    return "" if found is None else bytes(found[0]).hex()


def become_writer(connection: sqlite_file.Connection) -> None:
    """Give the journal a new name to project under, so that no other journal's rows are taken for its own."""
    connection.execute("INSERT OR REPLACE INTO meta(name, value) VALUES ('writer',?)", (os.urandom(16),))


def renew_journal_id(connection: sqlite_file.Connection) -> None:
    """Give the journal a new id, so that receipts of rows it does not hold do not count as its loss. It also gets a new
    key, because a backup does not contain the original's."""
    connection.execute("DELETE FROM meta WHERE name='key'").fetchall()
    connection.execute("INSERT OR REPLACE INTO meta(name, value) VALUES ('journal',?)", (os.urandom(16),))


def first_fault(
    rows: Iterable[Row], rewritten: Callable[[int], Rewritten | None], *, after: int, chain: bytes
) -> str | None:
    """Return a description of the first row that does not continue the chain from row ``after``, or None.

    ``rewritten`` returns how a purge rewrote a row: its body must be the recorded one, and its hash the original one.
    """
    seq = after
    for row in rows:
        seq += 1
        if row.seq != seq:
            return f"journal row {seq} is missing"
        b3 = hash_of(row, row.body)
        if b3 != row.b3:
            record = rewritten(seq)
            if record is None or (record.b3, record.now) != (row.b3, b3):
                return f"journal row {seq} does not match its hash"
            b3 = row.b3
        chain = link(chain, seq, b3)
        if chain != row.chain:
            return f"journal row {seq} breaks the chain"
    return None


def read_versions(row: Row) -> list[Version]:
    """Return the versions that a journal row records.

    Raises: ValueError if its body is damaged.
    """
    return versions(decode_body(row.body).puts, row.vt, row.seq, row.tx_time, len(row.body))[0]


def versions(puts: Sequence[Put], vt: int, seq: int, tx_time: int, size: int) -> tuple[list[Version], list[int | None]]:
    """Return the versions for the ``puts`` of row ``seq``, and the position of each one's document in the row's body,
    which has ``size`` bytes; ``vt`` is the row's valid time.

    The position is None for a deletion, and for a document that is too small a part of a large body: reading it would
    mostly read others, so it is stored a second time, with its version.
    """
    made: list[Version] = []
    places: list[int | None] = []
    for place, put in enumerate(puts):
        id, document, content, valid_time = put.id, put.document, put.content, put.valid_time
        made.append(Version(id, vt if valid_time is None else valid_time, seq, tx_time, document or None, content))
        is_read_there = document and size <= max(_SMALL_BODY, _SHARE_MIN * len(document))
        places.append(place if is_read_there else None)
    return made, places
