"""Repacks of the layout ``append``: the contents of a window for the policy, and the window after its decision. Pure.

A repacked window begins with its assembly: the record has all of its references, each with the part that it shows. Tool
calls stay, with short arguments, as providers reject outputs without them.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeGuard

import msgspec

from ctxd.assembly.append_rendering import ExtendedWindow
from ctxd.assembly.append_window import AppendWindow, NotedObject, Planned
from ctxd.assembly.repack_policy import CUT_TOKENS_MIN, Aim, Content, Decision, Kind, Rules, choose_repack
from ctxd.assembly.request_bodies import BEGIN, CONTINUE, is_user_side
from ctxd.assembly.window_items import (
    AssistantText,
    ImageItem,
    Reasoning,
    SystemText,
    ToolOutput,
    ToolUse,
    Update,
    UserText,
    WindowItem,
    stubbed,
)
from ctxd.assembly.window_references import (
    IMAGE_TOKENS,
    ITEM_TOKENS,
    STUB,
    CallFacts,
    EpochRef,
    EventRef,
    Material,
    ObjectRef,
    Ref,
    TextRef,
    baseline_of,
    items_of,
    late_without_call,
    short_use,
)
from ctxd.epochs.epoch_state import EpochCause, EpochEvent, begin_epoch
from ctxd.models import Model
from ctxd_protocol.context_types import RepackReason

_LINE_TOKENS: Final = 40
"""Tokens of the line in a cut output that gives its length and how to load it."""

_CONVERSATION_KEPT: Final = 0.5
"""Share of the room for the conversation that stays in use when old replies are removed."""

_ROOM_KEPT: Final = 0.3
"""Share of the budget that stays free after a message larger than that was cut."""

_GONE: Final = "[older replies were removed here to fit the budget, with their tool calls; the session's chat has them]"
_GONE_KEY: Final = "-gone"
_BEGIN_KEY: Final = "-begin"

_CONTENTS: Final = ("active", "changed", "output")
"""Kinds of updates that show the content of an object."""

_WRITTEN: Final = (AssistantText, Reasoning, ToolUse)

UNJUDGED_CUTS: Final[Mapping[Kind, int]] = {"file": 16_000, "command": 16_000, "other": 16_000}
"""Tokens to which content is cut in a window that is for no model, so that no policy applies."""


class RequestConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Circumstances of one request. ``turn``: the current one. ``kept``: objects that are pinned or active by request.

    ``idle_s``: seconds since the last request for the same model, tools and format, None without one; ``sent_items``:
    number of the window's items in it. ``tools_tokens``: of the declarations of tools. ``carried``: of the last
    decision. ``begins``: the reason for a new context epoch if the last request was for another model.
    ``budget_tokens``: the budget in the provider's tokens; that of ``rules`` may be in tokens of items.
    """

    turn: int
    kept: Collection[str]
    idle_s: float | None
    sent_items: int
    tools_tokens: float
    carried: Mapping[str, int]
    model: Model
    rules: Rules
    begins: EpochCause | None = None
    budget_tokens: int = 0


class _Use(msgspec.Struct, frozen=True):
    """A tool call in the window: the index of its reference, and the tokens before it."""

    item: ToolUse
    index: int
    place: float


class _Part(msgspec.Struct, frozen=True):
    """Content in the window: the index of its reference, and of its call's reference if shortening the call saves
    tokens."""

    content: Content
    index: int
    call: int | None = None


def rules_for(model: Model, budget_tokens: int | None, max_tokens: int | None, aim: Aim) -> Rules:
    """The rules for a session's budget, which is limited to the model's context minus ``max_tokens`` for the answer
    (None: the model's maximum)."""
    most = max(1, model.context_tokens - (model.output_tokens_max if max_tokens is None else max_tokens))
    return Rules.of(most if budget_tokens is None else min(budget_tokens, most), aim)


