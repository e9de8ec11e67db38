"""Methods of the daemon itself: handshake, API description, status; and the notification that cancels a call."""

from typing import Any, Final

from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.declaration import Method, Nothing, Params, Result
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.status_types import DaemonStatus

PROTOCOL_VERSIONS: Final[tuple[int, ...]] = (1,)
"""Versions of the wire protocol that this side supports, oldest first."""

SERVER_NAME: Final = "ctxd"
"""The daemon's name in ``hello``."""


class HelloParams(Params, frozen=True, kw_only=True):
    """Identification of the client.

    ``protocol``: the protocol versions that the client supports. ``last_receipt``: the newest receipt that the client
    has, and ``journal`` the journal that it belongs to; the daemon compares them with its own journal.
    """

    client: str = ""
    version: str = ""
    protocol: tuple[int, ...] = (1,)
    last_receipt: Receipt | None = None
    journal: str | None = None


class HelloResult(Result, frozen=True, kw_only=True):
    """Identification of the daemon: the protocol version to use, and the methods and limits of this connection.

    ``journal`` identifies the journal of receipts: a new state directory or a restored backup has a different one.
    ``descriptors``: long contents may be requested as files, whose descriptors are passed with the replies.
    """

    server: str
    version: str
    protocol: int
    methods: tuple[str, ...]
    limits: Limits
    incarnation: int
    journal: str
    descriptors: bool = False


class CancelParams(Params, frozen=True, kw_only=True):
    """Parameters of the notification ``$/cancelRequest``."""

    id: int | str


ROWS: Final = (
    Method(
        name="hello",
        params=HelloParams,
        result=HelloResult,
        access="observe",
        summary="Identify the client; learn versions, limits and methods.",
        description="Optional: every method works without it.",
        errors=("unsupported",),
        example={"client": "demo", "version": "1.0"},
        shows=".limits.frame_bytes",
    ),
    Method(
        name="rpc.discover",
        params=Nothing,
        result=dict[str, Any],
        access="observe",
        summary="Get the OpenRPC document of this API.",
        example={},
        shows='["openrpc"]',
    ),
    Method(
        name="daemon.status",
        params=Nothing,
        result=DaemonStatus,
        access="host",
        summary="Get the health and statistics of the daemon.",
        example={},
        shows=".sessions_live",
    ),
)
