"""The host's files as sources.

No path can block the daemon. A path is first opened for its inode only (``O_PATH``), and only a regular file is then
opened for reading, through that inode, so it cannot be swapped in between. A lookup that hangs, as on a network or
user-space file system, times out (``ctxd.sources.hang_safe_lookups``). A file's content is used only if its stamp is
the same before and after the read. A change within one tick of the kernel's file clock escapes this check, but leaves
the stamp unsettled, so the file is read again next time. Files are not memory-mapped: a truncation would kill the
process.
"""

import errno
import os
import re
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import msgspec

from ctxd.clock import Clock
from ctxd.objects.hashing import source_hash
from ctxd.sources.confinement import Confinement
from ctxd.sources.hang_safe_lookups import Lookups, inside
from ctxd.sources.source_interface import (
    Missing,
    OverLimit,
    Present,
    Reading,
    Special,
    Stamp,
    Unreadable,
    decoded_text,
    fingerprint_of,
)
from ctxd.sources.user_rights import READ
from ctxd_protocol.limits import FILE_BYTES_MAX
from ctxd_protocol.object_types import FilesystemSource

THREADS: Final = 4
"""Concurrent lookups per mount: reads take long."""

TORN_RETRIES: Final = 3
"""Attempts to read a file that keeps changing, before it is reported as busy."""

LISTED_MAX: Final = 20_000
"""Maximum names read from one directory."""

RACY_NS: Final = 2_000_000_000
"""Minimum age of a change for a stamp to be trusted: the coarsest file time still in use (FAT) is two seconds."""

SpecialKind = Literal["directory", "fifo", "socket", "character_device", "block_device", "other"]

_STAT: Final = struct.Struct("<QQqq")

_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_PROCESS: Final = re.compile(r"/proc/(\d+)/")

_SPECIAL: Final[dict[int, SpecialKind]] = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character_device",
    stat.S_IFBLK: "block_device",
}


class Regular(msgspec.Struct, frozen=True, tag=True):
    """A regular file that was examined but not read."""

    stamp: Stamp


Look = Regular | Unreadable | Special | Missing
"""Type of the file at a path, without reading it."""


