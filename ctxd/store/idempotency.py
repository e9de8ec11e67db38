"""Idempotency: whether an operation id, or an entity id, is new.

A Bloom filter knows the ids of all operations and entities: a miss is certain, and most lookups of a write are for new
ids. The store itself knows the writes that are under way and those that ended a short while ago; older ones are in the
journal.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from ctxd.errors import CtxdError
from ctxd.store.journal import Body
from ctxd.store.writes import QueuedWrite, Replay
from ctxd_protocol.object_types import Receipt

_BITS: Final = 27
"""Bits of an index: 16 MiB in memory. With a million keys one lookup in 3,400 is left to the database, with ten one in
50."""
_MASK: Final = (1 << _BITS) - 1
_NEAR: Final = 511
"""Both bits of a key are in one block of 64 bytes: memory is waited for once."""
_STEP_BYTES: Final = 1 << 17


class BloomFilter:
    """A set of entity ids and operations with false positives: a miss is certain, a hit is not."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << (_BITS - 3))
        self.whole = False

    def add(self, keys: Iterable[str | tuple[str, ...]]) -> None:
        """Remember ``keys``."""
        bits = self._bits
        for key in keys:
            value = hash(key)
            first = value & _MASK
            second = first & ~_NEAR | value >> _BITS & _NEAR
            bits[first >> 3] |= 1 << (first & 7)
            bits[second >> 3] |= 1 << (second & 7)

    def take_in(self, other: "BloomFilter") -> Iterator[None]:
        """Remember all that ``other`` does, a step at a time, each well below a millisecond."""
        ours, theirs = memoryview(self._bits), memoryview(other._bits)
        for first in range(0, len(ours), _STEP_BYTES):
            part = slice(first, first + _STEP_BYTES)
            both = int.from_bytes(ours[part], "little") | int.from_bytes(theirs[part], "little")
            ours[part] = both.to_bytes(_STEP_BYTES, "little")
            yield

    def lacks(self, key: str | tuple[str, ...]) -> bool:
        """Return True if ``key`` was certainly never added."""
        if not self.whole:
            return False
        bits, value = self._bits, hash(key)
        first = value & _MASK
        second = first & ~_NEAR | value >> _BITS & _NEAR
        return not (bits[first >> 3] >> (first & 7) & 1 and bits[second >> 3] >> (second & 7) & 1)


Operation = tuple[str, str]
"""A principal and its operation id."""


def replay_of(key: Operation, request: bytes, found: QueuedWrite | tuple[Body, Receipt]) -> Replay:
    """The answer to a resend of the write that was ``found`` under ``key``.

    Raises: CtxdError ``idempotency_mismatch`` if that had another ``request``.
    """
    if isinstance(found, QueuedWrite):
        was, replay = found.prepared.write.request, Replay(found.prepared.write.result, found.pending, None)
    else:
        body, receipt = found
        was, replay = body.request, Replay(body.result, None, receipt)
    # Of a write that was purged, the digest of its parameters is gone as well.
    if was and was != request:
        raise mismatch(key[1])
    return replay


def mismatch(op_id: str) -> CtxdError:
    """Return the error of a call whose ``op_id`` was used with other parameters."""
    return CtxdError(
        "idempotency_mismatch",
        f"operation id {op_id} was used with other parameters",
        hint="Take a new op_id for a new call.",
        outcome="not_applied",
    )
