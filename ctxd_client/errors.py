"""Exceptions of calls: one class for each category of ``ctxd_protocol.errors``, and those of the client itself.

A program switches on the class, or on ``code`` where it needs more detail; the message is for people.
"""

from typing import Final

from ctxd_protocol.errors import ERRORS, Category, ErrorObject, Outcome


class CallFailed(Exception):
    """Base of all exceptions of this package: a call that failed.

    ``code`` is symbolic, ``hint`` names the remedy. ``retryable``: the same call may succeed later, but not within
    ``retry_after_ms``. ``outcome``: whether a write was applied, None for a read and where it does not matter; if it is
    ``unknown``, send the call again with the same ``op_id``. ``method`` is empty outside a call.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        hint: str = "",
        retryable: bool = False,
        retry_after_ms: int | None = None,
        outcome: Outcome | None = None,
        method: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.outcome = outcome
        self.method = method

    def __str__(self) -> str:
        """Cause and place, then the remedy."""
        place = f"{self.method}: " if self.method else ""
        remedy = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.message} [{self.code}]{remedy}"


class NotFound(CallFailed):
    """The named object does not exist, or this caller cannot see it. Look it up again, or create it."""


class Conflict(CallFailed):
    """The call conflicts with existing state. Choose another id, or read the state first."""


class InvalidState(CallFailed):
    """The state of the session or object does not allow the call. Change it first: activate, resume, index."""


class InvalidCall(CallFailed):
    """The call itself is wrong and fails at every attempt. Correct the program."""


class TooLarge(InvalidCall):
    """The call exceeds a limit of the daemon. Send less at once."""


class Forbidden(CallFailed):
    """This connection lacks the permission. Use a socket with more permissions, or a path inside the mounts."""


class Unavailable(CallFailed):
    """The daemon cannot serve the call now, but may later. Wait ``retry_after_ms`` or some seconds and call again."""


class TimedOut(Unavailable):
    """The call's deadline passed before the reply arrived. A write may have been applied: see ``outcome``."""


class ConnectFailed(Unavailable):
    """No daemon accepts a connection at ``path``: it is stopped, stuck, or uses another socket. Start it, or name its
    socket."""

    def __init__(self, message: str, *, path: str, hint: str) -> None:
        super().__init__(message, code="connect_failed", hint=hint, retryable=True, outcome="not_applied")
        self.path = path


class ConnectionLost(Unavailable):
    """The connection ended before the reply arrived. ``outcome`` is ``unknown`` for a call that was sent."""

    def __init__(self, message: str, *, outcome: Outcome = "unknown") -> None:
        super().__init__(message, code="connection_lost", retryable=True, outcome=outcome)


class Closed(CallFailed):
    """This client was closed, or its iterator of notices, or it is of another process or event loop. Connect again."""

    def __init__(self, message: str = "the client is closed", *, hint: str = "") -> None:
        super().__init__(message, code="client_closed", hint=hint, outcome="not_applied")


class DaemonFault(CallFailed):
    """The daemon failed, and another attempt will not help. Read its log; run ``ctx doctor``."""


CLASSES: Final[dict[Category, type[CallFailed]]] = {
    "not_found": NotFound,
    "conflict": Conflict,
    "invalid_state": InvalidState,
    "invalid_call": InvalidCall,
    "too_large": TooLarge,
    "forbidden": Forbidden,
    "unavailable": Unavailable,
    "timed_out": TimedOut,
    "daemon_fault": DaemonFault,
}
"""The class of each category of codes."""


def from_wire(error: ErrorObject, method: str) -> CallFailed:
    """The exception for an error that the daemon returned for ``method``. An unknown code, of a newer daemon, is a
    ``DaemonFault``, or ``Unavailable`` if it is retryable."""
    data = error.data
    known = ERRORS.get(data.code)  # type: ignore[call-overload]
    kind = CLASSES[known.category] if known else Unavailable if data.retryable else DaemonFault
    return kind(
        error.message,
        code=data.code,
        hint=data.hint,
        retryable=data.retryable,
        retry_after_ms=data.retry_after_ms,
        outcome=data.outcome,
        method=method,
    )
