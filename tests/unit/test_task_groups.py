"""Task groups that fail as a plain call does."""

import anyio
import anyio.lowlevel
import pytest

from ctxd.task_groups import first_of, task_group

pytestmark = pytest.mark.anyio


async def test_the_first_failure_is_raised_itself_and_ends_the_other_tasks() -> None:
    ended = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("wait")

    async def fail() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone") as raised:
        async with task_group() as group:
            group.start_soon(wait)
            group.start_soon(fail)
    assert ended == ["wait"]
    assert not isinstance(raised.value, ExceptionGroup)


async def test_a_cancellation_stays_one_and_tasks_that_succeed_are_awaited() -> None:
    done = []

    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        done.append(1)

    async with task_group() as group:
        group.start_soon(work)
        group.start_soon(work)
    assert done == [1, 1]
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with task_group() as group:
            group.start_soon(anyio.sleep_forever)
    assert scope.cancelled_caught


def test_the_first_of_nested_groups_is_found() -> None:
    one = ValueError("one")
    assert first_of(ExceptionGroup("outer", [ExceptionGroup("inner", [one, ValueError("two")])])) is one
