"""Who calls: fixed when the connection is accepted, never taken from a message."""

from collections.abc import Callable

import msgspec

from ctxd_protocol.methods import Capability


def _never(callback: Callable[[], None]) -> None:
    """Keep nothing: a caller without a connection neither closes nor becomes writable."""


class Caller(msgspec.Struct, frozen=True):
    """One connection as handlers see it.

    ``session`` null: not bound to one. ``notify(method, params)`` sends a notification, or is false when the
    connection's queue is full. ``on_close`` has a callback called once the connection is gone, at once if it is;
    ``on_writable`` each time its queue has room again.
    """

    principal: str
    capability: Capability
    session: str | None
    connection: int
    notify: Callable[[str, msgspec.Struct], bool]
    on_close: Callable[[Callable[[], None]], None] = _never
    on_writable: Callable[[Callable[[], None]], None] = _never
