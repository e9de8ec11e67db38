"""Trackers: watch the files that sessions lease, and report their changes, even if watching fails.

All watches are created here. The last change of an attached file is always reported. If the system's watches fail,
for one directory or for all, they are polled instead, the reason is logged, and watching is retried.
"""

import os
import stat
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskStatus

from ctxd.clock import Clock
from ctxd.sources.confinement import Confinement
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.trackers.polling_watcher import PollingWatcher
from ctxd.trackers.tracked_files import Debouncer, TrackedFile, TrackedFiles
from ctxd.trackers.watch_modes import HangLog, WatchModes
from ctxd.trackers.watcher_interface import (
    Changed,
    Event,
    Observer,
    Overflowed,
    Report,
    Watcher,
    WatcherChoice,
    WatchLost,
)
from ctxd.trackers.watchfiles_watcher import NativeWatcher

UNSURE_MS: Final = 1_000
"""Timestamp granularity to allow for, in ms."""

LEASE_S: Final = 3_600.0
"""Seconds of inactivity after which a session's leases end."""

SWEEP_S: Final = 2.0
"""Seconds between two sweeps, which check that watched directories are the same, and retry watching the others."""

SWEEP_SHARE: Final = 0.05
"""Share of the time that sweeps may take."""

SWEEP_GAP_MAX_S: Final = 10.0
"""Maximum seconds between two sweeps while a filesystem hangs: polling a hung filesystem uses no CPU."""

BATCH: Final = 1_000
"""Files attached, or reported, at a time."""

GATHER_S: Final = 0.02
"""Minimum seconds between two attachments: each takes several thread hops, however many files it covers."""

RETRY_S: Final = 1.0
"""Seconds after which a change that the observer could not store is reported again."""

FILES_MAX: Final = 200_000
"""Maximum number of tracked files, about 1 KiB each. Others are not tracked, but still never shown stale."""

HOLD_S: Final = 0.3
"""Longest deferral of a change while ``Observer.is_busy``, in seconds."""


class PathEntry(msgspec.Struct, frozen=True):
    """The result of a lookup of a file's path: the places, as directory and name, that show its changes.

    ``linked``: the file has other names, or is mounted from elsewhere, so that some writes show at none of its places.
    ``changed_ms``: the time of its last change, in ms since 1970; `None` if nothing is there. ``responds``: False if
    the lookup timed out; the rest is unknown then.
    """

    places: tuple[tuple[str, str], ...]
    linked: bool = False
    changed_ms: int | None = None
    responds: bool = True

    def may_differ(self, file: TrackedFile) -> bool:
        """True if ``file``, which was watched before this lookup, may have changed since it was read."""
        if file.read_at == 0 or self.changed_ms is None or (self.places, self.linked) != (file.places, file.linked):
            return True
        return self.changed_ms >= file.read_at - UNSURE_MS


