"""Recovery of the index at a start: checked after a crash, rebuilt if damaged, and completed with lost records."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ctxd import sqlite_file
from ctxd.artifacts import pack_index as indexes
from ctxd.artifacts.pack_index import Index, entry_of
from ctxd.artifacts.packs import CHUNK, DEAD, DamagedRecord, Location, PackRecord, Packs, parts_of, records, sync

_DATABASE: Final = "index.db"
_DAMAGED: Final = "index.damaged"
"""A marker file that exists once a read has found damage in the index: the next start rebuilds it."""

_CHECKED_BYTES: Final = 64 * 1024 * 1024
"""Size of the index up to which a start after a crash checks its structure, in about 100 ms; the scrub checks any."""


def database(root: Path) -> Path:
    """Return the path of the index of the store in ``root``."""
    return root / _DATABASE


def report_damage(root: Path) -> None:
    """Make the next start rebuild the index."""
    with suppress(OSError):
        (root / _DAMAGED).touch(0o600)


def open_index(root: Path, packs: Packs, *, rebuild: bool = False) -> tuple[Index, int]:
    """Open the index, and add missing records. Returns: the index, and the end of the newest pack.

    It is rebuilt if it is missing, of a different version, reported as damaged, or with ``rebuild``. Raises: OSError;
    ``sqlite_file``'s errors, ``FileDamaged`` and ``SqlFailed`` if it has to be rebuilt.
    """
    path, marker = database(root), root / _DAMAGED
    if rebuild or marker.exists() or sqlite_file.user_version(path) not in (None, indexes.VERSION):
        for file in root.glob(f"{_DATABASE}*"):
            file.unlink()
    # Only a clean shutdown leaves the log empty.
    was_cut_short = sqlite_file.log_size(path) > 0
    with sqlite_file.faults():
        index = Index(path, write=True)
        try:
            if was_cut_short and path.stat().st_size <= _CHECKED_BYTES and not index.is_sound():
                raise sqlite_file.FileDamaged(f"{path} is damaged")
            end = _take_in(packs, index, again=was_cut_short)
        except BaseException:
            index.close()
            raise
    marker.unlink(missing_ok=True)
    return index, end


def _take_in(packs: Packs, index: Index, *, again: bool) -> int:
    """Add the records after the indexed part of each pack, and with ``again`` all missing ones of the newest pack.
    Returns: the end of the newest pack."""
    sizes, numbers, end = index.pack_sizes(), packs.numbers(), 0
    moved: dict[Location, PackRecord] = {}
    with index.transaction(synced=True):
        _forget_packs(index, sizes.keys() - set(numbers))
        artifacts: list[PackRecord] = []
        for number in numbers:
            path, known = packs.path(number), sizes.get(number, 0)
            is_again, size = again and number == numbers[-1], path.stat().st_size
            end = min(known, size)
            if size == known and not is_again:
                continue
            for record in records(path, 0 if is_again else end):
                # More records may follow damage in the middle: only bytes after the last one are cut off.
                if isinstance(record, DamagedRecord):
                    continue
                end = max(end, record.location.end)
                there = _known(index, record)
                if record.kind == DEAD or there == record.location or (there and record.location.at < known):
                    continue
                if there is not None:
                    moved[there] = record
                if record.kind == CHUNK:
                    index.put_chunks([(record.hash, record.location)])
                else:
                    artifacts.append(record)
            index.set_pack_size(number, end)
        # A chunk may come after the manifest that refers to it.
        for record in artifacts:
            index.put_artifact(record.hash, entry_of(record), {part for part, _ in parts_of(record)})
    for place, record in moved.items():
        _bury_copy(packs, place, record)
    return end


def _known(index: Index, record: PackRecord) -> Location | None:
    if record.kind == CHUNK:
        return index.chunks((record.hash,)).get(record.hash)
    entry = index.artifact(record.hash)
    return None if entry is None else entry.location


def _forget_packs(index: Index, gone: set[int]) -> None:
    """Remove packs without a file or live bytes from the index: a repack was interrupted. Others are reported."""
    live = index.live_bytes() if gone else {}
    for number in gone:
        if not live.get(number):
            index.remove_pack(number)


def _bury_copy(packs: Packs, place: Location, record: PackRecord) -> None:
    """Erase the record at ``place`` if it is the same as ``record``, to which a repack has moved it."""
    with suppress(DamagedRecord, FileNotFoundError):
        copy = packs.read(place)
        if (copy.kind, copy.hash) == (record.kind, record.hash):
            sync(os.open(packs.path(record.location.pack), os.O_RDONLY | os.O_CLOEXEC))
            packs.bury((place,))
