"""History of a session's context epochs: the system context in force at a recorded assembly, with its sources.

Reads the records of one window, the first of which has a complete event, and folds their events. The lines of the
metadata pool, which ctxd writes itself, are in the same records and are listed as the component ``pool``.
"""

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from ctxd.assembly.assembly_record import Recorded
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.window_references import TextRef
from ctxd.epochs.epoch_state import PURGED_PART, Part, replay_events
from ctxd.errors import CtxdError
from ctxd.objects.generated_ids import component_text_id
from ctxd.sessions.chat import read_pages
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.session_state import EventPosition
from ctxd_protocol.event_types import ResponseEvent, ThinkingEvent, ToolCallEvent
from ctxd_protocol.methods.epochs import EpochShowParams, EpochShowResult, EpochSource, EpochText

POOL: Final = "pool"

PAGE_CHARS: Final = 256 * 1024
"""Characters of text after which a page ends; the text that exceeds it is still included."""

_RECORDS: Final = 100
"""Records read at once to find one in the layout ``append``."""

_Listed = tuple[EpochText, str | None]
"""A text, with the address of its component text; None for text of ctxd itself, which is in it already."""


class EpochHistory:
    """Epochs of all sessions, from the records of ``archive``. Everything read is durable."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def show(self, live: LiveSession, params: EpochShowParams) -> EpochShowResult:
        """The system context of ``live`` at the assembly that ``params`` select, one page.

        Raises: CtxdError assembly_not_found, invalid_params, corrupt, store_failed. Cancel: safe.
        """
        last = await self._last(live, params)
        base = last.number if last.window is None else last.window.base
        found = await self._archive.records(live.session, after=base - 1, limit=last.number - base + 1)
        chain = [each for each in found if each.window is not None and each.window.base == base]
        events = [event for each in chain if each.window is not None and (event := each.window.epoch) is not None]
        state = replay_events(events)
        listed = _listed(chain, await _last_reply(live))
        page = await self._page(live, listed[params.after : params.after + params.limit])
        shown = params.after + len(page)
        return EpochShowResult(
            session=live.session,
            epoch=state.epoch,
            begins=next((event.begins for event in reversed(events) if event.begins is not None), None),
            number=last.number,
            turn=last.turn,
            at=last.assembled_at,
            tools=state.tools,
            texts=page,
            next_after=shown if shown < len(listed) else None,
        )

    async def _last(self, live: LiveSession, params: EpochShowParams) -> Recorded:
        """The newest record in the layout ``append`` up to the moment that ``params`` select."""
        if sum(given is not None for given in (params.number, params.turn, params.at)) > 1:
            raise CtxdError("invalid_params", "give one of number, turn and at, or none")
        number = live.assembly if params.number is None else params.number
        if params.turn is not None or params.at is not None:
            number = await self._archive.newest_up_to(live.session, number, turn=params.turn, at=params.at)
        # Skip assemblies in the other layout.
        while 0 < number <= live.assembly:
            first = max(0, number - _RECORDS)
            for record in reversed(await self._archive.records(live.session, after=first, limit=number - first)):
                if record.window is not None:
                    return record
            number = first
        raise CtxdError(
            "assembly_not_found",
            f"session {live.session} had sent no request at that point",
            hint="Only assemblies in the layout append have a context epoch: context.assemble with a request format.",
        )

    async def _page(self, live: LiveSession, listed: Sequence[_Listed]) -> tuple[EpochText, ...]:
        """``listed`` with the texts loaded, as many as fit on a page."""
        addresses = dict.fromkeys(address for _, address in listed if address is not None)
        known = await self._archive.windows.texts(live, addresses)
        page: list[EpochText] = []
        chars = 0
        for text, address in listed:
            if address is not None:
                found = known[address]
                text = msgspec.structs.replace(
                    text,
                    text=PURGED_PART if found is None else found.text(text.part),
                    object=component_text_id(live.session, address),
                    purged=found is None,
                    sources=()
                    if found is None
                    else tuple(EpochSource(**msgspec.structs.asdict(source)) for source in found.sources),
                )
            page.append(text)
            chars += len(text.text)
            if chars > PAGE_CHARS:
                break
        return tuple(page)


def _listed(chain: Iterable[Recorded], replied: EventPosition | None) -> list[_Listed]:
    """The texts in force after the records of ``chain``, all of one window: the baseline, then the updates.
    ``replied``: place of the newest reply."""
    texts: list[_Listed] = []
    for record in chain:
        part = record.window
        assert part is not None, "the chain is of one window"
        sent, new = replied is not None and replied >= part.place, list[_Listed]()
        if part.epoch is not None:
            new = [(_text(record, sent, change.key, change.part), change.address) for change in part.epoch.changes]
            if part.epoch.begins is not None:
                # The baseline of an epoch that begins within the window includes the updates before it.
                pool = [each for each in texts if each[0].key == POOL]
                texts = [*(each for each in new if each[0].part == "baseline"), *pool]
                new = [each for each in new if each[0].part != "baseline"]
        for ref in part.refs:
            if isinstance(ref, TextRef) and ref.kind in ("system", "pool"):
                role: Part = "baseline" if ref.kind == "system" else "changed"
                texts.append((_text(record, sent, POOL, role, ref.text), None))
        texts += new
    return texts


def _text(record: Recorded, sent: bool, key: str, part: Part, text: str = "") -> EpochText:
    return EpochText(
        key=key, part=part, text=text, number=record.number, turn=record.turn, at=record.assembled_at, sent=sent
    )


async def _last_reply(live: LiveSession) -> EventPosition | None:
    """The place of the newest event by the model in the main conversation, None without one."""
    for turn in range(len(live.state.turns) - 1, -1, -1):
        found: EventPosition | None = None
        async with aclosing(read_pages(live, (turn, 0), (turn + 1, 0))) as pages:
            async for page in pages:
                for place, event in page.placed():
                    is_reply = isinstance(event, ResponseEvent | ThinkingEvent | ToolCallEvent)
                    if place[0] == turn and is_reply and event.sidechain is None:
                        found = place
        if found is not None:
            return found
    return None