def entry_of(path: str, confinement: Confinement, mounted: Container[str] = frozenset()) -> PathEntry:
    """The entry at ``path``. The places of a symlink are its own and, unless confinement refuses it, its target's.

    ``mounted``: see ``Lookups.mount_points``.
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


async def entries_at(
    lookups: Lookups, paths: Sequence[str], confinement: Confinement, mounted: Container[str]
) -> list[PathEntry]:
    """The entry of each of ``paths``, see ``entry_of``; with ``responds`` False if its lookup hangs."""

    def own_entry(path: str) -> PathEntry | str:
        """The entry, or the path that a symlink leads to."""
        try:
            return os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        except (OSError, ValueError):
            return entry_of(path, confinement, mounted)

    found = await lookups.each(paths, own_entry, _hung)
    leading: dict[str, list[str]] = {}
    for path, answer in zip(paths, found, strict=True):
        if isinstance(answer, str):
            leading.setdefault(answer, []).append(path)
    if not leading:
        return [answer for answer in found if isinstance(answer, PathEntry)]

    def target_entries(target: str) -> list[PathEntry]:
        return [entry_of(path, confinement, mounted) for path in leading[target]]

    led = await lookups.each(list(leading), target_entries, lambda target: [_hung(path) for path in leading[target]])
    linked = dict(zip((path for each in leading.values() for path in each), chain.from_iterable(led), strict=True))
    return [
        answer if isinstance(answer, PathEntry) else linked[path] for path, answer in zip(paths, found, strict=True)
    ]


def _hung(path: str) -> PathEntry:
    return PathEntry((os.path.split(path),), responds=False)


class Followed(msgspec.Struct, frozen=True):
    """A file to track. ``read_at``: when its known content was read, in ms since 1970; 0 if it may be outdated."""

    path: str
    read_at: int = 0


class FileTrackers:
    """Tracks files for sessions. All methods are called on the loop that ``run`` runs on."""

    def __init__(
        self,
        clock: Clock,
        tracked: TrackedFiles,
        watcher: Watcher,
        polling: Watcher,
        lookups: Lookups,
        confinement: Confinement,
        report: Report,
        *,
        lease_s: float = LEASE_S,
        sweep_s: float = SWEEP_S,
        hold_s: float = HOLD_S,
    ) -> None:
        """``tracked`` is empty; ``polling`` polls ``tracked.polled_names``; both watchers share ``lookups``."""
        self.tracked = tracked
        self.watcher = watcher
        self.events = 0
        self.overflows = 0
        self.refused = 0
        self._modes = WatchModes(clock, tracked, watcher, polling, report)
        self._clock = clock
        self._confinement = confinement
        self._report = report
        self.lease_s = lease_s
        """Seconds for which a session's files stay tracked after its last activity."""
        self._sweep_s = sweep_s
        self._observer: Observer | None = None
        self._hold_s = hold_s
        self._mounted: frozenset[str] = frozenset()
        self._lookups = lookups
        self._hanging = HangLog(lookups, report)
        self._held: dict[str, float] = {}
        self._debouncer = Debouncer()
        self._fresh: dict[str, None] = {}
        self._due_changed = anyio.Event()
        self._work_due = anyio.Event()
        self._settled = anyio.Event()
        self._sweep_due = anyio.Event()
        self._watching = anyio.Lock()

    # --- leases ---

    def lease(self, session: str, files: Mapping[str, Followed], *, known: bool = False) -> None:
        """Start tracking ``files``, by key, for ``session``. Files that changed since they were read are reported.

        ``known``: they were tracked before, when the session was last active; all of them are reported.
        """
        now_ms = self._clock.wall_ms()
        room = FILES_MAX if self._observer is None else self._observer.room(session)
        for key, file in files.items():
            read_at = 0 if known else file.read_at
            is_more = not self.tracked.holds(session, key)
            is_new = key not in self.tracked.files
            if (is_more and room <= 0) or (is_new and len(self.tracked.files) >= FILES_MAX):
                self.refused += 1
                continue
            room -= is_more
            if self.tracked.lease(session, key, file.path, known=known, now_ms=now_ms, read_at=read_at):
                self._fresh[key] = None
        self.renew(session)
        if self._fresh:
            self._work_due.set()

    def renew(self, session: str) -> None:
        """Extend the leases of ``session``, because it is active."""
        self.tracked.leases[session] = self._clock.monotonic() + self.lease_s

    def release(self, session: str) -> None:
        """End all leases of ``session``."""
        for key in self.tracked.release(session):
            self._forget(key)
        self._work_due.set()

    def _forget(self, key: str) -> None:
        self._fresh.pop(key, None)
        self._held.pop(key, None)
        self._debouncer.forget(key)
        self._modes.emptied |= dict.fromkeys(self.tracked.forget(key))

    @property
    def watches(self) -> int:
        """The number of operating-system watches in use."""
        return self.watcher.watches

    async def wait_until_attached(self) -> None:
        """Return once every file leased so far is attached, if that is possible. Cancel: safe."""
        while self._fresh or self._modes.emptied:
            await self._settled.wait()

    # --- running ---

    async def run(
        self,
        observer: Observer,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Track until cancelled, reporting changes to ``observer``. A second run resumes with the tracked files."""
        self._observer = observer
        self._modes.reset()
        if self.tracked.directories:
            self._sweep_due.set()
        if self._fresh or self._modes.emptied:
            self._work_due.set()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.watcher.run, self._process)
            await tasks.start(self._modes.polling.run, self._process)
            tasks.start_soon(self._attach)
            tasks.start_soon(self._report_changes, observer)
            tasks.start_soon(self._sweep, observer)
            task_status.started()

    def _process(self, events: Sequence[Event]) -> None:
        """Process ``events`` of either watcher."""
        now = self._clock.monotonic()
        self.events += len(events)
        for event in events:
            match event:
                case Changed(directory, name, hint):
                    if hint == "directory":
                        self._sweep_due.set()
                    for key in self.tracked.keys_at(directory, name):
                        self._debouncer.note(key, hint, now)
                case WatchLost(directory, reason):
                    self._note_lost(directory, reason, now)
                case Overflowed():
                    self.overflows += 1
                    self._report("tracker.overflow", "", "events were dropped; every tracked file is checked")
                    self._debouncer.again(self.tracked.files, now)
                    self._sweep_due.set()
        if events:
            self._due_changed.set()

    def _note_lost(self, directory: str, reason: str, now: float) -> None:
        self._modes.note_lost(directory, reason)
        kept = self.tracked.directories.get(directory)
        if kept is None:
            return
        for key in kept.keys:
            self._debouncer.note(key, "gone", now)
        self._sweep_due.set()

    async def _attach(self) -> None:
        attached_at = -GATHER_S
        while True:
            await self._work_due.wait()
            if (early_s := attached_at + GATHER_S - self._clock.monotonic()) > 0:
                await self._clock.sleep(early_s)
            self._work_due = anyio.Event()
            async with self._watching:
                await self._modes.give_up()
                fresh = {key: self.tracked.files[key] for key in list(self._fresh)[:BATCH]}
                await self._find_places(fresh)
                await self._schedule_changed(fresh)
                for key, file in fresh.items():
                    # A file that was released and leased again meanwhile is a new one.
                    if self.tracked.files.get(key) is file:
                        del self._fresh[key]
            attached_at = -GATHER_S if len(fresh) == BATCH else self._clock.monotonic()
            if self._fresh or self._modes.emptied:
                # Gather files leased meanwhile too, or each file of a steady stream would be attached alone.
                self._work_due.set()
            self._settled.set()
            self._settled = anyio.Event()

    async def _find_places(self, keys: Iterable[str]) -> None:
        """Look up the places of ``keys``, and watch them; keys whose places changed are due again."""
        files = {key: self.tracked.files[key] for key in keys if key in self.tracked.files}
        entries = await self._look([file.path for file in files.values()])
        added: list[str] = []
        linked: list[str] = []
        again: list[str] = []
        for (key, file), entry in zip(files.items(), entries, strict=True):
            if self.tracked.files.get(key) is not file:
                continue
            back = self.tracked.note_lookup(key, entry.responds, self._clock.wall_ms())
            moved = self._is_moved(file, entry)
            if moved:
                added += self._place(key, entry)
                if entry.linked:
                    linked += [directory for directory, _ in entry.places]
            if (moved or back) and key not in self._fresh:
                again.append(key)
        if added:
            await self._modes.watch(added)
        if linked:
            await self._modes.poll(linked)
        self._again(again)
        if self._modes.emptied:
            self._work_due.set()

    def _is_moved(self, file: TrackedFile, entry: PathEntry) -> bool:
        """True if the places of ``file`` changed. After a lookup that timed out, it keeps its places if it has any."""
        return (entry.places, entry.linked) != (file.places, file.linked) and (entry.responds or not file.places)

    def _place(self, key: str, entry: PathEntry) -> list[str]:
        """Store the places of ``key``. Returns: the directories that are new."""
        new, emptied = self.tracked.place(key, entry.places, linked=entry.linked, now_ms=self._clock.wall_ms())
        self._modes.emptied |= dict.fromkeys(emptied)
        return new

    async def _schedule_changed(self, files: Mapping[str, TrackedFile]) -> None:
        """Schedule a read of each file of ``files`` that may have changed before its watch was added."""
        entries = await self._look([file.path for file in files.values()])
        looked = zip(files.items(), entries, strict=True)
        self._again([key for (key, file), entry in looked if entry.responds and entry.may_differ(file)])

    def _again(self, keys: Sequence[str]) -> None:
        if keys:
            self._debouncer.again([key for key in keys if key in self.tracked.files], self._clock.monotonic())
            self._due_changed.set()

    async def _look(self, paths: Sequence[str]) -> list[PathEntry]:
        entries = await entries_at(self._lookups, paths, self._confinement, self._mounted)
        self._hanging.note()
        return entries

    # --- reporting changes ---

    async def _report_changes(self, observer: Observer) -> None:
        while True:
            await self._until_due()
            keys = self._due(observer)
            if not keys:
                continue
            present = await observer.changed(keys)
            now_ms = self._clock.wall_ms()
            for key, is_there in present.items():
                self.tracked.found(key, is_there, now_ms)
            self._debouncer.again(
                [key for key in keys if key not in present and key in self.tracked.files],
                self._clock.monotonic() + RETRY_S,
            )
            # A file may have been replaced by a symlink, or the other way round.
            async with self._watching:
                await self._find_places([key for key in keys if key not in self._fresh])

    def _due(self, observer: Observer) -> list[str]:
        """The keys to report now. Deferred ones are due again soon; those on a hanging filesystem once it responds."""
        now = self._clock.monotonic()
        keys: list[str] = []
        for key in self._debouncer.take(now, BATCH):
            if key in self.tracked.files and not self.tracked.is_hung(key):
                if observer.is_busy(key) and now - self._held.setdefault(key, now) < self._hold_s:
                    self._debouncer.again((key,), now)
                else:
                    self._held.pop(key, None)
                    keys.append(key)
        return keys

    async def _until_due(self) -> None:
        while True:
            at = self._debouncer.next_at()
            wait_s = None if at is None else at - self._clock.monotonic()
            if wait_s is not None and wait_s <= 0:
                return
            self._due_changed = anyio.Event()
            with anyio.move_on_after(wait_s):
                await self._due_changed.wait()

    # --- periodic checks ---

    async def _sweep(self, observer: Observer) -> None:
        while True:
            with anyio.move_on_after(self._sweep_s):
                await self._sweep_due.wait()
            self._sweep_due = anyio.Event()
            began = self._clock.monotonic()
            await self._sweep_once(observer)
            pause_s = (self._clock.monotonic() - began) / SWEEP_SHARE
            await self._clock.sleep(min(pause_s, SWEEP_GAP_MAX_S) if self._hanging.note() else pause_s)

    async def _sweep_once(self, observer: Observer) -> None:
        now = self._clock.monotonic()
        for session in self.tracked.expired(now):
            if observer.keeps(session):
                self.renew(session)
            else:
                self.release(session)
        async with self._watching:
            moved = await self._modes.drop_moved_directories()
            self._process([WatchLost(directory, why) for directory, why in moved.items()])
            if unwatched := list(self.tracked.unwatched):
                returned = await self._modes.watch(unwatched)
                now = self._clock.monotonic()
                for directory in returned:
                    if (kept := self.tracked.directories.get(directory)) is not None:
                        for key in kept.keys:
                            self._debouncer.note(key, "written", now)
                self._due_changed.set()
            await self._find_mounted()
            # A symlink in a path may lead elsewhere now, and a filesystem that hung may respond again.
            if due := self.tracked.indirect | self._hung_alone():
                await self._find_places(due)

    def _hung_alone(self) -> dict[str, None]:
        """Files whose lookup hung although their directory is followed; other files resume with their directory."""
        tracked = self.tracked
        return {
            key: None
            for key in tracked.hung
            if (file := tracked.files[key]).places and tracked.directories[file.places[0][0]].mode != "away"
        }

    async def _find_mounted(self) -> None:
        """Update files that became mount points, or no longer are: the system reports not all changes of these."""
        now = self._lookups.mount_points
        changed, self._mounted = now ^ self._mounted, now
        await self._find_places({key: None for path in changed for key in self.tracked.keys_at(*os.path.split(path))})


def file_trackers(
    clock: Clock, confinement: Confinement, report: Report, *, choice: WatcherChoice = "auto"
) -> FileTrackers:
    """Create trackers that watch as ``choice`` selects; call ``run`` next."""
    tracked = TrackedFiles()
    lookups = Lookups(clock)
    watcher: Watcher
    if choice == "polling":
        watcher = PollingWatcher(clock, tracked.names, lookups)
    elif choice == "native" or sys.platform != "linux":
        watcher = NativeWatcher(clock, tracked.names, lookups, confinement)
    else:
        from ctxd.trackers.inotify_watcher import InotifyWatcher

        watcher = InotifyWatcher(lookups, confinement)
    polling = PollingWatcher(clock, tracked.polled_names, lookups)
    return FileTrackers(clock, tracked, watcher, polling, lookups, confinement, report)
