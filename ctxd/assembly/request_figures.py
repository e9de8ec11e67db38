"""RequestFigures of a request: its estimated tokens, the budget by which it is judged, and what it costs.

The estimate of a window is that of its items until the provider has billed a request for the same model and format;
from then on it is calibrated. The figures are a part of the request's record, so that they can be shown again, and so
that the next estimate depends on what is recorded alone.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

import msgspec

from ctxd.assembly.append_assembly import Grown, KeptWindow
from ctxd.assembly.assembly_record import Recorded, RequestFigures
from ctxd.assembly.calibration import REQUESTS_KEPT, Calibration, Measure, MeasuredRequest, measured
from ctxd.assembly.repack_policy import Decision
from ctxd.assembly.repack_window import Moment, judge
from ctxd.assembly.request_bodies import RequestTarget
from ctxd.assembly.usage import priced
from ctxd.assembly.window_items import ToolOutput, Update
from ctxd.models import Model, Models
from ctxd_protocol.context_types import CacheBreak, RequestCost

_ROUNDS: Final = 8
"""Times that a window is judged until its estimate is within the budget."""

_TIGHTER: Final = 0.98
"""Share of the budget that each further round leaves: what is removed has an error too, which adds to the reserve."""


class Judged(msgspec.Struct, frozen=True):
    """A window that was judged. ``tokens``: its estimate, calibrated if ``reserve`` is not None. ``budget_tokens``: the
    budget in tokens of its items by which the policy decided, None for none."""

    grown: Grown
    decision: Decision | None
    tokens: int
    reserve: int | None = None
    budget_tokens: int | None = None


def judged(grown: Grown, moment: Moment, calibration: Calibration | None, request: MeasuredRequest) -> Judged:
    """Judge ``grown``. With a ``calibration``, its estimate and reserve together are held within the budget; the policy
    counts items, so it gets the budget in their tokens. ``request``: the measures of the window before."""
    most = moment.rules.budget_tokens
    if calibration is None:
        made, decision = judge(grown, moment)
        return Judged(made, decision, _plain(made), None, most)
    whole = measures_with(grown, request)
    found = calibration.estimate(whole)
    budget = None
    if most is not None:
        plain = sum(item.tokens for item in grown.flat()) + moment.tools_tokens
        budget = int(most * plain / max(1, found.tokens + found.reserve))
    rounds = 0
    while True:
        rules = msgspec.structs.replace(moment.rules, budget_tokens=budget)
        made, decision = judge(grown, msgspec.structs.replace(moment, rules=rules))
        rounds += 1
        if made is not grown:
            found = calibration.repacked(whole, measures_with(made, request))
        if budget is None or most is None or found.tokens + found.reserve <= most or rounds == _ROUNDS:
            return Judged(made, decision, found.tokens, found.reserve, budget)
        budget = int(budget * _TIGHTER * most / (found.tokens + found.reserve))


def _plain(grown: Grown) -> int:
    return ceil(sum(item.tokens for item in grown.flat()))


def measures_with(grown: Grown, request: MeasuredRequest) -> MeasuredRequest:
    """``request``, whose measures are those of the window before it grew, with the measures of what came."""
    outside, reply = measured(item for items in grown.items for item in items)
    if not grown.is_new:
        outside, reply = request.outside + outside, request.reply + reply
    base = request.number if grown.is_new else grown.window.base
    return msgspec.structs.replace(request, base=base, outside=outside, reply=reply)


def unjudged(grown: Grown) -> Judged:
    """``grown`` as it is."""
    return Judged(grown, None, _plain(grown))


def measured_requests(records: Sequence[Recorded], before: Sequence[MeasuredRequest] = ()) -> list[MeasuredRequest]:
    """The newest requests of ``before`` and ``records``, by which the next one is calibrated, oldest first."""
    return [*before, *(_measured(record) for record in records if _is_request(record))][-REQUESTS_KEPT:]


def _is_request(record: Recorded) -> bool:
    return record.window is not None and record.window.format is not None


def _measured(record: Recorded) -> MeasuredRequest:
    part = record.window
    assert part is not None, "it is a request"
    figures = part.figures
    return MeasuredRequest(
        record.number, part.base, part.format or "", part.model or "", figures.outside, figures.reply
    )


def next_request(number: int, before: Recorded | None, target: RequestTarget | None) -> MeasuredRequest:
    """Request ``number`` for ``target``, with the measures of the window of ``before``, None for an empty one."""
    part = None if before is None else before.window
    return MeasuredRequest(
        number,
        0 if part is None else part.base,
        "" if target is None else target.format,
        "" if target is None else target.model,
        Measure() if part is None else part.figures.outside,
        Measure() if part is None else part.figures.reply,
    )


def with_figures(
    record: Recorded, kept: KeptWindow, came: Grown, done: Judged, request: MeasuredRequest, moment: Moment | None
) -> Recorded:
    """``record`` with its figures. ``kept``: the window before, ``came``: what came since, before it was judged.
    ``moment`` None: it is text and no request."""
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
    plain = max(1, _plain(done.grown))
    sent = done.tokens if done.reserve is not None else plain + ceil(moment.tools_tokens)
    broken = _broken(record, kept, came, moment)
    is_cached = broken not in ("first_request", "format", "model", "tools", "cache_expired")
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
    """The reason for which the provider's cache ends before the end of the last request, None if it does not."""
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
    return part.repacked


def cost_of(record: Recorded, models: Models) -> RequestCost | None:
    """The figures of the request of ``record`` as clients get them, None for text."""
    part = record.window
    if part is None or part.format is None or part.model is None:
        return None
    figures, model = part.figures, models.find(part.model)
    return RequestCost(
        model=part.model,
        tokens=figures.sent,
        reserve=figures.reserve,
        shared_bytes=record.stable_prefix or 0,
        before_bytes=figures.before_bytes,
        shared_tokens=figures.sent * (record.stable_prefix or 0) // max(1, record.bytes),
        broken_by=figures.broken,
        cache_read=figures.read,
        price=None if model is None else input_price(figures.sent, figures.read, model),
        history_tokens=figures.full,
        history_price=None if model is None else input_price(figures.full, figures.full_read, model),
    )


def input_price(tokens: int, read: int, model: Model) -> int:
    """Micro-dollars for a request of ``tokens``, of which ``read`` come from the cache and the others are written to it
    for its shortest lifetime. The answer is not in it."""
    rate = model.cache_write[model.lifetime_s] if tokens >= model.cache_min_tokens else model.input
    return priced(read, model.cache_read) + priced(max(0, tokens - read), rate)
