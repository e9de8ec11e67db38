"""Figures of a request: its tokens, the prefix shared with the last request, why the prompt cache missed, and the
tokens that the whole history would take.

They are part of the request's record, so that they can be shown again, and so that the next estimate depends on
recorded data only.
"""

from math import ceil

import msgspec

from ctxd.assembly.append_rendering import Rendering
from ctxd.assembly.assembly_record import RequestMetrics, tools_hash
from ctxd.assembly.repack_window import RequestConditions
from ctxd.assembly.request_budget import JudgedPart, item_tokens
from ctxd.assembly.request_target import RequestTarget
from ctxd.assembly.window_items import ToolOutput, Update
from ctxd.models import Model
from ctxd_protocol.context_types import CacheBreak


def shared_prefix(before: Rendering | None, rendering: Rendering) -> int | None:
    """Bytes of ``rendering`` that its beginning shares with ``before``, the last one; None if that had another form."""
    if before is None:
        return None
    forms = [None if each.target is None else each.target.format for each in (before, rendering)]
    return _equal_prefix(before.plain, rendering.plain) if forms[0] == forms[1] else None


def _equal_prefix(a: bytes, b: bytes) -> int:
    """Length of the common prefix of ``a`` and ``b`` in bytes. Cost: a binary search; each step compares half of the
    rest."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low


def figures_of(part: JudgedPart, size: int, stable_prefix: int | None) -> RequestMetrics:
    """The figures of an assembly of ``size`` bytes, the first ``stable_prefix`` of which it shares with the last one;
    None if that had another form."""
    new_part, measures, earlier = part.new_part, part.outcome.measures, _figures_before(part)
    seen = {ref.key for ref in part.before.window.refs} if new_part.is_new else set()
    history = ceil(
        sum(
            item.full_tokens if isinstance(item, ToolOutput | Update) else item.tokens
            for ref, items in zip(new_part.planned.refs, new_part.items, strict=True)
            if ref.key not in seen
            for item in items
        )
    )
    figures = RequestMetrics(outside=measures.outside, reply=measures.reply, history=earlier.history + history)
    if part.target is None or part.conditions is None:
        return figures
    return _priced_figures(figures, earlier, part, part.target, part.conditions, size, stable_prefix)


def _figures_before(part: JudgedPart) -> RequestMetrics:
    last = part.before.record
    return RequestMetrics() if last is None or last.window is None else last.window.figures


def _priced_figures(
    figures: RequestMetrics,
    earlier: RequestMetrics,
    part: JudgedPart,
    target: RequestTarget,
    conditions: RequestConditions,
    size: int,
    stable_prefix: int | None,
) -> RequestMetrics:
    outcome, last = part.outcome, part.before.record
    plain = max(1, item_tokens(outcome.extended))
    sent = outcome.tokens if outcome.reserve is not None else plain + ceil(conditions.tools_tokens)
    broken = _broken(part, target, conditions)
    is_cached = broken not in ("first_request", "format", "model", "tools", "cache_expired", "purge")
    full, full_before = (number * sent // plain for number in (figures.history, earlier.history))
    return msgspec.structs.replace(
        figures,
        reserve=outcome.reserve,
        limit=conditions.rules.budget_tokens,
        budget=outcome.budget_tokens,
        before_bytes=0 if stable_prefix is None or last is None else last.bytes,
        sent=sent,
        read=_cached(sent * (stable_prefix or 0) // size, conditions.model) if is_cached else 0,
        full=full,
        full_read=_cached(full_before, conditions.model) if is_cached else 0,
        broken=broken,
    )


def _cached(tokens: int, model: Model) -> int:
    return tokens if tokens >= model.cache_min_tokens else 0


def _broken(part: JudgedPart, target: RequestTarget, conditions: RequestConditions) -> CacheBreak | None:
    """Why the provider's cache ends before the end of the last request, None if it does not."""
    last, decision = part.before.window.request, part.outcome.decision
    if last is None:
        return "first_request"
    if last.format != target.format:
        return "format"
    if last.model != target.model:
        return "model"
    if last.tools != tools_hash(target):
        return "tools"
    if conditions.idle_s is not None and conditions.idle_s >= conditions.model.lifetime_s:
        return "cache_expired"
    if part.new_part.is_new:
        return "compaction"
    if part.before.rendering is None:
        # After a purge, the bytes that were sent cannot be rendered any more.
        return "purge"
    return None if decision is None else decision.reason
