"""A source whose files are in memory. Passes the source suite."""

import errno
import os
import posixpath
from collections.abc import Sequence

from ctxd.objects.hashing import source_hash
from ctxd.sources.confinement import Confinement
from ctxd.sources.host_files import HostFiles, Look, Regular, SpecialKind, signature
from ctxd.sources.source_interface import Missing, OverLimit, Present, Reading, Special, Stamp, Unreadable, decoded_text
from ctxd_protocol.limits import FILE_BYTES_MAX
from ctxd_protocol.object_types import FilesystemSource

DEVICE = 7


def at(path: str | bytes) -> FilesystemSource:
    """The binding of a file of the host."""
    return FilesystemSource("host", os.fsdecode(path))


class FakeFiles(HostFiles):
    """See ``ctxd.sources.host_files.HostFiles``. ``settled`` is what stamps say; ``reads`` and
    ``stats`` count files looked at.

    ``before_read`` and ``after_read`` are called with each path around its reading: to change the world there.
    """

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, int]] = {}
        self._sizes: dict[str, int] = {}
        self._special: dict[str, SpecialKind] = {"/": "directory"}
        self._denied: dict[str, int] = {}
        self._devices: dict[str, int] = {}
        self._links: dict[str, str] = {}
        self.confinement = Confinement()
        self._ticks = 0
        self.settled = True
        self.reads = 0
        self.stats = 0
        self.before_read = self._nothing
        self.after_read = self._nothing

    def _nothing(self, path: str) -> None:
        """Leave the world as it is."""

    def write(self, path: str, raw: bytes) -> None:
        """Make or replace a file, and the directories above it."""
        self.mkdir(posixpath.dirname(path))
        self._ticks += 1
        self._files[path] = (raw, self._ticks)
        self._sizes.pop(path, None)

    def write_sparse(self, path: str, size_bytes: int) -> None:
        """Make a file that is said to be so large."""
        self.write(path, b"")
        self._sizes[path] = size_bytes

    def mkdir(self, path: str) -> None:
        """Make a directory, and those above it."""
        while path not in self._special:
            self._special[path] = "directory"
            path = posixpath.dirname(path)

    def special(self, path: str, kind: SpecialKind) -> None:
        """Put something there that is no regular file."""
        self._special[path] = kind

    def symlink(self, path: str, target: str) -> None:
        """Make a symlink to an absolute path."""
        self._links[path] = target

    def deny(self, path: str, number: int = errno.EACCES) -> None:
        """Have everything about ``path`` fail with that errno."""
        self._denied[path] = number

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        for known in (self._files, self._special):
            for name in [name for name in known if name == path or name.startswith(path + "/")]:
                del known[name]

    def remount(self, directory: str, device: int) -> None:
        """Have ``directory`` and what is below it lie on another device from now on."""
        self._devices[directory] = device

    async def read(self, binding: FilesystemSource) -> Reading:
        return self._observed(binding.path)

    async def read_many(self, bindings: Sequence[FilesystemSource]) -> list[Reading]:
        return [self._observed(binding.path) for binding in bindings]

    async def look_many(self, paths: list[str]) -> list[Look]:
        return [self._look(path) for path in paths]

    async def read_plain(self, path: str) -> Reading | None:
        return None if self.confinement.holds(path) or path in self._links else self._observed(path)

    async def resolve_many(self, paths: list[str]) -> list[str]:
        return [path if self._escapes(path) else self._links.get(path, path) for path in paths]

    async def fingerprint(self, bindings: Sequence[FilesystemSource]) -> list[bytes | None]:
        looks = [self._look(binding.path) for binding in bindings]
        return [look.stamp.fingerprint if isinstance(look, Regular) else None for look in looks]

    async def devices_of(self, paths: list[str]) -> list[int | None]:
        return [self._device(posixpath.dirname(path)) for path in paths]

    def _device(self, directory: str) -> int:
        while directory != "/":
            if self._special.get(directory) == "directory" and directory in self._devices:
                break
            directory = posixpath.dirname(directory)
        return self._devices.get(directory, DEVICE)

    def _observed(self, path: str) -> Reading:
        self.before_read(path)
        reading = self._read(path)
        self.after_read(path)
        return reading

    def _read(self, path: str) -> Reading:
        self.reads += 1
        if self._escapes(path):
            return Unreadable(errno.EXDEV)
        path = self._links.get(path, path)
        found = self._found(path)
        if isinstance(found, Stamp):
            raw, _ = self._files[path]
            size = self._sizes.get(path, len(raw))
            if size > FILE_BYTES_MAX:
                return OverLimit(size, self._files[path][1], found)
            return Present(raw, source_hash(raw), decoded_text(raw), found)
        return found

    def _look(self, path: str) -> Look:
        self.stats += 1
        if self._escapes(path):
            return Unreadable(errno.EXDEV)
        path = self._links.get(path, path)
        found = self._found(path)
        return Regular(found) if isinstance(found, Stamp) else found

    def _escapes(self, path: str) -> bool:
        target = self._links.get(path, path)
        return self.confinement.leads_out(path, target)

    def _found(self, path: str) -> Stamp | Unreadable | Special | Missing:
        parent = posixpath.dirname(path)
        device = self._device(parent)
        if len(posixpath.basename(path)) > 255:
            return Unreadable(errno.ENAMETOOLONG)
        if "\0" in path:
            return Unreadable(errno.EINVAL)
        if path in self._denied:
            return Unreadable(self._denied[path])
        if path in self._special:
            return Special(self._special[path])
        if path in self._files:
            raw, tick = self._files[path]
            size = self._sizes.get(path, len(raw))
            return Stamp(signature(device, 1, size, tick, tick), self.settled, device)
        if self._special.get(parent) == "directory":
            return Missing(True, device)
        return Missing(False)
