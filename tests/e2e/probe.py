"""How long others wait: calls at a steady pace on a connection of their own, timed."""

import time
from pathlib import Path

import anyio

from tests.crash.wire import Wire

PACE_S = 0.005
"""Seconds between two calls: slow enough to load nothing, fast enough for a p99 within two seconds."""


async def latencies(socket: Path, session: str, seconds: float) -> list[float]:
    """Seconds that each of many calls took, durable writes and reads in turn, in order of length."""
    taken = []
    async with await Wire.open(socket) as wire:
        ends = time.monotonic() + seconds
        number = 0
        while time.monotonic() < ends:
            began = time.perf_counter()
            if number % 2:
                await wire.call("session.get", session=session)
            else:
                content = f"probe {number}"
                await wire.call("session.append", session=session, messages=[{"role": "assistant", "content": content}])
            taken.append(time.perf_counter() - began)
            number += 1
            await anyio.sleep(PACE_S)
    return sorted(taken)


def p99(taken: list[float]) -> float:
    """The 99th percentile of an ordered list."""
    return taken[len(taken) * 99 // 100]
