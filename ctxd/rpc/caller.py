"""The caller of a connection, and its peer by the kernel's credentials.

Both are fixed when the connection is accepted and never taken from a message.
"""

import os
import socket
import struct
from collections.abc import Callable
from typing import Final

import msgspec

from ctxd.commits.commit_reads import CommitViewer
from ctxd.sessions.live_session import Actor
from ctxd_protocol.limits import Limits

_UCRED: Final = struct.Struct("3i")


class Peer(msgspec.Struct, frozen=True):
    """The process that connected, by the kernel's credentials. ``pid`` may have been reused since: for logs only."""

    pid: int
    uid: int
    gid: int


def peer_of(fd: int) -> Peer:
    """The peer of the connected Unix socket ``fd``.

    Raises: OSError if ``fd`` is not one.
    """
    with socket.socket(fileno=os.dup(fd)) as held:
        return Peer(*_UCRED.unpack(held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def may_enter(peer: Peer, *, owner_uid: int, owner_only: bool) -> bool:
    """True if ``peer`` may use a socket of ``owner_uid``: root and the owner always, others by group only."""
    return not owner_only or peer.uid in (owner_uid, 0)


def _never(callback: Callable[[], None]) -> None:
    """Ignore the callback: a caller without a connection neither closes nor becomes writable."""


class Caller(Actor, frozen=True):
    """One connection, as seen by handlers, and the actor of its operations.

    ``session``: the default of calls without a session; None: they fail. ``sessions``: those that calls may use; None
    for all, or for ``session`` alone if it is set. ``methods``: those it may call; None for all of its capability.
    ``limits``: its connection's limits; None for the daemon's defaults. ``reply_bytes_max``: maximum bytes of a reply;
    None for no limit. ``notify(method, params)`` sends a notification, or returns False when the connection's queue is
    full. ``on_close`` calls a callback once the connection has ended, at once if it has; ``on_writable`` each time its
    queue has room again.
    """

    session: str | None
    connection: int
    notify: Callable[[str, msgspec.Struct], bool]
    on_close: Callable[[Callable[[], None]], None] = _never
    on_writable: Callable[[Callable[[], None]], None] = _never
    sessions: frozenset[str] | None = None
    methods: frozenset[str] | None = None
    limits: Limits | None = None
    reply_bytes_max: int | None = None

    @property
    def via(self) -> str:
        """The connection as text: on the host's or a sandbox's socket, and its number."""
        return f"{'sandbox' if self.is_confined else 'host'} connection {self.connection}"

    def may_name(self, session: str) -> bool:
        """True if this caller may use ``session``, provided that it exists."""
        if self.sessions is not None:
            return session in self.sessions
        return self.session is None or session == self.session


def viewer_of(caller: Caller) -> CommitViewer:
    """Return ``caller`` in the form for operations on commits."""
    if not caller.is_confined:
        return CommitViewer(caller, None)
    own = frozenset(() if caller.session is None else (caller.session,))
    return CommitViewer(caller, own if caller.sessions is None else caller.sessions)
