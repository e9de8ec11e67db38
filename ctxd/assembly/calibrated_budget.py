"""Budget of a request: its calibrated estimate and the reserve together must be within it.

Until the provider has billed a request for the same model and format, the estimate of a window is the sum over its
items; after that it is calibrated.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

import msgspec

from ctxd.assembly.append_rendering import Grown
from ctxd.assembly.assembly_record import Recorded
from ctxd.assembly.calibration import REQUESTS_KEPT, Calibration, Measure, MeasuredRequest, measured
from ctxd.assembly.repack_policy import Decision
from ctxd.assembly.repack_window import Moment, judge
from ctxd.assembly.request_target import RequestTarget

_ROUNDS: Final = 8
"""Maximum number of times that a window is judged to bring its estimate within the budget."""


_TIGHTER: Final = 0.98
"""Factor on the budget of each further round: the tokens removed have an error too, which adds to the reserve."""


class Judged(msgspec.Struct, frozen=True):
    """A window and the policy's decision on it. ``tokens``: its estimate, calibrated if ``reserve`` is not None.
    ``measures``: of its request. ``budget_tokens``: the budget that the policy was given, in tokens of items, None for
    none."""

    grown: Grown
    decision: Decision | None
    tokens: int
    measures: MeasuredRequest
    reserve: int | None = None
    budget_tokens: int | None = None


def judged(grown: Grown, moment: Moment, calibration: Calibration | None, request: MeasuredRequest) -> Judged:
    """Judge ``grown``. With a ``calibration``, its estimate and reserve together are kept within the budget; the policy
    counts tokens of items, so it gets the budget converted to these. ``request``: the measures of the window before."""
    most = moment.rules.budget_tokens
    whole = _measures_with(grown, request)
    if calibration is None:
        decided, decision = judge(grown, moment)
        measures = whole if decided is grown else _measures_with(decided, request)
        return Judged(decided, decision, item_tokens(decided), measures, None, most)
    found = calibration.estimate(whole)
    budget = None
    if most is not None:
        plain = sum(item.tokens for item in grown.flat()) + moment.tools_tokens
        budget = int(most * plain / max(1, found.tokens + found.reserve))
    rounds = 0
    while True:
        rules = msgspec.structs.replace(moment.rules, budget_tokens=budget)
        decided, decision = judge(grown, msgspec.structs.replace(moment, rules=rules))
        rounds += 1
        measures = whole if decided is grown else _measures_with(decided, request)
        if decided is not grown:
            found = calibration.repacked(whole, measures)
        if budget is None or most is None or found.tokens + found.reserve <= most or rounds == _ROUNDS:
            return Judged(decided, decision, found.tokens, measures, found.reserve, budget)
        budget = int(budget * _TIGHTER * most / (found.tokens + found.reserve))


def item_tokens(grown: Grown) -> int:
    """Estimated tokens of the items of ``grown``."""
    return ceil(sum(item.tokens for item in grown.flat()))


def _measures_with(grown: Grown, request: MeasuredRequest) -> MeasuredRequest:
    """``request`` with the measures of the grown window; its own are those of the window before."""
    outside, reply = measured(item for items in grown.items for item in items)
    if not grown.is_new:
        outside, reply = request.outside + outside, request.reply + reply
    base = request.number if grown.is_new else grown.window.base
    return msgspec.structs.replace(request, base=base, outside=outside, reply=reply)


def unjudged(grown: Grown, request: MeasuredRequest) -> Judged:
    """``grown`` without a decision. ``request``: as for ``judged``."""
    return Judged(grown, None, item_tokens(grown), _measures_with(grown, request))


def measured_requests(records: Sequence[Recorded], before: Sequence[MeasuredRequest] = ()) -> list[MeasuredRequest]:
    """The newest requests of ``before`` and ``records``, oldest first, to calibrate the next one."""
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
    """Request ``number`` for ``target``, with the measures of the window so far. ``before``: its newest record, None
    for an empty window."""
    part = None if before is None else before.window
    return MeasuredRequest(
        number,
        0 if part is None else part.base,
        "" if target is None else target.format,
        "" if target is None else target.model,
        Measure() if part is None else part.figures.outside,
        Measure() if part is None else part.figures.reply,
    )
