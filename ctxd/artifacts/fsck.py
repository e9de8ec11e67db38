"""Verification of artifacts, packs and the index, in pages that each read a bounded part of the store.

The artifacts come first, by address, then the packs, one per page, then the tables of the index, one per page.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ctxd import sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.artifacts.pack_index import TABLES, Index
from ctxd.artifacts.packs import DEAD, DamagedRecord, Location, Packs, parts_of, records
from ctxd.errors import CtxdError

PAGE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of artifacts after which a page ends. A longer artifact is checked over several pages, chunk by chunk."""

_CURSOR: Final = re.compile(r"([0-9a-f]{64})(?:\+([0-9]{1,18}))?|pack-([0-9]{1,9})|index-([a-z_]+)")


class FsckPage(NamedTuple):
    """Findings of one page: the number of artifacts and bytes that it checked, damaged artifacts with a sentence each,
    faults of packs and the index, and the cursor of the next page (None after the last one)."""

    checked: int
    checked_bytes: int
    damaged: list[tuple[str, str]]
    faults: list[str]
    cursor: str | None


def page(store: ArtifactStore, cursor: str | None, limit: int) -> FsckPage:
    """Check the page after ``cursor``, of at most ``limit`` artifacts. Blocks.

    Raises: CtxdError invalid_params for a cursor that no page returned; ``sqlite_file``'s errors.
    """
    found = _CURSOR.fullmatch(cursor or "0" * 64)
    if found is None or found[4] not in (None, *TABLES):
        hint = "Send the next_cursor of the page before, or none for the first page."
        raise CtxdError("invalid_params", f"{cursor!r} is not a cursor of artifact.fsck", hint=hint)
    if found[4] is not None:
        following = TABLES[TABLES.index(found[4]) + 1 :]
        return FsckPage(0, 0, [], _table_faults(store, found[4]), f"index-{following[0]}" if following else None)
    with sqlite_file.faults(), store.reader() as reader:
        if reader is None:
            return FsckPage(0, 0, [], [], None)
        if found[3] is not None:
            return _pack_page(store.packs, reader, int(found[3]))
        return _artifact_page(store, reader, cursor, limit)


def _artifact_page(store: ArtifactStore, reader: Index, cursor: str | None, limit: int) -> FsckPage:
    ref, _, at = (cursor or "").partition("+")
    names = [ref, *store.names_after(ref, limit - 1)] if at else store.names_after(ref, limit)
    checked, size, damaged, faults = 0, 0, list[tuple[str, str]](), list[str]()
    for name in names:
        first = int(at) if at and name == ref else 0
        try:
            end = store.check_range(name, first, first + PAGE_BYTES)
        except CtxdError as error:
            # An artifact removed meanwhile is not damaged.
            if store.holds(name):
                damaged.append((name, error.message))
            end, is_whole = first, True
        else:
            is_whole = end < first + PAGE_BYTES
        size += end - first
        if not is_whole:
            return FsckPage(checked, size, damaged, faults, f"{name}+{end}")
        checked += 1
        faults += _part_faults(store, reader, bytes.fromhex(name))
        if size >= PAGE_BYTES:
            return FsckPage(checked, size, damaged, faults, name)
    return FsckPage(checked, size, damaged, faults, names[-1] if len(names) >= limit else "pack-0")


def _pack_page(packs: Packs, reader: Index, number: int) -> FsckPage:
    """Check the first pack after ``number``; after the last pack, continue with the index."""
    left = sorted(each for each in reader.pack_sizes() if each > number)
    if not left:
        return FsckPage(0, 0, [], [], f"index-{TABLES[0]}")
    return FsckPage(0, 0, [], list(_pack_faults(packs, reader, left[0])), f"pack-{left[0]}")


def faults(store: ArtifactStore) -> Iterator[str]:
    """Compare packs and index record by record; does not read the artifacts. Blocks.

    Yields: a sentence for each fault. Raises: ``sqlite_file``'s errors.
    """
    damage = list(index_faults(store))
    yield from damage
    try:
        with sqlite_file.faults(), store.reader() as reader:
            if reader is None:
                return
            for name in store.names():
                yield from _part_faults(store, reader, bytes.fromhex(name))
            for number in sorted(reader.pack_sizes()):
                yield from _pack_faults(store.packs, reader, number)
    except sqlite_file.FileDamaged:
        # The damage of the index has already been reported.
        if not damage:
            raise


def index_faults(store: ArtifactStore) -> Iterator[str]:
    """Check the structure of the index; if it has a fault, the next start rebuilds it. Blocks.

    Yields: a sentence for each fault. Raises: ``sqlite_file``'s errors.
    """
    for table in TABLES:
        yield from _table_faults(store, table)


def _table_faults(store: ArtifactStore, table: str) -> list[str]:
    try:
        with sqlite_file.faults(), store.reader() as reader:
            found = [] if reader is None else list(reader.integrity(table))
    except (sqlite_file.FileDamaged, sqlite_file.SqlFailed) as error:
        found = [f"the index of artifacts: {error}"]
    if found:
        store.report_damage()
    return found


def _pack_faults(packs: Packs, index: Index, number: int) -> Iterator[str]:
    """Yield a sentence for each place in a pack without a valid record. Blocks. Raises: OSError; ``apsw``'s errors."""
    path, size = packs.path(number), index.pack_sizes().get(number, 0)
    try:
        damaged, end = _scan(packs, number)
        # A record may have been overwritten during the read: only damage found twice counts.
        again = set(_scan(packs, number)[0]) if damaged else set()
    except FileNotFoundError:
        if number in index.pack_sizes():
            yield f"pack {path.name} is missing"
        return
    for location, fault in damaged.items():
        if location in again and location.at < size:
            yield f"{path.name}, offset {location.at}: {fault}"
    if end < size:
        yield f"the index records {size} bytes for {path.name}, but its records end at {end}"


def _scan(packs: Packs, number: int) -> tuple[dict[Location, str], int]:
    """Return the damage of a pack, and the end of its last record. Raises: OSError."""
    damaged, end = dict[Location, str](), 0
    for record in records(packs.path(number)):
        if isinstance(record, DamagedRecord):
            damaged[record.location] = str(record)
        else:
            end = record.location.end
    return damaged, end


def _part_faults(store: ArtifactStore, index: Index, artifact: bytes) -> Iterator[str]:
    """Yield a sentence if the chunks of ``artifact`` in the index differ from its manifest."""
    with index.snapshot():
        entry = index.artifact(artifact)
        if entry is None:
            return
        known = index.parts(artifact)
        try:
            record = store.packs.read(entry.location)
        except (DamagedRecord, FileNotFoundError):
            # It was removed or moved meanwhile, or is damaged, which reading it reports.
            return
    named = {part for part, _ in parts_of(record)}
    # A dead record is left by an interrupted removal, which the next one completes.
    if known != named and record.kind != DEAD:
        store.report_damage()
        lacks, has = len(named - known), len(known - named)
        yield f"the index lacks {lacks} chunks of artifact {artifact.hex()}, and has {has} that are not its own"
