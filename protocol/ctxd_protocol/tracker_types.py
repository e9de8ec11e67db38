"""Trackers: files that the daemon follows on disk.

A module of its own, because the status and ``tracker.list`` both report them.
"""

from typing import Literal

import msgspec

TrackerState = Literal["attached", "orphaned", "resumed"]
"""``attached``: changes become versions without a call. ``orphaned``: changes are not noticed now; the newest version
stands. ``resumed``: attached again after it was orphaned."""

WatcherKind = Literal["inotify", "native", "polling"]
"""``native``: the system's mechanism where it is not inotify. ``polling``: a stat at intervals."""


class Tracker(msgspec.Struct, frozen=True, kw_only=True):
    """One followed file. ``path`` is canonical. ``by`` is None while it is orphaned.

    ``reason``: why it is orphaned or polled, else empty. ``since``: the start of its state, in ms since 1970.
    ``sessions``: the number of sessions it is followed for.
    """

    object: str
    path: str
    state: TrackerState
    by: WatcherKind | None
    reason: str
    since: int
    sessions: int


class Watching(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of all trackers. ``watcher`` is None if following is switched off.

    ``directories``: those that hold followed files, with ``watches`` of the system; ``polled`` of them have none, and
    ``away`` do not exist. ``overflows``: the times that events were dropped and every file was checked. ``refused``:
    files above the limit, not followed. ``events`` of the system and of polling, and ``versions`` stored for them:
    both since the daemon's start.
    """

    watcher: WatcherKind | None
    files: int = 0
    directories: int = 0
    watches: int = 0
    polled: int = 0
    away: int = 0
    overflows: int = 0
    refused: int = 0
    events: int = 0
    versions: int = 0
