"""How long indexing rests, by the processor time that the rest of the daemon uses."""

import os
import subprocess
import sys

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.search.indexing_pace import BUSY_SHARE, IDLE_SHARE, IndexingPace
from ctxd.search.search_index import SearchIndex

WORKED = 0.02
"""Seconds of a step."""


class UsedClock(SystemClock):
    """A clock that sleeps in no time. Other work uses ``used(now)`` of a processor."""

    def __init__(self, used=lambda now: 0.0) -> None:
        self.now = 0.0
        self.used = used
        self._processor = 0.0

    def monotonic(self) -> float:
        return self.now

    def processor_demand_s(self) -> float:
        return self._processor

    async def sleep(self, seconds: float) -> None:
        self._processor += seconds * self.used(self.now)
        self.now += seconds


async def rested(used: float) -> float:
    clock = UsedClock(lambda now: used)
    await IndexingPace(clock).rest(WORKED)
    return clock.now


@pytest.mark.anyio
async def test_indexing_takes_most_of_a_processor_that_nothing_else_uses() -> None:
    assert WORKED / (WORKED + await rested(used=0.0)) == pytest.approx(IDLE_SHARE)


@pytest.mark.anyio
@pytest.mark.parametrize("used", [1.0, 1.7], ids=["one processor", "more than one"])
async def test_indexing_takes_little_beside_work_using_a_whole_processor(used: float) -> None:
    assert WORKED / (WORKED + await rested(used)) == pytest.approx(BUSY_SHARE)


@pytest.mark.anyio
async def test_indexing_takes_a_quarter_beside_work_using_half_a_processor() -> None:
    assert WORKED / (WORKED + await rested(used=0.5)) == pytest.approx(IDLE_SHARE / 4)


@pytest.mark.anyio
async def test_a_rest_ends_early_once_the_other_work_has_ended() -> None:
    clock = UsedClock(lambda now: 1.0 if now < 0.15 else 0.0)
    await IndexingPace(clock).rest(WORKED)
    assert 0.15 < clock.now < 0.35, "it would be 0.38 s"


@pytest.mark.anyio
async def test_a_short_quiet_time_after_a_busy_rest_does_not_end_the_next_one() -> None:
    """Other work that waits for the disk for some ms uses no processor meanwhile."""
    clock = UsedClock(lambda now: 1.0)
    pace = IndexingPace(clock)
    await pace.rest(WORKED)
    busy, clock.used = clock.now, lambda now: 0.0
    await pace.rest(WORKED)
    assert clock.now - busy == pytest.approx(0.1), "the use is measured for a whole slice"


@pytest.mark.anyio
async def test_an_interrupted_rest_ends_at_once_and_the_next_one_does_not() -> None:
    pace, ended = IndexingPace(SystemClock()), 0
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:

            async def rest_long() -> None:
                nonlocal ended
                await pace.rest(worked=3600.0)
                ended += 1

            for _ in range(2):
                group.start_soon(rest_long)
                await anyio.sleep(0.05)
                before = ended
                pace.interrupt()
                await anyio.sleep(0.05)
                assert ended == before + 1


@pytest.mark.anyio
async def test_a_search_that_finds_the_index_damaged_ends_the_rest_before_the_rebuild(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupted = list[IndexingPace]()
    monkeypatch.setattr(IndexingPace, "interrupt", lambda pace: interrupted.append(pace))
    SearchIndex(SystemClock(), None).make_anew()
    assert len(interrupted) == 1


def test_a_busy_process_demands_a_whole_processor_even_if_it_shares_one() -> None:
    processors, clock = os.sched_getaffinity(0), SystemClock()
    os.sched_setaffinity(0, {min(processors)})
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            began, demanded = clock.monotonic(), clock.processor_demand_s()
            while clock.monotonic() < began + 0.3:
                pass
            other.kill()
            assert clock.processor_demand_s() - demanded > 0.25
    finally:
        os.sched_setaffinity(0, processors)
