"""Assembly in the layout ``append``: the session's window, extended by later events, as text or as a request; recorded.

The records hold everything that was sent, so a restart between two requests changes no byte of the provider's cached
prefix. If nothing was added and the form has not changed, nothing is written.
"""

from functools import partial

import msgspec

from ctxd import limits
from ctxd.assembly.append_planner import Planner, PlanRules
from ctxd.assembly.append_rendering import ExtendedWindow, KeptWindow, Rendering, context_of_window, render
from ctxd.assembly.append_window import AppendWindow, Arrivals, LastRequest, Planned
from ctxd.assembly.assembly_record import (
    Assembled,
    KeptNumber,
    Recorded,
    WindowPart,
    document_of,
    new_context_id,
    note_assembly,
    read_record,
    tools_hash,
    tools_text,
)
from ctxd.assembly.pricing import cost_of
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.render_cache import KeptContext, RenderCache
from ctxd.assembly.repack_policy import VERSION, Aim
from ctxd.assembly.repack_window import UNJUDGED_CUTS, RequestConditions, rules_for
from ctxd.assembly.request_budget import JudgedPart, collect_samples, next_request, repack_within_budget
from ctxd.assembly.request_statistics import figures_of, shared_prefix
from ctxd.assembly.request_target import RequestTarget, Wanted, target_for
from ctxd.assembly.spec_layout import too_long
from ctxd.assembly.token_calibration import REQUESTS_KEPT, calibrated
from ctxd.assembly.window_items import SystemUpdates, ToolOutput, ToolUse, Update
from ctxd.assembly.window_lanes import work_size
from ctxd.assembly.window_loading import ReadBound, WindowReader
from ctxd.assembly.window_references import versions_of
from ctxd.clock import Clock
from ctxd.epochs.component_changes import Addressing, Blocked, Components, differences
from ctxd.epochs.component_loading import ComponentObserver
from ctxd.epochs.epoch_state import EpochCause, EpochHead, LostRace, append
from ctxd.errors import CtxdError
from ctxd.models import Models
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.sandbox_file_visibility import Visibility


def planner_of(
    live: LiveSession,
    window: AppendWindow,
    batch: Arrivals,
    rules: PlanRules,
    components: Components,
    address: Addressing,
    tools: tuple[str, ...] | None,
) -> Planner:
    """The planner of the next part of ``window``, which belongs to ``live``: ``batch``, and the changes of
    ``components``, given their current state. ``tools``: see ``Planner``.

    Raises: CtxdError source_unreachable if a component of the first baseline cannot be read.
    """
    known = {address: text for address, text in window.texts.items() if text is not None}
    first = not window.refs and not window.epoch.epoch
    try:
        differing = differences(window.epoch, known, components, address, first=first)
    except Blocked as blocked:
        raise CtxdError(
            "source_unreachable",
            f"component {blocked.key} of session {live.session} cannot be read: {blocked.reason}",
            hint="The first request of a session needs every component. Fix the cause, or remove the component with"
            " session.configure; then send the request again.",
            outcome="not_applied",
        ) from blocked
    return Planner(window, batch, rules=rules, differing=differing, tools=tools)


async def extend_window(
    reader: WindowReader,
    live: LiveSession,
    window: AppendWindow,
    batch: Arrivals,
    planned: Planned,
    bound: ReadBound,
    *,
    is_whole: bool,
) -> ExtendedWindow:
    """``window``, which belongs to ``live``, with the items of ``planned``, its next part. ``is_whole``: load the
    material of the whole window, not only of the new part.

    Raises: CtxdError too_large, corrupt, store_failed. Cancel: safe.
    """
    heads = [*batch.outputs.values(), *(file.stored for file in batch.files.values()), *batch.recorded]
    heads += [batch.prompt] if batch.prompt is not None else []
    events = {place: event for place, _, event in batch.events}
    versions, texts = {stored.document.id: stored for stored in heads}, {**window.texts, **planned.texts}
    refs = (*window.refs, *planned.refs) if is_whole else planned.refs
    material = await reader.material(live, refs, events, versions, texts, bound)
    items = await reader.items(live, window, planned, material, bound)
    # An object that is cut is noted as in the pool only, so that its whole content can be loaded.
    loadable = ToolOutput | ToolUse | Update
    cut = {item.object for each in items for item in each if isinstance(item, loadable) and item.shown == "cut"}
    noted = tuple(msgspec.structs.replace(each, level="pool") if each.object in cut else each for each in planned.noted)
    return ExtendedWindow(window, msgspec.structs.replace(planned, noted=noted), items, not window.refs, material)


