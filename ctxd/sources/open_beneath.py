"""Opening of files that a sandbox may rearrange meanwhile: exactly those that the sandbox itself would open.

Resolves a canonical path below a confined directory to an open inode. There is no gap between check and open: the
kernel opens beneath the directory without following symlinks. Links are followed here, one by one, in the sandbox's
view: an absolute link is resolved through its mounts, and a path outside them is not opened. Guarantee: even if names
change meanwhile, the opened file was beneath a directory that the sandbox has mounted.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Container
from typing import Final

from ctxd.mounts.mapping import ancestors

HOPS_MAX: Final = 40
"""Maximum symlinks in one path: the kernel's own limit."""

_TRIES: Final = 64
"""Attempts of a call that the kernel aborts because of a concurrent rename."""

_PATH_BYTES_MAX: Final = 4096
_OPENAT2: Final = 437
"""Number of the system call on every architecture; the C library has no wrapper."""

_RESOLVE: Final = 0x01 | 0x02 | 0x04 | 0x08
"""RESOLVE_NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH."""

_PLACE: Final = os.O_PATH | os.O_CLOEXEC

View = tuple[tuple[str, str | None], ...]
"""A sandbox's mounts: each agent prefix with its host directory, `None` if not on the host. The root is an empty
prefix."""


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Kernel:
    """The kernel's ``openat2``. ``can`` becomes False if the kernel lacks it."""

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._file, self._link = _How(_PLACE, 0, _RESOLVE), _How(_PLACE | os.O_NOFOLLOW, 0, _RESOLVE)
        self.can = True

    def open(self, directory: int, below: str, *, link: bool = False) -> int:
        """Open the path ``below`` the open ``directory``, without following symlinks. ``link``: the file itself may be
        one.

        Raises: OSError; ENOSYS if the kernel or a seccomp filter lacks the call.
        """
        name, how = os.fsencode(below), self._link if link else self._file
        for _ in range(_TRIES):
            fd: int = self._call(_OPENAT2, directory, name, ctypes.byref(how), ctypes.sizeof(_How))
            if fd >= 0:
                return fd
            number = ctypes.get_errno()
            if number != errno.EAGAIN:
                break
        if number in (errno.ENOSYS, errno.EPERM):
            self.can = False
            number = errno.ENOSYS
        raise OSError(number, os.strerror(number), below)


_KERNEL: Final = _Kernel()


def open_in_view(
    path: str,
    view: View,
    roots: Container[str],
    *,
    by_kernel: bool = True,
    enter: Callable[[int], None] = lambda directory: None,
) -> int:
    """An ``O_PATH`` descriptor of the file that the sandbox with ``view`` finds at the canonical ``path``.

    ``roots`` are the directories that sandboxes may rearrange. ``by_kernel`` False: open component by component, as
    without ``openat2``; ``enter`` is then called with each directory from the root on, and may raise to refuse it.
    Raises: OSError; EXDEV if the path leaves the view, ELOOP after ``HOPS_MAX`` symlinks.
    """
    found, _ = _walked(path, view, roots, by_kernel=by_kernel, enter=enter)
    if isinstance(found, OSError):
        raise found
    return found


def resolve_in_view(path: str, view: View, roots: Container[str], *, enter: Callable[[int], None] | None = None) -> str:
    """Resolve the symlinks in the canonical ``path`` as the sandbox with ``view`` does; it need not exist.

    ``enter`` is called with each directory on the way, and may raise to refuse it. Raises: as `open_in_view`, except
    for a missing last component.
    """
    by_kernel = enter is None
    found, resolved = _walked(path, view, roots, by_kernel=by_kernel, enter=enter or (lambda directory: None))
    if isinstance(found, int):
        os.close(found)
    return resolved


def _walked(
    path: str, view: View, roots: Container[str], *, by_kernel: bool, enter: Callable[[int], None]
) -> tuple[int | OSError, str]:
    """The descriptor, or the error for a missing file, and the resolved path."""
    rule = _rule_of(path, view)
    for _ in range(HOPS_MAX + 1):
        root = _outermost(path, roots)
        if root is None:
            raise _refused(errno.EXDEV, path)
        if path == root:
            return os.open(root, _PLACE), path
        try:
            found = _opened(root, path[len(root) + 1 :], by_kernel=by_kernel, enter=enter)
        except (FileNotFoundError, NotADirectoryError) as missing:
            return missing, path
        if isinstance(found, int):
            return found, path
        depth, target = found
        path, rule = _followed(path, root, depth, target, rule, view)
    raise _refused(errno.ELOOP, path)


