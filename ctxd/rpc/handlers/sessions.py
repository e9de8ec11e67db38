"""Handlers of the reads of one session, and of the collection of sessions.

The writes are in ``ctxd.sessions.operation_table`` and ``ctxd.rpc.handlers.shared_sessions``. A result is sent once the
state in it is durable.
"""

import re
from contextlib import aclosing
from typing import Final

from ctxd.errors import CtxdError
from ctxd.formatting import moment
from ctxd.objects.document import AsOf
from ctxd.objects.generated_ids import cursor_mark
from ctxd.rpc.caller import Caller
from ctxd.sessions.change_notices import NoticeFeeds
from ctxd.sessions.chat import end_of_turn, read_pages, read_turns, start_of_turn, turn_at, turn_not_found
from ctxd.sessions.export import Exports
from ctxd.sessions.live_session import Accepted, LiveSession
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_gc import SessionCollector
from ctxd.sessions.session_state import EventPosition
from ctxd.sessions.stored_session import events_size, text_size
from ctxd_protocol.methods import chat
from ctxd_protocol.methods import sessions as wire
from ctxd_protocol.session_types import Turn

_CURSOR: Final = re.compile(r"([0-9]{1,15})\.([0-9]{1,15})\.([0-9a-f]{8})", re.ASCII)

CHAT_CHARS_MAX: Final = 64 * 1024 * 1024
"""Maximum characters of the turns in one page of a chat."""


class SessionCalls:
    """Handlers of ``session.*`` that read one session, and of ``session.gc``."""

    def __init__(self, sessions: Sessions, notices: NoticeFeeds) -> None:
        self._sessions = sessions
        self._notices = notices
        self._collector = SessionCollector(sessions)
        self._exports = Exports(sessions.store, sessions.guard)

    async def session_get(self, _: Caller, params: wire.SessionGetParams) -> Accepted:
        live = await self._sessions.live(params.session)
        at = AsOf.given(params.valid_time, params.tx)
        if at.is_past:
            try:
                past = (await self._sessions.as_of(params.session, at)).view()
            except CtxdError as error:
                if error.code != "session_not_found":
                    raise
                message = f"session {params.session} began at {moment(live.settings.created_at)}"
                raise CtxdError("session_not_found", message, hint="Choose that time or a later one.") from None
            return Accepted(live.barrier, lambda _: wire.SessionResult(session=past, receipt=None))
        async with live.lock:
            live.require_current()
            view = live.view()
            return Accepted(live.barrier, lambda _: wire.SessionResult(session=view, receipt=None))

    async def session_turn(self, _: Caller, params: chat.SessionTurnParams) -> Accepted:
        if params.turn is not None and params.valid_time is not None:
            raise CtxdError("invalid_params", "give turn or valid_time, not both")
        live = await self._sessions.live(params.session)
        async with live.lock:
            live.require_current()
            newest, created = live.state.turn, live.settings.created_at
            turn = newest if params.turn is None else params.turn
            if params.valid_time is not None:
                if params.valid_time < created:
                    message = f"session {params.session} began at {moment(created)}"
                    raise CtxdError("turn_not_found", message, hint="Choose that time or a later one.")
                turn = await turn_at(live, params.valid_time)
            turn -= params.back
            if not 0 <= turn <= newest:
                raise turn_not_found(params.session, turn, newest, back=params.back)
            end = end_of_turn(live, turn)
            result = chat.SessionTurnResult(
                session=params.session,
                turn=turn,
                turn_count=newest,
                tx=end,
                has_later=end is not None and start_of_turn(live, turn + 1) <= end,
            )
            live.require_current()
            return Accepted(live.barrier, lambda _: result)

    async def session_gc(self, caller: Caller, params: wire.SessionGcParams) -> wire.SessionGcResult:
        return await self._collector.collect(caller, params)

    async def session_chat(self, caller: Caller, params: chat.ChatParams) -> Accepted:
        live = await self._sessions.live(params.session)
        async with live.lock:
            live.require_current()
            every = live.state.turns
            first = max(params.first_turn, 0 if any(every[0]) else 1)
            end = min(first + params.limit, len(every))
            turns = await _page(live, first, end, caller.reply_bytes_max)
            end = first + len(turns)
            live.require_current()
            result = chat.ChatResult(
                session=params.session,
                turn_count=live.state.turn,
                turns=tuple(turns),
                next_turn=end if end < len(every) else None,
            )
            return Accepted(live.barrier, lambda _: result)

    async def session_events(self, caller: Caller, params: chat.EventLogParams) -> Accepted:
        live = await self._sessions.live(params.session)
        first = _start(params)
        async with live.lock:
            live.require_current()
            found, cursor = await _logged(live, first, params.limit, caller.reply_bytes_max)
            live.require_current()
            result = chat.EventLogResult(
                session=params.session, turn_count=live.state.turn, events=tuple(found), next_cursor=cursor
            )
            return Accepted(live.barrier, lambda _: result)

    async def session_export(self, _: Caller, params: chat.SessionExportParams) -> chat.SessionExportResult:
        live = await self._sessions.live(params.session)
        async with live.lock:
            live.require_current()
        # Pending writes may still be lost, but an export is kept.
        await self._sessions.store.wait_for_writes()
        records, cursor = await self._exports.page(live, params.cursor, params.limit)
        return chat.SessionExportResult(records=tuple(records), next_cursor=cursor)

    async def session_notices(self, caller: Caller, params: wire.NoticesParams) -> wire.NoticesResult:
        found, after = await self._notices.since(
            params.session, params.after, params.limit, confined=caller.is_confined
        )
        return wire.NoticesResult(notices=tuple(found), next_after=after)


