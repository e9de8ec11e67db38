"""Client of the ctxd daemon: ``connect`` for asyncio and trio, ``connect_sync`` for plain code, and their exceptions.

Needs anyio and msgspec. Names are loaded when first used, so that a script that only calls ``connect_sync`` starts
fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctxd_client.change_notices import Notices as Notices
    from ctxd_client.client import Client as Client
    from ctxd_client.client import Session as Session
    from ctxd_client.client import connect as connect
    from ctxd_client.context_tools import MODEL_TOOLS as MODEL_TOOLS
    from ctxd_client.context_tools import model_tools as model_tools
    from ctxd_client.errors import CallFailed as CallFailed
    from ctxd_client.errors import Closed as Closed
    from ctxd_client.errors import Conflict as Conflict
    from ctxd_client.errors import ConnectFailed as ConnectFailed
    from ctxd_client.errors import ConnectionLost as ConnectionLost
    from ctxd_client.errors import DaemonFault as DaemonFault
    from ctxd_client.errors import Forbidden as Forbidden
    from ctxd_client.errors import InvalidCall as InvalidCall
    from ctxd_client.errors import InvalidState as InvalidState
    from ctxd_client.errors import NotFound as NotFound
    from ctxd_client.errors import TimedOut as TimedOut
    from ctxd_client.errors import TooLarge as TooLarge
    from ctxd_client.errors import Unavailable as Unavailable
    from ctxd_client.session_values import ToolError as ToolError
    from ctxd_client.session_values import ToolRecorded as ToolRecorded
    from ctxd_client.sync import SyncClient as SyncClient
    from ctxd_client.sync import SyncSession as SyncSession
    from ctxd_client.sync import connect_sync as connect_sync
    from ctxd_protocol.methods.commits import ImportedDelta as ImportedDelta
    from ctxd_protocol.sandbox_types import Quota as Quota
    from ctxd_protocol.session_types import Collapse as Collapse
    from ctxd_protocol.session_types import ComponentOptions as ComponentOptions
    from ctxd_protocol.session_types import Message as Message
    from ctxd_protocol.session_types import Mount as Mount

_HOMES = {
    "ctxd_client.client": ("Client", "Session", "connect"),
    "ctxd_client.context_tools": ("MODEL_TOOLS", "model_tools"),
    "ctxd_client.change_notices": ("Notices",),
    "ctxd_client.sync": ("SyncClient", "SyncSession", "connect_sync"),
    "ctxd_client.session_values": ("ToolError", "ToolRecorded"),
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
    "ctxd_protocol.methods.commits": ("ImportedDelta",),
    "ctxd_protocol.sandbox_types": ("Quota",),
    "ctxd_protocol.session_types": ("Collapse", "ComponentOptions", "Message", "Mount"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type of each name is declared above
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """The exported names, for completion."""
    return list(__all__)
