"""Port for watchers: what they watch, and the events they deliver.

Events are hints: one may come late, twice, or for nothing, and the file itself is looked at before anything is stored.
A watcher never goes deaf in silence: a watch that ends, and events that were dropped, are reported. Directories and
names are text as ``os.fsdecode`` gives it, so that bytes that are not UTF-8 survive.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import anyio
import msgspec
from anyio.abc import TaskStatus

from ctxd.trackers.tracked_files import Hint

Cause = Literal["missing", "limit", "denied", "remote", "escapes", "unanswered", "fleeting", "unsupported"]
"""Why a directory is not watched: it is not there; no watch is left; no permission; changes that others make, or its
file system itself, are not reported here; its path leads out of its mount; its file system does not answer; looking
changes what is there; anything else."""


class Changed(msgspec.Struct, frozen=True):
    """Something became of the entry ``name`` of ``directory``."""

    directory: str
    name: str
    hint: Hint


class WatchLost(msgspec.Struct, frozen=True):
    """The watch of ``directory`` has ended: it was deleted, moved or unmounted."""

    directory: str
    reason: str


class Overflowed(msgspec.Struct, frozen=True):
    """Events were dropped: any watched entry may have changed."""


Event = Changed | WatchLost | Overflowed


class WatchRefused(msgspec.Struct, frozen=True):
    """Why a directory cannot be watched; ``why`` is for a person."""

    cause: Cause
    why: str


WatcherKind = Literal["inotify", "native", "polling"]

WatcherChoice = Literal["auto", "inotify", "native", "polling"]
"""``auto``: inotify on Linux, the system's own means elsewhere."""


Deliver = Callable[[Sequence[Event]], None]
"""Takes events, on the loop and in order. It does not raise."""

NamesOf = Callable[[str], Iterable[str]]
"""The names of interest in a directory, as they are now."""

Report = Callable[[str, str, str], None]
"""Logs an event with its directory and reason."""


class Observer(Protocol):
    """The sessions that files are tracked for, as trackers see them."""

    async def changed(self, keys: Sequence[str]) -> Mapping[str, bool | None]:
        """Store the changes of the files ``keys``. Does not raise.

        Returns: for each whether it is there, `None` if that is unknown; one that is left out is reported again.
        """

    def is_busy(self, key: str) -> bool:
        """True if a change of the file had better be reported a little later: its session may be about to do so."""

    def keeps(self, session: str) -> bool:
        """True if the leases of ``session`` go on though it has done nothing."""

    def room(self, session: str) -> int:
        """The number of further files that may be tracked for ``session``; others are still never shown stale."""


class Watcher(Protocol):
    """Watches directories for changes of their entries, not of what lies below those."""

    kind: WatcherKind

    async def run(self, deliver: Deliver, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Hand over events until cancelled; started once ``watch`` may be called. Nothing stays watched afterwards."""

    async def watch(self, directories: Sequence[str]) -> list[WatchRefused | None]:
        """Watch each of ``directories``; for each, `None` once every later change will be reported, or why not.

        One that is watched already, or named twice, is looked at anew. A file system that hangs is given up, see
        ``ctxd.sources.path_lookups``. Cancel: some may be watched then.
        """

    async def unwatch(self, directories: Sequence[str]) -> None:
        """Watch ``directories`` no more; one that is not watched is passed over. Events under way may still come."""

    async def verify(self) -> dict[str, str]:
        """Those watched whose path leads to another directory than the one watched, or to none, or where nothing
        answers; of each, which. One stat each.

        A directory above that is renamed takes the watched one along, and no event reports it.
        """

    @property
    def watches(self) -> int:
        """The number of watches of the operating system that are held."""
