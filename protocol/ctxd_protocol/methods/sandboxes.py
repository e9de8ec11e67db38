"""Methods ``sandbox.*``: registration of sandboxes and their leases."""

from typing import Annotated, Final

import msgspec

from ctxd_protocol.ids import ID_PATTERN, OpIdText, SessionIdText
from ctxd_protocol.methods.declaration import Method, Nothing, Params, Result, WriteResult
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.sandbox_types import GRANTS_DEFAULT, Grant, Quota, SandboxView
from ctxd_protocol.session_types import Mount


class SandboxRegisterParams(Params, frozen=True, kw_only=True):
    """Identity and rights of a sandbox, fixed while it is registered.

    ``sessions``: the sessions that it may use, each created with a filesystem of its own; the first is the default of a
    call without one. ``principal``: by default a name derived from the sandbox. ``mounts``: by default those of its
    sessions, which must agree. Without ``ttl_s`` the connection holds the lease: it ends ``grace_s`` seconds after the
    connection, unless another connection calls ``sandbox.renew``. ``uid``: the sandbox's user, by its number on the
    host; by default the caller's.
    """

    sessions: Annotated[tuple[SessionIdText, ...], msgspec.Meta(min_length=1, max_length=64)]
    principal: Annotated[str, msgspec.Meta(pattern=ID_PATTERN)] | None = None
    mounts: tuple[Mount, ...] | None = None
    grants: tuple[Grant, ...] = GRANTS_DEFAULT
    quota: Quota = Quota()
    ttl_s: Annotated[int, msgspec.Meta(ge=1, le=31_536_000)] | None = None
    grace_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 30
    uid: Annotated[int, msgspec.Meta(ge=0, le=4_294_967_294)] | None = None
    op_id: OpIdText | None = None


class SandboxParams(Params, frozen=True, kw_only=True):
    """A sandbox by its id."""

    sandbox: SessionIdText
    op_id: OpIdText | None = None


class SandboxResult(Result, frozen=True, kw_only=True):
    """The sandbox; no ``receipt`` if nothing had to be written."""

    sandbox: SandboxView
    receipt: Receipt | None


class SandboxListResult(Result, frozen=True, kw_only=True):
    """All registered sandboxes, oldest first."""

    sandboxes: tuple[SandboxView, ...]


ROWS: Final = (
    Method(
        name="sandbox.register",
        params=SandboxRegisterParams,
        result=SandboxResult,
        access="host",
        writes=True,
        summary="Give a sandbox a socket of its own.",
        description="Mount the returned ``directory`` into the sandbox, read-only, at ``/run/ctxd``.",
        errors=(
            "session_not_found",
            "session_closed",
            "session_removed",
            "session_in_sandbox",
            "principal_exists",
            "invalid_path",
            "unsupported",
        ),
        example={"sessions": ["s1"]},
        shows=".sandbox.directory",
    ),
    Method(
        name="sandbox.renew",
        params=SandboxParams,
        result=SandboxResult,
        access="host",
        writes=True,
        summary="Extend a timed lease, or take over one that a connection holds.",
        errors=("sandbox_not_found",),
        example={"sandbox": "box-1"},
        shows=".sandbox.expires_at",
    ),
    Method(
        name="sandbox.release",
        params=SandboxParams,
        result=WriteResult,
        access="host",
        writes=True,
        summary="End a sandbox: remove its socket, connections and directory.",
        description="Its sessions stay.",
        errors=("sandbox_not_found",),
        example={"sandbox": "box-1"},
    ),
    Method(
        name="sandbox.list",
        params=Nothing,
        result=SandboxListResult,
        access="host",
        summary="List the registered sandboxes.",
        example={},
        shows=".sandboxes",
    ),
)