def _opened(root: str, below: str, *, by_kernel: bool, enter: Callable[[int], None]) -> int | tuple[int, str]:
    """The descriptor, or the first symlink on the way: the number of components up to it, and its target."""
    directory = os.open(root, _PLACE | os.O_DIRECTORY)
    try:
        if by_kernel and _KERNEL.can:
            try:
                return _opened_by_kernel(directory, below)
            except OSError as error:
                if error.errno != errno.ENOSYS:
                    raise
        return _stepped(directory, below, enter=enter)
    finally:
        os.close(directory)


def _opened_by_kernel(directory: int, below: str) -> int | tuple[int, str]:
    """As ``_opened``. The kernel opens each link too, so that none is found on a file system mounted below."""
    for _ in range(_TRIES):
        try:
            return _KERNEL.open(directory, below)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        if (link := _first_link(directory, below)) is not None:
            return link
    raise _refused(errno.EAGAIN, below)


def _first_link(directory: int, below: str) -> tuple[int, str] | None:
    """The first symlink on the way; None if names change meanwhile."""
    parts = below.split("/")
    for depth in range(len(parts)):
        try:
            place = _KERNEL.open(directory, "/".join(parts[: depth + 1]), link=True)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise
        try:
            if stat.S_ISLNK(os.fstat(place).st_mode):
                return depth, os.readlink("", dir_fd=place)
        finally:
            os.close(place)
    return None


def _stepped(directory: int, below: str, *, enter: Callable[[int], None]) -> int | tuple[int, str]:
    """As ``_opened``, component by component, on one device."""
    device = os.fstat(directory).st_dev
    parts = below.split("/")
    current = os.dup(directory)
    try:
        for depth, part in enumerate(parts):
            enter(current)
            inner = os.open(part, _PLACE | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = inner
            found = os.fstat(current)
            if stat.S_ISLNK(found.st_mode):
                return depth, os.readlink("", dir_fd=current)
            if stat.S_ISDIR(found.st_mode) and found.st_dev != device:
                raise _refused(errno.EXDEV, part)
        return os.dup(current)
    finally:
        os.close(current)


def _followed(
    path: str, root: str, depth: int, target: str, rule: tuple[str, str], view: View
) -> tuple[str, tuple[str, str]]:
    """The canonical path that the link leads to in the view, and the mount that contains it."""
    parts = path[len(root) + 1 :].split("/")
    agent, canonical = rule
    directory = "/".join([root, *parts[:depth]])
    if directory != canonical and not directory.startswith(canonical + "/"):
        raise _refused(errno.EXDEV, path)  # The link is above the mount, where the sandbox cannot see it.
    start = "" if target.startswith("/") else agent + directory[len(canonical) :]
    meant: list[str] = []
    for part in f"{start}/{target}/{'/'.join(parts[depth + 1 :])}".split("/"):
        if part == "..":
            if meant:
                meant.pop()
        elif part and part != ".":
            meant.append(part)
    named = "/" + "/".join(meant)
    if len(os.fsencode(named)) > _PATH_BYTES_MAX:
        raise _refused(errno.ENAMETOOLONG, path)
    for prefix, place in sorted(view, key=lambda mount: -len(mount[0])):
        if named == prefix or named.startswith(prefix + "/"):
            if place is None:
                break
            return place + named[len(prefix) :], (prefix, place)
    raise _refused(errno.EXDEV, path)


def _rule_of(path: str, view: View) -> tuple[str, str]:
    fitting = [(agent, place) for agent, place in view if place is not None and path.startswith(place + "/")]
    if not fitting:
        raise _refused(errno.EXDEV, path)
    return max(fitting, key=lambda rule: len(rule[1]))


def _outermost(path: str, roots: Container[str]) -> str | None:
    """The outermost root above ``path``: directories between nested roots may be rearranged too."""
    return next((directory for directory in ancestors(f"{path}/") if directory in roots), None)


def _refused(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
