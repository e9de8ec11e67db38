"""What ``sandbox.*`` takes and answers."""

from typing import Annotated

import msgspec

from ctxd_protocol.ids import ID_PATTERN, OpIdText, SessionIdText
from ctxd_protocol.methods.parts import Params, Result
from ctxd_protocol.objects import Receipt
from ctxd_protocol.sandboxes import GRANTS_DEFAULT, Grant, Quota, SandboxView
from ctxd_protocol.sessions import Mount


class SandboxRegisterParams(Params, frozen=True, kw_only=True):
    """Who is inside, and what they may do; fixed for as long as the sandbox is registered.

    ``sessions``: what it may name, each made with a filesystem of its own; the first is meant by a call that names
    none. ``principal`` null: named after the sandbox. ``mounts`` null: those of its sessions, which all have the same.
    ``ttl_s`` null: the lease is this connection's; it ends ``grace_s`` after that does, unless another renews it.
    ``uid``: the user inside, as the host knows it; null: the one who registers it.
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
    """The sandbox; ``receipt`` null when nothing was written."""

    sandbox: SandboxView
    receipt: Receipt | None


class SandboxListResult(Result, frozen=True, kw_only=True):
    """All that are registered, oldest first."""

    sandboxes: tuple[SandboxView, ...]
