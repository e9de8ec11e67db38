"""Trackers: files that the daemon tracks on disk."""

from typing import Literal

import msgspec

TrackerState = Literal["attached", "orphaned", "resumed"]
"""``attached``: changes become versions without a call. ``orphaned``: changes are not detected; the newest version
stands. ``resumed``: attached again after it was orphaned."""

WatcherKind = Literal["inotify", "native", "polling"]
"""``native``: the system's mechanism if it is not inotify. ``polling``: a stat at intervals."""


class Tracker(msgspec.Struct, frozen=True, kw_only=True):
    """One tracked file. ``path`` is canonical. ``by`` is None while it is orphaned.

    ``reason``: the reason why it is orphaned or polled, else empty. ``since``: the start of its state, in ms since
    1970. ``sessions``: the number of sessions that it is tracked for.
    """

    object: str
    path: str
    state: TrackerState
    by: WatcherKind | None
    reason: str
    since: int
    sessions: int


class Watching(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of all trackers. ``watcher`` is None if tracking is switched off.

    ``directories``: those with tracked files. They have ``watches`` of the system; ``polled`` of them have no watch,
    and ``away`` are not tracked. ``overflows``: number of times that events were dropped and every file was checked.
    ``refused``: files above the limit, which are not tracked. ``events``: those of the system and of polling, and
    ``versions``: those stored for them, both since the daemon's start.
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
