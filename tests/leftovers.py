"""End of every process that tests started, however the tests end.

A fixture ends what it started, unless the test process is killed first. So each test process has a guard,
a process in a session of its own, which waits until the test process has ended and then kills every process that has
its mark in the environment: daemons, nodes, and what they started themselves.
"""

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "STARTED_BY_TESTS"
"""The variable of the environment that a started process inherits; its value is one test process."""

KILLS_S_MAX: Final = 10.0
"""Seconds for which processes are sought that were started while others were killed."""


def guard() -> "subprocess.Popen[bytes]":
    """Mark what this process starts from now on, and start its guard."""
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-S", str(Path(__file__)), str(os.getpid()), mark],
        env=unmarked,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.environ[MARK] = mark
    return process


def marked(mark: str) -> list[int]:
    """The processes that have ``mark`` in their environment and have not ended."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            # It may have ended meanwhile, or be another user's.
            with suppress(OSError):
                if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found


def main(pid: int, mark: str) -> None:
    """Wait until process ``pid`` has ended, and kill what it left."""
    with suppress(ProcessLookupError):
        ended = os.pidfd_open(pid)
        # Otherwise it ended before, and the number may be another's.
        if os.getppid() == pid:
            select.select([ended], [], [])
    ends = time.monotonic() + KILLS_S_MAX
    while (left := marked(mark)) and time.monotonic() < ends:
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
