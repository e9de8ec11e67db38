"""Figures of a request: its tokens, the prefix shared with the last request, why the prompt cache broke, its history.

They are part of the request's record, so that they can be shown again, and so that the next estimate depends on
recorded data only.
"""

from math import ceil

import msgspec

from ctxd.assembly.append_rendering import ExtendedWindow, KeptWindow
from ctxd.assembly.assembly_record import RequestMetrics, tools_hash
from ctxd.assembly.render_cache import KeptContext
from ctxd.assembly.repack_window import RequestConditions
from ctxd.assembly.request_budget import RepackOutcome, item_tokens
from ctxd.assembly.request_target import RequestTarget
from ctxd.assembly.window_items import ToolOutput, Update
from ctxd.models import Model
from ctxd.objects.document import Document
from ctxd_protocol.context_types import CacheBreak


class JudgedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The next addition to the window ``before`` of the context ``kept``: ``new_part`` as it was read, and ``judged``
    after the decision. ``target``: of its request, ``moment``: of the decision; both None for text. ``is_same``:
    nothing is added, and the form is that of the last assembly. ``texts``: documents of new component texts;
    ``floor_vt``: the least valid time for them."""

    kept: KeptContext
    before: KeptWindow
    new_part: ExtendedWindow
    target: RequestTarget | None
    moment: RequestConditions | None
    judged: RepackOutcome
    is_same: bool
    texts: tuple[Document, ...]
    floor_vt: int


def figures_of(part: JudgedPart, size: int, stable_prefix: int | None) -> RequestMetrics:
    """The figures of an assembly of ``size`` bytes, the first ``stable_prefix`` of which it shares with the last one;
    None if that had another form."""
    new_part, measures, earlier = part.new_part, part.judged.measures, _figures_before(part)
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
    if part.target is None or part.moment is None:
        return figures
    return _priced_figures(figures, earlier, part, part.target, part.moment, size, stable_prefix)


def _figures_before(part: JudgedPart) -> RequestMetrics:
    last = part.before.record
    return RequestMetrics() if last is None or last.window is None else last.window.figures


def _priced_figures(
    figures: RequestMetrics,
    earlier: RequestMetrics,
    part: JudgedPart,
    target: RequestTarget,
    moment: RequestConditions,
    size: int,
    stable_prefix: int | None,
) -> RequestMetrics:
    judged, last = part.judged, part.before.record
    plain = max(1, item_tokens(judged.grown))
    sent = judged.tokens if judged.reserve is not None else plain + ceil(moment.tools_tokens)
    broken = _broken(part, target, moment)
    is_cached = broken not in ("first_request", "format", "model", "tools", "cache_expired", "purge")
    full, full_before = (number * sent // plain for number in (figures.history, earlier.history))
    return msgspec.structs.replace(
        figures,
        reserve=judged.reserve,
        limit=moment.rules.budget_tokens,
        budget=judged.budget_tokens,
        before_bytes=0 if stable_prefix is None or last is None else last.bytes,
        sent=sent,
        read=_cached(sent * (stable_prefix or 0) // size, moment.model) if is_cached else 0,
        full=full,
        full_read=_cached(full_before, moment.model) if is_cached else 0,
        broken=broken,
    )


def _cached(tokens: int, model: Model) -> int:
    return tokens if tokens >= model.cache_min_tokens else 0


def _broken(part: JudgedPart, target: RequestTarget, moment: RequestConditions) -> CacheBreak | None:
    """Why the provider's cache ends before the end of the last request, None if it does not."""
    last, decision = part.before.window.request, part.judged.decision
    if last is None:
        return "first_request"
    if last.format != target.format:
        return "format"
    if last.model != target.model:
        return "model"
    if last.tools != tools_hash(target):
        return "tools"
    if moment.idle_s is not None and moment.idle_s >= moment.model.lifetime_s:
        return "cache_expired"
    if part.new_part.is_new:
        return "compaction"
    if part.before.rendering is None:
        # After a purge, the bytes that were sent cannot be rendered any more.
        return "purge"
    return None if decision is None else decision.reason
