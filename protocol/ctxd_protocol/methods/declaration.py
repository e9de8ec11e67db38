"""Declarations of methods, one row each, and the types shared by all families."""

import inspect
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.ids import SessionIdText
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.sandbox_types import Grant

PathText = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
PageSize = Annotated[int, msgspec.Meta(ge=1, le=PAGE_ITEMS_MAX)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0)]

Capability = Literal["observe", "session", "host"]
"""Permissions of a connection. ``observe``: read the current context. ``session``: work in its own sessions, as its
grants permit. ``host``: everything."""

COMMON_ERRORS: Final[tuple[ErrorCode, ...]] = (
    "invalid_params",
    "method_not_found",
    "quota_exceeded",
    "timeout",
    "cancelled",
    "draining",
    "corrupt",
    "internal_error",
)
"""Errors of every method."""

WRITE_ERRORS: Final[tuple[ErrorCode, ...]] = (
    "idempotency_mismatch",
    "too_large",
    "rate_limited",
    "store_backlog_full",
    "store_unavailable",
    "store_failed",
    "disk_full",
    "data_loss",
)
"""Errors of every method that writes."""


SESSION_ERRORS: Final[tuple[ErrorCode, ...]] = ("session_not_found", "session_owned_elsewhere")
"""Errors of methods that read a session."""

ACTIVE_ERRORS: Final[tuple[ErrorCode, ...]] = (
    *SESSION_ERRORS,
    "session_not_active",
    "session_closed",
    "session_removed",
)
"""Errors of methods that need an active session."""


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters by name; an unknown or missing name is refused."""


class SessionParams(Params, frozen=True, kw_only=True):
    """A session by its id."""

    session: SessionIdText


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call, an object with named members."""


class Nothing(Params, frozen=True, kw_only=True):
    """No parameters."""


class WriteResult(Result, frozen=True, kw_only=True):
    """Result of a write without other members; no ``receipt`` if nothing had to be written."""

    receipt: Receipt | None


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the method table: the declaration of a method.

    ``access``: ``observe``, ``host``, or the grant that gives the method to a sandbox. ``errors``: the codes
    besides ``COMMON_ERRORS`` and, for writes, ``WRITE_ERRORS``. ``writes``: changes durable state.
    ``makes_objects``: counts against a sandbox's quota of objects. ``takes_bytes``: counts against its quota of
    written bytes, as writes do. ``resend_safe``: may be sent again after a lost reply. ``handle``: the name of the
    method on a session's handle in the client, empty for none. ``description`` follows the summary in all
    documentation, before the description of the parameters. ``example``: parameters in JSON's types; ``shows``: the
    part of the result that the example reads. ``positional``: optional parameters that may be positional in the client.
    """

    name: str
    params: type[Params]
    result: Any
    access: Literal["observe", "host"] | Grant
    summary: str
    example: dict[str, Any]
    description: str = ""
    errors: tuple[ErrorCode, ...] = ()
    writes: bool = False
    makes_objects: bool = False
    takes_bytes: bool = False
    resend_safe: bool = True
    handle: str = ""
    shows: str = ""
    positional: tuple[str, ...] = ()

    @property
    def capability(self) -> Capability:
        """The least capability that permits the method."""
        return "session" if self.grant is not None else "host" if self.access == "host" else "observe"

    @property
    def grant(self) -> Grant | None:
        """The grant that a sandbox needs for the method; None for methods without one."""
        return self.access if self.access in get_args(Grant) else None  # type: ignore[return-value]

    @property
    def documentation(self) -> tuple[str, ...]:
        """Paragraphs after the summary: the description, then the parameters' docstring without its first line."""
        _, _, details = inspect.cleandoc(self.params.__doc__ or "").partition("\n\n")
        paragraphs = [self.description, *details.split("\n\n")]
        return tuple(" ".join(text.split()) for text in paragraphs if text)

    @property
    def all_errors(self) -> tuple[ErrorCode, ...]:
        """Every error code that the method can return."""
        return (*self.errors, *(WRITE_ERRORS if self.writes else ()), *COMMON_ERRORS)
