"""Subscriptions: a session's notices sent to a connection as they happen.

Owns the subscriptions of each connection, which end with the connection.
Separate, because no other handler keeps state for a connection.
"""

import asyncio
from typing import Final

from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.sessions.change_notices import NoticeFeeds, Subscription
from ctxd_protocol.methods.declaration import WriteResult
from ctxd_protocol.methods.events import SubscribeParams, SubscribeResult, UnsubscribeParams

SUBSCRIPTIONS_MAX: Final = 64
"""Maximum subscriptions per connection: one for each concurrent session of a harness, with room to spare."""


class EventCalls:
    """Handlers of ``events.*``: the subscriptions of all connections."""

    def __init__(self, notices: NoticeFeeds) -> None:
        self._notices = notices
        self._open: dict[int, dict[int, Subscription]] = {}

    def _end_all(self, connection: int) -> None:
        for subscription in self._open.pop(connection, {}).values():
            self._notices.unsubscribe(subscription)

    def _catch_up(self, connection: int) -> None:
        for subscription in list(self._open.get(connection, {}).values()):
            subscription.catch_up()

    async def events_subscribe(self, caller: Caller, params: SubscribeParams) -> SubscribeResult:
        own = self._open.get(caller.connection)
        if own is not None and len(own) >= SUBSCRIPTIONS_MAX:
            message = f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions"
            raise CtxdError("too_large", message, hint="Unsubscribe, or open another connection.")
        subscription = await self._notices.subscribe(
            params.session, params.after, caller.notify, confined=caller.is_confined
        )
        is_first = caller.connection not in self._open
        self._open.setdefault(caller.connection, {})[subscription.number] = subscription
        if is_first:
            caller.on_writable(lambda: self._catch_up(caller.connection))
            # Register this last: if the connection has closed meanwhile, it removes the subscription at once.
            caller.on_close(lambda: self._end_all(caller.connection))
        # The reply is written when this returns, so a callback in the next iteration of the loop runs after it.
        asyncio.get_running_loop().call_soon(subscription.release)
        after = subscription.after if params.after is None else params.after
        return SubscribeResult(subscription=subscription.number, after=after)

    async def events_unsubscribe(self, caller: Caller, params: UnsubscribeParams) -> WriteResult:
        subscription = self._open.get(caller.connection, {}).pop(params.subscription, None)
        if subscription is None:
            raise CtxdError("subscription_not_found", f"there is no subscription {params.subscription} here")
        self._notices.unsubscribe(subscription)
        return WriteResult(receipt=None)
