"""Cache of stat signatures under which versions' bytes were read: an unchanged file is not read again.

An entry binds the signature to the source hash of what was read under it, so that the entry of one version never stands
for another. Without an entry a file is read once more. Entries are kept here, and beside the version.
"""

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from ctxd.objects.document import Document
from ctxd.sources.port import FINGERPRINT_BYTES, Stamp
from ctxd.store.store import VersionStore

ENTRIES_MAX: Final = 100_000
"""Entries kept in memory, about 250 bytes each. Beyond that the oldest go, and those files are read once more."""

_VOLUME: Final = struct.Struct("<Q")


class StatEntry(msgspec.Struct, frozen=True, array_like=True):
    """``signature``: the source's fingerprint; ``volume``: where it was read from (see ``Stamp``); ``held``: the source
    hash in bytes, empty for none."""

    signature: bytes
    volume: int
    held: bytes

    def stands_for(self, document: Document) -> bool:
        """True if this entry was made of ``document``'s bytes."""
        return self.held == _held(document)

    def encoded(self) -> bytes:
        """As it is stored beside a version."""
        return _VOLUME.pack(self.volume) + self.signature + self.held


def decoded(stored: bytes) -> StatEntry:
    """The entry that ``StatEntry.encoded`` made."""
    end = _VOLUME.size + FINGERPRINT_BYTES
    return StatEntry(stored[_VOLUME.size : end], _VOLUME.unpack_from(stored)[0], stored[end:])


class StatCache:
    """The newest entry of each object, by its id; ``None`` where the store has none either."""

    def __init__(self) -> None:
        self._marks: dict[str, StatEntry | None] = {}

    async def load(self, versions: VersionStore, ids: Iterable[str]) -> None:
        """Load the stored entries of ``ids``, each once: the newest entry is kept here from then on."""
        unasked = [id for id in ids if id not in self._marks]
        if unasked:
            stored = await versions.signatures(unasked)
            for id in unasked:
                if id not in self._marks:
                    self._keep(id, decoded(stored[id]) if id in stored else None)

    def note(self, id: str, stamp: Stamp | None, document: Document) -> bytes | None:
        """Keep and encode the entry of ``document``, read under ``stamp``; ``None`` if the stamp proves nothing."""
        if stamp is None or not stamp.settled or stamp.volume is None:
            return None
        mark = StatEntry(stamp.fingerprint, stamp.volume, _held(document))
        self._keep(id, mark)
        return mark.encoded()

    def get(self, id: str) -> StatEntry | None:
        """The entry of ``id``, ``None`` if none is kept."""
        return self._marks.get(id)

    def _keep(self, id: str, mark: StatEntry | None) -> None:
        self._marks.pop(id, None)
        self._marks[id] = mark
        if len(self._marks) > ENTRIES_MAX:
            del self._marks[next(iter(self._marks))]


def _held(document: Document) -> bytes:
    return bytes.fromhex(document.source_hash) if document.source_hash else b""
