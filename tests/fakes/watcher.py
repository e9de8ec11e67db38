"""A watcher over directories in memory, which a test changes and whose watches it ends. Passes the suite."""

import posixpath
from collections.abc import Sequence

import anyio
from anyio.abc import TaskStatus

from ctxd.trackers.tracked_files import Hint
from ctxd.trackers.watcher_interface import Changed, Deliver, Event, Overflowed, WatcherKind, WatchLost, WatchRefused


class FakeWatcher:
    """See ``ctxd.trackers.watcher_interface.Watcher``.

    ``refusing``: what ``watch`` answers for a directory; ``asked`` counts.
    """

    def __init__(self, kind: WatcherKind = "inotify") -> None:
        self.kind: WatcherKind = kind
        self.refusing: dict[str, WatchRefused] = {}
        self.asked = 0
        self._identities: dict[str, int] = {"/": 0}
        self._files: dict[str, None] = {}
        self._watched: dict[str, int] = {}
        self._made = 0
        self._deliver: Deliver | None = None

    # --- the port ---

    async def run(self, deliver: Deliver, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        self._deliver = deliver
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            self._deliver = None
            self._watched.clear()

    async def watch(self, directories: Sequence[str]) -> list[WatchRefused | None]:
        await anyio.lowlevel.checkpoint()
        self.asked += len(directories)
        return [self._watch(directory) for directory in directories]

    def _watch(self, directory: str) -> WatchRefused | None:
        if (refused := self.refusing.get(directory)) is not None:
            return refused
        if directory not in self._identities:
            return WatchRefused("missing", "the directory is not there")
        self._watched[directory] = self._identities[directory]
        return None

    async def unwatch(self, directories: Sequence[str]) -> None:
        await anyio.lowlevel.checkpoint()
        for directory in directories:
            self._watched.pop(directory, None)

    async def verify(self) -> dict[str, str]:
        await anyio.lowlevel.checkpoint()
        known = self._watched.items()
        return {each: "it was moved" for each, identity in known if self._identities.get(each) != identity}

    @property
    def watches(self) -> int:
        return len(set(self._watched.values()))

    # --- the world ---

    def mkdir(self, path: str) -> None:
        """Make a directory, and those above it."""
        if path not in self._identities:
            self.mkdir(posixpath.dirname(path))
            self._made += 1
            self._identities[path] = self._made
            self.tell(path, "directory")

    def write(self, path: str) -> None:
        """Make a file or change it."""
        self.mkdir(posixpath.dirname(path))
        self._files[path] = None
        self.tell(path, "written")

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        self._files.pop(path, None)
        for each in [each for each in self._identities if each == path or each.startswith(f"{path}/")]:
            del self._identities[each]
            if self._watched.pop(each, None) is not None:
                self._send(WatchLost(each, "it was deleted"))
        self._files = {each: None for each in self._files if not each.startswith(f"{path}/")}
        self.tell(path, "gone")

    def rename(self, old: str, new: str) -> None:
        """Move a file over what is there, or a directory."""
        moved_file = self._files.pop(old, self) is None
        self.tell(old, "gone" if moved_file else "directory")
        if moved_file:
            self.write(new)
            return
        for each in [each for each in self._identities if each == old or each.startswith(f"{old}/")]:
            self._identities[new + each.removeprefix(old)] = self._identities.pop(each)
        for each in [each for each in self._files if each.startswith(f"{old}/")]:
            self._files[new + each.removeprefix(old)] = self._files.pop(each)
        if self._watched.pop(old, None) is not None:
            self._send(WatchLost(old, "it was moved"))
        self.tell(new, "directory")

    def link(self, path: str, target: str) -> None:
        """Let ``path`` lead to the directory ``target`` too."""
        self._identities[path] = self._identities[target]

    def overflow(self) -> None:
        """Drop events."""
        self._send(Overflowed())

    def end(self, directory: str, reason: str) -> None:
        """End a watch, as an unmount does."""
        if self._watched.pop(directory, None) is not None:
            self._send(WatchLost(directory, reason))

    def tell(self, path: str, hint: Hint) -> None:
        """Tell of the entry, where its directory is watched, by every path that leads there."""
        directory, name = posixpath.split(path)
        identity = self._identities.get(directory)
        for watched, watched_identity in list(self._watched.items()):
            if watched_identity == identity:
                self._send(Changed(watched, name, hint))

    def _send(self, event: Event) -> None:
        if self._deliver is not None:
            self._deliver([event])
