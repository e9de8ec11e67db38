"""Sandboxes: grants, quotas, and the state that the host sees.

Grants and quotas are fixed at registration. A method that is not granted is refused on the sandbox's socket.
"""

from typing import Annotated, Final, Literal

import msgspec

from ctxd_protocol.session_types import Mount

Grant = Literal["read", "record", "arrange", "files", "assemble", "prompt"]
"""A set of methods that a sandbox may call, besides those that need no grant; see ``ctxd_protocol.methods.GRANTS``."""

GRANTS_DEFAULT: Final[tuple[Grant, ...]] = ("read", "record", "arrange", "files", "assemble")
"""Default grants of a sandbox: all but replacing its own system prompt."""

_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one sandbox; calls above them are refused as ``quota_exceeded``.

    ``in_flight``: pending calls of all its connections. ``requests_per_s`` and ``writes_per_s``: averages, with bursts
    of two seconds' worth. ``write_bytes_per_day``: bytes of parameters of its writes, an average with bursts of a whole
    day's worth, counted from the daemon's start. ``objects``: entries in the indexes of its sessions; a single call may
    exceed it by the objects it finds. ``tracked_files``: files tracked on disk; others are checked only when rendered.
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

    Mount ``directory`` read-only, as a directory: it contains the socket ``ctxd.sock`` and ``current.json``.
    ``sessions``: those it may use; the first is the default of a call without one. ``expires_at`` (ms since 1970): the
    end of the lease unless it is renewed; None while the connection that holds the lease is open. ``refused``: number
    of calls refused for the quota.
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
