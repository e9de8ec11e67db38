"""The daemon's state, as reported by ``daemon.status``."""

from typing import Literal

import msgspec

from ctxd_protocol.tracker_types import Watching


class ProjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of the projection to the XTDB node at ``url``: it has rows up to ``seq``, ``lag_rows`` behind the journal.

    ``projecting``: rows are being sent. ``connecting``: not connected yet. ``unreachable``: the node does not respond.
    ``failed``: the node no longer indexes. ``stopped``: the node has another journal's rows. ``reason``: the fault,
    empty without one. ``lag_s``: the age of the oldest waiting row. ``backlog_share``: the used share of the backlog
    limit: writes are slowed down from 0.8 and refused at 1. ``quarantined``: the first hundred rows that the node
    rejects. Acknowledged writes do not depend on the projection.
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
    """State of the journal: newest sequence and chain hash, rows that wait for their flush, and acceptance of writes.

    ``reason``: the fault, empty without one; if ``state`` is ``ok``, writes are accepted in spite of it.
    ``damage``: findings of the checks at start and of the background scrub, at most a hundred; ``ctxd verify``
    finds all. ``scrubbed_seq``: the row that the scrub has reached; ``scrubbed_ms``: the end of its last full pass
    since the start, in ms since 1970, None before the first.
    ``projection`` is present with ``backend`` ``xtdb`` only.
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
    scrubbed_seq: int = 0
    scrubbed_ms: int | None = None
    backend: Literal["sqlite", "xtdb"] = "sqlite"
    projection: ProjectionStatus | None = None


class SearchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of the search index: it has journal rows up to ``seq``, ``lag_rows`` behind the journal, and takes
    ``bytes`` of disk space at ``path``, which is empty while the index is being opened.

    ``behind``: rows are waiting. ``failing``: indexing failed for ``reason`` and is retried. Writes do not depend on
    the index.
    """

    state: Literal["current", "behind", "failing"] = "behind"
    reason: str = ""
    seq: int = 0
    lag_rows: int = 0
    bytes: int = 0
    path: str = ""


class SandboxesStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of all sandboxes: the number ``registered``, the time at which the ``oldest`` was registered, and
    ``next_end``, the next expiry of a lease unless it is renewed, None while connections hold all leases (ms since
    1970). ``refused`` counts calls above a quota, ``requests`` all calls, of the sandboxes registered now."""

    registered: int = 0
    oldest: int | None = None
    next_end: int | None = None
    connections: int = 0
    requests: int = 0
    refused: int = 0


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Health and statistics of the daemon.

    ``uptime_s``: seconds since it was ready. ``incarnation``: count of its starts on this state.
    ``degraded``: ``store.reason`` or ``store.projection.reason`` has the cause.
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
    search: SearchStatus = SearchStatus()
