"""Methods ``events.*``: subscriptions, and the notification that they send."""

from typing import Annotated, Final

import msgspec

from ctxd_protocol.methods.declaration import Method, Params, Result, SessionParams, WriteResult
from ctxd_protocol.session_types import Notice


class SubscribeParams(SessionParams, frozen=True, kw_only=True):
    """A session and a journal sequence.

    Existing notices with a sequence above ``after`` are sent at once, and new ones as they happen; without ``after``
    only new ones are sent.
    """

    after: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SubscribeResult(Result, frozen=True, kw_only=True):
    """The subscription's number on this connection, and the sequence after which its notices begin."""

    subscription: int
    after: int


class UnsubscribeParams(Params, frozen=True, kw_only=True):
    """A subscription of this connection."""

    subscription: int


class NoticeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the notification ``events.notice``.

    ``missed``: the queue was full and notices were dropped; read ``session.notices`` again.
    """

    subscription: int
    notice: Notice
    missed: bool = False


ROWS: Final = (
    Method(
        name="events.subscribe",
        params=SubscribeParams,
        result=SubscribeResult,
        access="read",
        summary="Send a session's notices to this connection as notifications.",
        description="In the client, ``follow`` is easier and survives a reconnect.",
        errors=("session_not_found", "too_large"),
        resend_safe=False,
        example={"session": "s1"},
        shows=".subscription",
    ),
    Method(
        name="events.unsubscribe",
        params=UnsubscribeParams,
        result=WriteResult,
        access="read",
        summary="Stop a subscription of this connection.",
        errors=("subscription_not_found",),
        example={"subscription": 1},
    ),
)
