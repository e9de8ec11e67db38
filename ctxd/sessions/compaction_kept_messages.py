"""Messages that a harness keeps verbatim after the summary of a compaction, located in the chat of the session.

Claude Code and pi keep all messages from one on: the ``meta`` of the compaction has its place, or ``kept_from`` its id.
codex keeps prompts, and records its new window, which has them. The compaction replaces everything before it, so
its commit repeats the kept messages, which are already in the chat.
"""

from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing
from typing import Final, TypeGuard

import msgspec

from ctxd.sessions.chat import read_pages
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.session_state import EventPosition
from ctxd.transcripts.codex import HISTORY, read_rollout
from ctxd.transcripts.record_decoding import Line, records_of
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    PromptEvent,
    ResponseEvent,
    ToolCallEvent,
    ToolResultEvent,
)

KEPT_AT: Final = "kept_at"
"""Member of the ``meta`` of a compaction: turn and place of the first event that stays."""

_Spoken = PromptEvent | ResponseEvent | ToolCallEvent | ToolResultEvent
_Key = tuple[str, str]


def has_summary(event: Event) -> TypeGuard[CompactionEvent]:
    """True for a compaction that replaces the conversation by a summary."""
    return isinstance(event, CompactionEvent) and bool(event.summary.strip())


async def with_kept_place(live: LiveSession, compaction: CompactionEvent, kept: Iterable[Event]) -> CompactionEvent:
    """Return ``compaction`` with the place in the chat of the first of the messages ``kept``; unchanged if the session
    has none of them. Cost: a read of the whole chat. Raises: CtxdError of the store."""
    wanted = Counter(key for event in kept if (key := _key(event)) is not None)
    if not wanted:
        return compaction
    places: defaultdict[_Key, list[EventPosition]] = defaultdict(list)
    async with aclosing(read_pages(live)) as pages:
        async for page in pages:
            for place, event in page.placed():
                if has_summary(event):
                    places.clear()
                elif (key := _key(event)) is not None and key in wanted:
                    places[key].append(place)
    for key, times in wanted.items():
        # The kept events are the newest: a prompt may occur several times.
        if found := places[key][-times:]:
            return msgspec.structs.replace(compaction, meta={**(compaction.meta or {}), KEPT_AT: list(found[0])})
    return compaction


async def with_kept_messages(
    live: LiveSession, placed: Iterable[tuple[EventPosition, Event]]
) -> list[tuple[Event, list[Event]]]:
    """Return each of the events ``placed`` with the messages that it keeps, if it is a compaction of the conversation
    that keeps all from one on. Raises: CtxdError of the store."""
    events: list[tuple[Event, list[Event]]] = []
    for place, event in placed:
        events.append((event, []))
        if has_summary(event) and event.sidechain is None and keeps_from_one_on(event):
            async with aclosing(kept_events(live, place, event)) as kept:
                events[-1][1].extend([each async for _, _, each in kept])
    return events


async def kept_events(
    live: LiveSession, place: EventPosition, compaction: CompactionEvent
) -> AsyncGenerator[tuple[EventPosition, int, Event], None]:
    """Yield each event before ``place``, that of ``compaction``, which stays in the window, in the order of the chat,
    with its place and the journal sequence of its write. Events of sub-agents do not; from a place on, only messages
    and tool calls do, as Claude Code lists no others.

    Cost: a read of the chat before ``place``, twice for codex. Raises: CtxdError of the store. Cancel: safe.
    """
    first, only = _kept_at(compaction), None
    kinds = object if first is None else _Spoken
    has_begun = compaction.kept_from is None
    if first is None and has_begun:
        only = await _kept_prompts(live, place, compaction)
        first = min(only, default=place)
    async with aclosing(read_pages(live, first or (0, 0), place)) as pages:
        async for page in pages:
            for at, event in page.placed():
                if event.sidechain is not None or at >= place or (first is not None and at < first):
                    continue
                has_begun = has_begun or event.id == compaction.kept_from
                if has_begun and isinstance(event, kinds) and (only is None or at in only):
                    yield at, page.seq, event


def keeps_from_one_on(compaction: CompactionEvent) -> bool:
    """True if ``compaction`` keeps all messages from one on, not single ones."""
    return compaction.kept_from is not None or _kept_at(compaction) is not None


async def _kept_prompts(
    live: LiveSession, place: EventPosition, compaction: CompactionEvent
) -> Collection[EventPosition]:
    """Return the places of the prompts before ``place`` that the window recorded by codex has; of equal ones the
    newest."""
    items = records_of((compaction.meta or {}).get(HISTORY))
    read = read_rollout(Line(0, {"type": "response_item", "payload": item}) for item in items)
    prompts = (entry.event for entry in read if isinstance(entry.event, PromptEvent))
    wanted = Counter(key for prompt in prompts if (key := _key(prompt)) is not None)
    places: dict[_Key, list[EventPosition]] = {key: [] for key in wanted}
    if not wanted:
        return ()
    async with aclosing(read_pages(live, end=place)) as pages:
        async for page in pages:
            for at, event in page.placed():
                if at < place and (key := _key(event)) in places:
                    places[key].append(at)
    return {at for key, found in places.items() for at in found[-wanted[key] :]}


def _kept_at(event: Event) -> EventPosition | None:
    if not has_summary(event):
        return None
    match (event.meta or {}).get(KEPT_AT):
        case [int(turn), int(place)]:
            return turn, place
        case _:
            return None


def _key(event: Event) -> _Key | None:
    """Return a key that an event has in the chat and in the transcript; None for one that hooks do not report."""
    if event.sidechain is not None:
        return None
    match event:
        case ToolCallEvent() | ToolResultEvent() if event.call:
            return type(event).__name__, event.call
        case PromptEvent() | ResponseEvent() if event.text:
            return type(event).__name__, " ".join(event.text.split())
        case _:
            return None
