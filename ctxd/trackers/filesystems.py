"""Probes of directories and files: identities, symlinks, kinds of file systems, and what hangs.

What is not ``async`` here blocks, and belongs in a thread. Nothing here changes anything.
"""

import errno
import os
import stat
from collections.abc import Callable, Container, Sequence
from itertools import chain
from typing import Final

import msgspec

from ctxd.mounts.mountinfo import OWN_MOUNTS, mounts_now
from ctxd.sources.confinement import Confinement
from ctxd.sources.lookups import Lookups, inside
from ctxd.trackers.port import Report, WatchRefused
from ctxd.trackers.tracked_files import UNANSWERED, TrackedFile

Identity = tuple[int, int]
"""Device and inode of a directory."""

UNSURE_MS: Final = 1_000
"""Timestamp granularity to allow for, in ms."""

_REMOTE: Final = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p virtiofs ceph afs ncpfs glusterfs vboxsf prl_fs fuse.sshfs fuse.rclone fuse.s3fs "
    "lustre beegfs orangefs gfs2 ocfs2".split()
)
"""Filesystems on which others make changes that this kernel does not see; so are those of user space."""

_OWN: Final = frozenset(
    "fuse.fuse-overlayfs fuse.encfs fuse.gocryptfs fuse.cryfs fuse.securefs fuse.ntfs-3g fuse.exfat".split()
)
"""Filesystems of user space on which changes are made only through this kernel."""

_SILENT: Final = frozenset("proc sysfs cgroup cgroup2 securityfs efivarfs pstore".split())
"""Filesystems of the kernel, whose files change without a word, and without another time or size."""

_FLEETING: Final = frozenset("debugfs tracefs configfs binder".split())
"""Filesystems of the kernel where reading may use up what is read, or act on a device."""


class PathEntry(msgspec.Struct, frozen=True):
    """A file's name: the places, as directory and name, at which changes of it show.

    ``linked``: the file has other names too, or is mounted there from elsewhere, and what is written through those
    shows at none of its places. ``changed_ms``: when it last changed, in ms since 1970; `None` if nothing is there.
    ``answers``: false if looking was given up; the rest is unknown then.
    """

    places: tuple[tuple[str, str], ...]
    linked: bool = False
    changed_ms: int | None = None
    answers: bool = True

    def may_differ(self, file: TrackedFile) -> bool:
        """True if ``file``, watched before this was looked up, may have changed since it was read."""
        if file.read_at == 0 or self.changed_ms is None or (self.places, self.linked) != (file.places, file.linked):
            return True
        return self.changed_ms >= file.read_at - UNSURE_MS


def mount_points(mountinfo: str = OWN_MOUNTS) -> frozenset[str]:
    """The paths that something is mounted on, single files among them; none where the system does not list them."""
    return frozenset(mounted.mount_point for mounted in mounts_now(mountinfo))


def entry_of(path: str, confinement: Confinement, mounted: Container[str] = frozenset()) -> PathEntry:
    """The entry at ``path``. A symlink shows changes at its own place and, unless that is refused, at its target's.

    ``mounted``: see ``mount_points``.
    """
    own = os.path.split(path)
    try:
        found = os.lstat(path)
        if not stat.S_ISLNK(found.st_mode):
            linked = stat.S_ISREG(found.st_mode) and (found.st_nlink > 1 or path in mounted)
            return PathEntry((own,), linked, _changed_ms(found))
        target = os.path.realpath(path, strict=True)
        led_to = os.stat(target)
    except (OSError, ValueError):
        return PathEntry((own,))
    if confinement.leads_out(path, target):
        return PathEntry((own,))
    return PathEntry(
        (own, os.path.split(target)),
        led_to.st_nlink > 1 or target in mounted,
        max(_changed_ms(found), _changed_ms(led_to)),
    )


def _changed_ms(found: os.stat_result) -> int:
    return max(found.st_mtime_ns, found.st_ctime_ns) // 1_000_000


def identity_at(directory: str) -> Identity | None:
    """The identity of the directory that the path leads to; `None` if no directory can be reached."""
    try:
        found = os.stat(directory)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def refusal(error: OSError | ValueError) -> WatchRefused:
    """The refusal that an error of looking at a directory, or of watching it, amounts to."""
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


def unanswered() -> WatchRefused:
    """The refusal for a look that was given up."""
    return WatchRefused("unanswered", UNANSWERED)


