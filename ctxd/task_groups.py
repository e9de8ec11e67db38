"""Task groups whose tasks fail like a plain call: with the exception itself instead of an exception group."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

E = TypeVar("E", bound=BaseException)


@asynccontextmanager
async def task_group() -> AsyncGenerator[TaskGroup]:
    """Open a task group.

    Raises: the exception of the first task that fails, after the others were cancelled. Cancel: cancels the tasks.
    """
    try:
        async with anyio.create_task_group() as group:
            yield group
    except BaseExceptionGroup as failures:
        raise first_of(failures) from None


def first_of(failures: BaseExceptionGroup[E]) -> E:
    """Return the first of the exceptions in a group, which may hold further groups."""
    found: BaseExceptionGroup[E] | E = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
