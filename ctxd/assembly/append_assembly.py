"""Assembly in the layout ``append``: the session's window, grown by what came since, as text or as a request; recorded.

What was sent is in the records, so that a restart between two requests changes no byte of what the provider has cached.
A request for a window to which nothing came, in the form of the last one, writes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Final

import msgspec

from ctxd.assembly.append_planner import AppendWindow, Planned, Planner
from ctxd.assembly.assembly_record import Assembled, Recorded, SpecForm, WindowPart
from ctxd.assembly.calibration import MeasuredRequest
from ctxd.assembly.render import SEPARATOR
from ctxd.assembly.repack_policy import VERSION, Decision, Kind
from ctxd.assembly.request_bodies import PROVIDERS, RequestBody, RequestTarget, request_body
from ctxd.assembly.stored_items import Material
from ctxd.assembly.token_budget import sha256
from ctxd.assembly.window_items import ToolOutput, ToolUse, WindowItem
from ctxd.assembly.window_loading import WindowReader, window_blocks
from ctxd.epochs.fold import Addressing, Blocked, Components, differences
from ctxd.errors import CtxdError
from ctxd.models import Models
from ctxd.sessions.session import LiveSession
from ctxd_protocol.context_types import (
    AssembledContext,
    BudgetPlan,
    RequestCost,
    RequestFormat,
    SectionSize,
    ToolDeclaration,
)
from ctxd_protocol.ids import chat_id, system_prompt_id
from ctxd_protocol.secrets import Secrets

MAX_TOKENS: Final = 8_192
"""Tokens that an answer may have where an API wants a number and the caller gives none."""


class Wanted(msgspec.Struct, frozen=True):
    """The form of an assembly. ``format`` None: blocks and text. ``model`` None: the one that answered last.
    ``secrets``: those in ``tools``."""

    format: RequestFormat | None = None
    model: str | None = None
    max_tokens: int | None = None
    tools: tuple[ToolDeclaration, ...] = ()
    secrets: Secrets | None = None


class Rendering(msgspec.Struct, frozen=True):
    """A window in one form: its text, or its request with the JSON text. ``target`` None: text."""

    target: RequestTarget | None
    text: str
    request: RequestBody | None

    @property
    def plain(self) -> bytes:
        """All bytes, without cache markers."""
        return self.text.encode() if self.request is None else self.request.plain


class KeptWindow(msgspec.Struct, eq=False):
    """Window of a session between assemblies. ``record``: of the newest assembly, None before the first; ``rendering``
    and ``answer`` are its own, None while they are not known. ``requests``: the newest of the session, oldest first."""

    window: AppendWindow
    record: Recorded | None = None
    rendering: Rendering | None = None
    answer: Assembled | None = None
    requests: Sequence[MeasuredRequest] = ()

    @property
    def size(self) -> int:
        """Bytes that it takes, about: items and the newest rendering have the text once each."""
        return 0 if self.rendering is None else 2 * len(self.rendering.plain)


def render(
    session: str, items: list[WindowItem], target: RequestTarget | None, ends: Iterable[int], renderer: int
) -> Rendering:
    """``items`` in the form of ``target``. ``ends``, ``renderer``: see ``AppendWindow``."""
    if target is not None:
        return Rendering(target, "", request_body(items, target, frozenset(ends), renderer))
    blocks = window_blocks(items, (system_prompt_id(session), chat_id(session)))
    return Rendering(None, SEPARATOR.join(block.text for block in blocks), None)


def form_of(target: RequestTarget | None) -> SpecForm | None:
    """The form of a request for ``target`` as it is kept with an assembly in the layout ``spec``."""
    if target is None:
        return None
    return SpecForm(format=target.format, model=target.model, max_tokens=target.max_tokens, tools=tools_hash(target))


def target_of(session: str, part: WindowPart | SpecForm, content: str | None) -> RequestTarget | None:
    """The target that ``part``, a record of ``session``, has, with the tools in the ``content`` of its document."""
    if part.format is None:
        return None
    tools = () if content is None else msgspec.json.decode(content, type=tuple[ToolDeclaration, ...])
    return RequestTarget(
        format=part.format,
        model=part.model or "",
        max_tokens=part.max_tokens,
        tools=tools,
        cache_key=part.cache_key or session,
    )


def tools_text(target: RequestTarget | None) -> str | None:
    """The tools of ``target`` as they are kept with its record."""
    return None if target is None or not target.tools else msgspec.json.encode(target.tools).decode()


def tools_hash(target: RequestTarget | None) -> str:
    """The hash of the tools that a request for ``target`` declares, empty without any."""
    text = tools_text(target)
    return "" if text is None else sha256(text)


class Grown(msgspec.Struct, frozen=True):
    """A window and what comes next in it. ``is_new``: it begins with this assembly. ``spoken``: the newest model whose
    answer is in it, None if none is in what comes next. ``material``: of what comes next."""

    window: AppendWindow
    planned: Planned
    items: list[tuple[WindowItem, ...]]
    is_new: bool
    spoken: str | None
    material: Material

    def flat(self) -> list[WindowItem]:
        """All items, in order."""
        return [item for items in (*self.window.items, *self.items) for item in items]


async def grow(
    reader: WindowReader,
    live: LiveSession,
    window: AppendWindow,
    *,
    cuts: Mapping[Kind, int],
    components: Components,
    address: Addressing,
    tools: tuple[str, ...] | None,
) -> Grown:
    """Plan the next part of ``window``, that of ``live``, whose lock is held. ``components``: as they are now.
    ``cuts`` and ``tools``: see ``Planner``.

    Raises: CtxdError source_unreachable for a component that the first baseline lacks, corrupt, store_failed. Cancel:
    safe.
    """
    window, batch = await reader.batch(live, window, live.assembly + 1)
    known = {address: text for address, text in window.texts.items() if text is not None}
    first = not window.refs and not window.epoch.epoch
    try:
        differing = differences(window.epoch, known, components, address, first=first)
    except Blocked as blocked:
        raise CtxdError(
            "source_unreachable",
            f"component {blocked.key} of session {live.session} cannot be read: {blocked.reason}",
            hint="The first request of a session needs all of its components. Mend this one, or take it out of the"
            " session's components, and send the request again.",
            outcome="not_applied",
        ) from blocked
    planned = Planner(window, batch, cuts=cuts, differing=differing, tools=tools).plan()
    heads = [*batch.outputs.values(), *(file.stored for file in batch.files.values()), *batch.recorded]
    heads += [batch.prompt] if batch.prompt is not None else []
    events = {place: event for place, _, event in batch.events}
    versions, texts = {stored.document.id: stored for stored in heads}, {**window.texts, **differing.texts}
    material = await reader.material(live, planned.refs, events, versions, texts)
    items = reader.items(window, planned, material)
    # What is cut can be loaded, so it is not known whole.
    both = ToolOutput | ToolUse
    cut = {item.object for each in items for item in each if isinstance(item, both) and item.shown == "cut"}
    noted = tuple(msgspec.structs.replace(each, level="pool") if each.object in cut else each for each in planned.noted)
    spoken = next((model for _, _, event in reversed(batch.events) if (model := getattr(event, "model", None))), None)
    return Grown(window, msgspec.structs.replace(planned, noted=noted), items, not window.refs, spoken, material)


async def recall(reader: WindowReader, live: LiveSession, chain: list[Recorded], tools: str | None) -> KeptWindow:
    """The window of ``chain``, its records from the first on. ``tools``: content of the last one's document.

    Raises: CtxdError corrupt, purged, store_failed. Cancel: safe.
    """
    window = await reader.load(live, chain)
    part = chain[-1].window
    assert part is not None, "it is in this layout"
    target = target_of(live.session, part, tools)
    return KeptWindow(window, chain[-1], render(live.session, window.flat(), target, window.ends, window.renderer))


def require_format(format: RequestFormat, model: str, models: Models) -> None:
    """Check that the provider of ``model`` takes ``format``. Raises: CtxdError invalid_params if it does not."""
    known = models.find(model)
    if known is not None and PROVIDERS[format] not in (None, known.provider):
        formats = [name for name, provider in PROVIDERS.items() if provider in (None, known.provider)]
        raise CtxdError(
            "invalid_params",
            f"the model {model!r} is of the provider {known.provider}, which does not take {format}",
            hint=f"Give the format {' or '.join(formats)}, or a model of another provider.",
            outcome="not_applied",
        )


def target_for(session: str, wanted: Wanted, spoken: str | None) -> RequestTarget | None:
    """The target that ``wanted`` means, None for text. ``spoken``: the model that answered last.

    Raises: CtxdError invalid_params if no model is known.
    """
    if wanted.format is None:
        return None
    model = wanted.model or spoken
    if model is None:
        raise CtxdError(
            "invalid_params",
            f"which model the request of session {session} is for is not known",
            hint="Give model, as the provider names it.",
            outcome="not_applied",
        )
    most = wanted.max_tokens
    if most is None and wanted.format == "anthropic-messages":
        most = MAX_TOKENS
    return RequestTarget(format=wanted.format, model=model, max_tokens=most, tools=wanted.tools, cache_key=session)


def _equal_prefix(a: bytes, b: bytes) -> int:
    """Leading bytes in which ``a`` and ``b`` are equal. Cost: each halving compares half of what is left."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low


