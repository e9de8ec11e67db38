"""Retry policy: which failures to retry, after what backoff, and the failures that the client itself detects. Pure.

A call is repeated within its deadline if the failure is transient and repeating is safe. It is safe if the method table
declares the call safe to resend, as each write carries an ``op_id``, or if the connection failed.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final

from ctxd_client.errors import CallFailed, Closed, ConnectFailed, ConnectionLost, InvalidCall, TimedOut, Unavailable
from ctxd_client.socket_lookup import SocketPlace, remedy
from ctxd_client.wire import Call
from ctxd_protocol.methods.declaration import Method

PASSING: Final = frozenset({"draining", "rate_limited", "store_backlog_full", "store_failed"})
"""Codes of failures that pass within seconds: another daemon takes over, or a queue empties."""

GREET_S_MAX: Final = 10.0
"""Seconds that a daemon may take to reply to the first ``hello``: it replies at once or is stuck."""

SECONDS_MAX: Final = 1e9
"""The longest deadline besides none; the system's timers accept no more than about ten times as many seconds."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Bounds of one call: a deadline in seconds (None: no deadline), and the backoff between attempts.

    Waits double from ``first_s`` to ``most_s``; random jitter shortens each by up to half, so that clients do not
    synchronise. ``on_retry``: called before each wait with the failure and the seconds since the call began.

    Raises: ``InvalidCall`` for a deadline that is not a number of at most ``SECONDS_MAX`` seconds, infinity or None.
    """

    deadline_s: float | None = 30.0
    first_s: float = 0.05
    most_s: float = 2.0
    on_retry: Callable[[CallFailed, float], None] | None = None

    def __post_init__(self) -> None:
        if self.deadline_s is not None:
            _require_seconds("deadline_s", self.deadline_s)

    def deadline(self, now: float) -> float:
        """The deadline of a call that begins ``now``, on the same clock; infinite without a deadline."""
        return math.inf if self.deadline_s is None else now + self.deadline_s

    def wait_s(self, attempt: int) -> float:
        """Seconds to wait before retry ``attempt`` (the first is 1)."""
        longest = min(self.most_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        return longest * random.uniform(0.5, 1.0)


def greet_s(retry: Retry, wait_s: float) -> float:
    """Seconds that connecting may take: a call's deadline, at most ``GREET_S_MAX``, unless ``wait_s`` is longer.

    Raises: ``InvalidCall`` if ``wait_s`` is not a number of at most ``SECONDS_MAX`` seconds.
    """
    _require_seconds("wait_s", wait_s)
    return max(wait_s, GREET_S_MAX if retry.deadline_s is None else min(GREET_S_MAX, retry.deadline_s))


def _require_seconds(name: str, given: object) -> None:
    """Raise ``InvalidCall`` unless the argument ``name`` is a number of seconds that a timer accepts. A number below
    zero is a deadline that has passed."""
    if not isinstance(given, Real) or not (given <= SECONDS_MAX or given == math.inf):
        raise InvalidCall(
            f"{name} is {given!r}, not a number of seconds",
            code="invalid_params",
            hint=f"give a number of at most {SECONDS_MAX:g}{', or None for no bound' if name == 'deadline_s' else ''}",
            outcome="not_applied",
        )


def may_repeat(error: CallFailed, method: Method) -> bool:
    """True if ``method`` should be called again after ``error``, time allowing."""
    if isinstance(error, ConnectFailed | ConnectionLost):
        return True  # events.subscribe is unsafe to resend, but the subscription ended with its connection
    if not (error.retryable and method.resend_safe):
        return False
    return error.code in PASSING or error.retry_after_ms is not None or error.outcome == "unknown"


def pause_s(error: CallFailed, attempt: int, retry: Retry) -> float:
    """Seconds to wait before retry ``attempt``: the daemon's ``retry_after_ms`` or the backoff, whichever is longer."""
    return max((error.retry_after_ms or 0) / 1000, retry.wait_s(attempt))


def final_error(error: CallFailed, *, unknown: bool) -> CallFailed:
    """``error`` with the outcome of all attempts: after one with an ``unknown`` outcome, neither ``Unavailable`` nor
    ``Closed`` proves that the write was not applied."""
    if unknown and isinstance(error, Unavailable | Closed):
        error.outcome = "unknown"
    return error


def late(place: SocketPlace, call: Call[Any], deadline_s: float | None) -> TimedOut:
    """The exception for a call whose deadline passed."""
    return TimedOut(
        f"no reply from {place.path} within {deadline_s:g} s",
        code="timeout",
        hint="ctx status shows the state of the daemon",
        retryable=True,
        outcome="unknown" if call.method.writes else None,
        method=call.method.name,
    )


def late_again(failure: CallFailed, call: Call[Any], deadline_s: float | None) -> CallFailed:
    """``failure``, which names the cause, of a call whose deadline passed during a later attempt."""
    failure.message += f"; the next attempt had no reply when the {deadline_s:g} s of the call were over"
    if call.method.writes:
        failure.outcome = "unknown"
    return failure


def unreachable(place: SocketPlace, reason: OSError) -> ConnectFailed:
    """The exception for a failed connection to the socket at ``place``."""
    if isinstance(reason, BlockingIOError):
        message = f"the daemon at {place.path} accepts no connection: too many wait already"
        return ConnectFailed(message, path=place.path, hint=remedy(place, reason))
    causes = {FileNotFoundError: "there is no socket", ConnectionRefusedError: "connection refused (stale socket?)"}
    cause = causes.get(type(reason), reason.strerror or str(reason))
    return ConnectFailed(f"no daemon at {place.path}: {cause}", path=place.path, hint=remedy(place, reason))
