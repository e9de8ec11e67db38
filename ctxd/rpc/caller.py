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
from ctxd.sessions.session import Actor
from ctxd_protocol.limits import Limits

_UCRED: Final = struct.Struct("3i")


class Peer(msgspec.Struct, frozen=True):
    """The process that connected, as the kernel saw it then. ``pid`` may be another process's by now: for logs only."""

    pid: int
    uid: int
    gid: int


def peer_of(fd: int) -> Peer:
    """The peer of the connected Unix socket ``fd``.

    Raises: OSError if ``fd`` is no such socket.
    """
    with socket.socket(fileno=os.dup(fd)) as held:
        return Peer(*_UCRED.unpack(held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def may_enter(peer: Peer, *, owner_uid: int, owner_only: bool) -> bool:
    """True if ``peer`` may use a socket of ``owner_uid``: root and the owner always, others by group only."""
    return not owner_only or peer.uid in (owner_uid, 0)


def _never(callback: Callable[[], None]) -> None:
    """Keep nothing: a caller without a connection neither closes nor becomes writable."""


class Caller(Actor, frozen=True):
    """One connection as handlers see it, and the actor of its operations.

    ``session``: the default of calls that name no session; None: they fail. ``sessions``: those that a call may
    name; None for all, or for ``session`` alone if there is one. ``methods``: those it may call; None for all that its
    capability reaches. ``limits``: its connection's bounds; None for the daemon's usual ones. ``answer_bytes_max``:
    bytes of one answer; None for no bound. ``notify(method, params)`` sends a notification, or returns False when the
    connection's queue is full. ``on_close`` calls a callback once the connection has ended, at once if it has;
    ``on_writable`` each time its queue has room again.
    """

    session: str | None
    connection: int
    notify: Callable[[str, msgspec.Struct], bool]
    on_close: Callable[[Callable[[], None]], None] = _never
    on_writable: Callable[[Callable[[], None]], None] = _never
    sessions: frozenset[str] | None = None
    methods: frozenset[str] | None = None
    limits: Limits | None = None
    answer_bytes_max: int | None = None

    @property
    def via(self) -> str:
        """The connection: whether it came by the host's socket or a sandbox's, and its number."""
        return f"{'host' if self.capability == 'host' else 'sandbox'} connection {self.connection}"

    def may_name(self, session: str) -> bool:
        """True if this caller may work in ``session``, if that exists."""
        if self.sessions is not None:
            return session in self.sessions
        return self.session is None or session == self.session


def viewer_of(caller: Caller) -> CommitViewer:
    """Return ``caller`` as the operations on commits know it."""
    if caller.capability == "host":
        return CommitViewer(caller, None)
    own = frozenset(() if caller.session is None else (caller.session,))
    return CommitViewer(caller, own if caller.sessions is None else caller.sessions)
