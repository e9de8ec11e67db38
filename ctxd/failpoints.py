"""Failpoints: places where a test may stop, slow down or fail the process. Unarmed, each costs one check of an empty
dict: ``if ARMED: hit(name)`` on hot paths, ``hit(name)`` elsewhere.

Armed by ``CTXD_FAILPOINTS`` at start or ``armed`` in a test: ``name=action`` entries, separated by ``;``. Actions:
``kill`` (SIGKILL to itself), ``sleep:2ms``, ``hold:/path`` (waits while that file exists), ``error:ENOSPC`` (an
``OSError``), ``count``. ``*3`` after an action limits how often it fires, ``@5`` makes it fire from the fifth pass on.
"""

import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

NAMES: Final = frozenset(
    {
        "conn.accept", "conn.frame", "rpc.dispatch", "rpc.reply",
        "journal.begin", "journal.insert", "journal.precommit", "journal.flush", "journal.commit", "journal.postcommit",
        "journal.ack", "art.write", "art.fsync", "art.index", "art.dirsync", "art.erase", "checkpoint.start",
        "checkpoint.end", "backup.copy", "restore.copy", "drain.start", "art.repack", "upload.write",
        "purge.rewrite", "purge.unlink", "purge.snapshot", "purge.truncate", "trash.begun", "trash.purge",
        "search.rewrite", "search.rewritten", "project.submit", "project.sent", "project.committed",
    }
)  # fmt: skip
"""All failpoints."""

_ENTRY: Final = re.compile(r"([a-z.]+)=(kill|sleep|hold|error|count)(?::([^*@;]+))?(?:\*(\d+))?(?:@(\d+))?")
_DURATION: Final = re.compile(r"(\d+)(us|ms|s)")
_UNIT_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass
class _Point:
    action: Literal["kill", "sleep", "hold", "error", "count"]
    held_by: str = ""
    seconds: float = 0.0
    error: int = 0
    times: int | None = None
    first: int = 1
    passes: int = 0

    def fire(self) -> None:
        self.passes += 1
        if self.passes < self.first or (self.times is not None and self.passes >= self.first + self.times):
            return
        match self.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(self.seconds)
            case "hold":
                while os.path.exists(self.held_by):
                    time.sleep(0.01)
            case "error":
                raise OSError(self.error, f"{os.strerror(self.error)} (failpoint)")
            case "count":
                pass


def _parse(entry: str) -> tuple[str, _Point]:
    found = _ENTRY.fullmatch(entry.strip())
    if found is None:
        raise ValueError(f"failpoint {entry!r} is not of the form name=action[:argument][*times][@pass]")
    name, action, argument, times, first = found.groups()
    if name not in NAMES:
        raise ValueError(f"failpoint {name!r} does not exist")
    point = _Point(action, times=int(times) if times else None, first=int(first or 1))  # type: ignore[arg-type]  # the pattern holds it
    if action == "sleep":
        duration = _DURATION.fullmatch(argument or "")
        if duration is None:
            raise ValueError(f"failpoint {entry!r} needs a duration such as 2ms")
        point.seconds = int(duration[1]) * _UNIT_S[duration[2]]
    if action == "hold":
        if not argument:
            raise ValueError(f"failpoint {entry!r} needs the path of a file")
        point.held_by = argument
    if action == "error":
        point.error = int(getattr(errno, argument or "EIO"))
    return name, point


ARMED: Final[dict[str, _Point]] = dict(map(_parse, filter(None, os.environ.get("CTXD_FAILPOINTS", "").split(";"))))
"""The armed failpoints by name; empty outside tests."""


def hit(name: str) -> None:
    """Pass the failpoint ``name``: perform its action if it is armed, else do nothing.

    Raises: OSError if ``error`` is armed.
    """
    if ARMED and (point := ARMED.get(name)) is not None:
        point.fire()


@contextmanager
def armed(spec: str) -> Iterator[None]:
    """Arm the failpoints of ``spec``, in the form of ``CTXD_FAILPOINTS``, and restore them at the end.

    Raises: ValueError for an unknown failpoint or action, and for a ``spec`` that arms nothing.
    """
    points = dict(map(_parse, filter(None, spec.split(";"))))
    if not points:
        raise ValueError("no failpoint to arm")
    before = dict(ARMED)
    ARMED.update(points)
    try:
        yield
    finally:
        ARMED.clear()
        ARMED.update(before)


def passes(name: str) -> int:
    """Return the number of times that an armed failpoint was passed; 0 if it is not armed."""
    point = ARMED.get(name)
    return 0 if point is None else point.passes
