"""Which files the daemon follows by itself, and how."""

from typing import Literal

import msgspec

TrackerState = Literal["attached", "orphaned", "resumed"]
"""``attached``: a change becomes a version by itself. ``orphaned``: nothing tells of changes now; the newest version
stands. ``resumed``: attached again after it was orphaned."""

WatcherKind = Literal["inotify", "native", "polling"]
"""``native``: what the system has instead of inotify. ``polling``: the file is looked at, at intervals."""


class Tracker(msgspec.Struct, frozen=True, kw_only=True):
    """One followed file. ``path`` is canonical. ``by`` is null while it is orphaned.

    ``reason``: why it is orphaned, or is only looked at; empty if nothing is amiss. ``since``: when its state began, in
    ms since 1970. ``sessions``: for how many it is followed.
    """

    object: str
    path: str
    state: TrackerState
    by: WatcherKind | None
    reason: str
    since: int
    sessions: int


class Watching(msgspec.Struct, frozen=True, kw_only=True):
    """All trackers in figures. ``watcher`` null: nothing is followed, by configuration.

    ``directories`` hold followed files; ``watches`` of the system are held for them; ``polled`` of them are looked at
    instead; ``away`` are not there. ``overflows``: how often events were dropped and every file was looked at.
    ``refused``: files not followed because there are too many. ``events``: what the system and the looks told of, and
    ``versions``: how many versions were stored for that, both since the daemon's start.
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
