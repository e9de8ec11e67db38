"""Measures of a text: bytes of UTF-8, estimated tokens, and the bytes that stayed the same at its start.

The token estimate is a quarter of the bytes, rounded up. It needs no tokenizer, never shrinks when text is added, and
is the same on every host. The stable prefix is what a provider's prefix cache can reuse; texts come as fragments that
are cached from one assembly to the next, so equal beginnings are mostly the same objects and cost nothing to compare.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

BYTES_PER_TOKEN: Final = 4
"""Bytes of UTF-8 that count as one token: what common tokenizers reach on English text and code."""

_CACHED_TEXTS: Final = 512


def size_bytes(text: str) -> int:
    """Bytes of ``text`` in UTF-8. Cost: constant for ASCII text."""
    return len(text) if text.isascii() else _encoded_size(text)


@lru_cache(maxsize=_CACHED_TEXTS)
def _encoded_size(text: str) -> int:
    return len(text.encode())


def tokens_of(size: int) -> int:
    """Estimated tokens of a text of ``size`` bytes."""
    return -(-size // BYTES_PER_TOKEN)


def stable_prefix(old: Sequence[str], new: Sequence[str]) -> int:
    """Leading UTF-8 bytes in which the concatenations of ``old`` and ``new`` are equal.

    Cost: the number of fragments before the first that differs, then the length of the equal part from there on.
    """
    same, at = 0, 0
    for a, b in zip(old, new, strict=False):
        if a is not b and a != b:
            break
        same += size_bytes(a)
        at += 1
    return same + _common_bytes("".join(old[at:]), "".join(new[at:]))


def _common_bytes(a: str, b: str) -> int:
    equal = _common_characters(a, b)
    bytes_ = size_bytes(a[:equal])
    if equal < len(a) and equal < len(b):
        # Two characters that differ may begin with the same bytes.
        for x, y in zip(a[equal].encode(), b[equal].encode(), strict=False):
            if x != y:
                break
            bytes_ += 1
    return bytes_


def _common_characters(a: str, b: str) -> int:
    low, high = 0, min(len(a), len(b))
    step = 64
    # Texts mostly differ early: look there first, then halve.
    while low < high:
        middle = min(high, low + step)
        if a[low:middle] == b[low:middle]:
            low, step = middle, step * 2
        elif step == 1:
            return low
        else:
            high, step = middle, max(1, (middle - low) // 2)
    return low
