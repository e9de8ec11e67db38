"""Which watcher this system has, and the trackers over it."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Literal

from ctxd.clock import Clock
from ctxd.sources.lookups import Lookups
from ctxd.trackers.following import Tell, silently
from ctxd.trackers.looking import looking
from ctxd.trackers.native import NativeWatcher
from ctxd.trackers.places import never
from ctxd.trackers.polling import PollingWatcher
from ctxd.trackers.port import Escapes, Watcher
from ctxd.trackers.tracked import Tracked
from ctxd.trackers.tracker import FILES_MAX, FileTrackers

Choice = Literal["auto", "inotify", "native", "polling"]
"""``auto``: inotify on Linux, the system's own means elsewhere."""


def file_trackers(
    clock: Clock,
    *,
    choice: Choice = "auto",
    escapes: Escapes = never,
    tell: Tell = silently,
    keeps: Callable[[str], bool] = lambda session: False,
    room: Callable[[Tracked, str], int] = lambda tracked, session: FILES_MAX,
) -> FileTrackers:
    """Trackers that watch by ``choice``; ``room`` is told what is tracked too; for the rest see
    ``FileTrackers``. Run them."""
    tracked = Tracked()
    lookups = looking(clock)
    watcher = _watcher(choice, clock, tracked, escapes, lookups)
    polling = PollingWatcher(clock, tracked.looked_at, lookups=lookups)
    return FileTrackers(
        clock,
        tracked,
        watcher,
        polling,
        escapes=escapes,
        tell=tell,
        keeps=keeps,
        room=partial(room, tracked),
        lookups=lookups,
    )


def _watcher(choice: Choice, clock: Clock, tracked: Tracked, escapes: Escapes, lookups: Lookups) -> Watcher:
    if choice == "polling":
        return PollingWatcher(clock, tracked.names, lookups=lookups)
    if sys.platform == "linux" and choice != "native":
        from ctxd.trackers.inotify import InotifyWatcher

        return InotifyWatcher(escapes=escapes, lookups=lookups)
    return NativeWatcher(clock, tracked.names, escapes=escapes, lookups=lookups)
