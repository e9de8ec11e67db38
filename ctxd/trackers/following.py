"""How each directory is followed: by the system if it can be, else by looking, or not at all while it is not there.

Owns which directories are looked at, and tells every change of mode with its reason. The promise: a directory is
never called watched or looked at unless it is.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ctxd.clock import Clock
from ctxd.trackers.events import Refused
from ctxd.trackers.port import Watcher
from ctxd.trackers.tracked import UNANSWERED, Mode, Tracked

_NOT_LOOKED_AT: Final = ("missing", "escapes", "unanswered", "fleeting")

Tell = Callable[[str, str, str], None]
"""Takes what is to be logged: what happened, to which directory, and why."""


def silently(event: str, directory: str, reason: str) -> None:
    """Log nothing."""


class Following:
    """Follows directories of ``tracked`` by ``watcher``, and by ``polling`` what that cannot tell of.

    ``emptied``: directories that no file needs any more, for ``give_up``. Its methods are called one at a time.
    """

    def __init__(self, clock: Clock, tracked: Tracked, watcher: Watcher, polling: Watcher, tell: Tell) -> None:
        self.watcher = watcher
        self.polling = polling
        self.emptied: dict[str, None] = {}
        self._clock = clock
        self._tracked = tracked
        self._tell = tell
        self._polled: set[str] = set()

    def anew(self) -> None:
        """Neither watcher has run yet, or both have ended: nothing is followed."""
        now_ms = self._clock.wall_ms()
        for directory in self._tracked.directories:
            self._tracked.follow(directory, "away", "watching starts anew", now_ms)
        self._polled.clear()

    def lose(self, directory: str, reason: str) -> None:
        """The watch of ``directory`` has ended by itself."""
        self._polled.discard(directory)
        if self._tracked.follow(directory, "away", reason, self._clock.wall_ms()) and reason != UNANSWERED:
            self._tell("tracker.lost", directory, reason)

    async def moved(self) -> dict[str, str]:
        """Those whose path leads to another directory now, or to none, and why; they are watched no more."""
        moved = await self.watcher.verify()
        if moved:
            await self.watcher.unwatch(list(moved))
        return moved

    async def give_up(self) -> None:
        """Follow what was ``emptied`` no more."""
        emptied = [directory for directory in self.emptied if directory not in self._tracked.directories]
        self.emptied.clear()
        if emptied:
            await self.watcher.unwatch(emptied)
            await self._stop_polling(emptied)

    async def watch(self, directories: Sequence[str]) -> list[str]:
        """Have ``directories`` watched, or else looked at. Returns: those that are followed now and were not before."""
        returned: list[str] = []
        degraded: dict[str, Refused] = {}
        answers = await self.watcher.watch(directories)
        for directory, refused in zip(directories, answers, strict=True):
            if refused is None:
                if self._follow(directory, None):
                    returned.append(directory)
            elif refused.cause in _NOT_LOOKED_AT:
                self._follow(directory, refused, polled=False)
            else:
                degraded[directory] = refused
        found = await self.poll(list(degraded)) if degraded else {}
        for directory, refused in degraded.items():
            if self._follow(directory, found.get(directory, refused), polled=directory not in found):
                returned.append(directory)
        mended = [directory for directory in returned if directory not in degraded]
        needed = {directory: bool(self._tracked.looked_at(directory)) for directory in mended}
        await self._stop_polling([directory for directory in mended if not needed[directory]])
        await self.poll([directory for directory in mended if needed[directory]])
        return returned

    def _follow(self, directory: str, refused: Refused | None, *, polled: bool = True) -> bool:
        kept = self._tracked.directories.get(directory)
        if kept is None:
            self.emptied[directory] = None
            return False
        before, now_ms = kept.mode, self._clock.wall_ms()
        # A mount that hangs is told of once, not with each of its directories.
        was_hanging = kept.reason == UNANSWERED
        mode: Mode = "watched" if refused is None else "polled" if polled else "away"
        reason = "" if refused is None else refused.why
        if not self._tracked.follow(directory, mode, reason, now_ms):
            return False
        if reason == UNANSWERED or (was_hanging and mode == "watched"):
            return mode != "away"
        if mode != "watched":
            self._tell(f"tracker.{mode}", directory, reason)
        elif before != "new":
            self._tell("tracker.watched", directory, "it can be watched again")
        return mode != "away"

    async def poll(self, directories: Sequence[str]) -> dict[str, Refused]:
        """Have ``directories`` looked at. Returns: those that cannot be."""
        wanted = [directory for directory in directories if directory not in self._polled]
        if not wanted:
            return {}
        answers = await self.polling.watch(wanted)
        refused = {each: answer for each, answer in zip(wanted, answers, strict=True) if answer is not None}
        self._polled |= set(wanted) - refused.keys()
        return refused

    async def _stop_polling(self, directories: Sequence[str]) -> None:
        if polled := [directory for directory in directories if directory in self._polled]:
            self._polled -= set(polled)
            await self.polling.unwatch(polled)
