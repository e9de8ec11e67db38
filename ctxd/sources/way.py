"""At which mount somebody stands who looks at a path and does not come back: that of the path's name, or one behind a
symlink on the way.

Owns which part of a path a mount that hangs takes with it. Nothing here is asked before a look takes long.
"""

import errno
import os
from collections.abc import Container
from contextlib import suppress
from typing import Final

from ctxd.mounts.mapping import ancestors
from ctxd.sources.beneath import HOPS_MAX

_NO_LINK: Final = frozenset({errno.EINVAL, errno.ENOENT, errno.ENOTDIR})


class Way:
    """The way to ``path``: by its name, until it is followed."""

    def __init__(self, path: str, mounts: Container[str]) -> None:
        self.path = path
        self._mounts = mounts
        named = mount_of(path, mounts)
        self._stands = named, named
        self._ended = False

    @property
    def mount(self) -> str:
        """The mount on which it stands now."""
        return self._stands[1]

    @property
    def place(self) -> str:
        """What counts as hanging, with all that is below, if ``path`` does: where the path enters its mount; on the
        root's, the directory of the path, or the path itself if that is next to all others."""
        entered, mount = self._stands
        if mount != "/":
            return entered
        directory = os.path.dirname(self.path)
        return directory if directory != "/" else self.path

    @property
    def hung(self) -> str | None:
        """The mount that hangs if ``path`` does, whatever leads to it; null where that is not certain."""
        entered, mount = self._stands
        # One who went to the end went by the host's links, which mean other things to a sandbox.
        return None if mount == "/" or (self._ended and entered != mount) else mount

    def follow(self, avoid: Container[str] = ()) -> bool:
        """Go the way, symlink by symlink, and stand where it goes no further. Called in a thread: may hang there.

        Returns: whether it comes to one of the mounts to ``avoid``, at which it stops.
        """
        with suppress(OSError, ValueError):
            self._go(avoid)
        self._ended = True
        return self.mount in avoid

    def _go(self, avoid: Container[str]) -> None:
        at, hops = "/", 0
        for named in ancestors(f"{self.path}/"):
            left = [os.path.basename(named)]
            while left and hops <= HOPS_MAX:
                ahead = os.path.normpath(os.path.join(at, left.pop()))
                if ahead == at:
                    continue
                self._stand(named, ahead)
                if self.mount in avoid:
                    return
                target = _target_of(ahead)
                if target is None:
                    at = ahead
                else:
                    hops += 1
                    at = "/" if target.startswith("/") else at
                    left += reversed(target.split("/"))

    def _stand(self, named: str, at: str) -> None:
        mount = mount_of(at, self._mounts)
        if mount != self._stands[1]:
            self._stands = named, mount


def _target_of(path: str) -> str | None:
    """Where a symlink leads; null if ``path`` is none. Raises: OSError."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in _NO_LINK:
            return None
        raise


def mount_of(path: str, mounts: Container[str]) -> str:
    """The innermost of ``mounts`` that ``path`` is at or below by its name; the root's where none is."""
    above = list(ancestors(f"{path}/"))
    return next((directory for directory in reversed(above) if directory in mounts), "/")
