"""The one exception that carries a fault to a client.

A fault has a symbolic code from the closed table in ``ctxd_protocol.errors``. Parts raise ``CtxdError``; only
``ctxd.rpc.wire_errors`` turns it into a wire error.
"""

from typing import Final

from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.errors import Outcome

REMEDIES: Final[dict[ErrorCode, str]] = {
    "draining": "Reconnect once the daemon runs again.",
    "store_backlog_full": "Repeat the call a little later, with the same op_id.",
    "store_unavailable": "Start the XTDB node, or wait until it responds; ctxd doctor shows its state.",
    "disk_full": "Free space on the filesystem of the state directory; writes then resume automatically.",
    "store_failed": "Check the disk of the state directory; then repeat the call with the same op_id.",
    "data_loss": "Run ctxd verify; restore a backup.",
    "corrupt": "Run ctxd verify, which lists all damage; then restore a backup.",
}
"""Default hints for faults of the store, by code."""

PURGED_HINT: Final = "It was destroyed by object.purge, and cannot be restored from this store."
"""Hint of a call that needs purged content."""


class CtxdError(Exception):
    """A fault that is reported to the caller.

    ``code`` is a key of ``ctxd_protocol.errors.ERRORS``; ``message`` names cause and place; ``hint`` names the remedy,
    by default that of ``REMEDIES``.
    ``outcome``: whether a write was applied, None for a read.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        hint: str = "",
        retry_after_ms: int | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint or REMEDIES.get(code, "")
        self.retry_after_ms = retry_after_ms
        self.outcome = outcome


class StateDirError(Exception):
    """Refused state directory, backup or socket. ``exit_code`` is the exit code of the process.

    ``remedy``: empty for the default of the exit code.
    """

    def __init__(self, message: str, *, exit_code: int, remedy: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.remedy = remedy


def purged(id: str) -> CtxdError:
    """Return the error of a call that needs the purged content of ``id``."""
    return CtxdError("purged", f"{id} was purged", hint=PURGED_HINT, outcome="not_applied")
