"""A session's notices as they happen, across reconnects, each exactly once.

The daemon's notifications carry new notices; a journal sequence marks the last one delivered. After a gap (a
reconnect, a full queue at either end) the missing notices are read from the journal, so a gap costs one call.
"""

from collections import deque
from types import TracebackType
from typing import Self

from ctxd_client.connection import AsyncConnection, require_here
from ctxd_client.errors import Closed, ConnectionLost
from ctxd_client.notice_cursor import NoticeCursor
from ctxd_client.reconnecting_connection import ReconnectingConnection
from ctxd_client.retry import Retry
from ctxd_client.wire import Call
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.events import SubscribeParams, SubscribeResult
from ctxd_protocol.methods.sessions import NoticesParams, NoticesResult
from ctxd_protocol.session_types import Notice


class Notices:
    """An endless iterator over the notices to one session; ``with`` or the first step subscribes.

    Raises, from the iteration: the failure of a call if no daemon is back within the deadline; iterating again
    continues. ``Closed`` after the end of ``with``, or ``aclose``.
    Cancel: safe; a notice is either returned or comes again.
    """

    def __init__(self, transport: ReconnectingConnection, retry: Retry, session: str, after: int | None) -> None:
        self._transport = transport.for_events()
        self._retry = retry
        self._session = session
        self._cursor = None if after is None else NoticeCursor(after)
        self._backlog: deque[Notice] = deque()
        self._gap = True
        self._closed = False
        self._connection: AsyncConnection | None = None
        self._subscription = 0

    @property
    def after(self) -> int:
        """The newest journal sequence returned: another reader can continue after it."""
        return 0 if self._cursor is None else self._cursor.after

    async def __aenter__(self) -> Self:
        """Subscribe. No later notice is missed."""
        self._closed = False
        await self._subscribe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unsubscribe."""
        await self.aclose()

    async def aclose(self) -> None:
        """Unsubscribe, if still connected. A later iteration raises ``Closed``."""
        was_closed, self._closed = self._closed, True
        connection = self._connection  # which only the iteration replaces, perhaps in another thread
        if connection is not None and not was_closed:
            await connection.unlisten(self._subscription)

    def __aiter__(self) -> Self:
        """The iterator itself."""
        return self

    async def __anext__(self) -> Notice:
        """Wait for the next notice and return it."""
        while True:
            require_here(self._transport.runner)
            if self._closed:
                raise Closed("the iterator of notices is closed", hint="call follow again, with its after to continue")
            if self._connection is None:
                await self._subscribe()
            assert self._cursor is not None and self._connection is not None, "a subscription has a place"
            while self._backlog:
                notice = self._backlog.popleft()
                if self._cursor.fresh(notice):
                    return notice
            if self._gap:
                await self._catch_up(self._cursor)
                continue
            try:
                event = await self._connection.event(self._subscription)
            except ConnectionLost:
                self._connection = None
                continue
            if event.missed:
                self._gap = True
            elif self._cursor.fresh(event.notice):
                return event.notice

    async def _subscribe(self) -> None:
        call = Call("events.subscribe", SubscribeParams(session=self._session), SubscribeResult)
        started, connection = await self._transport.call_on(call, self._retry)
        connection.listen(started.subscription)
        self._connection, self._subscription, self._gap = connection, started.subscription, True
        if self._cursor is None or started.after < self._cursor.after:
            # A sequence below the newest one seen is of another journal: everything in it is new.
            self._cursor = NoticeCursor(started.after)

    async def _catch_up(self, cursor: NoticeCursor) -> None:
        params = NoticesParams(session=self._session, after=cursor.reread_from, limit=PAGE_ITEMS_MAX)
        page = await self._transport.call(Call("session.notices", params, NoticesResult), self._retry)
        self._backlog.extend(page.notices)
        # Notifications that arrived meanwhile are queued on the connection: each is in the page or comes after it.
        self._gap = cursor.more_behind(page, PAGE_ITEMS_MAX)