class HostFiles:
    """Files by canonical absolute path, read with the daemon's own rights, symlinks followed. See ``SourceAdapter``.

    A reading's ``volume`` is the ``st_dev`` of the file's directory, which on an overlay differs from the file's own. A
    binding is read by its path: the caller must ensure that its filesystem is the one mounted there. ``Special.kind``
    is a ``SpecialKind``. A dangling symlink is not a confirmed absence.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        bytes_max: int = FILE_BYTES_MAX,
        lookups: Lookups | None = None,
        private: Iterable[Path] = (),
    ) -> None:
        """``private``: directories of the daemon. Their files are not read, nor those of its process, which it would
        find in the place of the agent's: ``/proc/self``."""
        self._private = tuple(f"{os.path.realpath(each)}/" for each in (Path("/proc/self"), *private))
        self._clock = clock
        self._bytes_max = bytes_max
        self.confinement = Confinement()
        """Restrictions on paths below directories that sandboxes write to."""
        self._lookups = lookups or Lookups(clock, THREADS)

    async def read(self, binding: FilesystemSource) -> Reading:
        """See ``SourceAdapter.read``."""
        return (await self.read_many([binding]))[0]

    async def read_many(self, bindings: Sequence[FilesystemSource]) -> list[Reading]:
        """See ``SourceAdapter.read_many``. Takes one thread hop."""
        return await self._lookups.each([binding.path for binding in bindings], self._read, _timed_out)

    async def look_many(self, paths: list[str]) -> list[Look]:
        """Examine each path, in one thread hop and with one stat each."""
        return await self._lookups.each(paths, self._look, _timed_out)

    async def list_many(self, paths: list[str], names_max: int) -> list[tuple[str, ...] | Look]:
        """The first ``names_max`` names in each directory, in order; for other paths, their type. Takes one thread hop.

        Names that are not UTF-8 are left out.
        """
        return await self._lookups.each(paths, partial(self._list, names_max=names_max), _timed_out)

    async def resolve_many(self, paths: list[str]) -> list[str]:
        """Each path with its symlinks resolved, in one thread hop; it need not exist.

        A path below a confined directory is resolved as its sandboxes would. A path that leads out, or whose file
        system hangs, is returned unchanged.
        """
        directories: dict[str, str] = {}

        def resolve(path: str) -> str:
            try:
                return self._resolved(path, directories)
            except (OSError, ValueError):
                return path

        return await self._lookups.each(paths, resolve, lambda path: path)

    async def read_plain(self, path: str) -> Reading | None:
        """Read the file at ``path``, in one thread hop; ``None`` if ``resolve_many`` would return a different path, or
        if it is below a confined directory."""

        def read(path: str) -> Reading | None:
            try:
                is_plain = not self.confinement.holds(path) and self._resolved(path, {}) == path
            except (OSError, ValueError):
                return None
            return self._read(path) if is_plain else None

        return (await self._lookups.each([path], read, _timed_out))[0]

    def _resolved(self, path: str, directories: dict[str, str]) -> str:
        """``path`` with its symlinks resolved. ``directories`` caches resolved directories."""
        confined = self.confinement.resolved(path)
        if confined is not None:
            return confined
        above, name = os.path.split(path)
        real = directories.get(above)
        if real is None:
            real = directories[above] = os.path.realpath(above)
        plain = os.path.join(real, name)
        try:
            os.readlink(plain)
        except OSError:
            return plain
        return os.path.realpath(plain)

    async def fingerprint(self, bindings: Sequence[FilesystemSource]) -> list[bytes | None]:
        """See ``SourceAdapter.fingerprint``. Takes one thread hop, and one stat each."""
        return await self._lookups.each([binding.path for binding in bindings], _signature_at, lambda path: None)

    async def devices_of(self, paths: list[str]) -> list[int | None]:
        """The ``st_dev`` of the nearest accessible directory above each path, in one thread hop; `None` if it hangs.

        It is the directory's, like a reading's ``volume``, so that a path keeps its device if its file does not exist.
        """
        above = [inside(os.path.dirname(path)) for path in paths]
        directories = list(dict.fromkeys(above))
        found = await self._lookups.each(directories, _device_at, lambda path: None)
        devices = dict(zip(directories, found, strict=True))
        return [devices[directory] for directory in above]

    def _read(self, path: str) -> Reading:
        try:
            for _ in range(1 + TORN_RETRIES):
                reading = self._read_once(path)
                if reading is not None:
                    return reading
        except (OSError, ValueError) as error:
            return self._failed(path, error)
        return Unreadable(errno.EAGAIN)

    def _read_once(self, path: str) -> Reading | None:
        """The file, or `None` if it changed during the read."""
        place = self.confinement.opened(path)
        try:
            found = os.fstat(place)
            special = _special(found)
            if special is not None:
                return special
            # The path as the kernel opened it: no symlink can change it any more.
            if self._is_private(os.readlink(f"/proc/self/fd/{place}")):
                return Special("file of the daemon")
            if found.st_size > self._bytes_max:
                return OverLimit(found.st_size, found.st_mtime_ns // 1000, self._stamp(found, path))
            file = os.open(f"/proc/self/fd/{place}", _OPEN_FLAGS)
        finally:
            os.close(place)
        try:
            raw = _read_up_to(file, found.st_size, self._bytes_max)
            after = os.fstat(file)
        finally:
            os.close(file)
        if len(raw) > self._bytes_max:
            return OverLimit(max(after.st_size, len(raw)), after.st_mtime_ns // 1000, self._stamp(after, path))
        if _signature(after) != _signature(found):
            return None
        stamp = self._stamp(found, path)
        if len(raw) != found.st_size:
            # A kernel file, which changes without a new time or size.
            stamp = msgspec.structs.replace(stamp, settled=False)
        return Present(raw, source_hash(raw), decoded_text(raw), stamp)

    def _is_private(self, path: str) -> bool:
        """True if the file at ``path`` is the daemon's own. Each of its threads has a directory of the process too."""
        thread = _PROCESS.match(path)
        return path.startswith(self._private) or (thread is not None and os.path.exists(f"/proc/self/task/{thread[1]}"))

    def _look(self, path: str) -> Look:
        try:
            found = self._stat(path)
        except (OSError, ValueError) as error:
            return self._failed(path, error)
        return _special(found) or Regular(self._stamp(found))

    def _list(self, path: str, names_max: int) -> tuple[str, ...] | Look:
        try:
            place = self.confinement.opened(path)
            try:
                found = os.fstat(place)
                if not stat.S_ISDIR(found.st_mode):
                    return _special(found) or Regular(self._stamp(found))
                self.confinement.require(path, place, directory=READ)
                directory = os.open(f"/proc/self/fd/{place}", _OPEN_FLAGS | os.O_DIRECTORY)
            finally:
                os.close(place)
            try:
                with os.scandir(directory) as entries:
                    # In a huge directory, only these are considered for the first names in order.
                    names = [entry.name for entry in islice(entries, LISTED_MAX)]
            finally:
                os.close(directory)
        except (OSError, ValueError) as error:
            return self._failed(path, error)
        return tuple(sorted(name for name in names if _is_utf8(name))[:names_max])

    def _stat(self, path: str) -> os.stat_result:
        """Stat of ``path``, symlinks followed. Raises: as ``Confinement.opened``."""
        if not self.confinement.holds(path):
            return os.stat(path)
        place = self.confinement.opened(path)
        try:
            return os.fstat(place)
        finally:
            os.close(place)

    def _failed(self, path: str, error: OSError | ValueError) -> Missing | Unreadable:
        """The reading for an error while opening ``path``.

        Only a name missing from an existing directory counts as deleted.
        """
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

    def _missing(self, path: str) -> Missing:
        """The reading of a missing ``path``. Raises: OSError if its directory is not accessible."""
        above, name = os.path.split(path)
        directory = self.confinement.opened(above)
        try:
            found = os.fstat(directory)
            if not stat.S_ISDIR(found.st_mode):
                return Missing(False, found.st_dev)
            with suppress(FileNotFoundError):
                os.lstat(name, dir_fd=directory)
                return Missing(False)  # A dangling symlink.
            return Missing(True, found.st_dev)
        finally:
            os.close(directory)

    def _stamp(self, found: os.stat_result, read_from: str | None = None) -> Stamp:
        # Programs cannot set ctime, so it also reveals a change whose mtime was reset.
        changed = max(found.st_mtime_ns, found.st_ctime_ns)
        settled = changed + RACY_NS <= self._clock.wall_ms() * 1_000_000
        device = self._stat(os.path.dirname(read_from)).st_dev if read_from is not None else None
        return Stamp(_signature(found), settled, device)


def signature(device: int, inode: int, size_bytes: int, mtime_ns: int, ctime_ns: int) -> bytes:
    """A stat result as a fingerprint."""
    return fingerprint_of(_STAT.pack(device, inode, mtime_ns, ctime_ns), size_bytes)


def _signature(found: os.stat_result) -> bytes:
    return signature(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _signature_at(path: str) -> bytes | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return _signature(found) if stat.S_ISREG(found.st_mode) else None


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


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
    """Read the file from its start, up to one byte over ``size``, so that a file that keeps growing does not block.

    Files in /proc have size 0 but may have content: of those, up to one byte over ``bytes_max``.
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
