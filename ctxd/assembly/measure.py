"""Measures of a context: bytes of UTF-8, estimated tokens against a budget, and the stable prefix. Pure.

The token estimate is a quarter of the bytes, rounded up. It needs no tokenizer, never shrinks when text is added, and
is the same on every host. ``plan`` decides from it which active objects are left out so that a context fits its token
budget: tool calls first, the oldest of them first, then files, the one activated longest ago first; pinned objects
never. It is only a plan: no set changes, and what is left out keeps its metadata line. The stable prefix is what a
provider's prefix cache can reuse; texts come as fragments that are cached from one assembly to the next, so equal
beginnings are mostly the same objects and cost nothing to compare.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from ctxd.assembly.render import SEPARATOR
from ctxd_protocol.context import BudgetPlan, Dropped

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
    left, right = "".join(old[at:]), "".join(new[at:])
    equal = _common_characters(left, right)
    same += size_bytes(left[:equal])
    if equal < len(left) and equal < len(right):
        # Two characters that differ may begin with the same bytes.
        for x, y in zip(left[equal].encode(), right[equal].encode(), strict=False):
            if x != y:
                break
            same += 1
    return same


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


DropReason = Literal["oldest tool call", "file activated longest ago"]
"""Why an object goes before the others. A closed set."""

_REASONS: Final[dict[bool, DropReason]] = {True: "oldest tool call", False: "file activated longest ago"}


class Droppable(msgspec.Struct, frozen=True, kw_only=True):
    """Active object with content. ``size`` is the bytes of its block, header included and separator excluded."""

    id: str
    size: int
    is_toolcall: bool
    is_pinned: bool


def plan(candidates: Sequence[Droppable], *, total_bytes: int, budget_tokens: int | None) -> BudgetPlan:
    """Plan a context of ``total_bytes`` against its budget.

    ``candidates`` are in order of activation. ``over_by`` is what remains too much when all that may go is gone.
    """
    tokens = tokens_of(total_bytes)
    left, dropped = total_bytes, []
    if budget_tokens is not None and tokens > budget_tokens:
        for candidate in _in_order_of_leaving(candidates):
            if tokens_of(left) <= budget_tokens:
                break
            # The last block to go has no separator to take with it.
            left = max(0, left - candidate.size - len(SEPARATOR))
            reason = _REASONS[candidate.is_toolcall]
            dropped.append(Dropped(object=candidate.id, tokens=tokens_of(candidate.size), reason=reason))
    after = tokens_of(left)
    return BudgetPlan(
        budget_tokens=budget_tokens,
        tokens=tokens,
        tokens_after=after,
        over_by=0 if budget_tokens is None else max(0, after - budget_tokens),
        dropped=tuple(dropped),
    )


def _in_order_of_leaving(candidates: Sequence[Droppable]) -> list[Droppable]:
    loose = [candidate for candidate in candidates if not candidate.is_pinned]
    # Sorting is stable: within each kind the order of activation stands.
    return sorted(loose, key=lambda candidate: not candidate.is_toolcall)
