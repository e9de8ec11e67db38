"""Subscriptions: a session's notices sent to a connection as they happen.

Owns which connection follows what. The connection bounds what waits for a slow reader; a notice beyond the bound is
dropped, and the newest one dropped is sent with ``missed`` once there is room. A subscription ends with its connection.
"""

import asyncio
from itertools import count
from typing import Final

from ctxd.errors import CtxdError
from ctxd.rpc.identity import Caller
from ctxd.sessions.notices import NoticeFeeds
from ctxd.sessions.notices import Subscription as Following
from ctxd_protocol.methods.events import NoticeEvent, SubscribeParams, SubscribeResult, UnsubscribeParams
from ctxd_protocol.methods.row import WriteResult
from ctxd_protocol.sessions import Notice

SUBSCRIPTIONS_MAX: Final = 64
"""Subscriptions of one connection: one for each session a harness runs side by side, with room."""

HELD_MAX: Final = 1000
"""Notices that wait until their subscription is answered; further ones count as dropped."""


class _Subscription:
    """One subscription of one connection."""

    def __init__(self, caller: Caller, number: int) -> None:
        self.following: Following | None = None
        self._caller = caller
        self._number = number
        self._dropped: Notice | None = None
        self._held: list[Notice] | None = []

    def tell(self, notice: Notice) -> None:
        """Send ``notice``, or remember that it could not be sent. Before the subscription is answered it is held."""
        if self._held is not None:
            if len(self._held) < HELD_MAX:
                self._held.append(notice)
            else:
                self._dropped = notice
            return
        missed = self._dropped is not None
        if self._caller.notify("events.notice", NoticeEvent(subscription=self._number, notice=notice, missed=missed)):
            self._dropped = None
        else:
            self._dropped = notice

    def answered(self) -> None:
        """The client knows the subscription's number: send what was held."""
        held, self._held = self._held or [], None
        dropped, self._dropped = self._dropped, None
        for notice in held:
            self.tell(notice)
        if dropped is not None:
            self._dropped = dropped
            self.catch_up()

    def catch_up(self) -> None:
        """Send the newest dropped notice, marked as following missed ones, now that there is room."""
        if self._dropped is not None:
            self.tell(self._dropped)

    def end(self) -> None:
        """Follow no more."""
        self._dropped = None
        if self.following is not None:
            self.following.close()


class EventCalls:
    """Handlers of ``events.*``: the subscriptions of all connections."""

    def __init__(self, notices: NoticeFeeds) -> None:
        self._notices = notices
        self._numbers = count(1)
        self._open: dict[int, dict[int, _Subscription]] = {}

    def _end_all(self, connection: int) -> None:
        for subscription in self._open.pop(connection, {}).values():
            subscription.end()

    def _catch_up(self, connection: int) -> None:
        for subscription in list(self._open.get(connection, {}).values()):
            subscription.catch_up()

    async def events_subscribe(self, caller: Caller, params: SubscribeParams) -> SubscribeResult:
        own = self._open.get(caller.connection)
        if own is not None and len(own) >= SUBSCRIPTIONS_MAX:
            message = f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions"
            raise CtxdError("too_large", message, hint="Unsubscribe, or open another connection.")
        number = next(self._numbers)
        subscription = _Subscription(caller, number)
        following = subscription.following = await self._notices.subscribe(
            params.session, params.after, subscription.tell, confined=caller.capability != "host"
        )
        is_first = caller.connection not in self._open
        self._open.setdefault(caller.connection, {})[number] = subscription
        if is_first:
            caller.on_writable(lambda: self._catch_up(caller.connection))
            # Last: of a connection that went meanwhile, this forgets at once what was noted here.
            caller.on_close(lambda: self._end_all(caller.connection))
        # The answer is written when this returns, so what waits for the next turn of the loop comes after it.
        asyncio.get_running_loop().call_soon(subscription.answered)
        return SubscribeResult(subscription=number, after=following.after if params.after is None else params.after)

    async def events_unsubscribe(self, caller: Caller, params: UnsubscribeParams) -> WriteResult:
        subscription = self._open.get(caller.connection, {}).pop(params.subscription, None)
        if subscription is None:
            raise CtxdError("subscription_not_found", f"there is no subscription {params.subscription} here")
        subscription.end()
        return WriteResult(receipt=None)
