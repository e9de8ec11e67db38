"""Token budget of a context: its pieces with their bytes and tokens, the pieces to leave out, the stable prefix. Pure.

Tokens come from a ``TokenCounter``. ``estimate_tokens`` takes a quarter of the bytes: it needs no tokenizer, never
shrinks when text is added, and is the same on every host. ``plan`` decides which pieces to leave out so that a context
fits its token budget: tool calls first, oldest first; then files, starting with the one activated longest ago; never
pinned objects. It is only a plan: no set changes, and objects that are left out keep their metadata line. The stable
prefix is the part that a provider's prompt cache can reuse; unchanged texts are mostly the same objects, and cost
nothing to compare.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Final, Literal

import msgspec

from ctxd.assembly.spec_rendering import SEPARATOR
from ctxd_protocol.context_types import BudgetPlan, Dropped

TokenCounter = Callable[[str], float]
"""Tokens of a text. Fractions are for estimates: a sum is rounded up, not each of its terms."""

BYTES_PER_TOKEN: Final = 4
"""Bytes of UTF-8 that count as one token: the average of common tokenizers on English text and code."""


DropReason = Literal["oldest tool call", "file activated longest ago"]
"""Why an object is left out before others. A closed set."""


class Piece(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rendered block of ``size`` bytes, and the version that it shows.

    ``key`` identifies, within the section, the same part of the window in every context of a session, even if its text
    changes. ``entries``: number of entries that it adds to its section. ``is_active``: the piece shows an active
    object. ``drop``: the reason for which a budget may leave the piece out, None if it may not.
    """

    key: str
    section: str
    text: str
    size: int
    tokens: float
    reason: str
    object: str
    valid_time: int | None = None
    tx: int | None = None
    entries: int = 1
    is_active: bool = False
    drop: DropReason | None = None


def size_bytes(text: str) -> int:
    """Bytes of ``text`` in UTF-8. Cost: constant for ASCII text, 1 ns for each character of other text."""
    return len(text) if text.isascii() else len(text.encode())


def estimate_tokens(text: str) -> float:
    """Estimated tokens of ``text``: a quarter of its bytes."""
    return size_bytes(text) / BYTES_PER_TOKEN


def sha256(text: str | bytes) -> str:
    """The hash of a text or of its UTF-8, 64 hex digits."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def drop_order(pieces: Sequence[Piece]) -> list[tuple[Piece, DropReason]]:
    """The pieces that a budget may leave out, those to leave out first in front, each with its reason."""
    # Sorting is stable: within each kind the order of the chat and of activation is kept.
    leaving = [(piece, piece.drop) for piece in pieces if piece.drop is not None]
    return sorted(leaving, key=lambda each: each[1] != "oldest tool call")


def plan(pieces: Sequence[Piece], budget_tokens: int | None, count: TokenCounter) -> BudgetPlan:
    """Plan a context of ``pieces``, those of active objects in order of activation, against its budget.

    ``over_by``: tokens above the budget after everything that may be left out is left out.
    """
    between = count(SEPARATOR)
    left = sum(piece.tokens for piece in pieces) + max(0, len(pieces) - 1) * between
    tokens, dropped = ceil(left), []
    if budget_tokens is not None and tokens > budget_tokens:
        for piece, reason in drop_order(pieces):
            if ceil(left) <= budget_tokens:
                break
            # Removing the last block removes no separator.
            left = max(0.0, left - piece.tokens - between)
            dropped.append(Dropped(object=piece.object, tokens=ceil(piece.tokens), reason=reason))
    after = ceil(left)
    return BudgetPlan(
        budget_tokens=budget_tokens,
        tokens=tokens,
        tokens_after=after,
        over_by=0 if budget_tokens is None else max(0, after - budget_tokens),
        dropped=tuple(dropped),
    )


_CHUNK_BYTES: Final = 4096


def stable_prefix(old: Sequence[Piece], new: Sequence[Piece]) -> int:
    """Length in UTF-8 bytes of the common prefix of the contexts with the pieces ``old`` and ``new``.

    Cost: the number of pieces before the first whose text differs, plus the length of the equal part from there on.
    """
    pairs = enumerate(zip(old, new, strict=False))
    at = next((n for n, (a, b) in pairs if a.text is not b.text and a.text != b.text), min(len(old), len(new)))
    same = sum(piece.size for piece in old[:at]) + max(0, at - 1) * len(SEPARATOR)
    # The equal part may extend beyond the end of one text, if the other continues like the rest of the context.
    left, right = _chunks(old, at), _chunks(new, at)
    a = b = b""
    while (a := a or next(left, b"")) and (b := b or next(right, b"")):
        length = min(len(a), len(b))
        if a[:length] != b[:length]:
            # Equal leading bytes are zero in the exclusive or.
            differing = int.from_bytes(a[:length]) ^ int.from_bytes(b[:length])
            return same + length - (differing.bit_length() + 7) // 8
        same, a, b = same + length, a[length:], b[length:]
    return same


def _chunks(pieces: Sequence[Piece], first: int) -> Iterator[bytes]:
    """Yield the bytes of a context from the piece ``first`` on, with the separator that comes before it."""
    for number in range(first, len(pieces)):
        if number:
            yield SEPARATOR.encode()
        text = pieces[number].text.encode()
        yield from (text[start : start + _CHUNK_BYTES] for start in range(0, len(text), _CHUNK_BYTES))
