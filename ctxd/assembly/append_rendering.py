"""Windows of the layout ``append`` in memory: rendered as text or as a request, and as the reply to clients."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Final

import msgspec

from ctxd.assembly.append_window import AppendWindow, Planned
from ctxd.assembly.assembly_record import Assembled, Recorded, target_of
from ctxd.assembly.request_bodies import RequestBody, request_body
from ctxd.assembly.request_target import RequestTarget
from ctxd.assembly.spec_rendering import SEPARATOR
from ctxd.assembly.token_budget import sha256
from ctxd.assembly.token_calibration import CalibrationSample
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
)
from ctxd.assembly.window_lanes import work_size
from ctxd.assembly.window_loading import ReadBound, WindowReader
from ctxd.assembly.window_references import Material
from ctxd.sessions.live_session import LiveSession
from ctxd_protocol.context_types import AssembledContext, Block, BudgetPlan, RequestCost, SectionSize
from ctxd_protocol.ids import chat_id, system_prompt_id

_WIDE_SIZE_MIN: Final = 1024 * 1024
"""Size of a window, in characters or bytes, above which the width of its characters counts."""

_LINE: Final = "WINDOW_ITEM"

_PLACES: Final[dict[type[WindowItem], tuple[str, str]]] = {
    SystemText: ("system_prompt", "baseline"),
    Update: ("updates", "update"),
}
"""Section and reason of the blocks of these items; those of all others are ``conversation``."""


class Rendering(msgspec.Struct, frozen=True):
    """A window in one form: its text, or its request with the JSON text. ``target`` None: text. ``sha256``: of
    ``plain``. ``blocks``: empty unless asked for; ``sections``: their sizes in any case."""

    target: RequestTarget | None
    text: str
    request: RequestBody | None
    sha256: str
    sections: tuple[SectionSize, ...]
    blocks: tuple[Block, ...]

    @property
    def plain(self) -> bytes:
        """All bytes, without cache markers."""
        return self.text.encode() if self.request is None else self.request.plain


class KeptWindow(msgspec.Struct, eq=False):
    """Window of a session between assemblies. ``record``: of the newest assembly, None before the first. ``rendering``
    and ``answer``: of that assembly; None until known, and for good if content that it showed was purged. ``requests``:
    the newest of the session, oldest first."""

    window: AppendWindow
    record: Recorded | None = None
    rendering: Rendering | None = None
    answer: Assembled | None = None
    requests: Sequence[CalibrationSample] = ()

    @property
    def size(self) -> int:
        """Approximate bytes in memory: items, the newest rendering, its blocks, if it has any, and the bytes of its
        answer hold the text once each. In a large window, all text counts as wide if some is: a character takes up to
        four bytes then, and one more in the UTF-8 that Python keeps of it."""
        rendering: str | bytes = ""
        if self.rendering is not None:
            # Not ``plain``, which encodes text: the cache adds up all its sizes at each assembly.
            rendering = self.rendering.text if self.rendering.request is None else self.rendering.request.plain
        width = 5 if len(rendering) > _WIDE_SIZE_MIN and not rendering.isascii() else 1
        size = (1 + width) * len(rendering)
        if self.rendering is not None and self.rendering.blocks:
            size += width * sum(section.bytes for section in self.rendering.sections)
        return size if self.answer is None else size + self.answer.encoded_bytes


def render(
    session: str,
    items: list[WindowItem],
    target: RequestTarget | None,
    ends: Iterable[int],
    renderer: int,
    *,
    has_blocks: bool,
) -> Rendering:
    """Render ``items`` for ``target``. ``ends``, ``renderer``: see ``AppendWindow``. ``has_blocks``: include them as
    blocks, which take as much memory as the items; a text has them in any case."""
    blocks = []
    sizes: dict[str, list[int]] = {section: [0, 0, 0] for section in ("system_prompt", "conversation", "updates")}
    for block, bytes in window_blocks(session, items):
        size = sizes[block.section]
        size[0], size[1], size[2] = size[0] + bytes, size[1] + block.tokens, size[2] + 1
        if has_blocks or target is None:
            blocks.append(block)
    text = SEPARATOR.join(block.text for block in blocks) if target is None else ""
    request = None if target is None else request_body(items, target, frozenset(ends), renderer)
    return Rendering(
        target=target,
        text=text,
        request=request,
        sha256=sha256(text if request is None else request.plain),
        sections=tuple(
            SectionSize(section=section, bytes=size[0], tokens=size[1], entries=size[2])
            for section, size in sizes.items()
        ),
        blocks=tuple(blocks),
    )


class ExtendedWindow(msgspec.Struct, frozen=True):
    """A window and its next part. ``is_new``: the window begins with this assembly. ``material``:
    loaded for the items of the next part, or of the whole window, see ``extend_window``."""

    window: AppendWindow
    planned: Planned
    items: list[tuple[WindowItem, ...]]
    is_new: bool
    material: Material

    def flat(self) -> list[WindowItem]:
        """All items, in order."""
        return [item for items in (*self.window.items, *self.items) for item in items]


async def recall(
    reader: WindowReader,
    live: LiveSession,
    chain: list[Recorded],
    tools: str | None,
    bound: ReadBound,
    *,
    has_blocks: bool,
) -> KeptWindow:
    """The window of ``chain``, its records from the first on; without a rendering if its bytes differ from those
    recorded. ``tools``: content of the last record's document. ``has_blocks``: see ``render``.

    Raises: CtxdError too_large, corrupt, purged, store_failed. Cancel: safe.
    """
    window = await reader.load(live, chain, bound)
    last = chain[-1]
    assert last.window is not None, "it is in this layout"
    target, items = target_of(live.lineage.root, last.window, tools), window.flat()
    work = partial(render, live.session, items, target, window.ends, window.renderer, has_blocks=has_blocks)
    made = await reader.lanes.run(live.session, work_size(len(items), last.bytes), work)
    return KeptWindow(window, last, made if made.sha256 == last.sha256 else None)


def context_of_window(
    session: str, record: Recorded, rendering: Rendering, budget_tokens: int | None, cost: RequestCost | None
) -> AssembledContext:
    """The reply for ``record`` with its ``rendering``."""
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
        sections=rendering.sections,
        blocks=rendering.blocks,
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


def window_blocks(session: str, items: Iterable[WindowItem]) -> Iterator[tuple[Block, int]]:
    """``items`` as blocks of text, each with its bytes."""
    offset = 0
    prompt, chat = system_prompt_id(session), chat_id(session)
    for item in items:
        section, reason = _PLACES.get(type(item), ("conversation", "conversation"))
        title, body = _described(item)
        if _LINE in body:
            lines = body.split("\n")
            body = "\n".join(f"\\{line}" if line.lstrip("\\").startswith(_LINE) else line for line in lines)
        whole = f"{_LINE} {title}\n{body}"
        block = Block(
            section=section,
            text=whole,
            offset=offset,
            tokens=ceil(item.tokens),
            reason=reason,
            object=item.object or (prompt if section == "system_prompt" else chat),
        )
        size = len(whole.encode())
        yield block, size
        offset += size + len(SEPARATOR)


def _described(item: WindowItem) -> tuple[str, str]:
    """First line and text of an item."""
    match item:
        case SystemText():
            return "kind=system", item.text
        case ToolUse():
            return f"kind=call id={item.call} tool={item.tool}", item.arguments
        case ToolOutput():
            state = "" if item.shown == "whole" else f" {item.shown}"
            images = f"\n[{len(item.pictures)} images]" if item.pictures else ""
            return f"kind=output id={item.call}{state}", item.text + images
        case ImageItem():
            return "kind=image", f"[{item.picture.media_type}]"
        case Reasoning():
            return "kind=reasoning", item.text
        case Update():
            return "kind=update", item.text
        case UserText():
            return "kind=user", item.text
        case AssistantText():
            return "kind=assistant", item.text
