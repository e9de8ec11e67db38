"""Sandboxes as the host sees them: who is inside, what they may call, and how much of it.

All of it is fixed when a sandbox is registered. What is not granted does not exist on the sandbox's socket.
"""

from typing import Annotated, Final, Literal

import msgspec

from ctxd_protocol.sessions import Mount

Grant = Literal["read", "record", "arrange", "files", "assemble", "prompt"]
"""A set of methods that a sandbox may call besides ``context.current``; ``ctxd_protocol.methods.GRANTS`` lists them."""

GRANTS_DEFAULT: Final[tuple[Grant, ...]] = ("read", "record", "arrange", "files", "assemble")
"""What a sandbox is granted unless its harness says otherwise: all but replacing its own system prompt."""

_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one sandbox may use; more is refused as ``quota_exceeded``.

    ``in_flight``: calls of all its connections that are not answered. ``requests_per_s`` and ``writes_per_s``:
    averages; twice as much may come at once. ``write_bytes_per_day``: parameters of its writes, all at once if
    need be; counted from the daemon's start. ``objects``: entries of the indexes of its sessions; one call may go
    beyond it by what it finds. ``tracked_files``: those of its files that are followed on disk; of others a change
    is seen when they are shown.
    """

    connections: _Count = 8
    in_flight: _Count = 32
    requests_per_s: _Count = 200
    writes_per_s: _Count = 100
    write_bytes_per_day: Annotated[int, msgspec.Meta(ge=1)] = 2 * 1024**3
    objects: _Count = 100_000
    tracked_files: _Count = 20_000


class SandboxView(msgspec.Struct, frozen=True, kw_only=True):
    """One registered sandbox.

    ``directory`` is to be mounted, read-only, as a directory: it holds the socket ``ctxd.sock`` and ``current.json``.
    ``sessions``: what it may name; the first is meant by a call that names none. ``expires_at`` (ms since 1970): when
    it ends unless renewed; null while the connection that holds its lease is open. ``refused`` counts calls beyond the
    quota.
    """

    sandbox: str
    principal: str
    directory: str
    socket: str
    sessions: tuple[str, ...]
    mounts: tuple[Mount, ...]
    grants: tuple[Grant, ...]
    quota: Quota
    ttl_s: int | None
    grace_s: int
    uid: int | None
    created_at: int
    expires_at: int | None
    connections: int
    requests: int
    refused: int
