"""The host's files as a source.

No path can make the daemon wait: a path is first opened for its inode only (``O_PATH``), and only a regular file is
then opened for reading, through that same inode, so nothing can be swapped in between; and what hangs nevertheless, as
a network's or a user's own file system may, is given up (``ctxd.sources.threads``). A file is taken only if its
stamp is the same before and after the reading; a change within one tick of the kernel's file clock escapes that, but
leaves the stamp unsettled, so that the next look reads again. Nothing is mapped into memory: a truncation would kill
the process.
"""

import errno
import os
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from ctxd.clock import Clock
from ctxd.objects.hashing import source_hash
from ctxd.sources.beneath import View, open_in_view
from ctxd.sources.port import (
    Look,
    Missing,
    Present,
    Reading,
    Regular,
    Special,
    SpecialKind,
    Stamp,
    TooLarge,
    Unreadable,
    signature,
)
from ctxd.sources.rights import User, require
from ctxd.sources.threads import Threads
from ctxd_protocol.limits import FILE_BYTES_MAX

THREADS: Final = 4
"""Threads that read at once, and on each mount those for which reading takes long."""

TORN_RETRIES: Final = 3
"""Readings of a file that changes meanwhile, before it is reported as busy."""

VIEWS_MAX: Final = 16
"""Sandboxes' views in which a symlink is followed, of a directory that so many different ones share."""

RACY_NS: Final = 2_000_000_000
"""How long ago a change must be for a stamp to be trusted: the coarsest file time still in use (FAT) is two seconds."""

_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_SPECIAL: Final[dict[int, SpecialKind]] = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character_device",
    stat.S_IFBLK: "block_device",
}


