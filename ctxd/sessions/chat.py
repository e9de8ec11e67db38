"""Pages of a session's chat, read from its segments: a session in memory does not hold the texts.

A page holds the events that one segment added. The live session caches the newest pages, up to ``RECENT_CHARS_MAX``;
all others are read a few at a time. Reads see every accepted write: they wait for writes in flight.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import msgspec

from ctxd.errors import CtxdError
from ctxd.formatting import count
from ctxd.objects.document import AsOf
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.session_state import EventPosition
from ctxd.sessions.stored_session import delta_events, events_size, read_segment
from ctxd_protocol.event_types import Event, message_of, starts_turn
from ctxd_protocol.session_types import Message, Turn

BATCH_CHARS = 512 * 1024
"""Target size of a batch in characters: after a larger batch the next has fewer segments, after a smaller one more."""

_BATCH_FIRST = 4
"""Segments of the first batch, while their sizes are unknown: a wide text takes four times its bytes in memory, and
sessions that are read at the same time share one read."""

_BATCH_MAX = 256


class ChatPage(msgspec.Struct, frozen=True):
    """Consecutive events, the first at ``first``; ``seq``: the journal sequence of their write."""

    first: EventPosition
    seq: int
    events: tuple[Event, ...]

    def placed(self) -> Iterator[tuple[EventPosition, Event]]:
        """The events, each with its place."""
        turn, place = self.first
        for nth, event in enumerate(self.events):
            if nth and starts_turn(event):
                turn, place = turn + 1, 0
            yield (turn, place), event
            place += 1

    def messages(self) -> Iterator[tuple[EventPosition, Message]]:
        """The messages of spec 1's chat among the events, each with its place."""
        for place, event in self.placed():
            if (message := message_of(event)) is not None:
                yield place, message


def turn_not_found(session: str, turn: int, newest: int, *, back: int = 0) -> CtxdError:
    """Return the error for ``turn``, which a session, whose newest one is ``newest``, does not have; it was named as
    ``back`` turns before another."""
    hint = f"Its turns are 0 to {newest}."
    if newest == 0:
        hint = "It has no turns. The conversation of an imported session is in commits, which `ctx log` lists."
    message = f"session {session} has no turn {turn}"
    if turn < 0:
        message = f"session {session} begins less than {count(back, 'turn')} before turn {turn + back}"
    return CtxdError("turn_not_found", message, hint=hint)


def end_of_turn(live: LiveSession, turn: int) -> int | None:
    """Return the journal sequence at the end of ``turn``, just before the next began; None for the newest turn.

    A write that holds the end of one turn and the start of the next counts as the end.
    """
    pages = live.state.pages
    if turn >= live.state.turn:
        return None
    before = pages.within((0, 0), (turn + 1, 0)).stop
    ended = live.seqs[pages.segment(before - 1)] if before else 0
    return max(start_of_turn(live, turn + 1) - 1, ended)


def start_of_turn(live: LiveSession, turn: int) -> int:
    """Return the journal sequence of the write with the first event of ``turn``, which the session has."""
    pages = live.state.pages
    return live.seqs[pages.segment(pages.within((turn, 0), (turn + 1, 0)).start)]


async def turn_at(live: LiveSession, valid_time: int) -> int:
    """Return the turn that was under way at ``valid_time``, in ms, by bisection; 0 before the first message.

    Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    pages = live.state.pages
    low, high = 0, len(pages)
    while low < high:
        middle = (low + high) // 2
        id = live.lineage.segment_id(pages.segment(middle))
        stored = await live.store.get(id, AsOf(tx=live.seqs[pages.segment(middle)]))
        if stored is None:
            raise CtxdError("corrupt", f"{id} is missing")
        low, high = (middle + 1, high) if stored.valid_time <= valid_time else (low, middle)
    if low == len(pages):
        return live.state.turn
    turn, place = pages.first(low)
    return turn if place else max(0, turn - 1)


async def read_pages(
    live: LiveSession, first: EventPosition = (0, 0), end: EventPosition | None = None
) -> AsyncGenerator[ChatPage, None]:
    """Read the pages of ``live`` that hold the events from ``first`` up to ``end``, exclusive (None: the current end).

    The first and the last page may also hold events outside that range. Raises: CtxdError corrupt, store_failed.
    Cancel: safe.
    """
    pages = live.state.pages
    numbers = pages.within(first, end or (len(live.state.turns), 0))
    at, batch = numbers.start, _BATCH_FIRST
    while at < numbers.stop:
        some = range(at, min(at + batch, numbers.stop))
        read = await _read(live, [pages.segment(number) for number in some])
        for number in some:
            segment = pages.segment(number)
            yield ChatPage(pages.first(number), live.seqs[segment], read[segment])
        size = sum(map(events_size, read.values()))
        batch = max(1, batch // 2) if size > BATCH_CHARS else min(_BATCH_MAX, batch * 2)
        at = some.stop


async def read_turns(live: LiveSession, first: int, end: int) -> AsyncGenerator[Turn, None]:
    """Read turns ``first`` up to ``end``, exclusive, of spec 1's chat, one at a time. Raises and cancel: as
    ``read_pages``."""
    turns = live.state.turns
    end = min(end, len(turns))
    messages: list[Message] = []
    number = first
    async with aclosing(read_pages(live, (first, 0), (end, 0))) as pages:
        async for page in pages:
            for (turn, _), message in page.messages():
                while number < turn and number < end:
                    yield Turn(number=number, messages=tuple(messages))
                    number, messages = number + 1, []
                if turn == number and number < end:
                    messages.append(message)
    while number < end:
        yield Turn(number=number, messages=tuple(messages))
        number, messages = number + 1, []


async def _read(live: LiveSession, segments: list[int]) -> dict[int, tuple[Event, ...]]:
    found = {number: live.recent[number] for number in segments if number in live.recent}
    wanted = {live.lineage.segment_id(number): number for number in segments if number not in found}
    if not wanted:
        return found
    await live.store.wait_for_writes()
    stored = await live.store.bulk(list(wanted), live.at)
    if len(stored) < len(wanted):
        raise CtxdError("corrupt", f"segments of session {live.session} are missing")
    for id, each in stored.items():
        found[wanted[id]] = delta_events(read_segment(each.document))
    return found
