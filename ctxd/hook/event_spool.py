"""Spool of ``ctx-hook``: the directory of the events that wait for the daemon, with the reasons for which events were
lost. Loaded only when it is needed."""

import fcntl
import os
import time
from io import FileIO
from stat import S_ISDIR, S_ISREG

from ctxd.hook.daemon_connection import POSTPONED_FOLDER, RETRIED, RETRY_S, retry_age_s

HELD_S = 5.0
"""Seconds for which no hook calls a daemon that did not reply in time: a harness must not wait at each tool call."""

WAITING_MAX = 20_000
WAITING_BYTES_MAX = 256 * 1024 * 1024
"""Maximum number of waiting events, and of their bytes. Events beyond these are dropped, and noted in ``LOST``."""

DRAFT_S = 60.0
"""Age in seconds from which a draft is assumed to have been left by a killed hook."""

CLOCK_NS = 10_000_000_000
"""Nanoseconds by which a waiting event may be newer than the next one: hooks that run at once end in any order."""

SUFFIX = ".event"
DRAFT = ".draft"
LOST = "lost"
"""Name of the file with a line for each event that was dropped: its time in ms and the reason. A zero byte stands for
an event that was dropped because the disk was full, also for this line."""

USAGE = "usage"
"""Name of the file with an estimate of the number of waiting events and of their bytes, so that a hook need not look at
each of them: the figures of ``SpoolUsage``. A killed hook may leave too much in it, a power cut too little."""

COUNTED_ADDITIONS = 1_024
COUNTED_S = 60.0
"""Additions after which the events are counted again, and minimum seconds between two counts if there is no room."""

FIGURE_DIGITS = 20
"""Digits of each figure in that file, as many as the time in the name of an event has."""

LOCK_TRIES = 500
LOCK_PAUSE_S = 0.002

UNORDERED = "unordered"
"""Directory of the postponed events that hold up no other: those that cannot be read, or fail for their content."""

SETTINGS = "settings"
SETTINGS_MAX = 20
"""Name of the file with a line for each setting that a hook ignored, and maximum number of its lines."""


