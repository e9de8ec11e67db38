"""Circuit breaker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from ctxd.backends.xtdb.errors import Unknown, Unreachable
from ctxd.clock import Clock

FAILURES_TOLERATED: Final = 3
"""Failures in a row that open the circuit: one is an accident, and a start or a restart costs several."""

BACKOFF_MIN_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Circuit breaker. ``closed``: requests pass. ``open``: none passes for 1 s, doubled each time up to 60 s.
    ``half-open``: one request passes, and decides."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._backoff_s = BACKOFF_MIN_S
        self._until: float | None = None
        self._trying = False

    @property
    def state(self) -> State:
        """State that the next request would meet."""
        if self._until is None:
            return "closed"
        return "open" if self.retry_in_s > 0 else "half-open"

    @property
    def retry_in_s(self) -> float:
        """Seconds until a request passes; 0 if one passes now."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock.monotonic())

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around one request: ``Unknown`` and ``Unreachable`` from inside are failures, any other end is an answer,
        being cancelled is neither.

        Raises: Unreachable, before anything is sent, while the circuit is open or another request is trying.
        """
        trial = self._enter()
        try:
            yield
        except (Unknown, Unreachable):
            self._fail()
            raise
        except Exception:
            self._succeed()
            raise
        else:
            self._succeed()
        finally:
            if trial:
                self._trying = False

    def _enter(self) -> bool:
        if self._until is None:
            return False
        wait_s = self.retry_in_s
        if wait_s > 0 or self._trying:
            raise Unreachable("the XTDB node has failed, and is left alone for a while", retry_in_s=wait_s)
        self._trying = True
        return True

    def _succeed(self) -> None:
        self._failures, self._backoff_s, self._until = 0, BACKOFF_MIN_S, None

    def _fail(self) -> None:
        self._failures += 1
        if self._until is not None:
            # Only the trial request lengthens the pause: requests sent before the circuit opened carry no news.
            if self.retry_in_s > 0:
                return
            self._backoff_s = min(BACKOFF_MAX_S, 2 * self._backoff_s)
        elif self._failures < FAILURES_TOLERATED:
            return
        self._until = self._clock.monotonic() + self._backoff_s
