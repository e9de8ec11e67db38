"""Looking at paths in threads, of which a file system that hangs keeps few, and lets nobody wait for another one.

Owns what is being looked at, and knows where that hangs. A look that takes long gives its turn to others; one that
takes longer still is answered without its result, and until its thread is back nothing of that mount is looked at.
Promise: a mount that hangs costs those who ask about others no more than the time after which a look counts as long.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

import anyio

from ctxd.clock import Clock
from ctxd.mounts.mountinfo import OWN_MOUNTS, mounts_now
from ctxd.sources.way import Way, mount_of
from ctxd.workers import Workers

LONG_S: Final = 0.1
"""Seconds after which looking at one path, or at several in a row, gives its turn to others."""

HANGS_S: Final = 5.0
"""Seconds after which looking at one path is given up."""

LOOK_AGAIN_S: Final = 0.01
"""Seconds between two looks at whether what takes long has ended, and those for which the mounts are known."""

T = TypeVar("T")


class _Going(Protocol):
    """Looks that are under way."""

    ended: bool
    has_turn: bool
    way: Way | None

    @property
    def path(self) -> str: ...

    def hangs(self, limit_s: float) -> bool: ...


class _Looks(Generic[T]):
    """Looks at ``paths``, one after the other, in one thread. ``has_turn``: it is not known to take long."""

    def __init__(self, look: Callable[[str], T], paths: Sequence[str], now: Callable[[], float]) -> None:
        self._look = look
        self._now = now
        self._paths = paths
        self._began = self._now()
        self.answers: list[T] = []
        self.has_turn = True
        self.ended = False
        self.given_up = False
        self.bug: BaseException | None = None
        self.way: Way | None = None

    def run(self) -> None:
        """Look. Called in a thread."""
        try:
            for path in self._paths:
                self._began = self._now()
                answer = self._look(path)
                if self.given_up:
                    break
                self.answers.append(answer)
        except BaseException as error:  # noqa: BLE001 - raised on the loop, also when nobody waits for the thread
            self.bug = error
        finally:
            self.ended = True

    @property
    def path(self) -> str:
        """The one that it is at."""
        return self._paths[min(len(self.answers), len(self._paths) - 1)]

    def hangs(self, limit_s: float) -> bool:
        """Whether it has been at one path for longer than ``limit_s``."""
        return not self.ended and self._now() - self._began > limit_s


class _Asked(Generic[T]):
    """What is ``left`` to look at of ``paths``, by number, and the ``answers`` for the others."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.left = dict(enumerate(paths))
        self.answers: dict[int, T] = {}

    def answer(self, answers: Mapping[int, T]) -> None:
        """Take ``answers`` for some of what is left."""
        self.answers |= answers
        for number in answers:
            del self.left[number]

    def take(self, looks: _Looks[T]) -> None:
        """Take what ``looks`` at all that was left have found so far. Raises: what looking did."""
        if looks.bug is not None:
            raise looks.bug
        self.answer(dict(zip(tuple(self.left), tuple(looks.answers), strict=False)))


