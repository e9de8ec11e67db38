"""Figures of a request: its tokens, the prefix shared with the last request, why the prompt cache broke, its history.

They are part of the request's record, so that they can be shown again, and so that the next estimate depends on
recorded data only.
"""

from math import ceil

import msgspec

from ctxd.assembly.append_rendering import Grown, KeptWindow
from ctxd.assembly.assembly_record import Recorded, RequestFigures
from ctxd.assembly.calibrated_budget import Judged, item_tokens, measures_with
from ctxd.assembly.calibration import MeasuredRequest
from ctxd.assembly.repack_window import Moment
from ctxd.assembly.window_items import ToolOutput, Update
from ctxd.models import Model
from ctxd_protocol.context_types import CacheBreak


def with_figures(
    record: Recorded, kept: KeptWindow, came: Grown, done: Judged, request: MeasuredRequest, moment: Moment | None
) -> Recorded:
    """``record`` with its figures. ``kept``: the window before; ``came``: the new part, before it was judged.
    ``moment`` None: it is text, not a request."""
    part, last = record.window, kept.record
    assert part is not None, "it is in the layout append"
    whole = measures_with(done.grown, request)
    earlier = RequestFigures() if last is None or last.window is None else last.window.figures
    seen = {ref.key for ref in kept.window.refs} if came.is_new else set()
    figures = RequestFigures(
        outside=whole.outside,
        reply=whole.reply,
        history=earlier.history
        + ceil(
            sum(
                item.full_tokens if isinstance(item, ToolOutput | Update) else item.tokens
                for ref, items in zip(came.planned.refs, came.items, strict=True)
                if ref.key not in seen
                for item in items
            )
        ),
    )
    if moment is not None:
        figures = _priced_figures(figures, earlier, record, kept, came, done, moment)
    return msgspec.structs.replace(record, tokens=done.tokens, window=msgspec.structs.replace(part, figures=figures))


def _priced_figures(
    figures: RequestFigures,
    earlier: RequestFigures,
    record: Recorded,
    kept: KeptWindow,
    came: Grown,
    done: Judged,
    moment: Moment,
) -> RequestFigures:
    plain = max(1, item_tokens(done.grown))
    sent = done.tokens if done.reserve is not None else plain + ceil(moment.tools_tokens)
    broken = _broken(record, kept, came, moment)
    is_cached = broken not in ("first_request", "format", "model", "tools", "cache_expired", "purge")
    full, full_before = (number * sent // plain for number in (figures.history, earlier.history))
    return msgspec.structs.replace(
        figures,
        reserve=done.reserve,
        budget=done.budget_tokens,
        before_bytes=0 if record.stable_prefix is None or kept.record is None else kept.record.bytes,
        sent=sent,
        read=_cached(sent * (record.stable_prefix or 0) // record.bytes, moment.model) if is_cached else 0,
        full=full,
        full_read=_cached(full_before, moment.model) if is_cached else 0,
        broken=broken,
    )


def _cached(tokens: int, model: Model) -> int:
    return tokens if tokens >= model.cache_min_tokens else 0


def _broken(record: Recorded, kept: KeptWindow, came: Grown, moment: Moment) -> CacheBreak | None:
    """Why the provider's cache ends before the end of the last request, None if it does not."""
    part, last = record.window, kept.window.request
    assert part is not None, "it is in the layout append"
    if last is None:
        return "first_request"
    if last.format != part.format:
        return "format"
    if last.model != part.model:
        return "model"
    if last.tools != part.tools:
        return "tools"
    if moment.idle_s is not None and moment.idle_s >= moment.model.lifetime_s:
        return "cache_expired"
    if came.is_new:
        return "compaction"
    # After a purge, the bytes that were sent cannot be rendered any more.
    return "purge" if kept.rendering is None else part.repacked
