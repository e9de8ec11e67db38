"""Files of commits that ``ctx capture`` could not deliver yet, in the user's state directory, mode 0600.

There is one file for each capture, in a directory for each socket. A file without a lock is left over from a
capture that ended, and the next capture to the same socket delivers it. All files together are bounded.
"""

import fcntl
import os
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, Self

import msgspec

from ctxd_protocol.default_paths import user_state_dir, without_state_home

BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of all files together, those of all sockets included."""

PREVIOUS: Final = "previous"
"""Parent of a commit that continues the one queued before it."""

NEWEST: Final = "newest"
"""Parent of a commit that continues the newest one of its session at the time of delivery."""

_SUFFIX: Final = ".jsonl"


class QueuedCommit(msgspec.Struct, frozen=True, kw_only=True, tag="commit"):
    """A commit that the daemon does not have yet. ``parent``: an id, ``PREVIOUS``, ``NEWEST``, or None for a root.

    ``hooked``: the session to which the harness's hooks would record the same events, empty for none. ``since``: the
    start of the capture, in ms since 1970.
    """

    op_id: str
    parent: str | None
    delta: bytes
    commit_type: str
    checkpoint: str
    summary: str
    messages: int
    tokens: int
    session: str | None
    template: str
    ticket: str
    thread: str
    hooked: str = ""
    since: int = 0

    def arguments(self, parent: str | None) -> dict[str, Any]:
        """The arguments of ``commit_checkpoint`` for a child of ``parent``, except format and ``op_id``."""
        return {
            "delta_base64": b64encode(self.delta).decode(),
            "session": self.session,
            "parent": parent,
            "commit_type": self.commit_type,
            "checkpoint": self.checkpoint,
            "template": self.template,
            "ticket_id": self.ticket,
            "thread_id": self.thread,
            "summary": self.summary,
            "message_count": self.messages,
            "token_count": self.tokens,
        }


class _Progress(msgspec.Struct, frozen=True, tag="progress"):
    """``sent`` commits are delivered; ``parent`` is the parent of the next one."""

    sent: int
    parent: str | None


class NoRoom(OSError):
    """The files have reached their limit of bytes."""


class UndeliveredFile:
    """The commits of one capture, oldest first, and how many of them are delivered. The file is locked while open."""

    def __init__(self, path: Path) -> None:
        """Raises: BlockingIOError if another process has locked the file; OSError; ValueError for a damaged file, or
        something else in its place."""
        self.path = path
        # O_NONBLOCK: a named pipe in the file's place must not block.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | flags, 0o600)
        if not S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ValueError(f"{path} is not a regular file")
        self._file = os.fdopen(descriptor, "r+b", 0)
        self._written = self._sent = 0
        self.parent: str | None = None
        self._reader = os.fdopen(os.open(path, os.O_RDONLY | flags), "rb")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._resume()
        except BaseException:
            self.close()
            raise
        self._read = self._sent
        self._newest_read: QueuedCommit | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the file."""
        self._reader.close()
        self._file.close()

    @property
    def waiting(self) -> int:
        """Number of undelivered commits."""
        return self._written - self._sent

    def append(self, commit: QueuedCommit) -> None:
        """Add a commit. Raises: NoRoom, OSError."""
        line = msgspec.json.encode(commit) + b"\n"
        used = sum(map(_size, self.path.parent.parent.glob(f"*/*{_SUFFIX}")))
        if used + len(line) > BYTES_MAX:
            raise NoRoom(f"{self.path.parent.parent} holds {BYTES_MAX >> 20} MiB, which is its limit")
        self._append(line)
        self._written += 1

    def oldest(self) -> QueuedCommit | None:
        """The oldest undelivered commit; None without one. Raises: OSError, ValueError."""
        if not self.waiting:
            return None
        while self._read <= self._sent:
            line = self._decoded(self._reader.readline())
            if isinstance(line, QueuedCommit):
                self._read += 1
                self._newest_read = line
        return self._newest_read

    def undelivered(self) -> list[QueuedCommit]:
        """All undelivered commits, oldest first. Raises: OSError, ValueError."""
        start = self._reader.tell()
        self._reader.seek(0)
        lines = [self._decoded(raw) for raw in self._reader]
        self._reader.seek(start)
        return [line for line in lines if isinstance(line, QueuedCommit)][self._sent :]

    def note_parent(self, parent: str | None) -> None:
        """Record the parent of the next commit, so that a resend has the same one. Raises: OSError."""
        self.parent = parent
        self._append(msgspec.json.encode(_Progress(self._sent, parent)) + b"\n")

    def note_delivered(self, commit: str | None) -> None:
        """Record that the oldest commit was delivered as ``commit``, or left out if it is None. Raises: OSError."""
        self._sent += 1
        self.note_parent(commit)

    def sync(self) -> None:
        """Make everything durable. Raises: OSError."""
        os.fsync(self._file.fileno())
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def erase(self, session: str) -> int:
        """Erase the undelivered commits of ``session``; later ones of the file continue the ones before them. Returns:
        their number. Raises: OSError, ValueError."""
        waiting = self.undelivered()
        kept = [commit for commit in waiting if commit.session != session]
        if len(kept) < len(waiting):
            lines = [msgspec.json.encode(_Progress(0, self.parent)), *map(msgspec.json.encode, kept), b""]
            draft = self.path.with_suffix(".draft")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(b"\n".join(lines))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path) if kept else self.path.unlink()
            draft.unlink(missing_ok=True)
        return len(waiting) - len(kept)

    def remove(self) -> None:
        """Close and delete the file, once all its commits are delivered."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _append(self, line: bytes) -> None:
        end = os.fstat(self._file.fileno()).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            # An incomplete line would damage the next one.
            self._file.truncate(end)
            raise

    def _resume(self) -> None:
        """Count the commits, and go to the first undelivered one."""
        starts, start = [], 0
        for raw in self._reader:
            if not raw.endswith(b"\n"):
                self._file.truncate(start)  # A kill cut it off.
                break
            line = self._decoded(raw)
            if isinstance(line, QueuedCommit):
                starts.append(start)
            else:
                self._sent, self.parent = line.sent, line.parent
            start += len(raw)
        self._written = len(starts)
        self._reader.seek(starts[self._sent] if self._sent < self._written else start)

    def _decoded(self, raw: bytes) -> "QueuedCommit | _Progress":
        try:
            return msgspec.json.decode(raw, type=QueuedCommit | _Progress)
        except msgspec.DecodeError as error:
            raise ValueError(f"{self.path} is damaged: {error}") from error


def folder_of(socket: str, environ: Mapping[str, str]) -> Path:
    """The directory of the commits for the daemon at ``socket``; created with mode 0700. Raises: OSError."""
    root = _root(environ)
    folder = root / sha256(os.path.abspath(socket).encode()).hexdigest()[:16]
    for each in (root, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def erase_undelivered(session: str, environ: Mapping[str, str]) -> int:
    """Erase the commits of ``session`` that wait for any daemon, also in the default state directory, except those of
    running captures.

    Returns their number. Raises: OSError, or ValueError for a damaged file, after erasing all others.
    """
    erased, failure = 0, None
    roots = {_root(environ), _root(without_state_home(environ))}
    for path in sorted(path for root in roots for path in root.glob(f"*/*{_SUFFIX}")):
        try:
            with UndeliveredFile(path) as file:
                erased += file.erase(session)
        except (BlockingIOError, FileNotFoundError):
            continue
        except (OSError, ValueError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return erased


def left_over(folder: Path) -> list[Path]:
    """The files in ``folder``, oldest first, including those of running captures."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


def _root(environ: Mapping[str, str]) -> Path:
    return Path(user_state_dir(environ)).with_name("ctx-capture")


def _size(path: Path) -> int:
    """The size of a file in bytes; 0 if another capture has removed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def new_path(folder: Path, at_ms: int, id: str) -> Path:
    """The path of the file of a capture that began at ``at_ms``."""
    return folder / f"{at_ms:014}-{id}{_SUFFIX}"