class SpoolUsage:
    """The number of waiting events, their bytes, the time of the newest in ns, the additions since the last count, and
    the time of that in ms."""

    def __init__(self, number: int = 0, size: int = 0, newest: int = 0, additions: int = 0, counted: int = 0) -> None:
        self.number = number
        self.size = size
        self.newest = newest
        self.additions = additions
        self.counted = counted

    def has_room(self, size: int) -> bool:
        """True if another event, of ``size`` bytes, may wait."""
        return self.number < WAITING_MAX and self.size + size <= WAITING_BYTES_MAX

    def is_recent(self) -> bool:
        """True if the events were counted less than ``COUNTED_S`` ago."""
        return abs(time.time_ns() // 1_000_000 - self.counted) < COUNTED_S * 1_000

    def add(self, number: int, size: int) -> None:
        """Add ``number`` events of ``size`` bytes together; both may be negative."""
        self.number, self.size = max(0, self.number + number), max(0, self.size + size)


class EventSpool:
    """The directory of undelivered events for one socket, each in a file of mode 0600 named by its time."""

    def __init__(self, path: str, folder: int) -> None:
        self.path = path
        self._folder = folder
        self._lock: FileIO | None = None

    def close(self) -> None:
        """Close the directory, and give up its lock."""
        if self._lock is not None:
            self._lock.close()
        os.close(self._folder)

    def lock(self) -> bool:
        """Keep other hooks from delivering until ``close``; False if another one is delivering. Raises: OSError."""
        if self._lock is None:
            self._lock = self.opened("lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @staticmethod
    def file_of(name: str) -> str:
        """The file name of the event ``name``."""
        return name + SUFFIX

    @staticmethod
    def session_of(name: str) -> str:
        """The session in the file name of an event, which names the directory for it; ``UNORDERED`` without one."""
        return os.path.basename(name).removesuffix(SUFFIX).partition("-")[2].partition("-")[2] or UNORDERED

    def names(self) -> list[str]:
        """The file names of waiting events that are not postponed, oldest first."""
        return sorted(name for name in os.listdir(self._folder) if name.endswith(SUFFIX))

    def all_names(self) -> list[str]:
        """The file names of all waiting events. Raises: OSError."""
        # In this order, no event is missed that is postponed meanwhile.
        return [*self.names(), *(name for session in self.postponed() for name in self.postponed_names(session))]

    def postponed(self) -> list[str]:
        """The directories of postponed events, one for each session, the least recently retried first. Raises:
        OSError."""
        times: dict[str, float] = {}
        for session in self._listed(POSTPONED_FOLDER):
            found = self._stat(f"{POSTPONED_FOLDER}/{session}")
            if found is not None and S_ISDIR(found.st_mode):
                times[session] = found.st_mtime
        return sorted(times, key=times.__getitem__)

    def postponed_names(self, session: str) -> list[str]:
        """The file names of the postponed events of ``session``, oldest first. Raises: OSError."""
        folder = f"{POSTPONED_FOLDER}/{session}"
        return [f"{folder}/{name}" for name in sorted(self._listed(folder)) if name.endswith(SUFFIX)]

    def postpone(self, name: str, session: str) -> None:
        """Move the event ``name`` to the postponed events of ``session``. Raises: OSError."""
        folder = f"{POSTPONED_FOLDER}/{session}"
        self._make_folder(POSTPONED_FOLDER)
        # A hook looks for this file first, and for the directory only if it exists.
        self.opened(RETRIED, os.O_WRONLY | os.O_CREAT).close()
        self._make_folder(folder)
        os.rename(name, f"{folder}/{os.path.basename(name)}", src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def is_retry_due(self) -> bool:
        """True if events are postponed, and were not retried for ``RETRY_S``. Raises: OSError."""
        age = retry_age_s(self._folder)
        return age is not None and age > RETRY_S

    def note_retry(self, session: str = "", *, continues: bool = False) -> None:
        """Note the time of a retry of ``session``, by default of all sessions; ``continues``: the next hook continues
        it. Raises: OSError."""
        place = f"{POSTPONED_FOLDER}/{session}" if session else RETRIED
        times = (0.0, 0.0) if continues else None
        try:
            os.utime(place, times, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return

    def remove_empty(self, session: str) -> bool:
        """Remove the directory of ``session`` unless events are in it. Returns: False if there are. Raises: OSError."""
        if self.postponed_names(session):
            return False
        try:
            os.rmdir(f"{POSTPONED_FOLDER}/{session}", dir_fd=self._folder)
            if not self.postponed():
                os.unlink(RETRIED, dir_fd=self._folder)
        except OSError:
            pass  # An empty directory delays its session only.
        return True

    def _make_folder(self, name: str) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=self._folder)
        except FileExistsError:
            pass

    def _listed(self, name: str) -> list[str]:
        """The names in the directory ``name``; empty without one. Raises: OSError."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            folder = os.open(name, flags, dir_fd=self._folder)
        except FileNotFoundError:
            return []
        try:
            return os.listdir(folder)
        finally:
            os.close(folder)

    def after_waiting(self, name: str) -> str:
        """Return ``name``, or one after the newest waiting event if that is much later, as the clock was set back."""
        newest = self._newest()
        return f"{newest + 1:020}{name[20:]}" if newest > int(name[:20]) + CLOCK_NS else name

    def _newest(self) -> int:
        try:
            with self.opened(USAGE, os.O_RDWR) as file:
                _lock(file)
                usage = _stored(file)
        except OSError:
            usage = None
        return (usage or self._counted()).newest

    def drafts(self) -> list[str]:
        """The file names of events that a hook is writing, or was writing when it was killed."""
        return [name for name in os.listdir(self._folder) if name.endswith(DRAFT)]

    def is_empty(self) -> bool:
        """True if no event waits."""
        return not self.all_names()

    def add(self, name: str, frame: bytes) -> str:
        """Store ``frame`` so that a kill loses nothing of it, and neither does a power cut on filesystems where the
        flush of a file includes its name, as on ext4, XFS and Btrfs.

        Returns: empty, or the reason why it cannot be stored.
        """
        draft, own = name + DRAFT, self.file_of(name)
        if not self._reserve(name, len(frame)):
            return "full"
        try:
            with open(
                os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._folder), "wb", 0
            ) as file:
                view = memoryview(frame)
                while view:
                    view = view[file.write(view) :]
                os.rename(draft, own, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                # After the renaming, to flush the name too: a flush of the directory takes as long as that of the file.
                os.fsync(file.fileno())
        except OSError:
            for each in (draft, own):
                if self._stat(each) is not None:
                    os.unlink(each, dir_fd=self._folder)
            self._release(len(frame))
            return "disk"
        return ""

    def _reserve(self, name: str, size: int) -> bool:
        """Count an event of ``size`` bytes before it is stored; False if there is no room."""
        try:
            with self.opened(USAGE, os.O_RDWR | os.O_CREAT) as file:
                _lock(file)
                usage = _stored(file)
                if usage is None or usage.additions >= COUNTED_ADDITIONS:
                    usage = self._counted()
                if not usage.has_room(size) and not usage.is_recent():
                    usage = self._counted()
                if has_room := usage.has_room(size):
                    usage.add(1, size)
                    usage.additions += 1
                    usage.newest = max(usage.newest, _time_of(name))
                _store(file, usage)
                return has_room
        except OSError:
            return self._counted().has_room(size)

    def _release(self, size: int) -> None:
        """Subtract an event of ``size`` bytes. Ignores errors: the next count corrects the figures."""
        try:
            with self.opened(USAGE, os.O_RDWR) as file:
                _lock(file)
                if (usage := _stored(file)) is not None:
                    usage.add(-1, -size)
                    usage.newest = usage.newest if usage.number else 0
                    _store(file, usage)
        except OSError:
            return

    def _counted(self) -> SpoolUsage:
        """Count the waiting events, those that are being written included."""
        usage = SpoolUsage(counted=time.time_ns() // 1_000_000)
        for name in (*self.all_names(), *self.drafts()):
            if (found := self._stat(name)) is not None:
                usage.add(1, found.st_size)
                usage.newest = max(usage.newest, _time_of(os.path.basename(name)))
        return usage

    def clear(self) -> None:
        """Remove the incomplete files of killed hooks."""
        for name in self.drafts():
            found = self._stat(name)
            if found is not None and time.time_ns() / 1e9 - found.st_mtime > DRAFT_S:
                self.erase(name)

    def _stat(self, name: str) -> os.stat_result | None:
        """The state of the file ``name``; None if another hook has removed it."""
        try:
            return os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def opened(self, name: str, flags: int) -> FileIO:
        """Open the file ``name`` of the directory, never through a symbolic link, and never waiting for a pipe. Raises:
        OSError."""
        mode = "ab" if flags & os.O_APPEND else "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb"
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return FileIO(os.open(name, flags, 0o600, dir_fd=self._folder), mode)

    def read(self, name: str) -> bytes:
        """The event ``name``; empty for anything but a regular file. Raises: OSError."""
        found = self._stat(name)
        if found is not None and not S_ISREG(found.st_mode):
            return b""
        with self.opened(name, os.O_RDONLY) as file:
            return file.read() or b""

    def whole(self, name: str) -> bytes | None:
        """The event ``name``; None if it is gone, or if it is damaged: then it is removed and noted as lost. Raises:
        OSError; it may be read later."""
        try:
            frame = self.read(name)
        except FileNotFoundError:
            return None
        if frame.startswith(b"{") and frame.endswith(b"}\n") and frame.count(b"\n") == 1:
            return frame
        self.note_lost("damaged")
        self.erase(name)
        return None

    def erase(self, name: str) -> None:
        """Remove the event ``name``; a directory of that name is renamed to ``damaged-TIME``. Raises: OSError."""
        found = self._stat(name)
        try:
            os.unlink(name, dir_fd=self._folder)
        except IsADirectoryError:
            os.rename(name, f"damaged-{time.time_ns()}", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._release(0 if found is None else found.st_size)

    def lost(self) -> list[str]:
        """The reasons for which events were dropped, oldest first. Raises: OSError."""
        try:
            lines = self.read(LOST).decode("utf-8", "replace").replace("\0", "0 disk\n").splitlines()
            return [line.partition(" ")[2] for line in lines]
        except FileNotFoundError:
            return []

    def note_settings(self, ignored: list[str]) -> None:
        """Note settings that a hook ignored, each once, for ``ctx doctor``. Raises: OSError."""
        known = self.settings()
        new = [each for each in ignored if " ".join(each.split()) not in known]
        if new and len(known) < SETTINGS_MAX:
            with self.opened(SETTINGS, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
                file.write("".join([" ".join(each.split()) + "\n" for each in new]).encode("utf-8", "replace"))

    def settings(self) -> list[str]:
        """The settings that hooks ignored. Raises: OSError."""
        try:
            return self.read(SETTINGS).decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []

    def hold(self) -> None:
        """Keep hooks from calling the daemon for ``HELD_S`` seconds. If the file cannot be written, they call it."""
        try:
            self.opened("held", os.O_WRONLY | os.O_CREAT).close()
            os.utime("held", dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return

    def is_held(self) -> bool:
        """True if the daemon failed to reply to a hook in time less than ``HELD_S`` ago."""
        found = self._stat("held")
        return found is not None and abs(time.time_ns() / 1e9 - found.st_mtime) < HELD_S

    def note_lost(self, reason: str) -> None:
        """Note that an event was dropped, for ``ctx doctor``, unless a person closed or removed its session. Ignores
        errors: delivery continues without the note."""
        if reason in ("session_closed", "session_removed"):
            return
        try:
            with self.opened(LOST, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
                if (end := file.tell()) < 65_536:
                    _append(file, f"{time.time_ns() // 1_000_000} {reason}\n".encode(), end)
        except OSError:
            return


def _time_of(name: str) -> int:
    """The time in the name of an event, in ns; 0 if it has none."""
    return int(name[:20]) if name[:20].isdigit() and name[:20].isascii() else 0


def _lock(file: FileIO) -> None:
    """Wait for the lock of ``file``, which its closing gives up. Raises: OSError, also if it is held for too long."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
    raise TimeoutError


def _stored(file: FileIO) -> SpoolUsage | None:
    """The figures in ``file``; None if it is new or damaged. Raises: OSError."""
    words = os.pread(file.fileno(), 200, 0).split()
    is_whole = len(words) == 5 and all(word.isdigit() and len(word) == FIGURE_DIGITS for word in words)
    return SpoolUsage(*map(int, words)) if is_whole else None


def _store(file: FileIO, usage: SpoolUsage) -> None:
    figures = usage.number, usage.size, usage.newest, usage.additions, usage.counted
    os.pwrite(file.fileno(), b"%020d %020d %020d %020d %020d\n" % figures, 0)


def _append(file: FileIO, line: bytes, end: int) -> None:
    """Add ``line`` to a file of ``end`` bytes; on a full disk, which may still extend a file by a hole, one zero byte.
    Raises: OSError."""
    try:
        if file.write(line) == len(line):
            return
    except OSError:
        pass
    os.ftruncate(file.fileno(), end)
    os.ftruncate(file.fileno(), end + 1)
