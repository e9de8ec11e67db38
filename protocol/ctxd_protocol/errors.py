"""The closed set of errors that the daemon returns, and their data.

A client switches on ``ErrorData.code``, never on the message. Codes share numbers, which JSON-RPC requires.
``ErrorCode`` is generated from this table: run ``make generate`` after a change.
"""

from typing import Final, Literal

import msgspec

from ctxd_protocol.error_codes import ErrorCode

Outcome = Literal["applied", "not_applied", "unknown"]
"""Whether a failed write was applied. ``unknown``: send it again with the same ``op_id``."""

Category = Literal[
    "not_found",
    "conflict",
    "invalid_state",
    "invalid_call",
    "too_large",
    "forbidden",
    "unavailable",
    "timed_out",
    "daemon_fault",
]
"""Kinds of errors by the caller's reaction; the client has one exception class for each.

``not_found``: look it up again, or create it. ``conflict``: choose another id, or read the existing state.
``invalid_state``: activate, resume or index first. ``invalid_call``: correct the program. ``too_large``: send less at
once. ``forbidden``: use a socket with more permissions, or a path inside the mounts. ``unavailable``: send it again
later. ``timed_out``: the deadline passed. ``daemon_fault``: read the daemon's log.
"""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800


class ErrorKind(msgspec.Struct, frozen=True):
    """One row of the error table: JSON-RPC number, category, meaning, and whether a resend can succeed."""

    number: int
    category: Category
    meaning: str
    retryable: bool = False


