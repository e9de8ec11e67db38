"""Messages that a harness keeps verbatim after the summary of a compaction, located in the chat of the session.

The ``meta`` of the compaction has the place of the first one. The compaction replaces everything before it, so commits
repeat the kept messages, which are already in the chat, after it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from ctxd.sessions.chat import read_pages
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.session_state import EventPosition
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


async def with_kept_place(live: LiveSession, compaction: CompactionEvent, kept: Iterable[Event]) -> CompactionEvent:
    """Return ``compaction`` with the place in the chat of the first of the messages ``kept``; unchanged if the session
    has none of them. Cost: a read of the whole chat. Raises: CtxdError of the store."""
    wanted = [key for event in kept if (key := _key(event)) is not None]
    if not wanted:
        return compaction
    places: defaultdict[tuple[str, str], list[EventPosition]] = defaultdict(list)
    async with aclosing(read_pages(live)) as pages:
        async for page in pages:
            for place, event in page.placed():
                if isinstance(event, CompactionEvent) and event.summary:
                    places.clear()
                elif (key := _key(event)) is not None:
                    places[key].append(place)
    for key in wanted:
        # The kept events are the newest: a prompt may occur several times.
        if found := places[key][-wanted.count(key) :]:
            return msgspec.structs.replace(compaction, meta={**(compaction.meta or {}), KEPT_AT: list(found[0])})
    return compaction


async def with_kept_messages(live: LiveSession, placed: Sequence[tuple[EventPosition, Event]]) -> list[Event]:
    """Return the events ``placed``, with the kept messages repeated after each compaction. Raises: CtxdError of the
    store."""
    events: list[Event] = []
    for place, event in placed:
        events.append(event)
        first = _kept_at(event)
        if first is None or first >= place:
            continue
        async with aclosing(read_pages(live, first, place)) as pages:
            async for page in pages:
                events += _spoken(page.placed(), first, place)
    return events


def _spoken(placed: Iterable[tuple[EventPosition, Event]], first: EventPosition, end: EventPosition) -> Iterator[Event]:
    for place, event in placed:
        if first <= place < end and isinstance(event, _Spoken) and event.sidechain is None:
            yield event


def _kept_at(event: Event) -> EventPosition | None:
    if not isinstance(event, CompactionEvent) or not event.summary:
        return None
    match (event.meta or {}).get(KEPT_AT):
        case [int(turn), int(place)]:
            return turn, place
        case _:
            return None


def _key(event: Event) -> tuple[str, str] | None:
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