def record_of(live: LiveSession, part: JudgedPart, rendering: Rendering, now: int, *, dry_run: bool) -> Recorded:
    """The record of the assembly of ``part``; for a dry run, with number 0 and without a context id. ``now``: ms since
    1970."""
    number, extended, decision = live.assembly + 1, part.outcome.extended, part.outcome.decision
    plain, parent, ids = rendering.plain, live.context_id or "", part.kept.context_ids
    assert ids is not None, "they were read"
    same = shared_prefix(part.before.rendering, rendering)
    target, planned = rendering.target, extended.planned
    return Recorded(
        number=0 if dry_run else number,
        segments=live.state.segments,
        turn=live.state.turn,
        context_id="" if dry_run else new_context_id(parent, rendering.sha256, now, live.settings.agent, ids),
        parent=parent,
        sha256=rendering.sha256,
        bytes=len(plain),
        tokens=part.outcome.tokens,
        stable_prefix=same,
        assembled_at=now,
        renderer=extended.window.renderer,
        window=WindowPart(
            base=number if extended.is_new else extended.window.base,
            refs=planned.refs,
            noted=planned.noted,
            place=planned.place,
            prompt=planned.prompt,
            format=None if target is None else target.format,
            model=None if target is None else target.model,
            max_tokens=None if target is None else target.max_tokens,
            prefix=None if rendering.request is None else rendering.request.prefix,
            tools=tools_hash(target),
            repacked=None if decision is None else decision.reason,
            policy=None if decision is None else VERSION,
            carried={} if decision is None else decision.carried,
            figures=figures_of(part, len(plain), same),
            epoch=planned.event,
        ),
    )


