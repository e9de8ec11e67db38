"""Bounded waits for a state that nothing signals."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

WAIT_S: Final = 30.0
"""Seconds after which a wait fails: far more than a busy machine takes."""


async def until(holds: Callable[[], object | Awaitable[object]], within_s: float = WAIT_S) -> None:
    """Return once ``holds()``, or what it awaits, is true. It is polled. Raises: TimeoutError."""
    with anyio.fail_after(within_s):
        while not (await found if inspect.isawaitable(found := holds()) else found):
            await anyio.sleep(0.005)
