"""Calls about the daemon itself and what it follows on disk, and subscriptions."""

from collections.abc import Sequence
from typing import Any

from ctxd_client.wire import Call
from ctxd_protocol.methods import (
    HelloParams,
    HelloResult,
    Nothing,
    SubscribeParams,
    SubscribeResult,
    TrackerListParams,
    TrackerListResult,
    UnsubscribeParams,
    WriteResult,
)
from ctxd_protocol.objects import Receipt
from ctxd_protocol.status import DaemonStatus
from ctxd_protocol.trackers import TrackerState


def hello(
    *,
    client: str = "",
    version: str = "",
    protocol: Sequence[int] = (1,),
    last_receipt: Receipt | None = None,
    journal: str | None = None,
) -> Call[HelloResult]:
    """What the daemon is and allows. ``connect`` has done this already.

    Example: ``(await client.hello()).version``
    """
    return Call(
        "hello",
        HelloParams(
            client=client, version=version, protocol=tuple(protocol), last_receipt=last_receipt, journal=journal
        ),
        HelloResult,
    )


def rpc_discover() -> Call[dict[str, Any]]:
    """The OpenRPC document of the daemon's API.

    Example: ``(await client.rpc_discover())["openrpc"]``
    """
    return Call("rpc.discover", Nothing(), dict)


def daemon_status() -> Call[DaemonStatus]:
    """Health and figures of the daemon.

    Example: ``(await client.daemon_status()).sessions_live``
    """
    return Call("daemon.status", Nothing(), DaemonStatus)


def events_subscribe(
    session: str,
    *,
    after: int | None = None,
) -> Call[SubscribeResult]:
    """Have notices sent on this connection. ``client.follow`` is easier and survives a reconnect.

    Example: ``(await client.events_subscribe("s1")).subscription``
    """
    return Call("events.subscribe", SubscribeParams(session=session, after=after), SubscribeResult)


def events_unsubscribe(subscription: int) -> Call[WriteResult]:
    """Stop a subscription of this connection.

    Example: ``await client.events_unsubscribe(7)``
    """
    return Call("events.unsubscribe", UnsubscribeParams(subscription=subscription), WriteResult)


def tracker_list(
    *,
    session: str | None = None,
    state: TrackerState | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Call[TrackerListResult]:
    """One page of the files that the daemon follows on disk, or of all that a session has read.

    Example: ``(await client.tracker_list(session="s1")).watching.watches``
    """
    return Call(
        "tracker.list", TrackerListParams(session=session, state=state, limit=limit, cursor=cursor), TrackerListResult
    )
