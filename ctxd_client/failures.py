"""The failures that the client itself finds, put in words: nobody answers, or not in time."""

from typing import Any

from ctxd_client.errors import ConnectFailed, TimedOut
from ctxd_client.paths import SocketPlace, remedy
from ctxd_client.retry import Retry
from ctxd_client.wire import Call


def late(place: SocketPlace, call: Call[Any], retry: Retry) -> TimedOut:
    """The exception for a call whose deadline passed."""
    return TimedOut(
        f"no answer from {place.path} within {retry.deadline_s:g} s",
        code="timeout",
        hint="ctx status shows what the daemon is doing",
        retryable=True,
        outcome="unknown" if call.method.writes else None,
        method=call.method.name,
    )


def unreachable(place: SocketPlace, reason: OSError) -> ConnectFailed:
    """The exception for a socket that could not be connected to."""
    cause = {FileNotFoundError: "there is no socket", ConnectionRefusedError: "nobody listens"}.get(
        type(reason), reason.strerror or str(reason)
    )
    return ConnectFailed(f"no daemon at {place.path}: {cause}", path=place.path, hint=remedy(place, reason))
