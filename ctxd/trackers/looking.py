"""Looking at what is tracked, and giving up where that hangs.

Owns the means by which trackers look at paths, and knows which mounts do not answer. A symlink is looked at by the path
that it leads to, so that one into a mount that hangs says nothing of its neighbours.
"""

import os
from collections.abc import Callable, Container, Sequence
from itertools import chain
from typing import Final

from ctxd.clock import Clock
from ctxd.sources.lookups import Lookups, inside
from ctxd.trackers.following import Tell
from ctxd.trackers.places import Entry, Identity, entry_of, identity_at
from ctxd.trackers.port import Escapes
from ctxd.trackers.tracked import UNANSWERED

THREADS: Final = 2
"""Lookups that look at once, and on each mount those for which looking takes long."""

MOVED: Final = "it was moved or replaced"


class Hanging:
    """Tells once of each place at which looking by ``threads`` hangs, and once when it answers again."""

    def __init__(self, lookups: Lookups, tell: Tell) -> None:
        self._lookups = lookups
        self._tell = tell
        self._told: frozenset[str] = frozenset()

    def note(self) -> bool:
        """Tell of what began and ended since. Returns: whether anything hangs."""
        now = frozenset(self._lookups.hanging())
        for place in sorted(now - self._told):
            self._tell("tracker.unanswered", place, "its file system does not answer; nothing below is followed")
        for place in sorted(self._told - now):
            self._tell("tracker.answers", place, "its file system answers again")
        self._told = now
        return bool(now)


def looking(clock: Clock) -> Lookups:
    """The threads of one daemon's trackers: what hangs for one of them is known to all."""
    return Lookups(clock, THREADS)


async def entries_at(lookups: Lookups, paths: Sequence[str], escapes: Escapes, mounted: Container[str]) -> list[Entry]:
    """The entry of each of ``paths``, see ``entry_of``; one that does not ``answer`` where looking hangs."""

    def near(path: str) -> Entry | str:
        """The entry, or where a symlink leads."""
        try:
            return os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        except (OSError, ValueError):
            return entry_of(path, escapes, mounted)

    found = await lookups.each(paths, near, _hung)
    leading: dict[str, list[str]] = {}
    for path, answer in zip(paths, found, strict=True):
        if isinstance(answer, str):
            leading.setdefault(answer, []).append(path)
    if not leading:
        return [answer for answer in found if isinstance(answer, Entry)]

    def far(target: str) -> list[Entry]:
        return [entry_of(path, escapes, mounted) for path in leading[target]]

    led = await lookups.each(list(leading), far, lambda target: [_hung(path) for path in leading[target]])
    linked = dict(zip((path for each in leading.values() for path in each), chain.from_iterable(led), strict=True))
    return [answer if isinstance(answer, Entry) else linked[path] for path, answer in zip(paths, found, strict=True)]


def _hung(path: str) -> Entry:
    return Entry((os.path.split(path),), answers=False)


async def moved_among(lookups: Lookups, known: Sequence[tuple[str, Identity]]) -> dict[str, str]:
    """Those directories that are not what they were, and why: see ``ctxd.trackers.port.Watcher.verify``."""
    look: Callable[[str], Identity | str | None] = identity_at
    found = await lookups.each([inside(directory) for directory, _ in known], look, lambda path: UNANSWERED)
    return {
        directory: now if isinstance(now, str) else MOVED
        for (directory, identity), now in zip(known, found, strict=True)
        if now != identity
    }
