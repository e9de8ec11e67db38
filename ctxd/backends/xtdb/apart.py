"""Work that is too long for the loop, on a thread and without garbage collection.

What is made of a long answer is all kept: the collector would go through it several times for nothing, at three times
the cost of making it.
"""

import gc
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def apart(function: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
    """What ``function`` returns, called on a thread of ``limiter``. Cancel: only once it has returned."""
    return await anyio.to_thread.run_sync(_uncollected, function, limiter=limiter)


def _uncollected(function: Callable[[], T]) -> T:
    collecting = gc.isenabled()
    gc.disable()
    try:
        return function()
    finally:
        # Of several at once only those that found it on turn it on again, so it never stays off.
        if collecting:
            gc.enable()
