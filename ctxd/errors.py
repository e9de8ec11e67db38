"""The one exception that carries a fault to a client.

A fault is told by its symbolic code, from the closed table in ``ctxd_protocol.errors``. Parts raise ``CtxdError``; only
``ctxd.rpc.faults`` turns it into a wire error.
"""

from ctxd_protocol.errors import ERRORS, Outcome


class CtxdError(Exception):
    """Something a caller has to know about.

    ``code`` is a key of ``ctxd_protocol.errors.ERRORS``; ``message`` names cause and place; ``hint`` names the remedy.
    ``outcome`` says what became of a write, null for a read.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str = "",
        retry_after_ms: int | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        assert code in ERRORS, f"{code!r} is not in the closed table of error codes"
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.retry_after_ms = retry_after_ms
        self.outcome = outcome


class StateDirError(Exception):
    """The daemon cannot start on this state directory or socket. ``exit_code`` is what the process ends with."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
