"""How long others wait: calls at a steady pace on a connection of their own, timed."""

import time
from dataclasses import dataclass
from pathlib import Path

import anyio

from tests.crash.wire import Wire

PACE_S = 0.005
"""Seconds between two calls: slow enough to load nothing, fast enough for a p99 within two seconds."""


@dataclass(frozen=True)
class Latencies:
    """Seconds that reads and durable writes took, each in order of length."""

    reads: list[float]
    writes: list[float]

    def __str__(self) -> str:
        return f"p99 {p99(self.reads) * 1e3:.1f} ms reads, {p99(self.writes) * 1e3:.1f} ms writes"


async def latencies(socket: Path, session: str, seconds: float) -> Latencies:
    """How long reads and durable writes take, one after the other, for so many seconds."""
    reads: list[float] = []
    writes: list[float] = []
    async with await Wire.open(socket) as wire:
        ends = time.monotonic() + seconds
        number = 0
        while time.monotonic() < ends:
            number += 1
            began = time.perf_counter()
            await wire.call("session.get", session=session)
            reads.append(time.perf_counter() - began)
            began = time.perf_counter()
            messages = [{"role": "assistant", "content": f"probe {number}"}]
            await wire.call("session.append", session=session, messages=messages)
            writes.append(time.perf_counter() - began)
            await anyio.sleep(PACE_S)
    return Latencies(sorted(reads), sorted(writes))


def p99(taken: list[float]) -> float:
    """The 99th percentile of an ordered list."""
    return taken[len(taken) * 99 // 100]
