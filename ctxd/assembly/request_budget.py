"""Budget of a request: its calibrated estimate and the reserve together must be within it.

Until the provider has billed a request for the same model and format, the estimate of a window is the sum over its
items; after that it is calibrated.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

import msgspec

from ctxd.assembly.append_rendering import ExtendedWindow, KeptWindow
from ctxd.assembly.assembly_record import Recorded
from ctxd.assembly.render_cache import KeptContext
from ctxd.assembly.repack_policy import Decision
from ctxd.assembly.repack_window import RequestConditions, apply_repack_policy
from ctxd.assembly.request_target import RequestTarget
from ctxd.assembly.token_calibration import (
    REQUESTS_KEPT,
    Calibration,
    CalibrationSample,
    ContentMeasures,
    measure_items,
)
from ctxd.objects.document import Document

_ROUNDS: Final = 8
"""Maximum number of times that a window is judged to bring its estimate within the budget."""


_TIGHTER: Final = 0.98
"""Factor on the budget of each further round: the tokens removed have an error too, which adds to the reserve."""


class RepackOutcome(msgspec.Struct, frozen=True):
    """A window and the policy's decision on it. ``tokens``: its estimate, calibrated if ``reserve`` is not None.
    ``measures``: of its request. ``budget_tokens``: the budget that the policy was given, in tokens of items, None for
    none."""

    extended: ExtendedWindow
    decision: Decision | None
    tokens: int
    measures: CalibrationSample
    reserve: int | None = None
    budget_tokens: int | None = None


class JudgedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The next addition to the window ``before`` of the context ``kept``: ``new_part`` as it was read, and ``outcome``
    after the decision. ``target``: of its request, ``conditions``: of the decision; both None for text. ``is_same``:
    nothing is added, and the form is that of the last assembly. ``texts``: documents of new component texts;
    ``floor_vt``: the least valid time for them."""

    kept: KeptContext
    before: KeptWindow
    new_part: ExtendedWindow
    target: RequestTarget | None
    conditions: RequestConditions | None
    outcome: RepackOutcome
    is_same: bool
    texts: tuple[Document, ...]
    floor_vt: int


def repack_within_budget(
    extended: ExtendedWindow,
    conditions: RequestConditions | None,
    calibration: Calibration | None,
    request: CalibrationSample,
) -> RepackOutcome:
    """Judge ``extended`` under ``conditions``; None: no decision is due. With a ``calibration``, its estimate and
    reserve together are kept within the budget; the policy counts tokens of items, so it gets the budget converted to
    these. ``request``: the measures of the window before."""
    whole = _measures_with(extended, request)
    if conditions is None:
        return RepackOutcome(extended, None, item_tokens(extended), whole)
    most = conditions.rules.budget_tokens
    if calibration is None:
        decided, decision = apply_repack_policy(extended, conditions)
        measures = whole if decided is extended else _measures_with(decided, request)
        return RepackOutcome(decided, decision, item_tokens(decided), measures, None, most)
    found = calibration.estimate(whole)
    budget = None
    if most is not None:
        plain = sum(item.tokens for item in extended.flat()) + conditions.tools_tokens
        budget = int(most * plain / max(1, found.tokens + found.reserve))
    rounds = 0
    while True:
        rules = msgspec.structs.replace(conditions.rules, budget_tokens=budget)
        decided, decision = apply_repack_policy(extended, msgspec.structs.replace(conditions, rules=rules))
        rounds += 1
        measures = whole if decided is extended else _measures_with(decided, request)
        if decided is not extended:
            found = calibration.repacked(whole, measures)
        if budget is None or most is None or found.tokens + found.reserve <= most or rounds == _ROUNDS:
            return RepackOutcome(decided, decision, found.tokens, measures, found.reserve, budget)
        budget = int(budget * _TIGHTER * most / (found.tokens + found.reserve))


def item_tokens(extended: ExtendedWindow) -> int:
    """Estimated tokens of the items of ``extended``."""
    return ceil(sum(item.tokens for item in extended.flat()))


def _measures_with(extended: ExtendedWindow, request: CalibrationSample) -> CalibrationSample:
    """``request`` with the measures of the extended window; its own are those of the window before."""
    outside, reply = measure_items(item for items in extended.items for item in items)
    if not extended.is_new:
        outside, reply = request.outside + outside, request.reply + reply
    base = request.number if extended.is_new else extended.window.base
    return msgspec.structs.replace(request, base=base, outside=outside, reply=reply)


def collect_samples(records: Sequence[Recorded], before: Sequence[CalibrationSample] = ()) -> list[CalibrationSample]:
    """The newest requests of ``before`` and ``records``, oldest first, to calibrate the next one."""
    return [*before, *(_sample_of(record) for record in records if _is_request(record))][-REQUESTS_KEPT:]


def _is_request(record: Recorded) -> bool:
    return record.window is not None and record.window.format is not None


def _sample_of(record: Recorded) -> CalibrationSample:
    part = record.window
    assert part is not None, "it is a request"
    figures = part.figures
    return CalibrationSample(
        record.number, part.base, part.format or "", part.model or "", figures.outside, figures.reply
    )


def next_request(number: int, before: Recorded | None, target: RequestTarget | None) -> CalibrationSample:
    """Request ``number`` for ``target``, with the measures of the window so far. ``before``: its newest record, None
    for an empty window."""
    part = None if before is None else before.window
    return CalibrationSample(
        number,
        0 if part is None else part.base,
        "" if target is None else target.format,
        "" if target is None else target.model,
        ContentMeasures() if part is None else part.figures.outside,
        ContentMeasures() if part is None else part.figures.reply,
    )
