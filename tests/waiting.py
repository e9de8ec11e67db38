"""Bounded waits for a state that nothing signals."""

import inspect
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio

T = TypeVar("T")

WAIT_S: Final = 30.0
"""Seconds after which a wait fails: far more than a busy machine takes."""


async def until(holds: Callable[[], object | Awaitable[object]], within_s: float = WAIT_S) -> None:
    """Return once ``holds()``, or what it awaits, is true. It is polled. Raises: TimeoutError."""
    with anyio.fail_after(within_s):
        while not (await found if inspect.isawaitable(found := holds()) else found):
            await anyio.sleep(0.005)


def block_until(look: Callable[[], T], within_s: float = WAIT_S) -> T:
    """``until`` for a test without an event loop. Returns: the first true ``look()``. Raises: TimeoutError."""
    end = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > end:
            raise TimeoutError(f"{look} is still {found!r} after {within_s:g} s")
        time.sleep(0.02)
    return found


def interrupt(child: subprocess.Popen[Any]) -> None:
    """Send SIGINT to ``child``, a process with one thread, once it sleeps in the kernel.

    Python leaves a signal that arrives just before a system call until the call returns.
    """
    stat = Path(f"/proc/{child.pid}/stat")
    block_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
    child.send_signal(signal.SIGINT)