class AppendAssembler:
    """Assembles contexts in the layout ``append``. ``observer`` reads the components. ``models``, ``aim``: see
    ``Assembler``."""

    def __init__(
        self,
        cache: RenderCache,
        archive: Archive,
        observer: ComponentObserver,
        visibility: Visibility,
        models: Models,
        clock: Clock,
        aim: Aim,
    ) -> None:
        self._cache = cache
        self._archive = archive
        self._observer = observer
        self._visibility = visibility
        self._models = models
        self._clock = clock
        self._aim: Aim = aim

    async def assemble(
        self, live: LiveSession, call: WriteRequest, wanted: Wanted, chars_max: int | None, *, dry_run: bool
    ) -> Assembled:
        """Extend the window of ``live`` by later events, render it in the form ``wanted``, and record it. ``dry_run``:
        see ``Assembler.dry_run``."""
        part, rendering = await self._rendered_part(live, call, wanted, chars_max)
        kept, before, extended = part.kept, part.before, part.outcome.extended
        if rendering is None:
            assert before.record is not None, "it is repeated"
            return self._repeated_window(live, call, before, before.record)
        record = record_of(live, part, rendering, self._clock.wall_ms(), dry_run=dry_run)
        cost = cost_of(record, self._models)
        context = context_of_window(live.session, record, rendering, live.settings.budget_tokens, cost)
        if dry_run:
            return Assembled(context, live.barrier)
        document = document_of(live.session, record, tools_text(part.target), wanted.secrets)
        result, puts, id = KeptNumber(record.number), (document, *part.texts), record.context_id
        pending = live.submit(call, puts=puts, result=result, assembly=(record.number, id), floor_vt=part.floor_vt)
        assert kept.context_ids is not None, "they were read"
        kept.context_ids.add(id)
        window = extended.window
        window.base = record.number if extended.is_new else window.base
        window.take(extended.planned, extended.items)
        note_assembly(window, record, sum(map(len, window.items)))
        requests = collect_samples((record,), before.requests)
        kept.window = KeptWindow(window, record, rendering, Assembled(context, pending), requests)
        self._cache.put(kept)
        return Assembled(context, pending, carries_receipt=True)

    async def _rendered_part(
        self, live: LiveSession, call: WriteRequest, wanted: Wanted, chars_max: int | None
    ) -> tuple[JudgedPart, Rendering | None]:
        """Return the next part of the window of ``live`` with its decision, and the rendered window; the latter is None
        if nothing has changed since the last assembly. Nothing awaits after the last check. Raises: CtxdError
        too_large."""
        is_whole = False
        while True:
            cleared, bound = self._cache.cleared, ReadBound(live.session, chars_max)
            part = await self._next_part(live, call, wanted, bound, is_whole=is_whole)
            if part is None:
                continue
            decision = part.outcome.decision
            if not is_whole and decision is not None and decision.over_by:
                # Even the part that was sent exceeds the budget, and it has to be read again to be cut. Its text would
                # be in memory twice meanwhile.
                del part
                is_whole = True
                continue
            if part.is_same and part.before.record is not None and (decision is None or decision.reason is None):
                return part, None
            expected = _epoch_head(live, part.before)
            rendering = await self._window_rendered(live, part, bound, chars_max)
            if cleared == self._cache.cleared and expected == _epoch_head(live, part.before):
                return part, rendering

    async def _next_part(
        self, live: LiveSession, call: WriteRequest, wanted: Wanted, bound: ReadBound, *, is_whole: bool
    ) -> JudgedPart | None:
        """The next addition to the window of ``live``, or None if a concurrent change made it stale and the caller must
        retry. ``is_whole``: see ``extend_window``. Nothing awaits after the last check."""
        kept, cleared = self._cache.of(live), self._cache.cleared
        if kept.window is None:
            await self._recall_window(kept, bound)
            if cleared != self._cache.cleared:
                return None
            # Count it also if nothing is added to it, and so nothing new is kept.
            self._cache.put(kept)
        before = kept.window
        assert before is not None, "it was read"
        expected = _epoch_head(live, before)
        components = await self._observed(live, call)
        reader = self._archive.windows
        shown = before.window
        if self._visibility.restricts(live.session) and not await self._visibility.shows(live, versions_of(shown.refs)):
            # It was made before the sandbox was registered, or for other mounts.
            shown = shown.successor()
        window, batch = await reader.batch(live, shown, live.assembly + 1, bound)
        rules = self._plan_rules(live, wanted, batch.spoken or before.window.model)
        tools = None if wanted.format is None else tuple(tool.name for tool in wanted.tools)
        planner = planner_of(live, window, batch, rules, components, self._observer.address, tools)
        planned = await reader.lanes.run(live.session, planner.size, planner.plan)
        new_part = await extend_window(reader, live, window, batch, planned, bound, is_whole=is_whole)
        texts, floor_vt = await self._observer.documents(live.session, planned.texts)
        target = target_for(live.lineage.root, wanted, batch.spoken or before.window.model, self._models)
        conditions = None if target is None else self._request_conditions(live, before.window, target)
        last = before.rendering
        is_same = last is not None and not planned.refs and last.target == target
        # Nothing is decided about text, or about a repeat that is within the budget.
        is_due = conditions is not None and not (is_same and not _exceeds(before, conditions))
        calibration = None
        if is_due and target is not None:
            calibration = calibrated(before.requests, live.state.usage, target.format, target.model)
        work = partial(
            repack_within_budget,
            new_part,
            conditions if is_due else None,
            calibration,
            next_request(live.assembly + 1, before.record, target),
        )
        size = work_size(len(window.refs) + len(planned.refs), bound.taken + new_part.material.content_chars)
        outcome = await reader.lanes.run(live.session, size, work)
        if cleared != self._cache.cleared:
            return None
        try:
            append(window.epoch, _epoch_head(live, before), expected, planned.event)
        except LostRace:
            return None
        return JudgedPart(
            kept=kept, before=before, new_part=new_part, target=target, conditions=conditions, outcome=outcome,
            is_same=is_same, texts=texts, floor_vt=floor_vt,
        )  # fmt: skip

    def _repeated_window(self, live: LiveSession, call: WriteRequest, kept: KeptWindow, record: Recorded) -> Assembled:
        """The reply for ``record``, the newest of the window ``kept``, if nothing was added to it."""
        self._cache.note_repeat(call, record.number)
        budget = live.settings.budget_tokens
        if kept.answer is None or kept.answer.context.plan.budget_tokens != budget:
            assert kept.rendering is not None, "it was compared"
            context = context_of_window(live.session, record, kept.rendering, budget, cost_of(record, self._models))
            kept.answer = Assembled(context, live.barrier)
        return kept.answer

    async def _observed(self, live: LiveSession, call: WriteRequest) -> Components:
        """The current components of ``live``; empty if its settings name no component and no entry."""
        if not live.settings.components and not live.settings.entries:
            return {}
        confined = self._visibility.restricts(live.session)
        return await self._observer.observe(live, call.without_id(), confined=confined)

    def _plan_rules(self, live: LiveSession, wanted: Wanted, spoken: str | None) -> PlanRules:
        """The rules for the window of ``live``. ``spoken``: the model if ``wanted`` names none. Raises: CtxdError
        invalid_params."""
        name = wanted.model or spoken
        if wanted.format is None or name is None:
            return PlanRules(UNJUDGED_CUTS)
        model = self._models.get(name)
        place: SystemUpdates = "behind_user" if wanted.format == "anthropic-messages" else "anywhere"
        rules = rules_for(model, live.settings.budget_tokens, wanted.max_tokens, self._aim)
        return PlanRules(rules.cuts, place if model.system_updates else "none", rules.budget_tokens or 0)

    def _request_conditions(self, live: LiveSession, window: AppendWindow, target: RequestTarget) -> RequestConditions:
        """The inputs of a decision on the next request for ``target``, besides the window. Raises: CtxdError
        invalid_params for an unknown model."""
        model, last = self._models.get(target.model), window.request
        before = last
        rules = rules_for(model, live.settings.budget_tokens, target.max_tokens, self._aim)
        # The provider's cache is separate for each model, format and list of tools.
        asked = (target.format, target.model, tools_hash(target))
        if last is not None and (last.format, last.model, last.tools) != asked:
            last = None
        return RequestConditions(
            turn=live.state.turn,
            kept={*live.state.pinned, *live.state.chosen},
            idle_s=None if last is None else max(0.0, (self._clock.wall_ms() - last.at_ms) / 1000),
            sent_items=0 if last is None else last.count,
            tools_tokens=self._archive.count(tools_text(target) or ""),
            begins=None if before is None else _switched(before, target),
            carried=window.carried,
            model=model,
            rules=rules,
            budget_tokens=rules.budget_tokens or 0,
        )

    async def _window_rendered(
        self, live: LiveSession, part: JudgedPart, bound: ReadBound, chars_max: int | None
    ) -> Rendering:
        """The extended window of ``part`` rendered for its target. Raises: CtxdError too_large."""
        window, items, last = part.outcome.extended.window, part.outcome.extended.flat(), part.before.record
        size = work_size(len(items), bound.taken + (0 if last is None else last.bytes))
        ends = window.ends_with(len(items))
        # A reply with a request has no blocks.
        work = partial(render, live.session, items, part.target, ends, window.renderer, has_blocks=False)
        rendering = await self._archive.windows.lanes.run(live.session, size, work)
        most = min(limits.CONTEXT_CHARS_MAX, limits.CONTEXT_CHARS_MAX if chars_max is None else chars_max)
        if len(rendering.plain) > most:
            raise too_long(live.session, len(rendering.plain), most)
        return rendering

    async def _recall_window(self, kept: KeptContext, bound: ReadBound) -> None:
        """Load the window as the session's last assembly left it: after a restart of the daemon, or an eviction."""
        live = kept.live
        known = await self._archive.recordings(live)
        last = await self._archive.at(live.session, known.append) if known.append else None
        window = KeptWindow(AppendWindow())
        if last is not None:
            window = await self._archive.recall(live, read_record(last), bound)
        window.requests = collect_samples(await self._archive.newest_requests(live.session, REQUESTS_KEPT))
        kept.context_ids = kept.context_ids or set(known.numbers)
        kept.window = window


def _switched(last: LastRequest, target: RequestTarget) -> EpochCause | None:
    """The reason for a new context epoch: ``target`` has another format or model than the ``last`` request. None if it
    does not."""
    if last.format != target.format:
        return "provider"
    return None if last.model == target.model else "model"


def _epoch_head(live: LiveSession, kept: KeptWindow) -> EpochHead:
    """Position at which the next event of ``live``, whose window is ``kept``, is appended."""
    return EpochHead(live.assembly, kept.window.epoch.epoch)


def _exceeds(kept: KeptWindow, conditions: RequestConditions) -> bool:
    """True if the newest request of ``kept`` exceeds the current budget, which is smaller than its own."""
    most, record = conditions.rules.budget_tokens, kept.record
    if most is None or record is None or record.window is None:
        return False
    reserve, limit = record.window.figures.reserve, record.window.figures.limit
    if limit is not None and most >= limit:
        # Its new content could not be cut further. A repeat must not remove it before the model has replied.
        return False
    # A calibrated estimate includes the declarations of tools.
    return record.tokens + (conditions.tools_tokens if reserve is None else reserve) > most