ERRORS: Final[dict[ErrorCode, ErrorKind]] = {
    "parse_error": ErrorKind(PARSE_ERROR, "invalid_call", "The frame is not JSON, not UTF-8, or nests too deep."),
    "invalid_request": ErrorKind(INVALID_REQUEST, "invalid_call", "The frame is JSON but not a JSON-RPC 2.0 request."),
    "frame_too_large": ErrorKind(INVALID_REQUEST, "too_large", "The line exceeds the connection's limit."),
    "duplicate_id": ErrorKind(INVALID_REQUEST, "invalid_call", "A request with the same id is still in flight."),
    "batch_too_large": ErrorKind(INVALID_REQUEST, "too_large", "The batch has too many members."),
    "method_not_found": ErrorKind(METHOD_NOT_FOUND, "invalid_call", "The method does not exist on this connection."),
    "invalid_params": ErrorKind(INVALID_PARAMS, "invalid_call", "The parameters do not fit the method."),
    "internal_error": ErrorKind(INTERNAL_ERROR, "daemon_fault", "The daemon failed; its log has the details."),
    "cancelled": ErrorKind(REQUEST_CANCELLED, "unavailable", "The client cancelled the call.", retryable=True),
    "unauthorized": ErrorKind(-32001, "forbidden", "The peer may not use this socket."),
    "session_not_found": ErrorKind(-32004, "not_found", "The session does not exist or is not visible to this caller."),
    "object_not_found": ErrorKind(-32004, "not_found", "The object does not exist or is not visible to this caller."),
    "assembly_not_found": ErrorKind(-32004, "not_found", "The session has no such recorded assembly."),
    "commit_not_found": ErrorKind(-32004, "not_found", "The commit does not exist or is not visible to this caller."),
    "artifact_not_found": ErrorKind(-32004, "not_found", "The artifact or the tag does not exist."),
    "turn_not_found": ErrorKind(-32004, "not_found", "The session has no such turn."),
    "file_not_found": ErrorKind(-32004, "not_found", "The file does not exist."),
    "subscription_not_found": ErrorKind(-32004, "not_found", "The connection has no such subscription."),
    "sandbox_not_found": ErrorKind(-32004, "not_found", "No such sandbox is registered."),
    "session_exists": ErrorKind(-32005, "conflict", "A session with this id exists."),
    "principal_exists": ErrorKind(-32005, "conflict", "A sandbox with this principal is registered."),
    "idempotency_mismatch": ErrorKind(-32005, "conflict", "The op_id was used with other parameters."),
    "tag_conflict": ErrorKind(-32005, "conflict", "Another commit has the tag."),
    "toolcall_conflict": ErrorKind(-32005, "conflict", "The session has another tool call with this id."),
    "tag_moved": ErrorKind(-32005, "conflict", "The tag does not refer to the expected artifact."),
    "artifact_mismatch": ErrorKind(-32005, "conflict", "The bytes do not have the expected address."),
    "upload_offset_mismatch": ErrorKind(-32005, "conflict", "The upload does not have the bytes before the offset."),
    "ambiguous_id": ErrorKind(-32005, "conflict", "The prefix matches several objects or artifacts."),
    "invalid_path": ErrorKind(-32006, "invalid_call", "The path is malformed or not allowed."),
    "path_escapes_mount": ErrorKind(-32006, "forbidden", "The path leads out of its mount."),
    "session_not_active": ErrorKind(-32007, "invalid_state", "The session is paused; resume it."),
    "session_closed": ErrorKind(-32007, "invalid_state", "The session is closed."),
    "session_removed": ErrorKind(-32007, "invalid_state", "The session was removed; restore it if it is in the trash."),
    "session_in_sandbox": ErrorKind(-32007, "invalid_state", "A registered sandbox depends on this setting."),
    "not_in_index": ErrorKind(-32007, "invalid_state", "The object is not in the session's index."),
    "not_in_pool": ErrorKind(-32007, "invalid_state", "The object is not in the metadata pool."),
    "not_active": ErrorKind(-32007, "invalid_state", "The object is not active."),
    "not_pinned": ErrorKind(-32007, "invalid_state", "The object is not pinned."),
    "infrastructure_object": ErrorKind(
        -32007, "invalid_state", "Chat, prompt and session objects cannot be activated, pinned or hidden."
    ),
    "content_unavailable": ErrorKind(-32007, "invalid_state", "The object has no text to show."),
    "purged": ErrorKind(-32007, "invalid_state", "The content was erased by object.purge."),
    "source_unreachable": ErrorKind(-32007, "unavailable", "The file cannot be read now.", retryable=True),
    "session_not_released": ErrorKind(
        -32007, "invalid_state", "The session is paused, but not all of it is in the log."
    ),
    "session_owned_elsewhere": ErrorKind(-32007, "invalid_state", "Another host owns the session."),
    "too_large": ErrorKind(-32008, "too_large", "A value exceeds a limit."),
    "unsupported": ErrorKind(-32009, "invalid_call", "The daemon, its backend or its version does not support this."),
    "rate_limited": ErrorKind(
        -32010, "unavailable", "Too many writes, connections or sandboxes; send the call again later.", retryable=True
    ),
    "quota_exceeded": ErrorKind(-32010, "unavailable", "The sandbox's quota is used up.", retryable=True),
    "draining": ErrorKind(-32011, "unavailable", "The daemon is stopping.", retryable=True),
    "store_backlog_full": ErrorKind(-32012, "unavailable", "Too many writes are waiting.", retryable=True),
    "store_unavailable": ErrorKind(-32012, "unavailable", "The shared log or node does not respond.", retryable=True),
    "disk_full": ErrorKind(-32013, "unavailable", "The disk of the state directory is full.", retryable=True),
    "corrupt": ErrorKind(-32014, "daemon_fault", "Stored data is damaged."),
    "timeout": ErrorKind(-32015, "timed_out", "The deadline passed.", retryable=True),
    "data_loss": ErrorKind(-32016, "daemon_fault", "The journal lacks acknowledged writes."),
    "store_failed": ErrorKind(-32016, "unavailable", "The store failed; the daemon restarts.", retryable=True),
}
"""Every symbolic code and its row."""


class ErrorData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``error.data`` of a response: fields for programs, and a hint for people."""

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
