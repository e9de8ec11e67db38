"""Bloom filter for the ids of all operations and entities.

A miss is certain, and most lookups of a write are for new ids.
"""

from collections.abc import Iterable
from mmap import mmap
from typing import Final

_NEAR: Final = 511
"""Both bits of a key are in one 64-byte block, so a lookup costs one cache miss."""

_SMALL_BITS: Final = 24
_SMALL_KEYS: Final = 1 << 17
"""Keys in the first part, which takes 2 MiB: one lookup of a new key in 3,000 is a false positive."""

_LARGE_BITS: Final = 27
"""The second part takes 16 MiB and all other keys: with a million keys one lookup in 3,400 is a false positive, with
ten million one in 50."""


class BloomFilter:
    """A set of entity ids and operations with false positives: a miss is certain, a hit is not."""

    def __init__(self) -> None:
        self._parts = [_part(_SMALL_BITS)]
        self._left = _SMALL_KEYS
        self.whole = False

    def add(self, keys: Iterable[str | tuple[str, ...]]) -> None:
        """Add ``keys``."""
        bits, width, mask = self._parts[-1]
        for key in keys:
            value = hash(key)
            first = value & mask
            second = first & ~_NEAR | value >> width & _NEAR
            bits[first >> 3] |= 1 << (first & 7)
            bits[second >> 3] |= 1 << (second & 7)
            self._left -= 1
            if self._left == 0:
                bits, width, mask = part = _part(_LARGE_BITS)
                self._parts.append(part)

    def lacks(self, key: str | tuple[str, ...]) -> bool:
        """Return True if ``key`` was certainly never added."""
        if not self.whole:
            return False
        value = hash(key)
        for bits, width, mask in self._parts:
            first = value & mask
            second = first & ~_NEAR | value >> width & _NEAR
            if bits[first >> 3] >> (first & 7) & 1 and bits[second >> 3] >> (second & 7) & 1:
                return False
        return True


def _part(width: int) -> tuple[memoryview, int, int]:
    """Return 2 ** ``width`` zero bits, ``width``, and a mask of as many bits."""
    # Anonymous memory: unlike a bytearray's, its pages cost memory and time only once they are written.
    return memoryview(mmap(-1, 1 << (width - 3))), width, (1 << width) - 1
