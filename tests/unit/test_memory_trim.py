"""IMP: freed memory goes back to the system, and only while commits are made is anything looked at."""

import subprocess
import sys

import anyio
import pytest

from ctxd import memory_trim
from ctxd.clock import SystemClock
from ctxd.memory_trim import GROWTH_BYTES, PAUSE_S, MemoryTrim
from tests.fakes.no_threads import no_threads
from tests.waiting import until


@pytest.mark.requirement("IMP-12")
def test_a_trim_returns_the_pages_between_blocks_that_are_in_use() -> None:
    program = [
        sys.executable, "-c",
        "from ctxd.memory_trim import resident_bytes, trim\n"
        "blocks = [bytearray(b'x' * 60_000) for _ in range(2_000)]\n"
        "full = resident_bytes()\n"
        "kept = blocks[::50]\n"
        "del blocks\n"
        "freed = resident_bytes()\n"
        "trim()\n"
        "print(full, freed, resident_bytes(), len(kept))\n",
    ]  # fmt: skip
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    full, freed, trimmed, _ = map(int, done.stdout.split())
    assert full > 120_000_000 and freed > full - 20_000_000, "the C library keeps them"
    assert trimmed < full - 90_000_000


class CountingClock(SystemClock):
    """A clock whose sleeps last no time, and that counts them."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
@pytest.mark.requirement("IMP-12")
async def test_a_trim_without_a_free_thread_is_made_after_the_next_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [100, 100 + GROWTH_BYTES, 101 + GROWTH_BYTES, 102 + GROWTH_BYTES, 90]
    trims = list[int]()
    monkeypatch.setattr(memory_trim, "resident_bytes", lambda: sizes.pop(0))
    monkeypatch.setattr(memory_trim, "trim", lambda: trims.append(len(sizes)))
    memory = MemoryTrim(CountingClock())
    async with anyio.create_task_group() as tasks:
        await tasks.start(memory.run)
        with no_threads() as refused:
            memory.note([])
            await until(lambda: len(sizes) == 3)
            memory.note([])
            await until(lambda: refused)
        memory.note([])
        await until(lambda: trims)
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.requirement("IMP-12")
async def test_the_process_is_trimmed_once_it_has_grown_while_commits_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [100, 100 + GROWTH_BYTES, 101 + GROWTH_BYTES, 200, 90, 91 + GROWTH_BYTES, 80]
    trims = list[int]()
    monkeypatch.setattr(memory_trim, "resident_bytes", lambda: sizes.pop(0))
    monkeypatch.setattr(memory_trim, "trim", lambda: trims.append(len(sizes)))
    clock = CountingClock()
    memory = MemoryTrim(clock)
    async with anyio.create_task_group() as tasks:
        await tasks.start(memory.run)
        for seen, trimmed in ((1, []), (2, [4]), (3, [4]), (4, [4, 1])):
            await anyio.wait_all_tasks_blocked()
            assert len(clock.slept) == seen - 1, "it waits for a commit"
            memory.note([])
            while len(clock.slept) < seen or trims != trimmed:
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert clock.slept == [PAUSE_S] * 4


def test_resident_bytes_grow_with_touched_memory() -> None:
    # In a process of its own: threads of other tests may free memory meanwhile.
    program = [
        sys.executable, "-c",
        "from ctxd.memory_trim import resident_bytes\n"
        "before = resident_bytes()\n"
        "block = bytearray(b'x' * 50_000_000)\n"
        "print(resident_bytes() - before, len(block))\n",
    ]  # fmt: skip
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    grown, size = map(int, done.stdout.split())
    assert size - 5_000_000 < grown < size + 5_000_000
