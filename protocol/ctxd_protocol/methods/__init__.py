"""The method table: the rows of all families by name, the grants of sandboxes, and the notifications.

Every write takes an optional ``op_id``: the same ``op_id`` with the same parameters is applied once and returns the
first result; with other parameters it is refused as ``idempotency_mismatch``. A call that changes nothing writes
nothing, not even its ``op_id``: a later resend is evaluated again.
"""

from typing import Any, Final, get_args

from ctxd_protocol.methods import (
    artifacts,
    chat,
    commits,
    context,
    daemon,
    epochs,
    events,
    files,
    hooks,
    mounts,
    objects,
    sandboxes,
    search,
    session_list,
    sessions,
    toolcalls,
    trackers,
    usage,
)
from ctxd_protocol.methods.declaration import Method
from ctxd_protocol.sandbox_types import Grant

METHODS: Final[dict[str, Method]] = {
    row.name: row
    for family in (
        daemon,
        sessions,
        session_list,
        chat,
        usage,
        toolcalls,
        hooks,
        files,
        mounts,
        trackers,
        objects,
        context,
        commits,
        artifacts,
        epochs,
        events,
        search,
        sandboxes,
    )
    for row in family.ROWS
}
"""Every method by its name."""

GRANTS: Final[dict[Grant, tuple[str, ...]]] = {
    grant: tuple(row.name for row in METHODS.values() if row.grant == grant) for grant in get_args(Grant)
}
"""The methods of each grant. Every method of capability ``session`` has exactly one grant."""

NOTIFICATIONS: Final[dict[str, type[Any]]] = {"events.notice": events.NoticeEvent}
"""Notifications that the daemon sends, by name. A client may send ``$/cancelRequest``."""
