"""A second kind of source: blobs in memory, by bucket and key. Passes the suite of every source."""

import hashlib
from collections.abc import Sequence
from typing import cast

import msgspec

from ctxd.objects.hashing import source_hash
from ctxd.sources.source_interface import Missing, OverLimit, Present, Reading, Stamp, decoded_text, fingerprint_of
from ctxd_protocol.limits import FILE_BYTES_MAX
from ctxd_protocol.object_types import Source

VOLUME = 3


class MemorySource(msgspec.Struct, frozen=True, tag="memory", tag_field="type", rename="camel"):
    """A member of the union that the product does not have."""

    bucket_name: str
    key: str


def blob(key: str) -> Source:
    """The binding of ``key``, of the type that the union has once this kind is a member."""
    return cast(Source, MemorySource("b1", key))


class MemoryBlobs:
    """See ``ctxd.sources.source_interface.SourceAdapter``. ``reads`` counts blobs that were read."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self.reads = 0

    async def read(self, binding: MemorySource) -> Reading:
        self.reads += 1
        raw = self.blobs.get(binding.key)
        if raw is None:
            return Missing(True, VOLUME)
        stamp = Stamp(self._fingerprint(binding.key), True, VOLUME)
        if (size := self.sizes.get(binding.key, len(raw))) > FILE_BYTES_MAX:
            return OverLimit(size, 0, stamp)
        return Present(raw, source_hash(raw), decoded_text(raw), stamp)

    async def read_many(self, bindings: Sequence[MemorySource]) -> list[Reading]:
        return [await self.read(binding) for binding in bindings]

    async def fingerprint(self, bindings: Sequence[MemorySource]) -> list[bytes | None]:
        return [self._fingerprint(binding.key) if binding.key in self.blobs else None for binding in bindings]

    def _fingerprint(self, key: str) -> bytes:
        raw = self.blobs[key]
        return fingerprint_of(hashlib.sha256(raw).digest(), self.sizes.get(key, len(raw)))
