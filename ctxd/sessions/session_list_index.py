"""Index of sessions by the filters of a listing: for each key, the places of its sessions in the order of the list.

A page is read from the shortest list that contains all matches, from the cursor on, so that its cost does not grow with
the number of sessions. Pure.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import groupby
from typing import Final, Literal, NamedTuple

from ctxd.sessions.project_match import Key

Group = Literal["listed", "archived", "removed"]
"""A group of sessions: a listing shows one."""

GROUPS: Final[tuple[Group, ...]] = ("listed", "archived", "removed")


class ListPlace(NamedTuple):
    """The place of a session in the list, which is in descending order."""

    began_at: int
    ordinal: int
    session: str


class IndexedSession(NamedTuple):
    """A session in the index. ``at``: time of its last event, in ms. ``keys``: those by which it can be found."""

    place: ListPlace
    group: Group
    at: int
    keys: frozenset[Key]


class Candidates(NamedTuple):
    """A superset of the places of matching sessions: ascending lists, or the range ``times`` of positions in the list
    by last event.

    ``size``: the maximum number of places.
    """

    size: int
    lists: tuple[list[ListPlace], ...] = ()
    times: tuple[int, int] | None = None


class SessionIndex:
    """The lists of all groups."""

    def __init__(self) -> None:
        self._entries: dict[str, IndexedSession] = {}
        self._lists: dict[Group, dict[Key, list[ListPlace]]] = {group: {(): []} for group in GROUPS}
        self._by_time: dict[Group, list[tuple[int, ListPlace]]] = {group: [] for group in GROUPS}

    def put(self, entry: IndexedSession) -> None:
        """Add ``entry``, or replace the session's entry. Cost: proportional to the changed keys."""
        before = self._entries.get(entry.place.session)
        if before is not None and (before.place, before.group) == (entry.place, entry.group):
            if before.at != entry.at:
                _remove(self._by_time[entry.group], (before.at, before.place))
                insort(self._by_time[entry.group], (entry.at, entry.place))
            if before.keys != entry.keys:
                self._leave(entry.group, entry.place, before.keys - entry.keys)
                self._enter(entry.group, entry.place, entry.keys - before.keys)
        else:
            self.discard(entry.place.session)
            self._enter(entry.group, entry.place, [(), *entry.keys])
            insort(self._by_time[entry.group], (entry.at, entry.place))
        self._entries[entry.place.session] = entry

    def discard(self, session: str) -> None:
        """Remove ``session``. No effect if it is unknown."""
        before = self._entries.pop(session, None)
        if before is not None:
            self._leave(before.group, before.place, [(), *before.keys])
            _remove(self._by_time[before.group], (before.at, before.place))

    def place(self, session: str) -> ListPlace | None:
        """Return the place of ``session``, None if it is unknown."""
        found = self._entries.get(session)
        return None if found is None else found.place

    def last_event(self, session: str) -> int:
        """Return the time of the last event of ``session``, which must be in the index."""
        return self._entries[session].at

    def keyed(self, group: Group, keys: Iterable[Key]) -> Candidates:
        """Return the sessions of ``group`` with at least one of ``keys``."""
        found = [found for key in dict.fromkeys(keys) if (found := self._lists[group].get(key))]
        return Candidates(sum(map(len, found)), tuple(found))

    def within(self, group: Group, since: int, until: int) -> Candidates:
        """Return the sessions of ``group`` whose last event is from ``since`` to ``until``, both inclusive."""
        ordered = self._by_time[group]
        start, end = bisect_left(ordered, (since,)), bisect_left(ordered, (until + 1,))
        return Candidates(max(0, end - start), times=(start, end))

    def among(self, group: Group, sessions: Iterable[str]) -> Candidates:
        """Return the ``sessions`` that are in ``group``."""
        entries = (self._entries.get(session) for session in sessions)
        found = sorted(entry.place for entry in entries if entry is not None and entry.group == group)
        return Candidates(len(found), (found,))

    def walk(self, group: Group, candidates: Candidates, before: tuple[int, int] | None) -> Iterator[ListPlace]:
        """Yield the places of ``candidates`` in the order of the list, after ``before``, a time and an ordinal."""
        lists = candidates.lists
        if candidates.times is not None:
            start, end = candidates.times
            lists = (sorted(place for _, place in self._by_time[group][start:end]),)
        walks = [_backwards(each, before) for each in lists]
        return walks[0] if len(walks) == 1 else (place for place, _ in groupby(merge(*walks, reverse=True)))

    def _enter(self, group: Group, place: ListPlace, keys: Iterable[Key]) -> None:
        for key in keys:
            insort(self._lists[group].setdefault(key, []), place)

    def _leave(self, group: Group, place: ListPlace, keys: Iterable[Key]) -> None:
        for key in keys:
            found = self._lists[group][key]
            del found[bisect_left(found, place)]
            if key and not found:
                del self._lists[group][key]


def count_matches(places: Iterator[ListPlace], passes: Callable[[str], bool], most: int) -> int:
    """Return how many of the first ``most`` of ``places`` pass."""
    return sum(passes(place.session) for _, place in zip(range(most), places, strict=False))


def _backwards(places: list[ListPlace], before: tuple[int, int] | None) -> Iterator[ListPlace]:
    end = len(places) if before is None else bisect_left(places, before)
    return map(places.__getitem__, range(end - 1, -1, -1))


def _remove(ordered: list[tuple[int, ListPlace]], item: tuple[int, ListPlace]) -> None:
    del ordered[bisect_right(ordered, item) - 1]