def apply_repack_policy(extended: ExtendedWindow, conditions: RequestConditions) -> tuple[ExtendedWindow, Decision]:
    """Decide on ``extended``, and return the window after the decision: ``extended`` itself, or a new one.

    Cost: linear in the items of the window; texts are read only where they change.
    """
    before = extended.window
    parts, tokens, sent = _parts(extended, conditions)
    decision = choose_repack(
        [part.content for part in parts],
        conditions.carried,
        tokens=tokens,
        sent=sent if before.refs else 0.0,
        idle_s=conditions.idle_s if before.refs else None,
        model=conditions.model,
        lifetime_s=conditions.model.lifetime_s,
        rules=conditions.rules,
    )
    if decision.reason is None and not decision.over_by:
        if conditions.begins is None or not before.refs:
            return extended, decision
        if not before.epoch.updates:
            # The baseline is up to date: only the epoch changes.
            event = next_epoch(before, extended.planned, conditions.begins)
            planned = msgspec.structs.replace(extended.planned, event=event)
            return msgspec.structs.replace(extended, planned=planned), decision
        decision = msgspec.structs.replace(decision, reason="cache_expired")
    made = _repacked(extended, decision, {part.content.key: part for part in parts})
    made = _next_epoch(made, before, conditions.begins or "repack")
    # A cut shortens the output but not the arguments of its call, so it may save less than was decided.
    tokens = sum(item.tokens for item in made.flat()) + conditions.tools_tokens
    most = tokens if conditions.rules.budget_tokens is None else conditions.rules.budget_tokens
    decision = msgspec.structs.replace(decision, tokens=tokens, over_by=max(0.0, tokens - most))
    if decision.over_by:
        made, saved = _shortened(made, conditions, decision)
        over = max(0.0, decision.over_by - saved)
        if over:
            made, more = _all_cut(made, over, _ROOM_KEPT * most, conditions.kept)
            saved, over = saved + more, max(0.0, over - more)
        reason: RepackReason | None = "budget" if saved else decision.reason
        decision = msgspec.structs.replace(decision, reason=reason, tokens=decision.tokens - saved, over_by=over)
    if decision.reason is None:
        return extended, decision
    made = _loadable(made, conditions)
    # The first request of a window is not a repack, whatever it leaves out.
    return made, decision if before.refs else msgspec.structs.replace(decision, reason=None)


def _parts(extended: ExtendedWindow, conditions: RequestConditions) -> tuple[list[_Part], float, float]:
    """The contents in order of their places, the tokens of the window, and those that were sent before."""
    refs = [*extended.window.refs, *extended.planned.refs]
    items = [*extended.window.items, *extended.items]
    facts = {**extended.window.facts, **extended.planned.facts}
    outputs = sum(isinstance(each, ToolOutput) for some in items for each in some)
    latest = _latest(refs, items, facts)
    loaded = {each.object: at for at, some in enumerate(items) for each in some if _is_content(each)}
    answered = _newest_reply(items)
    times: Counter[str | None] = Counter()
    uses: dict[str, _Use] = {}
    found: list[_Part] = []
    place, seen, sent, count = conditions.tools_tokens, 0, 0.0, 0
    for index, (ref, some) in enumerate(zip(refs, items, strict=True)):
        # A later reply proves that some request has shown it to the model.
        is_new = index >= len(extended.window.refs) and index > answered
        for item in some:
            if isinstance(item, ToolUse):
                uses[item.call] = _Use(item, index, place)
            elif isinstance(item, ToolOutput) or _is_content(item):
                seen += isinstance(item, ToolOutput)
                call = facts.get(_answered(ref, item) or "")
                reads = None if call is None else call.reads
                times[reads] += call is not None and _shows(call, item)
                if item.shown != "stub":
                    # Content that was cut is of no use once it is loaded again after that.
                    is_replaced = item.shown == "cut" and item.object is not None and loaded.get(item.object, 0) > index
                    use = uses.get(item.call) if isinstance(item, ToolOutput) else None
                    use = use if use is not None and use.item.stub_tokens < use.item.tokens else None
                    content = Content(
                        key=ref.key, before=place if use is None else use.place,
                        tokens=item.tokens if use is None else item.tokens + use.item.tokens,
                        stub_tokens=item.stub_tokens if use is None else item.stub_tokens + use.item.stub_tokens,
                        kind=_kind(item, call), times=max(1, times[reads]), age=outputs - seen,
                        is_running=_turn(ref) == conditions.turn, is_new=is_new,
                        is_kept=item.object in conditions.kept and not is_replaced,
                        is_outdated=is_replaced or (reads is not None and latest.get(reads, index) > index),
                    )  # fmt: skip
                    found.append(_Part(content, index, None if use is None else use.index))
            place, count = place + item.tokens, count + 1
            sent = place if count <= conditions.sent_items else sent
    if extended.window.epoch.updates:
        # A repack merges the updates into the baseline, so that everything after it is written again.
        found = [
            _Part(msgspec.structs.replace(part.content, before=conditions.tools_tokens), part.index, part.call)
            for part in sorted(found, key=lambda part: part.content.before)
        ]
    return sorted(found, key=lambda part: part.content.before), place, sent