class HostFiles:
    """See ``ctxd.sources.port.Source``. Reads with the daemon's own rights."""

    def __init__(self, clock: Clock, *, bytes_max: int = FILE_BYTES_MAX) -> None:
        self._clock = clock
        self._bytes_max = bytes_max
        self._confined: Mapping[str, tuple[View, ...]] = {}
        self._limits: Mapping[str, tuple[tuple[str, ...], User]] = {}
        self._threads = Threads(clock, THREADS)

    def confine(self, root: str, view: View = ()) -> None:
        """See ``Source.confine``."""
        views = self._confined.get(root)
        if root == "/" or (views is not None and (not view or view in views)):
            return
        # Readers are in threads: they see the mapping before or after, never half of it.
        own = ((root, root),)
        known = [each for each in views or () if each != own]
        self._confined = {**self._confined, root: (*known, view or own)}

    def limit(self, key: str, roots: Collection[str], user: User) -> None:
        """See ``Limited.limit``."""
        self._limits = {**self._limits, key: (tuple(roots), user)}

    def lift(self, key: str) -> None:
        """See ``Limited.lift``."""
        self._limits = {known: limit for known, limit in self._limits.items() if known != key}

    async def read(self, path: str | bytes) -> Reading:
        """See ``Source.read``."""
        return (await self.read_many([os.fsdecode(path)]))[0]

    async def read_many(self, paths: list[str]) -> list[Reading]:
        """See ``Source.read_many``."""
        return await self._threads.each(paths, self._read, _timed_out)

    async def look_many(self, paths: list[str]) -> list[Look]:
        """See ``Source.look_many``."""
        return await self._threads.each(paths, self._look, _timed_out)

    async def stat_many(self, paths: list[str]) -> list[bytes | None]:
        """See ``Source.stat_many``."""
        return await self._threads.each(paths, _signature_at, lambda path: None)

    async def devices_of(self, paths: list[str]) -> list[int | None]:
        """See ``Source.devices_of``."""
        above = [os.path.dirname(path) for path in paths]
        directories = list(dict.fromkeys(above))
        found = await self._threads.each(directories, _device_at, lambda path: None)
        devices = dict(zip(directories, found, strict=True))
        return [devices[directory] for directory in above]

    def _read(self, path: str | bytes) -> Reading:
        try:
            for _ in range(1 + TORN_RETRIES):
                reading = self._read_once(path)
                if reading is not None:
                    return reading
        except (OSError, ValueError) as error:
            return self._failed(path, error)
        return Unreadable(errno.EAGAIN)

    def _read_once(self, path: str | bytes) -> Reading | None:
        """The file, or null if it changed under the reading."""
        place = self._opened(path)
        try:
            found = os.fstat(place)
            special = _special(found)
            if special is not None:
                return special
            if found.st_size > self._bytes_max:
                return TooLarge(found.st_size, found.st_mtime_ns // 1000, self._stamp(found, path))
            file = os.open(f"/proc/self/fd/{place}", _OPEN_FLAGS)
        finally:
            os.close(place)
        try:
            raw = _read_up_to(file, found.st_size, self._bytes_max)
            after = os.fstat(file)
        finally:
            os.close(file)
        if len(raw) > self._bytes_max:
            return TooLarge(max(after.st_size, len(raw)), after.st_mtime_ns // 1000, self._stamp(after, path))
        if _signature(after) != _signature(found):
            return None
        stamp = self._stamp(found, path)
        if len(raw) != found.st_size:
            # A file of the kernel, which changes without another time or size.
            stamp = msgspec.structs.replace(stamp, settled=False)
        return Present(raw, source_hash(raw), _decoded(raw), stamp)

    def leads_out(self, path: str | bytes, led_to: str) -> bool:
        """Whether ``path`` is below a confined directory and ``led_to``, the place that it leads to, is not."""
        roots = self._roots_above(path)
        if not roots or led_to == os.fsdecode(path):
            return False
        return not all(f"{led_to}/".startswith(os.path.realpath(root) + "/") for root in roots)

    def _directory(self, path: str | bytes) -> os.stat_result:
        """The directory that ``path`` was found in. Raises: OSError."""
        above = os.path.dirname(path)
        if not self._roots_above(above):
            return os.stat(above)
        place = self._opened(above)
        try:
            return os.fstat(place)
        finally:
            os.close(place)

    def _roots_above(self, path: str | bytes) -> list[str]:
        named = os.fsdecode(path)
        return [root for root in self._confined if named.startswith(root + "/")]

    def _look(self, path: str) -> Look:
        try:
            found = self._looked_at(path) if self._roots_above(path) else os.stat(path)
        except (OSError, ValueError) as error:
            return self._failed(path, error)
        return _special(found) or Regular(self._stamp(found))

    def _looked_at(self, path: str) -> os.stat_result:
        place = self._opened(path)
        try:
            return os.fstat(place)
        finally:
            os.close(place)

    def _opened(self, path: str | bytes) -> int:
        """The place that ``path`` leads to; below a confined directory, no other than every sandbox would find there.

        Raises: OSError, EXDEV if it leads out; ValueError.
        """
        named = os.fsdecode(path)
        if "\0" in named or not self._roots_above(path):
            return os.open(path, os.O_PATH | os.O_CLOEXEC)
        refused: OSError | None = None
        found: dict[tuple[int, int], int] = {}
        for view in self._views(named):
            try:
                place = self._opened_in(named, view)
            except OSError as error:
                refused = refused or error
                continue
            stamped = os.fstat(place)
            if (stamped.st_dev, stamped.st_ino) in found:
                os.close(place)
            else:
                found[stamped.st_dev, stamped.st_ino] = place
        if len(found) == 1:
            return next(iter(found.values()))
        for place in found.values():
            os.close(place)
        raise refused if refused is not None and not found else OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)

    def _opened_in(self, path: str, view: View) -> int:
        """As ``open_in_view``, if those may who are to read no more below there than they could themselves."""
        place = open_in_view(path, view, self._confined)
        try:
            for user in self._users_below(path):
                # Once more, by way of directories that are held while they are judged; only the same file will do.
                judged = open_in_view(path, view, self._confined, by_kernel=False, enter=partial(require, user))
                try:
                    require(user, judged)
                    if not os.path.sameopenfile(judged, place):
                        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
                finally:
                    os.close(judged)
        except BaseException:
            os.close(place)
            raise
        return place

    def _users_below(self, path: str) -> set[User]:
        return {
            user for roots, user in self._limits.values() if any(f"{path}/".startswith(root + "/") for root in roots)
        }

    def _views(self, path: str) -> dict[View, None]:
        """What sandboxes see whose directory ``path`` is below, newest first."""
        views = [view for root in self._roots_above(path) for view in self._confined[root]]
        return dict.fromkeys(views[::-1][:VIEWS_MAX])

    def _failed(self, path: str | bytes, error: OSError | ValueError) -> Missing | Unreadable:
        """What an error on the way to ``path`` says. Only a name that is missing from a directory that is there is
        gone."""
        if not isinstance(error, OSError):
            return Unreadable(errno.EINVAL)
        if error.errno == errno.ENOTDIR:
            return Missing(False)
        if error.errno != errno.ENOENT:
            return Unreadable(error.errno or errno.EIO)
        try:
            return self._missing(path)
        except FileNotFoundError:
            return Missing(False)
        except OSError as blocked:
            return Unreadable(blocked.errno or errno.EIO)

    def _missing(self, path: str | bytes) -> Missing:
        """What is missing at ``path``. Raises: OSError if the directory above it cannot be looked at."""
        above, name = os.path.split(path)
        is_confined = bool(self._roots_above(above))
        directory = self._opened(above) if is_confined else os.open(above, os.O_PATH | os.O_CLOEXEC)
        try:
            found = os.fstat(directory)
            if not stat.S_ISDIR(found.st_mode):
                return Missing(False, found.st_dev)
            with suppress(FileNotFoundError):
                os.lstat(name, dir_fd=directory)
                return Missing(False)  # A symlink that leads nowhere.
            return Missing(True, found.st_dev)
        finally:
            os.close(directory)

    def _stamp(self, found: os.stat_result, read_from: str | bytes | None = None) -> Stamp:
        # ctime cannot be set by hand, so it also tells of a change whose mtime was put back.
        changed = max(found.st_mtime_ns, found.st_ctime_ns)
        settled = changed + RACY_NS <= self._clock.wall_ms() * 1_000_000
        device = self._directory(read_from).st_dev if read_from is not None else None
        return Stamp(_signature(found), settled, device)


def _signature(found: os.stat_result) -> bytes:
    return signature(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _signature_at(path: str) -> bytes | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return _signature(found) if stat.S_ISREG(found.st_mode) else None


def _timed_out(path: str) -> Unreadable:
    return Unreadable(errno.ETIMEDOUT)


def _device_at(directory: str) -> int | None:
    while directory != "/":
        try:
            found = os.stat(directory)
        except (OSError, ValueError):
            found = None
        if found is not None and stat.S_ISDIR(found.st_mode):
            return found.st_dev
        directory = os.path.dirname(directory)
    return os.stat(directory).st_dev


def _special(found: os.stat_result) -> Special | None:
    if stat.S_ISREG(found.st_mode):
        return None
    return Special(_SPECIAL.get(stat.S_IFMT(found.st_mode), "other"))


def _read_up_to(file: int, size: int, bytes_max: int) -> bytes:
    """The file from its start: one byte over ``size`` if it grew, so that a file that grows for ever does not hold us.

    Files of /proc have size 0 and content all the same: of those, one byte over ``bytes_max``.
    """
    left = (size or bytes_max) + 1
    chunks: list[bytes] = []
    while left > 0:
        chunk = os.read(file, left if size else min(left, 65536))
        if not chunk:
            break
        chunks.append(chunk)
        left -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _decoded(raw: bytes) -> str | None:
    if b"\0" in raw:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
