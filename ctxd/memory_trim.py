"""Return of freed memory to the system.

The C library keeps freed small blocks, which lie between others that are in use, for the thread that allocated them. An
import of large transcripts leaves about 30 MB of them until they are trimmed.
"""

import ctypes
import os
from contextlib import suppress
from typing import Final

import anyio
from anyio.abc import TaskStatus

from ctxd.clock import Clock
from ctxd.store.write_types import DurableWrites
from ctxd.worker_threads import NoThread, in_thread

PAUSE_S: Final = 0.5
"""Seconds between two checks of the size of the process, which happen only while commits are made."""

GROWTH_BYTES: Final = 2 * 1024 * 1024
"""Growth of the process after which it is trimmed. A trim takes about 10 ms of a thread."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class MemoryTrim:
    """Trims the process while commits are made, as deltas are allocated and freed then. ``note`` is called for each
    commit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = anyio.Event()

    def note(self, writes: DurableWrites) -> None:
        """Schedule a check of the size of the process, as commits were written."""
        self._due.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Trim until cancelled."""
        task_status.started()
        least = resident_bytes()
        while True:
            await self._due.wait()
            await self._clock.sleep(PAUSE_S)
            self._due = anyio.Event()
            least = min(least, size := resident_bytes())
            if size > least + GROWTH_BYTES:
                # Without a thread, the next commits try again.
                with suppress(NoThread):
                    await in_thread(trim)
                    least = resident_bytes()


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def trim() -> None:
    """Return all free whole pages to the system if the C library can do that: see malloc_trim(3)."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
