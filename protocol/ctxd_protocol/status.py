"""The daemon's state as ``daemon.status`` reports it."""

from typing import Literal

import msgspec


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The journal: newest sequence and chain hash, rows waiting for their flush, and whether writes are taken.

    ``reason`` says what is wrong, empty if nothing is. ``state`` may be ``ok`` all the same: then writes are taken.
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


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Health and figures of the daemon. ``uptime_s`` counts seconds since it was ready; ``incarnation`` its starts.

    ``degraded``: ``store.reason`` says why.
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
