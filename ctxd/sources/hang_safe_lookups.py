"""Lookups of paths in threads, with a timeout for file systems that hang.

Each mount has a few threads of its own. A lookup of one path that takes longer than ``HANGS_S`` counts as hung, and no
path of its mount is looked up until the thread returns. Symlinks are traced only once a lookup hangs, to find the mount
that hangs; until then, a link on a healthy mount can occupy that mount's threads for ``HANGS_S``.
"""

import errno
import os
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import anyio

from ctxd.clock import Clock
from ctxd.mounts.mapping import ancestors
from ctxd.mounts.mountinfo import OWN_MOUNTS, mounts_in
from ctxd.sources.open_beneath import HOPS_MAX
from ctxd.worker_threads import Job

THREADS: Final = 2
"""Concurrent lookups per mount."""

HANGS_S: Final = 5.0
"""Seconds after which the lookup of one path times out."""

TRACE_S: Final = 0.1
"""Maximum seconds for tracing the mount that hangs."""

MOUNTS_KNOWN_S: Final = 0.05
"""Seconds for which the mount table is cached."""

_NO_LINK: Final = frozenset({errno.EINVAL, errno.ENOENT, errno.ENOTDIR})

T = TypeVar("T")


class Lookups:
    """Thread pools by mount. All callers of one instance share the knowledge of which mounts hang."""

    def __init__(
        self, clock: Clock, threads: int = THREADS, *, hangs_s: float = HANGS_S, mountinfo: str = OWN_MOUNTS
    ) -> None:
        self._clock = clock
        self._count = threads
        self._hangs_s = hangs_s
        self._mountinfo = mountinfo
        self._runs: list[_Run[Any]] = []
        self._ended: anyio.Event | None = None
        self._mount_points: frozenset[str] = frozenset()
        self._filesystems: dict[int, str] = {}
        self._mount_text = ""
        self._known_until = 0.0

    async def each(self, paths: Sequence[str], look: Callable[[str], T], hung: Callable[[str], T]) -> list[T]:
        """Return the result of ``look`` for each of ``paths``, or of ``hung`` if the lookup hangs.

        ``look`` must have no side effects; it is called in a thread, and may still run after this has returned.
        Raises: as ``look``. Cancel: safe and immediate.
        """
        mounts = self.mount_points
        groups: dict[str, dict[int, str]] = {}
        for number, path in enumerate(paths):
            # A path belongs to the mount of its directory, unless it is a mount point itself.
            mount = path if path in mounts else mount_of(os.path.dirname(path), mounts)
            groups.setdefault(mount, {})[number] = path
        results: dict[int, T] = {}
        raised: list[BaseException] = []

        async def look_up(mount: str, left: dict[int, str]) -> None:
            try:
                await self._look_up(mount, left, look, hung, results)
            except Exception as error:  # noqa: BLE001 - raised below, not as a group
                raised.append(error)

        if len(groups) == 1:
            ((mount, left),) = groups.items()
            await self._look_up(mount, left, look, hung, results)
        else:
            async with anyio.create_task_group() as tasks:
                for mount, left in groups.items():
                    tasks.start_soon(look_up, mount, left)
        if raised:
            raise raised[0]
        return [results[number] for number in range(len(paths))]

    def hanging(self) -> tuple[str, ...]:
        """The places at or below which lookups hang now: mounts, symlinks that lead to one, and on the root mount a
        path's directory, or the path itself if that is directly below "/".
        """
        return tuple({run.trace.place for run in self._overdue()})

    async def _look_up(
        self,
        mount: str,
        left: dict[int, str],
        look: Callable[[str], T],
        hung: Callable[[str], T],
        results: dict[int, T],
    ) -> None:
        """Look up the paths ``left`` on ``mount``, moving each to ``results``."""
        while left:
            await self._turn(mount)
            places = [run.trace.place for run in self._overdue()]
            for number in [number for number, path in left.items() if _is_at(path, places)]:
                results[number] = hung(left.pop(number))
            if not left:
                return
            run = _Run(mount, list(left.values()), self._except_hung(look, hung), self._clock.monotonic)
            run.job = Job(run.look_up, self._wake)
            self._runs = [*(each for each in self._runs if not each.has_ended), run]
            await self._end(run)
            for number, result in zip(tuple(left), tuple(run.results), strict=False):
                results[number] = result
                del left[number]
            if not run.given_up:
                run.job.result()

    async def _turn(self, mount: str) -> None:
        """Wait until a thread of ``mount`` is free. Hung threads do not count as busy."""
        while True:
            for run in [run for run in self._runs if not run.has_ended and self._left_s(run) <= 0]:
                await self._trace(run)
            busy = [run for run in self._runs if run.mount == mount and not run.has_ended and self._left_s(run) > 0]
            if len(busy) < self._count:
                return
            if self._ended is None:
                self._ended = anyio.Event()
            with anyio.move_on_after(min(map(self._left_s, busy))):
                await self._ended.wait()

    def _wake(self) -> None:
        """Let callers that wait for a thread check again."""
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    async def _end(self, run: "_Run[T]") -> None:
        """Wait until ``run`` has ended or hangs."""
        try:
            while not run.job.ended.is_set() and (left_s := self._left_s(run)) > 0:
                with anyio.move_on_after(left_s):
                    await run.job.ended.wait()
        finally:
            run.given_up = not run.job.ended.is_set()
        if run.given_up:
            await self._trace(run)

    async def _trace(self, run: "_Run[Any]") -> None:
        """Find the mount at which ``run`` hangs. The first caller does it, since the run's own caller may be gone."""
        if run.traced is not None:
            await run.traced.wait()
            return
        run.traced = anyio.Event()
        run.trace = PathTrace(run.path, self.mount_points)
        try:
            with anyio.move_on_after(TRACE_S):
                await Job(run.trace.follow).ended.wait()
        finally:
            run.traced.set()

    def _left_s(self, run: "_Run[Any]") -> float:
        return run.began + self._hangs_s - self._clock.monotonic()

    def _overdue(self) -> list["_Run[Any]"]:
        return [run for run in self._runs if not run.has_ended and run.traced is not None and run.traced.is_set()]

    def _except_hung(self, look: Callable[[str], T], hung: Callable[[str], T]) -> Callable[[str], T]:
        """``look``, but ``hung`` for paths that lead to a hanging mount through symlinks."""
        hanging = frozenset(run.trace.hung for run in self._overdue() if run.trace.hung is not None)
        if not hanging:
            return look
        mounts = self.mount_points
        return lambda path: hung(path) if PathTrace(path, mounts).follow(hanging) else look(path)

    @property
    def mount_points(self) -> frozenset[str]:
        """The mount points, including single files; empty if the system does not list them."""
        self._read_table()
        return self._mount_points

    def filesystem_of(self, device: int) -> str:
        """The type of the filesystem on ``device``; empty if the system does not list it. May be used on any thread.

        The system gives the number of a device to another one after an unmount, so it is looked up each time.
        """
        self._read_table()
        if device not in self._filesystems:
            self._read_table(at_once=True)
        if self._mount_text:
            # Subvolumes have devices that are in no table.
            self._filesystems.setdefault(device, "")
        return self._filesystems.get(device, "")

    def _read_table(self, *, at_once: bool = False) -> None:
        """Read the mount table, unless it was read ``MOUNTS_KNOWN_S`` ago; ``at_once``: in any case."""
        now = self._clock.monotonic()
        if now < self._known_until and not at_once:
            return
        text = _text_of(self._mountinfo)
        if text != self._mount_text:
            mounts = mounts_in(text)
            self._filesystems = {mounted.device: mounted.filesystem for mounted in mounts}
            self._mount_points = frozenset(mounted.mount_point for mounted in mounts)
            self._mount_text = text
        self._known_until = now + MOUNTS_KNOWN_S