class Threads:
    """At most ``count`` looks at once, and as many more on each mount that take long there."""

    def __init__(
        self, clock: Clock, count: int, *, long_s: float = LONG_S, hangs_s: float = HANGS_S, mounts: str = OWN_MOUNTS
    ) -> None:
        self._clock = clock
        self._count = count
        self._long_s = long_s
        self._hangs_s = hangs_s
        self._mounts = mounts
        self._turns = anyio.Semaphore(count, fast_acquire=True)
        self._workers = Workers()
        self._going: list[_Going] = []
        self._mount_points: frozenset[str] = frozenset()
        self._known_until = 0.0

    async def each(self, paths: Sequence[str], look: Callable[[str], T], hung: Callable[[str], T]) -> list[T]:
        """What ``look`` answers for each of ``paths``, and ``hung`` where looking hangs.

        ``look`` changes nothing and is called in a thread, perhaps still when this has returned.
        Raises: what ``look`` does. Cancel: safe, and at once.
        """
        asked = _Asked[T](paths)
        pause_s = LOOK_AGAIN_S
        while asked.left:
            async with self._turns:
                looks = self._looks(asked, look, hung)
                if looks is not None:
                    await self._begin(looks)
            if looks is not None:
                pause_s = LOOK_AGAIN_S
                await self._end(looks)
                asked.take(looks)
            elif asked.left:
                # Very many may wait for one mount: together they may not keep the loop busy.
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, LONG_S)
        return [asked.answers[number] for number in range(len(paths))]

    def _looks(self, asked: _Asked[T], look: Callable[[str], T], hung: Callable[[str], T]) -> _Looks[T] | None:
        """What is to be looked at of what is ``asked``, of which that is answered at which looking hangs; null if that
        is nothing for now."""
        if self._is_crowded(asked.left.values()):
            return None
        ways = self._hanging()
        if places := [way.place for way in ways]:
            asked.answer({number: hung(path) for number, path in asked.left.items() if _is_at(path, places)})
            if not asked.left:
                return None
        return _Looks(self._except_at(ways, look, hung), list(asked.left.values()), self._clock.monotonic)

    async def _begin(self, looks: _Looks[T]) -> None:
        """Look until that takes long."""
        ended = self._workers.give(looks.run)
        self._going = [*(each for each in self._going if not each.ended), looks]
        try:
            with anyio.move_on_after(self._long_s):
                await ended.wait()
        finally:
            looks.has_turn = False

    async def _end(self, looks: _Looks[T]) -> None:
        """Wait until all is looked at, or one path hangs."""
        while not looks.ended:
            if looks.hangs(self._hangs_s):
                looks.given_up = True
                return
            if looks.hangs(self._long_s) and (looks.way is None or looks.way.path != looks.path):
                await self._follow(looks)
            else:
                await self._clock.sleep(LOOK_AGAIN_S)

    async def _follow(self, looks: _Looks[T]) -> None:
        """Find out where ``looks`` are: in a thread of its own, which may hang there too."""
        looks.way = way = Way(looks.path, self._mounted())
        with anyio.move_on_after(self._long_s):
            await self._workers.give(way.follow).wait()

    def hanging(self) -> tuple[str, ...]:
        """Where looking hangs now, with all that is below: mounts, and symlinks that lead to one; on the root's, the
        directory of a path, or the path itself if that is next to all others."""
        return tuple({way.place for way in self._hanging()})

    def _hanging(self) -> list[Way]:
        return [self._way_of(each) for each in self._going if each.hangs(self._hangs_s)]

    def _except_at(self, ways: Sequence[Way], look: Callable[[str], T], hung: Callable[[str], T]) -> Callable[[str], T]:
        """``look``, and ``hung`` for a path of any name that leads to a mount at which one of ``ways`` hangs."""
        hanging = frozenset(way.hung for way in ways if way.hung is not None)
        if not hanging:
            return look
        mounts = self._mounted()
        return lambda path: hung(path) if Way(path, mounts).follow(hanging) else look(path)

    def _is_crowded(self, paths: Collection[str]) -> bool:
        """Whether as many looks as there may be take long on a mount of those that ``paths`` are on."""
        long = [each for each in self._going if not (each.ended or each.has_turn or each.hangs(self._hangs_s))]
        if len(long) < self._count:
            return False
        ways = [self._way_of(each) for each in long]
        looks = Counter(way.mount for way in ways)
        crowded = {mount for mount, count in looks.items() if count >= self._count}
        if not crowded:
            return False
        behind_links = tuple({way.place for way in ways if way.mount in crowded and way.mount != "/"})
        mounts = self._mounted()
        # A path that is itself a mount point is on that mount; all others are where their directory is.
        directories = {path if path in mounts else os.path.dirname(path) for path in paths}
        if any(mount_of(directory, mounts) in crowded for directory in directories):
            return True
        return any(_is_at(path, behind_links) for path in paths)

    def _way_of(self, looks: _Going) -> Way:
        way = looks.way
        return way if way is not None and way.path == looks.path else Way(looks.path, self._mounted())

    def _mounted(self) -> frozenset[str]:
        """Where something is mounted."""
        now = self._clock.monotonic()
        if now >= self._known_until:
            self._mount_points = frozenset(mounted.mount_point for mounted in mounts_now(self._mounts))
            self._known_until = now + LOOK_AGAIN_S
        return self._mount_points


def _is_at(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def inside(directory: str) -> str:
    """A path that leads to ``directory``, and by which it is itself the place that hangs, not the one above."""
    return os.path.join(directory, ".")