def record_of(
    live: LiveSession, grown: Grown, rendering: Rendering, before: Rendering | None, now: int, decision: Decision | None
) -> Recorded:
    """The record of an assembly, still without its context id. ``now``: ms since 1970. ``decision``: the one that
    ``grown`` follows, None where none was due."""
    number, items, plain = live.assembly + 1, grown.flat(), rendering.plain
    same = None
    if before is not None and (before.target and before.target.format) == (
        rendering.target and rendering.target.format
    ):
        same = _equal_prefix(before.plain, plain)
    target, planned = rendering.target, grown.planned
    return Recorded(
        number=number,
        segments=live.state.segments,
        turn=live.state.turn,
        context_id="",
        parent=live.context_id or "",
        sha256=sha256(plain.decode()),
        bytes=len(plain),
        tokens=ceil(sum(item.tokens for item in items)),
        stable_prefix=same,
        assembled_at=now,
        renderer=grown.window.renderer,
        window=WindowPart(
            base=number if grown.is_new else grown.window.base,
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
            epoch=planned.event,
        ),
    )


def context_of_window(
    session: str,
    record: Recorded,
    items: list[WindowItem],
    rendering: Rendering,
    budget_tokens: int | None,
    cost: RequestCost | None,
) -> AssembledContext:
    """The answer for ``record``, of which ``rendering`` shows ``items``."""
    blocks = window_blocks(items, (system_prompt_id(session), chat_id(session)))
    sizes: dict[str, list[int]] = {section: [0, 0, 0] for section in ("system_prompt", "conversation", "updates")}
    for block in blocks:
        size = sizes[block.section]
        size[0], size[1], size[2] = size[0] + len(block.text.encode()), size[1] + block.tokens, size[2] + 1
    request = rendering.request
    reserve = 0 if cost is None else cost.reserve or 0
    return AssembledContext(
        session=session,
        number=record.number,
        context_id=record.context_id,
        turn=record.turn,
        text=rendering.text,
        sha256=record.sha256,
        bytes=record.bytes,
        tokens=record.tokens,
        sections=tuple(
            SectionSize(section=section, bytes=size[0], tokens=size[1], entries=size[2])
            for section, size in sizes.items()
        ),
        blocks=tuple(blocks),
        plan=BudgetPlan(
            budget_tokens=budget_tokens,
            tokens=record.tokens,
            tokens_after=record.tokens,
            over_by=0 if budget_tokens is None else max(0, record.tokens + reserve - budget_tokens),
            dropped=(),
        ),
        stable_prefix=record.stable_prefix,
        assembled_at=record.assembled_at,
        layout="append",
        request=None if request is None else request.body,
        omitted=() if request is None else request.omitted,
        repacked=None if record.window is None else record.window.repacked,
        cost=cost,
    )
