"""State shared by the connections of one listener, and by all listeners: identity, limits, counts and the scheduler.

Owns the set of open connections and their counts. Capability and sessions are the listener's, never a message's.
"""

import asyncio
import resource
import sys
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from structlog.typing import FilteringBoundLogger

from ctxd.formatting import count
from ctxd.limits import DESCRIPTORS_RESERVED
from ctxd.observe.call_counts import CallCounter
from ctxd.rpc.caller import may_enter, peer_of
from ctxd.rpc.dispatch import Table
from ctxd.rpc.reply_budget import (
    CONNECTION_BYTES,
    HOST_REPLY_BYTES_MAX,
    SANDBOX_BYTES,
    SANDBOX_REPLY_BYTES_MAX,
    SANDBOXES_BYTES,
    TOTAL_BYTES,
    ReplyBudget,
)
from ctxd.rpc.sandbox_quota import QuotaMeter
from ctxd.rpc.scheduler import ConnectionGroup, EventLoop, RoundRobin, TaskPool
from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.jsonrpc import BlockReader, error_object
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.declaration import Capability

HOST_DESCRIPTORS: Final = 64
"""File descriptors that sandboxes leave to the host's connections, besides ``DESCRIPTORS_RESERVED``."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of a connection, in seconds, and limits of its buffers for a slow reader.

    ``frame_s``: from the first byte of a frame to its last, so that a peer does not waste memory. ``stall_s``: how long
    a write buffer may stay full. ``deadline_s``: until a call fails with ``timeout``. ``drain_s``: time for calls in
    flight when the daemon stops. ``write_buffer_bytes``: above it, no call is started. ``notices``: notifications
    queued for a slow reader before more are dropped and counted as missed.
    """

    frame_s: float = 10.0
    stall_s: float = 10.0
    deadline_s: float = 60.0
    drain_s: float = 5.0
    retry_after_ms: int = 1000
    write_buffer_bytes: int = 1024 * 1024
    notices: int = 256


class OpenConnection(Protocol):
    """The part of a connection that its listener needs."""

    def drain(self) -> None:
        """Refuse new calls, answer those in flight, then close."""

    def abort(self) -> None:
        """Close at once."""


def descriptors_for_connections() -> int:
    """File descriptors for listeners and their connections, by the process's current limit."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(2 * HOST_DESCRIPTORS, descriptors - DESCRIPTORS_RESERVED)


class SharedState:
    """State shared by all listeners of one loop, for fairness between them.

    ``loop`` None: the running one. Close it last. ``tally`` counts calls by outcome. ``replies`` and
    ``sandbox_replies`` bound the bytes of all replies and of all sandboxes'.
    """

    def __init__(self, loop: EventLoop | None = None) -> None:
        self.loop = loop or asyncio.get_running_loop()
        self.scheduler = RoundRobin(self.loop)
        self.reader = BlockReader()
        self.tally = CallCounter()
        self.replies = ReplyBudget(TOTAL_BYTES)
        self.sandbox_replies = ReplyBudget(SANDBOXES_BYTES, self.replies)
        # Each listener and connection takes a descriptor.
        self.listeners = 0
        self.connections = 0
        self._last = 0

    def has_descriptor(self, *, on_host: bool) -> bool:
        """True if there is a descriptor for another listener or connection; sandboxes leave some to the host."""
        reserved = 0 if on_host else HOST_DESCRIPTORS
        return self.listeners + self.connections < descriptors_for_connections() - reserved

    def next_number(self) -> int:
        """A new number for a connection."""
        self._last += 1
        return self._last

    def close(self) -> None:
        """Run no more slices."""
        self.scheduler.close()


class ListenerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a listener's connections, which messages cannot change.

    ``principal`` None: the connecting user. ``sessions`` None: all; the first one is the default of a call without one.
    """

    capability: Capability = "host"
    principal: str | None = None
    sessions: tuple[str, ...] | None = None


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one listener. ``table``: the methods that its connections may call. ``quota``: a sandbox's."""

    table: Table
    identity: ListenerIdentity
    limits: Limits
    timing: Timing
    connections_max: int
    log: FilteringBoundLogger
    quota: QuotaMeter | None = None


class ListenerContext:
    """The connections of one listener, with their limits and methods. ``tasks`` run the calls that suspend."""

    def __init__(
        self,
        settings: ListenerSettings,
        *,
        shared: SharedState,
        owner_uid: int,
        owner_only: bool,
        loop: asyncio.AbstractEventLoop,
        tasks: TaskPool,
    ) -> None:
        table, identity, quota = settings.table, settings.identity, settings.quota
        self.table = table
        self.identity = identity
        self.capability = identity.capability
        self.session = identity.sessions[0] if identity.sessions else None
        self.sessions = None if identity.sessions is None else frozenset(identity.sessions)
        self.methods = None if identity.sessions is None else frozenset(table)
        self.shared = shared
        self.quota = quota
        self.limits = settings.limits
        self.timing = settings.timing
        self.log = settings.log
        self.loop = loop
        self.tasks = tasks
        self.reader = shared.reader
        self.scheduler: RoundRobin | ConnectionGroup = shared.scheduler
        self.replies = shared.replies
        self.connection_reply_bytes = CONNECTION_BYTES
        self.reply_bytes_max = HOST_REPLY_BYTES_MAX
        if quota is not None:
            self.scheduler = ConnectionGroup(shared.scheduler, shared.loop, quota.delay_s)
            self.replies = ReplyBudget(SANDBOX_BYTES, shared.sandbox_replies)
            self.connection_reply_bytes = SANDBOX_BYTES
            self.reply_bytes_max = SANDBOX_REPLY_BYTES_MAX
        self.connections: set[OpenConnection] = set()
        self.requests = 0
        self.in_flight = 0
        self.strays = 0
        self.emptied: Callable[[], None] | None = None
        self.connections_max = settings.connections_max
        self._owner_uid = owner_uid
        self._owner_only = owner_only

    def admit(self, connection: OpenConnection, fd: int) -> tuple[str, int] | ErrorObject:
        """Admit the peer behind ``fd``. Returns its principal and the connection's number, or the refusal.

        Raises: OSError if the kernel does not return the peer's credentials.
        """
        peer = peer_of(fd)
        if not may_enter(peer, owner_uid=self._owner_uid, owner_only=self._owner_only):
            self.log.warning("rpc.foreign_peer", uid=peer.uid, pid=peer.pid)
            return error_object("unauthorized", "this socket belongs to another user")
        on_host = self.quota is None
        if len(self.connections) >= self.connections_max or not self.shared.has_descriptor(on_host=on_host):
            message = f"{count(len(self.connections), 'connection')} open already"
            hint = "Close idle connections, or connect again later."
            retry = self.timing.retry_after_ms
            code: ErrorCode = "rate_limited" if self.quota is None else "quota_exceeded"
            return error_object(code, message, hint=hint, retry_after_ms=retry)
        self.connections.add(connection)
        self.shared.connections += 1
        return self.identity.principal or f"uid:{peer.uid}", self.shared.next_number()

    def leave(self, connection: OpenConnection) -> None:
        """Remove ``connection``, which has ended."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.shared.connections -= 1
        if not self.connections and self.emptied is not None:
            self.emptied()