class Filesystems:
    """Kinds of filesystems by device number. Reads the mounts anew whenever it meets a device it does not know."""

    def __init__(self, mountinfo: str = OWN_MOUNTS) -> None:
        self._mountinfo = mountinfo
        self._kinds: dict[int, str] = {}

    def remote(self, device: int) -> str | None:
        """The kind of filesystem on ``device`` if changes made elsewhere are not reported here; `None` otherwise."""
        kind = self._kind(device)
        in_user_space = (kind == "fuse" or kind.startswith("fuse.")) and kind not in _OWN
        return kind if kind in _REMOTE or in_user_space else None

    def silent(self, device: int) -> str | None:
        """The kind of filesystem on ``device`` if neither a watch nor a stat shows changes; `None` otherwise."""
        kind = self._kind(device)
        return kind if kind in _SILENT else None

    def refused(self, device: int) -> WatchRefused | None:
        """The refusal if the system does not watch what is on ``device``; `None` if it does."""
        if remote := self.remote(device):
            return WatchRefused("remote", f"changes that other hosts make on {remote} are not told here")
        if silent := self.silent(device):
            return WatchRefused("remote", f"changes that the system makes on {silent} are not told")
        return self.fleeting(device)

    def fleeting(self, device: int) -> WatchRefused | None:
        """The refusal if what is on ``device`` is not even polled; `None` if it can be."""
        kind = self._kind(device)
        return WatchRefused("fleeting", f"reading files of {kind} may change them") if kind in _FLEETING else None

    def _kind(self, device: int) -> str:
        if device not in self._kinds:
            read = {mounted.device: mounted.filesystem for mounted in mounts_now(self._mountinfo)}
            if not read:
                return ""  # The mounts could not be read: the next look may know better.
            self._kinds = {device: "", **self._kinds, **read}
        return self._kinds[device]


MOVED: Final = "it was moved or replaced"


class Hanging:
    """Log of places at which ``lookups`` hang: one line when it begins and one when it ends."""

    def __init__(self, lookups: Lookups, report: Report) -> None:
        self._lookups = lookups
        self._report = report
        self._told: frozenset[str] = frozenset()

    def note(self) -> bool:
        """Report what began and ended since. Returns: true if anything hangs."""
        now = frozenset(self._lookups.hanging())
        for place in sorted(now - self._told):
            self._report("tracker.unanswered", place, "its file system does not answer; nothing below is followed")
        for place in sorted(self._told - now):
            self._report("tracker.answers", place, "its file system answers again")
        self._told = now
        return bool(now)


async def entries_at(
    lookups: Lookups, paths: Sequence[str], confinement: Confinement, mounted: Container[str]
) -> list[PathEntry]:
    """The entry of each of ``paths``, see ``entry_of``; one that does not ``answer`` where looking hangs."""

    def near(path: str) -> PathEntry | str:
        """The entry, or where a symlink leads."""
        try:
            return os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        except (OSError, ValueError):
            return entry_of(path, confinement, mounted)

    found = await lookups.each(paths, near, _hung)
    leading: dict[str, list[str]] = {}
    for path, answer in zip(paths, found, strict=True):
        if isinstance(answer, str):
            leading.setdefault(answer, []).append(path)
    if not leading:
        return [answer for answer in found if isinstance(answer, PathEntry)]

    def far(target: str) -> list[PathEntry]:
        return [entry_of(path, confinement, mounted) for path in leading[target]]

    led = await lookups.each(list(leading), far, lambda target: [_hung(path) for path in leading[target]])
    linked = dict(zip((path for each in leading.values() for path in each), chain.from_iterable(led), strict=True))
    return [
        answer if isinstance(answer, PathEntry) else linked[path] for path, answer in zip(paths, found, strict=True)
    ]


def _hung(path: str) -> PathEntry:
    return PathEntry((os.path.split(path),), answers=False)


async def moved_among(lookups: Lookups, known: Sequence[tuple[str, Identity]]) -> dict[str, str]:
    """Those directories that are not what they were, and why: see ``ctxd.trackers.port.Watcher.verify``."""
    look: Callable[[str], Identity | str | None] = identity_at
    found = await lookups.each([inside(directory) for directory, _ in known], look, lambda path: UNANSWERED)
    return {
        directory: now if isinstance(now, str) else MOVED
        for (directory, identity), now in zip(known, found, strict=True)
        if now != identity
    }
