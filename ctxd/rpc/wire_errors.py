"""The only place that converts exceptions to wire errors.

The peer gets a code and a safe sentence; the log gets the rest.
"""

import asyncio
from typing import Any, Final

import msgspec
from structlog.typing import FilteringBoundLogger

from ctxd.errors import CtxdError
from ctxd_protocol.errors import ERRORS, ErrorData, ErrorObject, Outcome
from ctxd_protocol.jsonrpc import error_object
from ctxd_protocol.param_errors import described

_OF_THE_STORE: Final = frozenset({"corrupt", "data_loss", "internal_error"})


class MalformedParams(Exception):
    """The params are neither an array nor an object: the request itself is invalid, not the parameters."""


def error_of(exc: BaseException, *, method: str, log: FilteringBoundLogger) -> ErrorObject:
    """The wire error for ``exc``, raised by a call of ``method``. An unexpected exception is logged completely."""
    if isinstance(exc, CtxdError):
        kind = ERRORS[exc.code]
        data = ErrorData(
            code=exc.code,
            hint=exc.hint,
            retryable=kind.retryable,
            retry_after_ms=exc.retry_after_ms,
            outcome=exc.outcome,
        )
        return ErrorObject(code=kind.number, message=exc.message, data=data)
    if isinstance(exc, MalformedParams):
        return error_object("invalid_request", "params is an array or an object, or left out")
    log.error("rpc.internal_error", method=method, exc_info=exc)
    hint = "The daemon's log has the details."
    return error_object("internal_error", "the daemon failed to carry out the call", hint=hint)


def log_uncaught_exceptions(log: FilteringBoundLogger) -> None:
    """Log uncaught exceptions by type and location; the loop's own message would quote content."""

    def log_exception(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.error("loop.failed", exc_info=context.get("exception"))

    asyncio.get_running_loop().set_exception_handler(log_exception)


def with_outcome(error: ErrorObject, *, submitted: bool) -> ErrorObject:
    """Return ``error`` of a write with its outcome: unknown once it was ``submitted``.

    Otherwise it was not applied, which is added to errors that do not depend on the parameters alone.
    """
    data = error.data
    if data.outcome is not None or not (submitted or data.retryable or data.code in _OF_THE_STORE):
        return error
    outcome: Outcome = "unknown" if submitted else "not_applied"
    return msgspec.structs.replace(error, data=msgspec.structs.replace(data, outcome=outcome))


def params_error(exc: msgspec.DecodeError | UnicodeDecodeError | TypeError, params: type[msgspec.Struct]) -> CtxdError:
    """The error for params that do not fit ``params``, the method's type."""
    message, hint = described(exc, params)
    return CtxdError("invalid_params", message, hint=hint)


def timeout_error(seconds: float, *, writes: bool) -> ErrorObject:
    """The error for a call that timed out."""
    outcome: Outcome | None = "unknown" if writes else None
    hint = "Send it again with the same op_id." if writes else "Send it again."
    return error_object("timeout", f"no response within {seconds:g} s", hint=hint, outcome=outcome)


def cancelled_error(*, writes: bool) -> ErrorObject:
    """The error for a call that its client cancelled."""
    return error_object("cancelled", "the client cancelled the call", outcome="unknown" if writes else None)


def draining_error(retry_after_ms: int) -> ErrorObject:
    """The error for a call received while the daemon stops."""
    return error_object(
        "draining",
        "the daemon is stopping",
        hint="Connect again when it is back.",
        retry_after_ms=retry_after_ms,
        outcome="not_applied",
    )