async def _page(live: LiveSession, first: int, end: int, bytes_max: int | None) -> list[Turn]:
    """Turns from ``first`` on, as many as fit in a reply of ``bytes_max``, with room for escapes.

    Raises: CtxdError too_large if the first turn alone is longer.
    """
    most, size = (CHAT_CHARS_MAX if bytes_max is None else min(CHAT_CHARS_MAX, bytes_max // 2)), 0
    turns: list[Turn] = []
    async with aclosing(read_turns(live, first, end)) as found:
        async for turn in found:
            size += text_size(turn.messages)
            if size > most and not turns:
                message = f"turn {first} of the chat has {size:,} characters; a reply is limited to {most:,}"
                raise CtxdError("too_large", message, hint="Read it with session.export on the host's socket.")
            if size > most:
                break
            turns.append(turn)
    return turns


def _start(params: chat.EventLogParams) -> EventPosition:
    """The position in the chat at which a page starts.

    Raises: CtxdError invalid_params for a cursor together with a first turn, or one that is not of this session.
    """
    cursor = params.cursor
    if cursor is None:
        return params.first_turn, 0
    if params.first_turn:
        hint = "Give first_turn for the first page, next_cursor alone for each further one."
        raise CtxdError("invalid_params", "first_turn and cursor exclude each other", hint=hint)
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise CtxdError("invalid_params", f"invalid cursor {cursor[:50]!r}", hint="Pass next_cursor unchanged.")
    if found[3] != cursor_mark(params.session):
        message = f"cursor {cursor!r} does not belong to session {params.session}"
        raise CtxdError("invalid_params", message, hint="Pass next_cursor to the session that returned it.")
    return int(found[1]), int(found[2])


async def _logged(
    live: LiveSession, first: EventPosition, limit: int, bytes_max: int | None
) -> tuple[list[chat.LoggedEvent], str | None]:
    """At most ``limit`` events from ``first`` on, as many as fit in a reply of ``bytes_max``, and the cursor of the
    next one, None at the end. Raises: CtxdError too_large if the first event alone is longer.
    """
    most, size = (CHAT_CHARS_MAX if bytes_max is None else min(CHAT_CHARS_MAX, bytes_max // 2)), 0
    found: list[chat.LoggedEvent] = []
    async with aclosing(read_pages(live, first)) as pages:
        async for page in pages:
            for (turn, place), event in page.placed():
                if (turn, place) < first:
                    continue
                size += events_size((event,))
                if size > most and not found:
                    message = f"event {turn}.{place} of the chat has {size:,} bytes; a reply is limited to {most:,}"
                    raise CtxdError("too_large", message, hint="Read it with session.export on the host's socket.")
                if size > most or len(found) == limit:
                    return found, f"{turn}.{place}.{cursor_mark(live.session)}"
                found.append(chat.LoggedEvent(turn=turn, place=place, seq=page.seq, event=event))
    return found, None
