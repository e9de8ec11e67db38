"""Bloom filter over entity and operation ids: a miss is certain, and most lookups of a write are for new ids.

It is filled from the database beside everything else after a start, and answers once it is
whole; what is accepted meanwhile is added at once.
"""

from collections.abc import Iterable, Iterator
from typing import Final

_BITS: Final = 27
"""Bits of an index: 16 MiB in memory. With a million keys one lookup in 3,400 is left to the database, with ten one in
50."""
_MASK: Final = (1 << _BITS) - 1
_NEAR: Final = 511
"""Both bits of a text are in one block of 64 bytes: memory is waited for once."""

_STEP_BYTES: Final = 1 << 17


class BloomFilter:
    """A set of texts with false positives: a miss is certain, a hit is not."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << (_BITS - 3))
        self.whole = False

    def add(self, texts: Iterable[str]) -> None:
        """Remember ``texts``."""
        bits = self._bits
        for text in texts:
            value = hash(text)
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

    def lacks(self, text: str) -> bool:
        """Return True if ``text`` was certainly never added."""
        if not self.whole:
            return False
        bits, value = self._bits, hash(text)
        first = value & _MASK
        second = first & ~_NEAR | value >> _BITS & _NEAR
        return not (bits[first >> 3] >> (first & 7) & 1 and bits[second >> 3] >> (second & 7) & 1)