class _Run(Generic[T]):
    """Sequential lookups of ``paths`` of one mount, in one thread."""

    job: Job[None]
    trace: "PathTrace"  # Once ``traced`` is set.

    def __init__(
        self,
        mount: str,
        paths: Sequence[str],
        look: Callable[[str], T],
        monotonic: Callable[[], float],
    ) -> None:
        self.mount = mount
        self.results: list[T] = []
        self.began = monotonic()
        self.traced: anyio.Event | None = None
        self.given_up = False
        self.has_ended = False
        self._paths = paths
        self._look = look
        self._monotonic = monotonic

    def look_up(self) -> None:
        """Look all paths up. Called in a thread."""
        try:
            for path in self._paths:
                self.began = self._monotonic()
                result = self._look(path)
                if self.given_up:
                    return
                self.results.append(result)
        finally:
            self.has_ended = True

    @property
    def path(self) -> str:
        """The path being looked up."""
        return self._paths[min(len(self.results), len(self._paths) - 1)]


class PathTrace:
    """The mounts that ``path`` leads over: by its name, then, once `follow` is called, through its symlinks."""

    def __init__(self, path: str, mounts: Container[str]) -> None:
        self.path = path
        self._mounts = mounts
        named = mount_of(path, mounts)
        self._entered, self._mount = named, named
        self._is_complete = False

    @property
    def place(self) -> str:
        """The place that counts as hanging, with everything below it, if ``path`` hangs."""
        if self._mount != "/":
            return self._entered
        directory = os.path.dirname(self.path)
        return directory if directory != "/" else self.path

    @property
    def hung(self) -> str | None:
        """The mount that hangs if ``path`` hangs; `None` if that is uncertain."""
        # A complete trace followed the links as the host does, which may differ from a sandbox's view.
        return None if self._mount == "/" or (self._is_complete and self._entered != self._mount) else self._mount

    def follow(self, avoid: Container[str] = ()) -> bool:
        """Follow the symlinks. Call it in a thread: it may hang.

        Returns: True if the path leads to one of the mounts to ``avoid``, where the trace stops.
        """
        with suppress(OSError, ValueError):
            self._follow(avoid)
        self._is_complete = True
        return self._mount in avoid

    def _follow(self, avoid: Container[str]) -> None:
        at, hops = "/", 0
        for named in ancestors(f"{self.path}/"):
            left = [os.path.basename(named)]
            while left and hops <= HOPS_MAX:
                ahead = os.path.normpath(os.path.join(at, left.pop()))
                if ahead == at:
                    continue
                mount = mount_of(ahead, self._mounts)
                if mount != self._mount:
                    self._entered, self._mount = named, mount
                if mount in avoid:
                    return
                target = _target_of(ahead)
                if target is None:
                    at = ahead
                else:
                    hops += 1
                    at = "/" if target.startswith("/") else at
                    left += reversed(target.split("/"))


def _text_of(mountinfo: str) -> str:
    try:
        with open(mountinfo, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""


def _target_of(path: str) -> str | None:
    """The target of the symlink at ``path``; `None` if it is not one. Raises: OSError."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in _NO_LINK:
            return None
        raise


def mount_of(path: str, mounts: Container[str]) -> str:
    """The innermost of ``mounts`` at or above ``path``, by name; the root if there is no other."""
    above = list(ancestors(f"{path}/"))
    return next((directory for directory in reversed(above) if directory in mounts), "/")


def _is_at(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def inside(directory: str) -> str:
    """A path for ``directory`` that is looked up on the directory's own mount, not on its parent's."""
    return os.path.join(directory, ".")
