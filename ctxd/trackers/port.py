"""What tells of changes in directories, as trackers use it.

A watcher's word is a hint: it may come late, twice, or for nothing, and the file itself is asked before anything is
stored. What it owes is that it never goes deaf in silence: a watch that ends, and events that were lost, are told.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

import anyio
from anyio.abc import TaskStatus

from ctxd.trackers.events import Event, Refused

WatcherKind = Literal["inotify", "native", "polling"]


Deliver = Callable[[Sequence[Event]], None]
"""Takes events, on the loop and in order. It does not raise."""

NamesOf = Callable[[str], Iterable[str]]
"""The names of interest in a directory, as they are now."""

Escapes = Callable[[str, str], bool]
"""Whether a path that leads to the second one leads out of the directory that it is confined to."""


class Watcher(Protocol):
    """Watches directories for changes of their entries, not of what lies below those."""

    kind: WatcherKind

    async def run(self, deliver: Deliver, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Hand over events until cancelled; started once ``watch`` may be called. Nothing stays watched afterwards."""

    async def watch(self, directories: Sequence[str]) -> list[Refused | None]:
        """Watch each of ``directories``; for each, null once every later change will be told, or why not.

        One that is watched already, or named twice, is looked at anew. A file system that hangs is given up, see
        ``ctxd.sources.lookups``. Cancel: some may be watched then.
        """

    async def unwatch(self, directories: Sequence[str]) -> None:
        """Watch ``directories`` no more; one that is not watched is passed over. Events under way may still come."""

    async def verify(self) -> dict[str, str]:
        """Those watched whose path leads to another directory than the one watched, or to none, or where nothing
        answers; of each, which. One stat each.

        A directory above that is renamed takes the watched one along, and no event tells of it.
        """

    @property
    def watches(self) -> int:
        """How many watches of the operating system this holds."""
