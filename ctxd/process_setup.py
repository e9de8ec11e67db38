"""Process set-up of the daemon and of long commands: descriptors, garbage collector, terminal, exit."""

import ctypes
import gc
import os
import resource
import sys
import threading
from contextlib import suppress
from typing import Final, NoReturn

_COLLECTED_AT: Final = 20_000
"""Allocations minus deallocations after which the collector runs: about 1,000 writes, a few ms."""

_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3
_MAPPED_BYTES: Final = 512 * 1024
"""Bytes from which a block gets its own mapping, which costs less than filling the block."""

_THREADS_S: Final = 1.0
"""Seconds that a thread gets to end by itself. Threads need some microseconds unless a file system blocks them."""


def have_descriptors() -> None:
    """Raise the limit on open files to the maximum for this process: each sandbox and each connection needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def has_terminal() -> bool:
    """Return True if standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def tune_gc() -> None:
    """Make the garbage collector run less often, and never over imported modules.

    Most objects made by a call are freed by their reference count, and the others are kept: searching either for cycles
    is a twentieth of the cost of a write.
    """
    gc.freeze()
    gc.set_threshold(_COLLECTED_AT, 20, 20)


def tune_malloc() -> None:
    """Make the C library keep less freed memory: map each large block separately, so that freeing it returns the memory
    to the system, and use one heap for all threads. Call it before threads are started.

    Otherwise glibc raises its threshold when the first large blocks are freed, keeps later ones in its heap, and the
    daemon stays as large as its largest replies. A heap of its own for each thread would spare waits for a lock, but
    threads that hold the interpreter's lock do not wait for each other, and each heap keeps the free blocks that the
    others need.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        library.mallopt(_M_ARENA_MAX, 1)


def leave(code: int) -> NoReturn:
    """End the process with ``code``, even if a file system that hangs blocks one of its threads."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(_THREADS_S)
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    sys.exit(code)
