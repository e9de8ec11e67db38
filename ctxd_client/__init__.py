"""Talk to the ctxd daemon: ``connect`` for asyncio and trio, ``connect_sync`` for plain code, and what they raise.

Needs anyio and msgspec. Names are loaded when first used, so that a script that only calls ``connect_sync`` starts
fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctxd_client.client import Client, Session, connect
    from ctxd_client.errors import (
        CallFailed,
        Closed,
        Conflict,
        ConnectFailed,
        ConnectionLost,
        DaemonFault,
        Forbidden,
        InvalidCall,
        InvalidState,
        NotFound,
        TimedOut,
        TooLarge,
        Unavailable,
    )
    from ctxd_client.notices import Notices
    from ctxd_client.sync import SyncClient, SyncSession, connect_sync

_HOMES = {
    "ctxd_client.client": ("Client", "Session", "connect"),
    "ctxd_client.notices": ("Notices",),
    "ctxd_client.sync": ("SyncClient", "SyncSession", "connect_sync"),
    "ctxd_client.errors": (
        "CallFailed",
        "Closed",
        "Conflict",
        "ConnectFailed",
        "ConnectionLost",
        "DaemonFault",
        "Forbidden",
        "InvalidCall",
        "InvalidState",
        "NotFound",
        "TimedOut",
        "TooLarge",
        "Unavailable",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CallFailed",
    "Client",
    "Closed",
    "Conflict",
    "ConnectFailed",
    "ConnectionLost",
    "DaemonFault",
    "Forbidden",
    "InvalidCall",
    "InvalidState",
    "NotFound",
    "Notices",
    "Session",
    "SyncClient",
    "SyncSession",
    "TimedOut",
    "TooLarge",
    "Unavailable",
    "connect",
    "connect_sync",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type of each name is declared above
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
