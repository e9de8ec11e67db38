"""Confinement of host directories that sandboxes write to: which files are opened below them, and for which users.

Owns the confined and limited directories. A lookup reads only the entries of a path's parents, so it costs the same for
one sandbox as for a thousand. Any thread may change them; readers in other threads see each directory either before or
after a change.
"""

import errno
import os
import threading
from collections.abc import Collection, Mapping
from functools import partial
from itertools import chain
from typing import Final

from ctxd.mounts.mapping import ancestors
from ctxd.sources.open_beneath import View, open_in_view, resolve_in_view
from ctxd.sources.user_rights import SEARCH, User, require

VIEWS_MAX: Final = 16
"""Maximum number of views of one directory in which a symlink is resolved. If sandboxes with more different mounts
share a directory, its links are followed only if they stay below it."""


class Confinement:
    """The confined directories, and the users who are limited below them."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._views: dict[str, dict[View, None]] = {}
        self._crowded: set[str] = set()
        self._limits: dict[str, dict[str, User]] = {}
        self._limited: dict[str, Collection[str]] = {}
        self._users: dict[str, frozenset[User]] = {}

    def confine(self, root: str, view: View = ()) -> None:
        """From now on, read and stat paths below ``root`` only if they lead to files below it, symlinks followed.

        For a directory that a sandbox writes to: its symlinks mean the sandbox's files, and must not reach the host's.
        ``view`` maps each of the sandbox's directories to the host's, `None` if it is not a host directory. Without
        ``view``, links are resolved as on the host. If several sandboxes share ``root`` and a link means different
        files to them, it leads nowhere.
        """
        with self._changing:
            views = self._views.get(root)
            if root == "/" or (views is not None and (not view or view in views)):
                return
            own = ((root, root),)
            known = [each for each in views or () if each != own]
            if len(known) >= VIEWS_MAX:
                self._crowded.add(root)
            # Keep only those that count: otherwise each new sandbox would copy all earlier ones of the directory.
            self._views[root] = dict.fromkeys((*known[1 - VIEWS_MAX :], view or own))

    def limit(self, key: str, roots: Collection[str], user: User) -> None:
        """Until ``lift``, do not read files below ``roots`` that ``user`` may not read, for any caller, because all
        callers share a file's versions. ``user`` must also be able to search the directories on the way."""
        self._limit(key, dict.fromkeys(roots, user))

    def lift(self, key: str) -> None:
        """End the limit ``key``, if there is one."""
        self._limit(key, {})

    def _limit(self, key: str, wanted: Mapping[str, User]) -> None:
        """Set the limits of ``key`` to exactly ``wanted``, a user per directory."""
        with self._changing:
            for root in {*self._limited.pop(key, ()), *wanted}:
                limits = self._limits.setdefault(root, {})
                limits.pop(key, None)
                if root in wanted:
                    limits[key] = wanted[root]
                if limits:
                    self._users[root] = frozenset(limits.values())
                else:
                    del self._limits[root], self._users[root]
            if wanted:
                self._limited[key] = tuple(wanted)

    def holds(self, path: str) -> bool:
        """True if ``path`` is below a confined directory."""
        return any(directory in self._views for directory in ancestors(path))

    def leads_out(self, path: str, led_to: str) -> bool:
        """True if ``path`` is below a confined directory and ``led_to``, its resolved path, is not."""
        if led_to == path:
            return False
        roots = [directory for directory in ancestors(path) if directory in self._views]
        return not all(f"{led_to}/".startswith(os.path.realpath(root) + "/") for root in roots)

    def opened(self, path: str) -> int:
        """An ``O_PATH`` descriptor of the file at ``path``, symlinks followed; below a confined directory, only of a
        file that every sandbox finds there.

        Raises: OSError, EXDEV if it leads out; ValueError.
        """
        if "\0" in path or not self.holds(path):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                self.require(path, place)
            except BaseException:
                os.close(place)
                raise
            return place
        # Each sandbox that shares the directory must find the same file. One that finds none may have planted the link,
        # to be shown another sandbox's file.
        found: int | None = None
        try:
            for view in self._views_of(path):
                place = self._opened_in(path, view)
                if found is None:
                    found = place
                    continue
                same = os.path.sameopenfile(place, found)
                os.close(place)
                if not same:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        except BaseException:
            if found is not None:
                os.close(found)
            raise
        if found is None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        return found

    def require(self, path: str, place: int, *, directory: int = SEARCH) -> None:
        """Refuse ``place``, opened at ``path``, unless every user limited there has the rights. Raises: OSError."""
        for user in self._users_of(path):
            require(user, place, directory=directory)

    def resolved(self, path: str) -> str | None:
        """``path`` without symlinks, as resolved by every sandbox that sees it; `None` if it is not confined.

        A path that leads out of the mounts, or to different files for different sandboxes, is returned unchanged;
        ``opened`` refuses it. Blocks.
        """
        if not self.holds(path):
            return None
        users = self._users_of(path)

        def enter(directory: int) -> None:
            for user in users:
                require(user, directory)

        found: set[str] = set()
        for view in self._views_of(path):
            try:
                found.add(resolve_in_view(path, view, self._views, enter=enter if users else None))
            except (OSError, ValueError):
                return path
        return found.pop() if len(found) == 1 else path

    def _opened_in(self, path: str, view: View) -> int:
        """As ``open_in_view``, if every user limited there may read the file."""
        place = open_in_view(path, view, self._views)
        try:
            for user in self._users_of(path):
                # Open it again through directories held open while their rights are checked; it must be the same file.
                judged = open_in_view(path, view, self._views, by_kernel=False, enter=partial(require, user))
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

    def _users_of(self, path: str) -> set[User]:
        return {user for directory in ancestors(f"{path}/") for user in self._users.get(directory, ())}

    def _views_of(self, path: str) -> list[View]:
        """The views of the sandboxes with a directory above ``path``: innermost first, then newest first."""
        above = [(root, views) for root in ancestors(path) if (views := self._views.get(root)) is not None]
        newest = list(dict.fromkeys(chain.from_iterable(reversed(views) for _, views in reversed(above))))
        if above and (len(newest) > VIEWS_MAX or any(root in self._crowded for root, _ in above)):
            # Views left out must keep their veto, so only links that stay below the directory are followed.
            innermost, _ = above[-1]
            return [((innermost, innermost),), *newest[:VIEWS_MAX]]
        return newest
