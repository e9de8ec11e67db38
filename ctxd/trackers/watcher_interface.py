"""Interface of watchers: the directories they watch, and the events they deliver.

Events are hints: they may be late, duplicate or spurious, so the file itself is read before anything is stored. A
watcher never loses events silently: it reports watches that end and events that were dropped. Directories and names are
text as ``os.fsdecode`` gives it, so that bytes that are not UTF-8 survive.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import anyio
import msgspec
from anyio.abc import TaskStatus

from ctxd.trackers.tracked_files import Hint

Cause = Literal["missing", "limit", "denied", "remote", "escapes", "timeout", "side_effects", "unsupported"]
"""Reason why a directory is not watched. ``missing``: it does not exist. ``limit``: no watch is left. ``denied``: no
permission. ``remote``: changes by other hosts, or by the filesystem itself, are not reported. ``escapes``: its path
leads out of its mount. ``timeout``: its filesystem hangs. ``side_effects``: reading may change the files.
``unsupported``: any other reason."""


class Changed(msgspec.Struct, frozen=True):
    """The entry ``name`` of ``directory`` changed."""

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
    """The cause why a directory cannot be watched; ``why`` is its text."""

    cause: Cause
    why: str


WatcherKind = Literal["inotify", "native", "polling"]

WatcherChoice = Literal["auto", "inotify", "native", "polling"]
"""``auto``: inotify on Linux, the system's native mechanism elsewhere."""


Deliver = Callable[[Sequence[Event]], None]
"""Receives events, on the loop and in order. It must not raise."""

NamesOf = Callable[[str], Iterable[str]]
"""Returns the current names of interest in a directory."""

Report = Callable[[str, str, str], None]
"""Logs an event with its directory and reason."""


class Observer(Protocol):
    """The sessions that files are tracked for, as seen by the trackers."""

    async def changed(self, keys: Sequence[str]) -> Mapping[str, bool | None]:
        """Store the changes of the files ``keys``. Does not raise.

        Returns: for each key, whether the file is there, `None` if that is unknown; keys left out are reported again.
        """

    def is_busy(self, key: str) -> bool:
        """True if the report of a change should be deferred a little, because a session may be about to report it."""

    def keeps(self, session: str) -> bool:
        """True if the leases of ``session`` continue although it is inactive."""

    def room(self, session: str) -> int:
        """The number of additional files that may be tracked for ``session``; others are still never shown stale."""


class Watcher(Protocol):
    """Watches directories for changes of their entries, not recursively."""

    kind: WatcherKind

    async def run(self, deliver: Deliver, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Deliver events until cancelled; started once ``watch`` may be called. Nothing stays watched afterwards."""

    async def watch(self, directories: Sequence[str]) -> list[WatchRefused | None]:
        """Watch each of ``directories``. Returns: for each, `None` once later changes will be reported, or the refusal.

        A directory that is already watched, or given twice, is looked up again. A lookup on a filesystem that hangs
        times out, see ``ctxd.sources.hang_safe_lookups``. Cancel: some may be watched by then.
        """

    async def unwatch(self, directories: Sequence[str]) -> None:
        """Stop watching ``directories``; unwatched ones are ignored. Events already on their way may still arrive."""

    async def verify(self) -> dict[str, str]:
        """The watched directories whose path leads to a different directory, to none, or to a filesystem that hangs,
        each with the reason. Takes one stat each.

        No event reports that a parent was renamed, which moves the watched directory.
        """

    @property
    def watches(self) -> int:
        """The number of watches of the operating system that are held."""
