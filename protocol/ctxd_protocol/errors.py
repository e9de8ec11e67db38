"""The closed set of errors a client can be told, and the data each carries.

A client switches on ``ErrorData.code``, never on the message. The number groups codes the way JSON-RPC wants it.
"""

from typing import Final, Literal

import msgspec

Outcome = Literal["applied", "not_applied", "unknown"]
"""What became of the write that failed. ``unknown``: send it again with the same ``op_id``."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800


class ErrorKind(msgspec.Struct, frozen=True):
    """One row of the error table: the JSON-RPC number, and whether sending the call again can help."""

    number: int
    retryable: bool = False


ERRORS: Final[dict[str, ErrorKind]] = {
    # The frame or the envelope.
    "parse_error": ErrorKind(PARSE_ERROR),
    "invalid_request": ErrorKind(INVALID_REQUEST),
    "frame_too_large": ErrorKind(INVALID_REQUEST),
    "duplicate_id": ErrorKind(INVALID_REQUEST),
    "batch_too_large": ErrorKind(INVALID_REQUEST),
    "method_not_found": ErrorKind(METHOD_NOT_FOUND),
    "invalid_params": ErrorKind(INVALID_PARAMS),
    "internal_error": ErrorKind(INTERNAL_ERROR),
    "cancelled": ErrorKind(REQUEST_CANCELLED, retryable=True),
    # Who may do what.
    "unauthorized": ErrorKind(-32001),
    # What is not there.
    "session_not_found": ErrorKind(-32004),
    "object_not_found": ErrorKind(-32004),
    "assembly_not_found": ErrorKind(-32004),
    "file_not_found": ErrorKind(-32004),
    "subscription_not_found": ErrorKind(-32004),
    "sandbox_not_found": ErrorKind(-32004),
    # What clashes with what is there.
    "session_exists": ErrorKind(-32005),
    "principal_exists": ErrorKind(-32005),
    "idempotency_mismatch": ErrorKind(-32005),
    "toolcall_conflict": ErrorKind(-32005),
    "ambiguous_id": ErrorKind(-32005),
    # Where a path may not lead.
    "invalid_path": ErrorKind(-32006),
    "path_escapes_mount": ErrorKind(-32006),
    # What the state does not allow.
    "session_not_active": ErrorKind(-32007),
    "session_closed": ErrorKind(-32007),
    "session_in_sandbox": ErrorKind(-32007),
    "not_in_index": ErrorKind(-32007),
    "not_in_pool": ErrorKind(-32007),
    "not_active": ErrorKind(-32007),
    "not_pinned": ErrorKind(-32007),
    "infrastructure_object": ErrorKind(-32007),
    "content_unavailable": ErrorKind(-32007),
    "purged": ErrorKind(-32007),
    "source_unreachable": ErrorKind(-32007, retryable=True),
    "session_owned_elsewhere": ErrorKind(-32007),
    # What is beyond a bound.
    "too_large": ErrorKind(-32008),
    "unsupported": ErrorKind(-32009),
    "rate_limited": ErrorKind(-32010, retryable=True),
    "quota_exceeded": ErrorKind(-32010, retryable=True),
    # What the daemon cannot do now.
    "draining": ErrorKind(-32011, retryable=True),
    "store_backlog_full": ErrorKind(-32012, retryable=True),
    "store_unavailable": ErrorKind(-32012, retryable=True),
    "disk_full": ErrorKind(-32013, retryable=True),
    "corrupt": ErrorKind(-32014),
    "timeout": ErrorKind(-32015, retryable=True),
    "data_loss": ErrorKind(-32016),
    "store_failed": ErrorKind(-32016, retryable=True),
}
"""Every symbolic code, and what goes with it."""


class ErrorData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``error.data`` of a response: what a program needs to react, and a remedy for a person."""

    code: str
    hint: str = ""
    retryable: bool = False
    retry_after_ms: int | None = None
    outcome: Outcome | None = None


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """``error`` of a JSON-RPC response."""

    code: int
    message: str
    data: ErrorData