def _latest(
    refs: Sequence[Ref], items: Sequence[tuple[WindowItem, ...]], facts: Mapping[str, CallFacts]
) -> dict[str | None, int]:
    """The index of the newest output of each file or command, by ``CallFacts.reads``."""
    return {
        call.reads: index
        for index, (ref, some) in enumerate(zip(refs, items, strict=True))
        for each in some
        if (call := facts.get(_answered(ref, each) or "")) is not None and _shows(call, each)
    }


def _is_content(item: WindowItem) -> TypeGuard[Update]:
    """True for an update that shows the content of an object."""
    return isinstance(item, Update) and item.kind in _CONTENTS and item.shown != "stub"


def _kind(item: ToolOutput | Update, call: CallFacts | None) -> Kind:
    """The kind of the content of ``item``, the output of ``call`` or the content of a file."""
    if isinstance(item, Update) and item.kind != "output":
        return "file"
    return "other" if call is None else call.kind


def _repacked(extended: ExtendedWindow, decision: Decision, parts: Mapping[str, _Part]) -> ExtendedWindow:
    """The window of ``extended`` after ``decision``, as one that has not begun yet."""
    window, planned = extended.window, extended.planned
    refs = [*window.refs, *planned.refs]
    items: list[tuple[WindowItem, ...]] = [*window.items, *extended.items]
    facts = {**window.facts, **planned.facts}
    for key in (*decision.remove, *decision.cut):
        part = parts[key]
        if key in decision.cut:
            other = part.content.tokens - sum(item.tokens for item in items[part.index])
            refs[part.index] = _cut(refs[part.index], items[part.index], decision.cut[key] - other, 1)
            items[part.index] = items_of(refs[part.index], extended.material, facts)
        else:
            removed = msgspec.structs.replace(refs[part.index], shown=STUB)
            is_event = isinstance(removed, EventRef)
            refs[part.index] = msgspec.structs.replace(removed, pictures=0) if is_event else removed
            items[part.index] = tuple(
                stubbed(item) if isinstance(item, ToolOutput | Update) else item for item in items[part.index]
            )
            if part.call is not None:
                refs[part.call] = msgspec.structs.replace(refs[part.call], shown=STUB)
                items[part.call] = tuple(
                    short_use(item) if isinstance(item, ToolUse) else item for item in items[part.call]
                )
    return msgspec.structs.replace(
        extended,
        window=window.successor(),
        planned=msgspec.structs.replace(
            planned,
            refs=tuple(refs),
            noted=tuple({**window.noted, **{each.object: each for each in planned.noted}}.values()),
            names={**window.names, **planned.names},
            facts=facts,
        ),
        items=items,
        is_new=True,
    )


def _next_epoch(made: ExtendedWindow, before: AppendWindow, begins: EpochCause) -> ExtendedWindow:
    """``made``, a window that replaces ``before``, with a new baseline that includes the updates in ``before``."""
    if not before.refs:
        return made
    planned = made.planned
    event = next_epoch(before, planned, begins)
    sent = {ref.key for ref in before.refs if isinstance(ref, EpochRef)}
    kept = [index for index, ref in enumerate(planned.refs) if ref.key not in sent]
    refs, items = [planned.refs[index] for index in kept], [made.items[index] for index in kept]
    if gone := [ref for ref in planned.refs if ref.key in sent]:
        _mark_ends(refs, items, gone, made.material)
    if (baseline := baseline_of(event, planned.refs[0].turn)) is not None:
        at = sum(isinstance(ref, ObjectRef) and ref.role == "system" for ref in refs)
        refs.insert(at, baseline)
        items.insert(at, items_of(baseline, made.material, {}))
    return msgspec.structs.replace(
        made, planned=msgspec.structs.replace(planned, refs=tuple(refs), event=event), items=items
    )


def _mark_ends(refs: list[Ref], items: list[tuple[WindowItem, ...]], gone: Sequence[Ref], material: Material) -> None:
    """Put a message of the user before ``items`` and after them if removing the references ``gone`` left a message of
    the model first or last, which providers reject."""
    talk = [(at, each) for at, some in enumerate(items) for each in some if not isinstance(each, SystemText)]
    if not talk or not is_user_side(talk[-1][1]):
        refs.append(TextRef(key=gone[-1].key, turn=gone[-1].turn, kind="marker", text=CONTINUE))
        items.append(items_of(refs[-1], material, {}))
    if talk and not is_user_side(talk[0][1]):
        at = talk[0][0]
        refs.insert(at, TextRef(key=f"{gone[0].key}{_BEGIN_KEY}", turn=gone[0].turn, kind="marker", text=BEGIN))
        items.insert(at, items_of(refs[at], material, {}))


