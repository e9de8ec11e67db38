"""Checks for damage and loss: journal rows, tables and indexes that reads use, the head witness, the key of secrets.

The writer runs them at its start, the scrub while the daemon runs, and ``verify`` on demand.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from ctxd import limits, sqlite_file
from ctxd.artifacts import fsck
from ctxd.backends.stored_version import DamagedVersion
from ctxd.errors import CtxdError
from ctxd.objects.document import Page
from ctxd.store import journal
from ctxd.store.head_witness import Head, WitnessFile
from ctxd.store.state_directory import StateDir
from ctxd.store.version_reads import Reader


class Checked(NamedTuple):
    """Result of one step: the last row read, the bytes read, and a sentence for each damage."""

    seq: int
    size: int
    damage: tuple[str, ...]


def file_damage(reader: Reader, directory: StateDir) -> set[str]:
    """Compare the head witness and the key of secrets with the journal, and check the structure of the index of
    artifacts; blocks. Raises: ``sqlite_file``'s errors."""
    witness = WitnessFile(directory.witness)
    witnessed = witness.read()
    fault = key_fault(reader.connection, directory.key)
    # Read the journal after the witness, so that it cannot be behind it.
    lost = "" if witnessed is None else contradiction(reader.connection, witnessed)
    return {each for each in (*witness.complaints, fault, lost, *fsck.index_faults(reader.artifacts)) if each}


def check(reader: Reader, after: int) -> Checked:
    """Check the rows after ``after`` that fit in one step, at least one if there are any; blocks.

    Reads one snapshot, because a purge rewrites rows, versions and texts together. Raises: ``sqlite_file``'s errors.
    """
    connection = reader.connection
    connection.execute("BEGIN")
    try:
        chain = journal.chain_at(connection, after) or b""
        size, damage, unread, seq = 0, list[str](), list[str](), after
        for row in journal.read_rows(connection, after=after, limit=limits.SCRUB_STEP_ROWS):
            fault = journal.first_fault((row,), reader.rewritten, after=seq, chain=chain)
            damage += [fault] if fault is not None else _damage_of(reader, row, unread)
            seq, chain = row.seq, row.chain
            size += len(row.body) + reader.content_size(row)
            if size >= limits.SCRUB_STEP_BYTES:
                break
    finally:
        connection.execute("COMMIT")
    # The artifact of a purged text may be gone before this snapshot ends: only a text still referred to is damaged.
    for ref in dict.fromkeys(unread):
        try:
            reader.check(ref)
        except CtxdError as error:
            if error.code == "corrupt":
                damage.append(error.message)
    return Checked(seq, size, tuple(damage))


def _damage_of(reader: Reader, row: journal.Row, unread: list[str]) -> Iterator[str]:
    """Compare everything that ``row`` put with the tables and indexes that reads use. Hashes of unreadable texts are
    added to ``unread``."""
    if row.op_id is not None:
        query = "SELECT seq FROM journal INDEXED BY journal_op WHERE op_id=? AND principal=?"
        if reader.connection.execute(query, (row.op_id, row.principal)).fetchall() != [(row.seq,)]:
            yield f"operation {row.op_id} of row {row.seq} is not found by its id"
    for version in journal.read_versions(row):
        try:
            just_before = Page(after=(version.valid_time, version.tx - 1), limit=1)
            found = reader.versions.history(version.id, page=just_before, corrections=True)
            if found != [version]:
                yield f"the version of {version.id} in write {row.seq} is not found, or not as it was written"
        except (DamagedVersion, UnicodeDecodeError) as error:
            yield str(error)
            continue
        if version.content is not None:
            yield from _text_damage(reader, version.content.hex(), unread)


def _text_damage(reader: Reader, ref: str, unread: list[str]) -> Iterator[str]:
    try:
        reader.check(ref)
    except CtxdError as error:
        if reader.referenced((ref,)):
            unread.append(ref)
        else:
            yield error.message


def key_fingerprint(connection: sqlite_file.Connection) -> bytes | None:
    """The stored fingerprint of the key of this state; None before the first start that recorded it."""
    found = connection.execute("SELECT value FROM meta WHERE name='key'").fetchone()
    return None if found is None else bytes(found[0])


def fingerprint_of(key: Path) -> bytes | None:
    """Return a fingerprint of the key in the file ``key`` that does not reveal the key; None without a file."""
    try:
        return blake3(key.read_bytes(), derive_key_context="ctxd 2026-11 fingerprint of secrets.key").digest()[:16]
    except FileNotFoundError:
        return None


def key_fault(connection: sqlite_file.Connection, key: Path) -> str:
    """Return how the key in the file ``key`` differs from the key of this state, as a sentence; empty if not."""
    known, found = key_fingerprint(connection), fingerprint_of(key)
    if known is None or found == known:
        return ""
    if found is None:
        return f"{key} is missing: redacted text gets other tags than before"
    return f"{key} is not the key that this state was written with: restore it"


def contradiction(connection: sqlite_file.Connection, witnessed: Head) -> str:
    """Return how the journal contradicts the head ``witnessed``, as a sentence; empty if the chain contains it."""
    at = journal.chain_at(connection, witnessed.seq)
    if at is None:
        (end,) = connection.execute("SELECT coalesce(max(seq), 0) FROM journal").fetchone() or (0,)
        return f"the journal ends at row {end}, but row {witnessed.seq} was acknowledged once"
    return "" if at == witnessed.chain else f"row {witnessed.seq} of the journal is not the one that was acknowledged"
