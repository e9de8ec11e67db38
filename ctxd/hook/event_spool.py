"""Spool of ``ctx-hook``: the directory of the events that wait for the daemon, with the reasons for which events were
lost. Loaded only when it is needed."""

import fcntl
import os
import time
from io import FileIO
from stat import S_ISREG

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

SETTINGS = "settings"
SETTINGS_MAX = 20
"""Name of the file with a line for each setting that a hook ignored, and maximum number of its lines."""


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

    def names(self) -> list[str]:
        """The file names of waiting events, oldest first."""
        return sorted(name for name in os.listdir(self._folder) if name.endswith(SUFFIX))

    def after_waiting(self, name: str) -> str:
        """Return ``name``, or one after the newest waiting event if that is much later, as the clock was set back."""
        newest = max((each for each in self.names() if each[:20].isdigit()), default=name)[:20]
        return f"{int(newest) + 1:020}{name[20:]}" if int(newest) > int(name[:20]) + CLOCK_NS else name

    def drafts(self) -> list[str]:
        """The file names of events that a hook is writing, or was writing when it was killed."""
        return [name for name in os.listdir(self._folder) if name.endswith(DRAFT)]

    def is_empty(self) -> bool:
        """True if no event waits."""
        return not any(name.endswith(SUFFIX) for name in os.listdir(self._folder))

    def add(self, name: str, frame: bytes) -> str:
        """Store ``frame`` durably. Returns: empty, or the reason why it cannot be stored."""
        draft = name + DRAFT
        try:
            sizes = [found.st_size for each in self._files() if (found := self._stat(each)) is not None]
            if len(sizes) >= WAITING_MAX or sum(sizes) + len(frame) > WAITING_BYTES_MAX:
                return "full"
            with open(
                os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._folder), "wb", 0
            ) as file:
                view = memoryview(frame)
                while view:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())
            os.rename(draft, self.file_of(name), src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            if self._stat(draft) is not None:
                self.erase(draft)
            return "disk"
        return ""

    def _files(self) -> list[str]:
        return [*self.names(), *self.drafts()]

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
        try:
            os.unlink(name, dir_fd=self._folder)
        except IsADirectoryError:
            os.rename(name, f"damaged-{time.time_ns()}", src_dir_fd=self._folder, dst_dir_fd=self._folder)

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