def next_epoch(window: AppendWindow, planned: Planned, begins: EpochCause) -> EpochEvent:
    """The event of ``planned``, changed to begin an epoch after that of ``window``."""
    if planned.event is None:
        return begin_epoch(window.epoch, begins)
    return begin_epoch(window.epoch, begins, planned.event.changes, planned.event.tools)


def _answered(ref: Ref, item: WindowItem) -> str | None:
    """The id in the window of the call whose output is ``item`` of ``ref``, None if it is not an output."""
    if isinstance(item, Update) and item.kind == "output" and isinstance(ref, EventRef | ObjectRef):
        return ref.call
    return item.call if isinstance(item, ToolOutput) else None


def _shows(call: CallFacts, item: WindowItem) -> bool:
    """True if the output shows the subject of its call: a failed read does not show its file."""
    return call.kind != "file" or not (isinstance(item, ToolOutput) and item.is_error)


def _turn(ref: Ref) -> int:
    """The turn of content. An event has its own, even if it entered the window later."""
    return ref.at[0] if isinstance(ref, EventRef) else ref.turn


def _newest_reply(items: Sequence[tuple[WindowItem, ...]]) -> int:
    """Index of the last item written by the model, -1 without one."""
    places = range(len(items) - 1, -1, -1)
    return next((n for n in places if any(isinstance(each, _WRITTEN) for each in items[n])), -1)


def _shortened(made: ExtendedWindow, conditions: RequestConditions, decision: Decision) -> tuple[ExtendedWindow, float]:
    """``made``, a window that has not begun yet, without its oldest replies and, if these do not suffice, old messages
    of the user; and the tokens saved.

    The newest reply, the newest message of the user, everything after that reply, kept objects, the baseline and the
    newest system prompt stay.
    """
    refs, items = list(made.planned.refs), made.items
    prompts = [n for n, ref in enumerate(refs) if isinstance(ref, ObjectRef) and ref.role == "prompt"]
    starts = _starts(items)
    answered = _newest_reply(items)
    newest = max((n for n, some in enumerate(items) if any(isinstance(each, UserText) for each in some)), default=-1)
    groups = []
    for first, last in pairwise([*starts, len(items)]):
        removable = set(range(first, last)).difference(prompts[-1:])
        some = [each for index in sorted(removable) for each in items[index]]
        if last <= answered and not first <= newest < last and not any(each.object in conditions.kept for each in some):
            tokens = sum(each.tokens for each in some)
            groups.append((isinstance(some[0], UserText | ImageItem), first, tokens, removable))
    budget = conditions.rules.budget_tokens or 0
    base = decision.tokens - sum(tokens for _, _, tokens, _ in groups)
    left, goal = decision.tokens, base + max(0.0, _CONVERSATION_KEPT * (budget - base))
    gone: set[int] = set()
    for _, _, tokens, removable in sorted(groups, key=lambda group: group[:2]):
        if left <= goal:
            break
        gone |= removable
        left -= tokens
    if not gone:
        return made, 0.0
    # One line stands for everything removed, now or earlier.
    gone.update(index for index, ref in enumerate(refs) if ref.key.endswith(_GONE_KEY))
    place = min(gone)
    marker = TextRef(
        key=f"{refs[place].key.removesuffix(_GONE_KEY)}{_GONE_KEY}", turn=refs[place].turn, kind="notice", text=_GONE
    )
    (shown,) = items_of(marker, made.material, {})
    kept = [index for index in range(len(refs)) if index not in gone]
    at = sum(index < place for index in kept)
    held = {each.call for index in kept for each in items[index] if isinstance(each, ToolUse)}
    items = [_without_call(made, held, ref, some) for ref, some in zip(refs, items, strict=True)]
    planned = msgspec.structs.replace(
        made.planned,
        refs=(*(refs[index] for index in kept[:at]), marker, *(refs[index] for index in kept[at:])),
        names={own: name for own, name in made.planned.names.items() if name in held},
        facts={name: facts for name, facts in made.planned.facts.items() if name in held},
    )
    rest = [*(items[index] for index in kept[:at]), (shown,), *(items[index] for index in kept[at:])]
    return msgspec.structs.replace(made, planned=planned, items=rest), decision.tokens - left - shown.tokens


