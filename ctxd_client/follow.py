"""A session's notices as they happen, across reconnects, without loss or repeat.

The daemon's notifications only say that there is something new and what; the place in the journal says what was seen.
After a gap (a reconnect, a full queue here or there) the notices in between are read from the journal, so a gap costs
a call and nothing else. Several notices may share one sequence number: those seen at the newest one are remembered.
"""

from collections import deque
from types import TracebackType
from typing import Final, Self

import anyio

from ctxd_client.connection import Connection
from ctxd_client.cursor import Cursor
from ctxd_client.errors import CallFailed
from ctxd_client.link import Link
from ctxd_client.wire import Call
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.events import NoticeEvent, SubscribeParams, SubscribeResult, UnsubscribeParams
from ctxd_protocol.methods.row import WriteResult
from ctxd_protocol.methods.sessions import NoticesParams, NoticesResult
from ctxd_protocol.sessions import Notice

QUEUE_MAX: Final = 1000
"""Notices that wait for the caller. Further ones are dropped here and read from the journal later."""

UNSUBSCRIBE_S_MAX: Final = 1.0
"""Seconds for telling the daemon that nobody listens any more; it finds out by itself when the connection ends."""


class Notices:
    """The notices to one session: an async iterator inside ``async with``. Ends only with the block.

    Raises, from the iteration: what a call raises when no daemon is back within the deadline; iterating again goes on.
    Cancel: safe; a notice is either handed over or comes again.
    """

    def __init__(self, link: Link, session: str, after: int | None) -> None:
        self._link = link
        self._session = session
        self._cursor = None if after is None else Cursor(after)
        self._backlog: deque[Notice] = deque()
        self._live: deque[Notice] = deque()
        self._gaps = 1
        self._gaps_closed = 0
        self._woken = anyio.Event()
        self._subscribed: tuple[Connection, int] | None = None

    @property
    def after(self) -> int:
        """The newest journal sequence handed over: where another reader goes on. One write can make several notices."""
        return 0 if self._cursor is None else self._cursor.after

    async def __aenter__(self) -> Self:
        """Subscribe. From here on nothing is missed."""
        await self._subscribe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unsubscribe, if the connection still stands."""
        if self._subscribed is None:
            return
        connection, subscription = self._subscribed
        self._link.unlisten(connection, subscription)
        if connection.usable:
            with anyio.move_on_after(UNSUBSCRIBE_S_MAX, shield=True):
                try:
                    await connection.call(
                        Call("events.unsubscribe", UnsubscribeParams(subscription=subscription), WriteResult)
                    )
                except CallFailed:
                    return  # the connection or the subscription is gone already

    def __aiter__(self) -> Self:
        """The iterator itself."""
        return self

    async def __anext__(self) -> Notice:
        """The next notice, once there is one."""
        while True:
            notice = self._next(self._backlog)
            if notice is not None:
                return notice
            if self._gaps_closed != self._gaps:
                await self._catch_up()
                continue
            notice = self._next(self._live)
            if notice is not None:
                return notice
            self._woken = anyio.Event()
            await self._woken.wait()

    def _next(self, queue: deque[Notice]) -> Notice | None:
        assert self._cursor is not None, "notices are read inside `async with`"
        while queue:
            notice = queue.popleft()
            if self._cursor.fresh(notice):
                return notice
        return None

    async def _catch_up(self) -> None:
        gaps = self._gaps
        if self._subscribed is None:
            await self._subscribe()
        assert self._cursor is not None, "a subscription has a place in the journal"
        page = await self._link.call(
            Call(
                "session.notices",
                NoticesParams(session=self._session, after=self._cursor.reread_from, limit=PAGE_ITEMS_MAX),
                NoticesResult,
            )
        )
        self._backlog.extend(page.notices)
        if not self._cursor.more_behind(page, PAGE_ITEMS_MAX):
            self._gaps_closed = gaps

    async def _subscribe(self) -> None:
        result, connection = await self._link.call_on(
            Call("events.subscribe", SubscribeParams(session=self._session), SubscribeResult)
        )
        self._subscribed = (connection, result.subscription)
        if self._cursor is None or result.after < self._cursor.after:
            # Behind what was seen: it is another journal, and what is in it is all new.
            self._cursor = Cursor(result.after)
        if not self._link.listen(connection, result.subscription, self._take):
            self._subscribed = None
            self._gaps += 1

    def _take(self, event: NoticeEvent | None) -> None:
        if event is None:
            self._subscribed = None
            self._gaps += 1
        elif event.missed or len(self._live) >= QUEUE_MAX:
            self._gaps += 1
        else:
            self._live.append(event.notice)
        self._woken.set()
