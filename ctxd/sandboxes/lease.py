"""How long a sandbox is registered: by a connection that holds it, or by time. Decides when it ends; ends nothing."""

import math
from typing import Final

from ctxd.clock import Clock
from ctxd.sandboxes.registration import Registration

RESTART_GRACE_S: Final = 30.0
"""Seconds that a lease lasts at least after the daemon's start: nobody could renew it while there was no daemon."""

RETRY_S: Final = 10.0
"""Seconds until another attempt to end a sandbox, if that could not be written down."""


class Lease:
    """The lease of one sandbox. ``ends`` is in seconds of the monotonic clock, infinite while a connection holds it."""

    __slots__ = ("by_time", "ends", "holder")

    def __init__(self, ends: float, *, by_time: bool) -> None:
        self.ends = ends
        self.by_time = by_time
        self.holder: int | None = None

    @classmethod
    def of(cls, registration: Registration, clock: Clock) -> "Lease":
        """A lease that begins now."""
        seconds = registration.grace_s if registration.ttl_s is None else registration.ttl_s
        return cls(clock.monotonic() + seconds, by_time=registration.ttl_s is not None)

    @classmethod
    def after_restart(cls, registration: Registration, clock: Clock) -> "Lease":
        """What is left of the lease of one that was registered before the daemon's start."""
        left = float(registration.grace_s)
        if registration.expires_at is not None:
            left = (registration.expires_at - clock.wall_ms()) / 1000
        return cls(clock.monotonic() + max(left, RESTART_GRACE_S), by_time=registration.ttl_s is not None)

    def expires_at(self, registration: Registration, clock: Clock) -> int | None:
        """When it ends, in ms since 1970; null while a connection holds it."""
        if self.ends == math.inf:
            return None
        ends = clock.wall_ms() + round(1000 * (self.ends - clock.monotonic()))
        written = registration.expires_at
        # The time that was acknowledged, to the millisecond; a restart may have put it off.
        return ends if written is None or ends > written + 1000 else written

    def hold(self, connection: int) -> None:
        """From now on it lasts as long as ``connection``."""
        self.holder, self.ends = connection, math.inf

    def let_go(self, ends: float) -> None:
        """Nobody holds it any more: it ends then."""
        self.holder, self.ends = None, ends
