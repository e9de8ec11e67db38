"""When a file need not be read again: the stat signature under which a version's bytes were read.

A mark binds that signature to the source hash of what was read under it, so that the mark of one version never speaks
for another. Marks are a cache: without one, a file is read once more. They are kept here, and beside the version.
"""

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from ctxd.indexing.versions import Versions
from ctxd.objects.document import Document
from ctxd.sources.port import Stamp

MARKS_MAX: Final = 100_000
"""Marks kept in memory, about 250 bytes each. Beyond that the oldest go, and those files are read once more."""

_DEVICE: Final = struct.Struct("<Q")


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """``signature`` of the file, ``device`` of its directory, ``held``: the source hash in bytes, empty for none."""

    signature: bytes
    device: int
    held: bytes

    def speaks_for(self, document: Document) -> bool:
        """Whether this mark was made of ``document``'s bytes."""
        return self.held == _held(document)

    def encoded(self) -> bytes:
        """As it is stored beside a version."""
        return _DEVICE.pack(self.device) + self.signature + self.held


SIGNATURE_BYTES: Final = 40
"""Bytes of a signature, see ``ctxd.sources.port.signature``."""


def decoded(stored: bytes) -> Mark:
    """The mark that ``Mark.encoded`` made."""
    end = _DEVICE.size + SIGNATURE_BYTES
    return Mark(stored[_DEVICE.size : end], _DEVICE.unpack_from(stored)[0], stored[end:])


class Marks:
    """The newest mark of each object, by its id; null for one of which the store was asked and had none."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark | None] = {}

    async def load(self, versions: Versions, ids: Iterable[str]) -> None:
        """Take over the stored marks of ``ids``, of each once: the newest mark is known here from then on."""
        unasked = [id for id in ids if id not in self._marks]
        if unasked:
            stored = await versions.signatures(unasked)
            for id in unasked:
                if id not in self._marks:
                    self._keep(id, decoded(stored[id]) if id in stored else None)

    def note(self, id: str, stamp: Stamp | None, document: Document) -> bytes | None:
        """Keep the mark of ``document``, read under ``stamp``, and give it encoded; null if that proves nothing."""
        if stamp is None or not stamp.settled or stamp.directory_device is None:
            return None
        mark = Mark(stamp.signature, stamp.directory_device, _held(document))
        self._keep(id, mark)
        return mark.encoded()

    def get(self, id: str) -> Mark | None:
        """The mark of ``id``, null if none is kept."""
        return self._marks.get(id)

    def _keep(self, id: str, mark: Mark | None) -> None:
        self._marks.pop(id, None)
        self._marks[id] = mark
        if len(self._marks) > MARKS_MAX:
            del self._marks[next(iter(self._marks))]


def _held(document: Document) -> bytes:
    return bytes.fromhex(document.source_hash) if document.source_hash else b""
