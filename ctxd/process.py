"""What the daemon asks of the process that it runs in: descriptors, the garbage collector, a terminal."""

import gc
import resource
import sys
from typing import Final

_COLLECTED_AT: Final = 20_000
"""Objects made, less those freed, after which the collector looks at them: some 1,000 writes, a few ms."""


def have_descriptors() -> None:
    """Allow as many open files as the system lets this process have: each sandbox and each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def has_terminal() -> bool:
    """Whether somebody sits at a terminal in front of it."""
    return sys.stdin is not None and sys.stdin.isatty()


def spare_the_collector() -> None:
    """Have the garbage collector look less often, and never at what was imported.

    Most of what a call makes is freed by its reference count, and what it leaves is kept: looking through either for
    cycles is a twentieth of the cost of a write.
    """
    gc.freeze()
    gc.set_threshold(_COLLECTED_AT, 20, 20)
