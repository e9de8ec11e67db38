"""Who calls: fixed when the connection is accepted, never taken from a message."""

from collections.abc import Callable

import msgspec

from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.row import Capability


def _never(callback: Callable[[], None]) -> None:
    """Keep nothing: a caller without a connection neither closes nor becomes writable."""


class Caller(msgspec.Struct, frozen=True):
    """One connection as handlers see it.

    ``session`` is what a call means that names none; null: none. ``sessions``: those that it may name; null for all,
    and for a caller with a ``session`` for that one. ``methods``: what it may call, null for all that its capability
    reaches. ``limits``: its connection's bounds, null for the daemon's usual ones. ``notify(method, params)`` sends a
    notification, or is false when the connection's queue is full. ``on_close`` has a callback called once the
    connection is gone, at once if it is; ``on_writable`` each time its queue has room again.
    """

    principal: str
    capability: Capability
    session: str | None
    connection: int
    notify: Callable[[str, msgspec.Struct], bool]
    on_close: Callable[[Callable[[], None]], None] = _never
    on_writable: Callable[[Callable[[], None]], None] = _never
    sessions: frozenset[str] | None = None
    methods: frozenset[str] | None = None
    limits: Limits | None = None

    def may_name(self, session: str) -> bool:
        """Whether ``session`` is one that this caller may work in, if it exists."""
        if self.sessions is not None:
            return session in self.sessions
        return self.session is None or session == self.session
