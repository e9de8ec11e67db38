"""Offloading: long computations on a thread, without garbage collection.

It stands alone because both the client and its callers decode long answers this way.
"""

import gc
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def offload(function: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
    """Return what ``function`` returns, called on a thread of ``limiter``. Cancel: only once it has returned."""
    return await anyio.to_thread.run_sync(_uncollected, function, limiter=limiter)


def _uncollected(function: Callable[[], T]) -> T:
    # All that is made of a long answer is kept: the collector would walk it several times, at three times the cost.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return function()
    finally:
        # Of several calls at once only those that found collection enabled enable it again, so it never stays off.
        if collecting:
            gc.enable()
