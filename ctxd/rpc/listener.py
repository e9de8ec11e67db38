"""What all connections of one listener share: whom it lets in, what they may call, within which bounds; and what all
listeners share: turns, and the count of writers.

Owns the set of open connections and their counts. The listener decides capability and sessions, not the message.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from structlog.typing import FilteringBoundLogger

from ctxd.observe.tally import Tally
from ctxd.rpc.dispatch import Table
from ctxd.rpc.identity import may_enter, peer_of
from ctxd.rpc.quota import QuotaMeter
from ctxd.rpc.scheduler import Group, Loop, Order, RoundRobin
from ctxd.rpc.tasks import TaskPool
from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.jsonrpc import BlockReader, error_object
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.row import Capability

_WRITES_MIN: Final = 4
"""Writes of one connection that may wait for their transaction however many others write: enough to pipeline."""

_WRITES_BESIDE_INTERACTIVE: Final = 10
"""Writes of all connections that may wait for their transaction while somebody is interactive: it takes about twice as
long as one of a single write."""

_WRITES_BESIDE_INTERACTIVE_MIN: Final = 2
"""Of those, what one connection may have however many others write."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long a connection waits, in seconds, and how much it holds for a slow reader.

    ``frame_s``: from the first byte of a frame to its last; longer is a peer that holds memory for nothing.
    ``stall_s``: how long a full write buffer may stay full. ``deadline_s``: until a call is answered with ``timeout``.
    ``drain_s``: what calls in flight get when the daemon stops. ``write_buffer_bytes``: above it no call is started.
    ``notices``: notifications that wait for a slow reader before they are dropped and counted as missed.
    """

    frame_s: float = 10.0
    stall_s: float = 10.0
    deadline_s: float = 60.0
    drain_s: float = 5.0
    retry_after_ms: int = 1000
    write_buffer_bytes: int = 1024 * 1024
    notices: int = 256


class Guest(Protocol):
    """A connection as its lane sees it."""

    def drain(self) -> None:
        """Refuse new calls, answer those in flight, then close."""

    def abort(self) -> None:
        """Close at once."""


class SharedState:
    """What all listeners of one loop share, so that nobody is served at another listener's cost.

    ``loop`` null: the one that runs now. To be closed last. ``writers`` counts connections with a write that is not
    decided; ``tally`` how calls ended.
    """

    def __init__(self, loop: Loop | None = None) -> None:
        self.turns = RoundRobin(loop or asyncio.get_running_loop())
        self.reader = BlockReader()
        self.writers = 0
        self.tally = Tally()
        self._last = 0

    def next_number(self) -> int:
        """A number that no connection had before."""
        self._last += 1
        return self._last

    def close(self) -> None:
        """Give no turn more."""
        self.turns.close()


class ListenerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who the connections of a listener are, whoever they say they are.

    ``principal`` null: by the user that connects. ``sessions`` null: all; the first is meant by a call that names none.
    """

    capability: Capability = "host"
    principal: str | None = None
    sessions: tuple[str, ...] | None = None


class ListenerContext:
    """One listener's connections. ``table`` is what they may call; ``tasks`` run what suspends."""

    def __init__(
        self,
        *,
        table: Table,
        standing: ListenerIdentity,
        floor: SharedState,
        meter: QuotaMeter | None,
        connections_max: int,
        owner_uid: int,
        owner_only: bool,
        limits: Limits,
        timing: Timing,
        log: FilteringBoundLogger,
        loop: asyncio.AbstractEventLoop,
        tasks: TaskPool,
    ) -> None:
        self.table = table
        self.standing = standing
        self.capability = standing.capability
        self.session = standing.sessions[0] if standing.sessions else None
        self.sessions = None if standing.sessions is None else frozenset(standing.sessions)
        self.methods = None if standing.sessions is None else frozenset(table)
        self.floor = floor
        self.meter = meter
        self.limits = limits
        self.timing = timing
        self.log = log
        self.loop = loop
        self.tasks = tasks
        self.reader = floor.reader
        # A sandbox has one turn among the others, however many connections it opens.
        self.turns: Order = floor.turns if meter is None else Group(floor.turns)
        self.guests: set[Guest] = set()
        self.requests = 0
        self.in_flight = 0
        self.strays = 0
        self.emptied: Callable[[], None] | None = None
        self.connections_max = connections_max
        self._owner_uid = owner_uid
        self._owner_only = owner_only

    @property
    def writers(self) -> int:
        """Connections, of any listener, with a write that is neither durable nor known to have failed."""
        return self.floor.writers

    @writers.setter
    def writers(self, count: int) -> None:
        self.floor.writers = count

    def admit(self, guest: Guest, fd: int) -> tuple[str, int] | ErrorObject:
        """Let the peer behind ``fd`` in: its principal and the connection's number; or what to refuse it with.

        Raises: OSError if the kernel cannot say who it is.
        """
        peer = peer_of(fd)
        if not may_enter(peer, owner_uid=self._owner_uid, owner_only=self._owner_only):
            self.log.warning("rpc.foreign_peer", uid=peer.uid, pid=peer.pid)
            return error_object("unauthorized", "this socket belongs to another user")
        if len(self.guests) >= self.connections_max:
            message = f"there are {self.connections_max} connections already"
            hint = "Close idle connections, or connect again later."
            retry = self.timing.retry_after_ms
            code: ErrorCode = "rate_limited" if self.meter is None else "quota_exceeded"
            return error_object(code, message, hint=hint, retry_after_ms=retry)
        self.guests.add(guest)
        return self.standing.principal or f"uid:{peer.uid}", self.floor.next_number()

    def writes_max(self, writes: int) -> int:
        """How many writes that are not durable a connection may have that has ``writes``.

        A transaction takes all that wait, and all of them wait for it: connections that write at once share half of
        what one may have alone, and less while somebody is interactive.
        """
        writers = self.writers + (writes == 0)
        if writers == 1:
            return self.limits.in_flight
        if self.floor.turns.beside_interactive:
            return max(_WRITES_BESIDE_INTERACTIVE_MIN, _WRITES_BESIDE_INTERACTIVE // writers)
        return max(_WRITES_MIN, self.limits.in_flight // 2 // writers)

    def leave(self, guest: Guest) -> None:
        """Forget ``guest``, whose connection is gone."""
        self.guests.discard(guest)
        if not self.guests and self.emptied is not None:
            self.emptied()
