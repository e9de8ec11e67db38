"""Size of a text: bytes of UTF-8, and an estimate of the tokens a model reads.

The estimate is a quarter of the bytes, rounded up. It needs no tokenizer, never shrinks when text is added, and is the
same on every host.
"""

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
