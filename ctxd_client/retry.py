"""When a call is made again, and after how long. Pure: values in, values out; both clients wait by it.

The rule: a call is repeated while its deadline allows, if the failure can pass by itself and repeating is safe. Safe
is every call that the table calls idempotent, as each write carries an ``op_id``; a call that surely was not applied
is safe too.
"""

import random
from dataclasses import dataclass
from typing import Final

from ctxd_client.errors import CallFailed, ConnectFailed, ConnectionLost, Unavailable
from ctxd_protocol.methods.row import Method

PASSING: Final = frozenset({"draining", "rate_limited", "store_backlog_full", "store_failed"})
"""Codes that pass within seconds by themselves: another daemon takes over, or a queue empties."""

GREET_S_MAX: Final = 10.0
"""Seconds that a daemon may take to answer the first ``hello``: it answers at once or is stuck."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How long calls go on: a deadline a call in seconds, null for none, and the bounds of the waits in between.

    Waits double from ``first_s`` to ``most_s``, each shortened at random by up to half, so that clients do not come
    in step.
    """

    deadline_s: float | None = 30.0
    first_s: float = 0.05
    most_s: float = 2.0

    def wait_s(self, attempt: int) -> float:
        """Seconds to wait before attempt ``attempt`` (the first repeat is 1)."""
        longest = min(self.most_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        return longest * random.uniform(0.5, 1.0)


def greeting(retry: Retry, wait_s: float) -> Retry:
    """How long connecting may take: as long as a call, but ``GREET_S_MAX`` at most, unless the caller waits for
    longer."""
    answer_s = GREET_S_MAX if retry.deadline_s is None else min(GREET_S_MAX, retry.deadline_s)
    return Retry(max(wait_s, answer_s), retry.first_s, retry.most_s)


def may_repeat(error: CallFailed, method: Method) -> bool:
    """Whether ``method`` should be called again after ``error``, time allowing."""
    if isinstance(error, ConnectFailed | ConnectionLost):
        return True  # what the table calls not idempotent, a subscription, died with its connection
    if not (error.retryable and method.resend_safe):
        return False
    return error.code in PASSING or error.retry_after_ms is not None or error.outcome == "unknown"


def pause_s(error: CallFailed, attempt: int, retry: Retry) -> float:
    """Seconds to wait before attempt ``attempt``: what the daemon asked for, or what ``retry`` says, whichever is
    longer."""
    return max((error.retry_after_ms or 0) / 1000, retry.wait_s(attempt))


def settled(error: CallFailed, *, unknown: bool) -> CallFailed:
    """``error`` with the outcome of all attempts: after one whose fate is ``unknown``, a later refusal settles
    nothing."""
    if unknown and isinstance(error, Unavailable):
        error.outcome = "unknown"
    return error
