"""Directories of tracked files: whether each is watched or polled, and the reason if it is neither.

The functions here that are not ``async`` block: call them in a thread.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import Final

from ctxd.clock import Clock
from ctxd.sources.hang_safe_lookups import Lookups, inside
from ctxd.trackers.tracked_files import TIMED_OUT, Mode, TrackedFiles
from ctxd.trackers.watcher_interface import Report, Watcher, WatchRefused

Identity = tuple[int, int]
"""Device and inode of a directory."""

_NOT_LOOKED_AT: Final = ("missing", "escapes", "timeout", "side_effects")

_REMOTE: Final = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p virtiofs ceph afs ncpfs glusterfs vboxsf prl_fs fuse.sshfs fuse.rclone fuse.s3fs "
    "lustre beegfs orangefs gfs2 ocfs2".split()
)
"""Filesystems that other hosts change without this kernel noticing. User-space ones count too, except ``_OWN``."""

_OWN: Final = frozenset(
    "fuse.fuse-overlayfs fuse.encfs fuse.gocryptfs fuse.cryfs fuse.securefs fuse.ntfs-3g fuse.exfat".split()
)
"""User-space filesystems that change only through this kernel."""

_SILENT: Final = frozenset("proc sysfs cgroup cgroup2 securityfs efivarfs pstore".split())
"""Kernel filesystems whose files change without an event, and without a new time or size."""

_READ_SIDE_EFFECTS: Final = frozenset("debugfs tracefs configfs binder".split())
"""Kernel filesystems where reading may consume data or act on a device."""


def identity_at(directory: str) -> Identity | None:
    """The identity of the directory at the path, symlinks followed; `None` if it cannot be reached."""
    try:
        found = os.stat(directory)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def refusal(error: OSError | ValueError) -> WatchRefused:
    """The refusal for an error from a stat or a watch of a directory."""
    number = error.errno if isinstance(error, OSError) else None
    match number:
        case errno.ENOENT | errno.ENOTDIR:
            return WatchRefused("missing", "the directory is not there")
        case errno.ENOSPC | errno.ENOMEM | errno.EMFILE | errno.ENFILE:
            return WatchRefused("limit", f"the system has no watch left ({os.strerror(number)})")
        case errno.EACCES | errno.EPERM:
            return WatchRefused("denied", "the directory may not be read")
        case _:
            return WatchRefused("unsupported", str(error))


def timeout_refusal() -> WatchRefused:
    """The refusal for a lookup that timed out."""
    return WatchRefused("timeout", TIMED_OUT)


class Filesystems:
    """Conditions of filesystems on watches, by device number. May be used on any thread."""

    def __init__(self, lookups: Lookups) -> None:
        self._kind = lookups.filesystem_of

    def remote(self, device: int) -> str | None:
        """The type of the filesystem on ``device`` if changes made elsewhere are not reported here, else `None`."""
        kind = self._kind(device)
        in_user_space = (kind == "fuse" or kind.startswith("fuse.")) and kind not in _OWN
        return kind if kind in _REMOTE or in_user_space else None

    def silent(self, device: int) -> str | None:
        """The type of the filesystem on ``device`` if neither a watch nor a stat shows changes; `None` otherwise."""
        kind = self._kind(device)
        return kind if kind in _SILENT else None

    def refused(self, device: int) -> WatchRefused | None:
        """The refusal if ``device`` cannot be watched; `None` if it can."""
        if remote := self.remote(device):
            return WatchRefused("remote", f"changes that other hosts make on {remote} are not reported here")
        if silent := self.silent(device):
            return WatchRefused("remote", f"changes that the system makes on {silent} are not reported")
        return self.polling_refused(device)

    def polling_refused(self, device: int) -> WatchRefused | None:
        """The refusal if ``device`` must not even be polled; `None` if it may."""
        kind = self._kind(device)
        if kind not in _READ_SIDE_EFFECTS:
            return None
        return WatchRefused("side_effects", f"reading files of {kind} may change them")


MOVED: Final = "it was moved or replaced"


class HangLog:
    """Log of the places at which ``lookups`` hang: one line when each starts and one when it ends."""

    def __init__(self, lookups: Lookups, report: Report) -> None:
        self._lookups = lookups
        self._report = report
        self._reported: frozenset[str] = frozenset()

    def note(self) -> bool:
        """Report changes since the last call. Returns: True if anything hangs."""
        now = frozenset(self._lookups.hanging())
        for place in sorted(now - self._reported):
            self._report("tracker.hung", place, "its file system does not respond; nothing below is tracked")
        for place in sorted(self._reported - now):
            self._report("tracker.recovered", place, "its file system responds again")
        self._reported = now
        return bool(now)


async def moved_among(lookups: Lookups, known: Sequence[tuple[str, Identity]]) -> dict[str, str]:
    """The directories of ``known`` whose identity has changed, each with the reason: see
    ``watcher_interface.Watcher.verify``."""
    look: Callable[[str], Identity | str | None] = identity_at
    found = await lookups.each([inside(directory) for directory, _ in known], look, lambda path: TIMED_OUT)
    return {
        directory: now if isinstance(now, str) else MOVED
        for (directory, identity), now in zip(known, found, strict=True)
        if now != identity
    }


class WatchModes:
    """Watches the directories of ``tracked`` with ``watcher``, and polls those that it refuses.

    ``emptied``: directories that no file needs any more, for ``give_up``. Call one method at a time.
    """

    def __init__(self, clock: Clock, tracked: TrackedFiles, watcher: Watcher, polling: Watcher, report: Report) -> None:
        self.watcher = watcher
        self.polling = polling
        self.emptied: dict[str, None] = {}
        self._clock = clock
        self._tracked = tracked
        self._report = report
        self._polled: set[str] = set()

    def reset(self) -> None:
        """Mark every directory as not followed: neither watcher has run yet, or both have ended."""
        now_ms = self._clock.wall_ms()
        for directory in self._tracked.directories:
            self._tracked.follow(directory, "away", "watching restarts", now_ms)
        self._polled.clear()

    def note_lost(self, directory: str, reason: str) -> None:
        """Record that the watch of ``directory`` has ended by itself."""
        self._polled.discard(directory)
        if self._tracked.follow(directory, "away", reason, self._clock.wall_ms()) and reason != TIMED_OUT:
            self._report("tracker.lost", directory, reason)

    async def drop_moved_directories(self) -> dict[str, str]:
        """Stop watching directories whose path now leads to another one, or to none. Returns: each with its reason."""
        moved = await self.watcher.verify()
        if moved:
            await self.watcher.unwatch(list(moved))
        return moved

    async def give_up(self) -> None:
        """Stop watching and polling the ``emptied`` directories."""
        emptied = [directory for directory in self.emptied if directory not in self._tracked.directories]
        self.emptied.clear()
        if emptied:
            await self.watcher.unwatch(emptied)
            await self._stop_polling(emptied)

    async def watch(self, directories: Sequence[str]) -> list[str]:
        """Watch ``directories``, or else poll them. Returns: those that are followed now and were not before."""
        returned: list[str] = []
        degraded: dict[str, WatchRefused] = {}
        refusals = await self.watcher.watch(directories)
        for directory, refused in zip(directories, refusals, strict=True):
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
        recovered = [directory for directory in returned if directory not in degraded]
        needed = {directory: bool(self._tracked.polled_names(directory)) for directory in recovered}
        await self._stop_polling([directory for directory in recovered if not needed[directory]])
        await self.poll([directory for directory in recovered if needed[directory]])
        return returned

    def _follow(self, directory: str, refused: WatchRefused | None, *, polled: bool = True) -> bool:
        kept = self._tracked.directories.get(directory)
        if kept is None:
            self.emptied[directory] = None
            return False
        before, now_ms = kept.mode, self._clock.wall_ms()
        # A hanging mount is reported once, not for each of its directories.
        was_hanging = kept.reason == TIMED_OUT
        mode: Mode = "watched" if refused is None else "polled" if polled else "away"
        reason = "" if refused is None else refused.why
        if not self._tracked.follow(directory, mode, reason, now_ms):
            return False
        if reason == TIMED_OUT or (was_hanging and mode == "watched"):
            return mode != "away"
        if mode != "watched":
            self._report(f"tracker.{mode}", directory, reason)
        elif before != "new":
            self._report("tracker.watched", directory, "it can be watched again")
        return mode != "away"

    async def poll(self, directories: Sequence[str]) -> dict[str, WatchRefused]:
        """Poll ``directories``. Returns: those that cannot be polled."""
        wanted = [directory for directory in directories if directory not in self._polled]
        if not wanted:
            return {}
        refusals = await self.polling.watch(wanted)
        refused = {each: refusal for each, refusal in zip(wanted, refusals, strict=True) if refusal is not None}
        self._polled |= set(wanted) - refused.keys()
        return refused

    async def _stop_polling(self, directories: Sequence[str]) -> None:
        if polled := [directory for directory in directories if directory in self._polled]:
            self._polled -= set(polled)
            await self.polling.unwatch(polled)
