"""The daemon's state as ``daemon.status`` reports it."""

from typing import Literal

import msgspec

from ctxd_protocol.trackers import Watching


class ProjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far the XTDB node at ``url`` has the journal: up to row ``seq``, ``lag_rows`` fewer than there are.

    ``projecting``: rows flow. ``connecting``: soon. ``unreachable``: nobody answers. ``failed``: the node does not
    index any more. ``stopped``: what the node holds is not this journal's. ``reason`` says what is wrong, empty if
    nothing is. ``lag_s`` is how long the oldest row has waited; ``backlog_share`` how full the room is that rows may
    wait in: from 0.8 on writes are slowed down, at 1 refused. ``quarantined`` names the first hundred rows that the
    node does not take. None of it bears on what is acknowledged.
    """

    url: str
    state: Literal["connecting", "projecting", "unreachable", "failed", "stopped"]
    reason: str
    seq: int
    lag_rows: int
    lag_s: float
    backlog_share: float
    rows_per_s: float
    quarantined: tuple[int, ...]


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The journal: newest sequence and chain hash, rows waiting for their flush, and whether writes are taken.

    ``reason`` says what is wrong, empty if nothing is. ``state`` may be ``ok`` all the same: then writes are taken.
    ``damage``: what the checks at the start and the scrub beside the work found, at most a hundred sentences;
    ``ctxd verify`` finds all.
    ``projection`` is there with ``backend`` ``xtdb`` only.
    """

    state: Literal["ok", "read_only", "failed"]
    reason: str
    head_seq: int
    head_chain: str
    pending_writes: int
    commits: int
    rows: int
    flush_ms_p50: float
    flush_ms_p99: float
    damage: tuple[str, ...] = ()
    backend: Literal["sqlite", "xtdb"] = "sqlite"
    projection: ProjectionStatus | None = None


class SandboxesStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All sandboxes together: how many are ``registered``, since when the ``oldest`` is (ms since 1970), and when the
    first lease ends unless it is renewed; null while connections hold them all. ``refused`` counts calls beyond a
    quota, like ``requests`` of those that are registered now."""

    registered: int = 0
    oldest: int | None = None
    next_end: int | None = None
    connections: int = 0
    requests: int = 0
    refused: int = 0


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Health and figures of the daemon. ``uptime_s`` counts seconds since it was ready; ``incarnation`` its starts.

    ``degraded``: ``store.reason`` or ``store.projection.reason`` says why.
    """

    version: str
    pid: int
    incarnation: int
    uptime_s: float
    state: Literal["ready", "degraded", "draining"]
    socket: str
    state_dir: str
    connections: int
    in_flight: int
    requests: int
    sessions_live: int
    objects_cached: int
    store: StoreStatus
    tracking: Watching = Watching(watcher=None)
    sandboxes: SandboxesStatus = SandboxesStatus()
