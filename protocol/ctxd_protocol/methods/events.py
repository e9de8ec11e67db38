"""What ``events.*`` takes and answers, and what the daemon sends unasked."""

from typing import Annotated

import msgspec

from ctxd_protocol.ids import SessionIdText
from ctxd_protocol.methods.parts import Params, Result
from ctxd_protocol.sessions import Notice


class SubscribeParams(Params, frozen=True, kw_only=True):
    """Notices to ``session`` with a sequence above ``after`` come at once, later ones as they happen."""

    session: SessionIdText
    after: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SubscribeResult(Result, frozen=True, kw_only=True):
    """``after``: the sequence from which notices will come."""

    subscription: int
    after: int


class UnsubscribeParams(Params, frozen=True, kw_only=True):
    """A subscription of this connection."""

    subscription: int


class NoticeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Params of the notification ``events.notice``. ``missed`` true: the queue was full; read
    ``session.notices`` again.
    """

    subscription: int
    notice: Notice
    missed: bool = False
