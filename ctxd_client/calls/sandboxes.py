"""Calls of a harness that gives its sandboxes sockets of their own."""

from collections.abc import Sequence

from ctxd_client.wire import Call
from ctxd_protocol.methods import (
    Nothing,
    SandboxListResult,
    SandboxParams,
    SandboxRegisterParams,
    SandboxResult,
    WriteResult,
)
from ctxd_protocol.sandboxes import GRANTS_DEFAULT, Grant, Quota
from ctxd_protocol.sessions import Mount

_QUOTA = Quota()


def sandbox_register(
    sessions: Sequence[str],
    *,
    principal: str | None = None,
    mounts: Sequence[Mount] | None = None,
    grants: Sequence[Grant] = GRANTS_DEFAULT,
    quota: Quota = _QUOTA,
    ttl_s: int | None = None,
    grace_s: int = 30,
    uid: int | None = None,
    op_id: str | None = None,
) -> Call[SandboxResult]:
    """Give a sandbox a socket of its own, for ``sessions``. Mount ``directory`` into it, read-only, at ``/run/ctxd``.

    Without ``ttl_s`` it lasts as long as this connection and ``grace_s`` more; a client that connects again, after a
    restart of the daemon as well, calls ``sandbox_renew`` meanwhile.

    Example: ``box = (await client.sandbox_register(["s1"])).sandbox``
    """
    return Call(
        "sandbox.register",
        SandboxRegisterParams(
            sessions=tuple(sessions),
            principal=principal,
            mounts=None if mounts is None else tuple(mounts),
            grants=tuple(grants),
            quota=quota,
            ttl_s=ttl_s,
            grace_s=grace_s,
            uid=uid,
            op_id=op_id,
        ),
        SandboxResult,
    )


def sandbox_renew(
    sandbox: str,
    *,
    op_id: str | None = None,
) -> Call[SandboxResult]:
    """Extend a lease that goes by time; have this connection hold any other.

    Example: ``await client.sandbox_renew(box.sandbox)``
    """
    return Call("sandbox.renew", SandboxParams(sandbox=sandbox, op_id=op_id), SandboxResult)


def sandbox_release(
    sandbox: str,
    *,
    op_id: str | None = None,
) -> Call[WriteResult]:
    """End a sandbox: its socket, its connections and its directory. Its sessions stay.

    Example: ``await client.sandbox_release(box.sandbox)``
    """
    return Call("sandbox.release", SandboxParams(sandbox=sandbox, op_id=op_id), WriteResult)


def sandbox_list() -> Call[SandboxListResult]:
    """The registered sandboxes, oldest first.

    Example: ``(await client.sandbox_list()).sandboxes``
    """
    return Call("sandbox.list", Nothing(), SandboxListResult)