def _without_call(
    made: ExtendedWindow, held: Collection[str], ref: Ref, items: tuple[WindowItem, ...]
) -> tuple[WindowItem, ...]:
    """The ``items`` of ``ref`` in a window that has only the calls ``held``: a late output must not name any other."""
    if not isinstance(ref, EventRef | ObjectRef) or ref.call in held:
        return items
    facts = made.planned.facts.get(ref.call)
    if facts is None:
        return items
    return tuple(
        late_without_call(item, facts, made.material.count)
        if isinstance(item, Update) and item.kind == "output"
        else item
        for item in items
    )


def _loadable(made: ExtendedWindow, conditions: RequestConditions) -> ExtendedWindow:
    """``made``, with objects noted as not shown whole if their whole content is missing, so that they can be loaded
    again. A kept object that is cut is noted with the budget, which it exceeds: it must not be loaded again at each
    request, but only once the budget has grown."""
    shown = {
        each.object: each.shown
        for some in made.items
        for each in some
        if _is_content(each) or (isinstance(each, ToolOutput) and each.shown != "stub")
    }

    def noted(each: NotedObject) -> NotedObject:
        found = shown.get(each.object)
        if each.level != "active" or found == "whole":
            return each
        if found == "cut" and each.object in conditions.kept:
            return msgspec.structs.replace(each, cut_budget=conditions.budget_tokens)
        return msgspec.structs.replace(each, level="bare" if each.is_file else "pool", cut_budget=0)

    planned = msgspec.structs.replace(made.planned, noted=tuple(map(noted, made.planned.noted)))
    return msgspec.structs.replace(made, planned=planned)


def _all_cut(made: ExtendedWindow, over: float, room: float, kept: Collection[str]) -> tuple[ExtendedWindow, float]:
    """``made`` with its largest messages and contents cut, ``kept`` ones last, to save ``over`` tokens; and the tokens
    saved. Only items with loaded ``material`` are cut. Those of more than ``room`` tokens are cut further, to leave
    ``room`` free."""
    refs, rows, saved = list(made.planned.refs), list(made.items), 0.0
    sizes = {
        at: sum(item.tokens for item in some)
        for at, (ref, some) in enumerate(zip(refs, rows, strict=True))
        if (isinstance(ref, EventRef) and ref.at in made.material.events)
        or (isinstance(ref, ObjectRef) and (ref.object, ref.tx) in made.material.versions)
        if some
        and all(
            isinstance(item, UserText | ImageItem)
            or (isinstance(item, ToolOutput) and item.shown != "stub")
            or (isinstance(item, Update) and item.kind in ("notice", *_CONTENTS) and item.shown != "stub")
            for item in some
        )
    }
    for at in sorted(sizes, key=lambda at: (rows[at][0].object in kept, -sizes[at])):
        if saved >= over:
            break
        left = sizes[at] - (over - saved)
        refs[at] = _cut(refs[at], rows[at], left - min(room, max(0.0, left - room)), CUT_TOKENS_MIN)
        rows[at] = items_of(refs[at], made.material, made.planned.facts)
        saved += sizes[at] - sum(item.tokens for item in rows[at])
    planned = msgspec.structs.replace(made.planned, refs=tuple(refs))
    return msgspec.structs.replace(made, planned=planned, items=rows), saved


def _cut(ref: Ref, items: Sequence[WindowItem], tokens: float, text_min: int) -> Ref:
    """``ref`` with its ``items`` cut to ``tokens``: its text, and its pictures if they alone exceed that. ``text_min``:
    fewest tokens that remain of its text."""
    room = int(tokens - ITEM_TOKENS - _LINE_TOKENS)
    images = sum(len(item.pictures) if isinstance(item, ToolOutput) else isinstance(item, ImageItem) for item in items)
    kept = max(0, min(images, (room - text_min) // IMAGE_TOKENS))
    ref = msgspec.structs.replace(ref, shown=max(text_min, room - kept * IMAGE_TOKENS))
    return msgspec.structs.replace(ref, pictures=kept) if isinstance(ref, EventRef) and kept < images else ref


def _starts(items: Sequence[tuple[WindowItem, ...]]) -> list[int]:
    """Indexes at which the conversation can be split: the beginnings of replies and of messages of the user."""
    found: list[int] = []
    in_reply = False
    for index, some in enumerate(items):
        for item in some[:1]:
            match item:
                case AssistantText() | Reasoning() | ToolUse():
                    if not in_reply:
                        found.append(index)
                    in_reply = True
                case UserText():
                    found.append(index)
                    in_reply = False
                case ImageItem() | ToolOutput() | Update() | SystemText():
                    in_reply = False
    return found
