"""Token buckets of one sandbox's quota, and refusal of calls beyond it.

Owns the counts. A refused call costs only its reply: it is not started, and leaves nothing behind.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from ctxd.formatting import count
from ctxd.rpc.dispatch import MethodEntry
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.jsonrpc import Request, error_object
from ctxd_protocol.sandbox_types import Quota

_BURST_S: Final = 2.0
"""Burst size, in seconds of the average rate."""

_LINES_PER_CALL: Final = 4
"""Lines parsed per call that the quota allows: the others are blank, malformed, or beyond the quota."""

_ROUNDING_S: Final = 1e-6
"""Shorter waits are rounding errors."""

_DAY_S: Final = 86_400.0
_NEVER_MS: Final = 60_000
"""Retry delay in milliseconds if there is no room for objects, because none becomes free by itself."""


class _Bucket:
    """Token bucket with an average rate of ``per_s``, and bursts of ``capacity``."""

    __slots__ = ("_capacity", "_level", "_per_s", "_then")

    def __init__(self, per_s: float, capacity: float, now: float) -> None:
        self._per_s = per_s
        self._capacity = capacity
        self._level = capacity
        self._then = now

    def missing_s(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` may pass; 0 if it may now."""
        self._level = min(self._capacity, self._level + (now - self._then) * self._per_s)
        self._then = now
        wait_s = (min(amount, self._capacity) - self._level) / self._per_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, amount: float) -> None:
        """Take ``amount``."""
        self._level -= amount


class QuotaMeter:
    """The use of one quota. ``objects`` returns the count of objects, ``now`` the seconds of a monotonic clock."""

    __slots__ = ("_bytes", "_calls", "_lines", "_now", "_objects", "_quota", "_writes", "refused")

    def __init__(self, quota: Quota, *, objects: Callable[[], int], now: Callable[[], float]) -> None:
        self._quota = quota
        self._objects = objects
        self._now = now
        began = now()
        self._calls = _Bucket(quota.requests_per_s, quota.requests_per_s * _BURST_S, began)
        self._writes = _Bucket(quota.writes_per_s, quota.writes_per_s * _BURST_S, began)
        self._bytes = _Bucket(quota.write_bytes_per_day / _DAY_S, quota.write_bytes_per_day, began)
        lines_per_s = _LINES_PER_CALL * quota.requests_per_s
        self._lines = _Bucket(lines_per_s, lines_per_s * _BURST_S, began)
        self.refused = 0

    def spend(self, lines: int) -> None:
        """Count received lines of any kind: calls, refused calls, blank and malformed lines."""
        self._lines.take(lines)

    def delay_s(self) -> float:
        """Seconds until further lines may be read; 0 if they may now."""
        return self._lines.missing_s(0, self._now())

    def refuse(self, request: Request, entry: MethodEntry | None, in_flight: int) -> ErrorObject | None:
        """Count ``request``, with the method ``entry`` if it exists. Returns: an error if it is beyond the quota."""
        if entry is None and request.method == "$/cancelRequest":
            return None
        writes = entry is not None and (entry.writes or entry.method.takes_bytes)
        makes_objects = entry is not None and entry.method.makes_objects
        beyond = self._beyond(request, writes, makes_objects, in_flight)
        if beyond is None:
            return None
        self.refused += 1
        what, wait_s = beyond
        return error_object(
            "quota_exceeded",
            f"this sandbox's quota is used up: {what}",
            hint="Send it again later, or have the harness register the sandbox with a larger quota.",
            retry_after_ms=max(1, math.ceil(1000 * wait_s)),
            outcome="not_applied" if writes else None,
        )

    def _beyond(self, request: Request, writes: bool, makes_objects: bool, in_flight: int) -> tuple[str, float] | None:
        quota, now = self._quota, self._now()
        if wait_s := self._calls.missing_s(1, now):
            return f"{count(quota.requests_per_s, 'call')} a second", wait_s
        if in_flight >= quota.in_flight:
            return f"{count(quota.in_flight, 'call')} without an answer", 1 / quota.requests_per_s
        if writes:
            size = len(request.params) if isinstance(request.params, msgspec.Raw) else 0
            if wait_s := self._writes.missing_s(1, now):
                return f"{count(quota.writes_per_s, 'write')} a second", wait_s
            if wait_s := self._bytes.missing_s(size, now):
                return f"{quota.write_bytes_per_day:,} bytes of writes a day", wait_s
            if makes_objects and self._objects() >= quota.objects:
                return count(quota.objects, "object"), _NEVER_MS / 1000
            self._writes.take(1)
            self._bytes.take(size)
        self._calls.take(1)
        return None
