"""Tasks that need each other's sources: they wait, and a circle ends no import."""

import anyio
import pytest

from ctxd.imports.busy_sources import BusySources

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("IMP-4")
async def test_a_task_waits_for_a_source_that_another_is_importing():
    busy, told = BusySources(), []

    async def own():
        with busy.importing("a"):
            await anyio.sleep(0.01)
            told.append("imported")

    async def other():
        assert await busy.is_free("a")
        told.append("free")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(own)
        await anyio.sleep(0)
        for _ in range(2):
            tasks.start_soon(other)
    assert told == ["imported", "free", "free"]
    with busy.importing("a"):
        assert not await busy.is_free("a") and await busy.is_free("b")


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("length", [2, 3])
async def test_one_task_of_a_cycle_proceeds_without_the_source_of_the_next(length):
    busy, answers = BusySources(), []

    async def imports(number):
        with busy.importing(f"s{number}"):
            await anyio.sleep(0.01)
            answers.append(await busy.is_free(f"s{(number + 1) % length}"))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(length):
                tasks.start_soon(imports, number)
    assert sorted(answers) == [False] + [True] * (length - 1)


@pytest.mark.requirement("IMP-4")
async def test_a_task_that_is_cancelled_waits_for_nothing():
    busy = BusySources()

    async def waits():
        await busy.is_free("a")

    with busy.importing("a"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waits)
            await anyio.sleep(0)
            tasks.cancel_scope.cancel()
    assert await busy.is_free("a") and busy._awaited == {}
