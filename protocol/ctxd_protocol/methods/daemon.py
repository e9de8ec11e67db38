"""What calls to the daemon itself take and answer, and how a call is cancelled."""

from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.parts import Params, Result
from ctxd_protocol.objects import Receipt


class HelloParams(Params, frozen=True, kw_only=True):
    """Who the client is, what it speaks, the newest receipt it holds, and the journal that receipt is of."""

    client: str = ""
    version: str = ""
    protocol: tuple[int, ...] = (1,)
    last_receipt: Receipt | None = None
    journal: str | None = None


class HelloResult(Result, frozen=True, kw_only=True):
    """Who the daemon is, the protocol version to speak, the methods and bounds of this connection.

    ``journal`` names the journal that receipts are of: a new state directory or a restored backup is another one.
    """

    server: str
    version: str
    protocol: int
    methods: tuple[str, ...]
    limits: Limits
    incarnation: int
    journal: str


class CancelParams(Params, frozen=True, kw_only=True):
    """Params of the notification ``$/cancelRequest``."""

    id: int | str
