"""Which active objects are left out so that a context fits its token budget, in which order, and why.

Pure, and only a plan: no set changes, and what is left out keeps its metadata line. The order is fixed: tool calls
first, the oldest of them first, then files, the one activated longest ago first. Pinned objects are never left out. An
object without content costs nothing here and is never named.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from ctxd.assembly.measure import tokens_of
from ctxd.assembly.render import SEPARATOR
from ctxd_protocol.context import BudgetPlan, Dropped

DropReason = Literal["oldest tool call", "file activated longest ago"]
"""Why an object goes before the others. A closed set."""

_REASONS: Final[dict[bool, DropReason]] = {True: "oldest tool call", False: "file activated longest ago"}


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One active object with content. ``size`` is the bytes of its block, header included and separator excluded."""

    id: str
    size: int
    is_toolcall: bool
    is_pinned: bool


def plan(candidates: Sequence[Candidate], *, total_bytes: int, budget_tokens: int | None) -> BudgetPlan:
    """How a context of ``total_bytes`` stands against its budget.

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


def _in_order_of_leaving(candidates: Sequence[Candidate]) -> list[Candidate]:
    loose = [candidate for candidate in candidates if not candidate.is_pinned]
    # Sorting is stable: within each kind the order of activation stands.
    return sorted(loose, key=lambda candidate: not candidate.is_toolcall)
