"""Load from a process of its own: N connections, each sending a ``toolcall.record`` as soon as its last one was
answered.

``python -m bench.closed_loop SOCKET`` prints one JSON object: acknowledged writes, seconds, latencies in ms. The same
process loads the daemon and the bare server it is compared with. Lines are joined from bytes made beforehand, and an
answer is only looked through for an error, so that the load costs less than what it loads.
"""

import argparse
import asyncio
import sys
import time

import msgspec
import uvloop

WARM_UP_S = 0.5
"""Seconds at the start that are not counted: connections come up, caches fill."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one run. ``writes`` are those within ``seconds``, ``answered`` all that were ever answered."""

    writes: int
    answered: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int

    @property
    def per_second(self) -> float:
        return self.writes / self.seconds


class Agent(asyncio.Protocol):
    """One connection and its session."""

    def __init__(self, number: int, run: str, content_bytes: int, done: asyncio.Event) -> None:
        self._session = f"{run}-{number}"
        # The number stands in the text too: equal text would be kept once and measure nothing.
        self._head = (
            f'{{"jsonrpc":"2.0","id":1,"method":"toolcall.record","params":{{"session":"{self._session}","tool":"bash",'
            f'"args":{{"command":"make test"}},"op_id":"{self._session}.'
        ).encode()
        self._id = f'","id":"{self._session}-'.encode()
        self._content = f'","content":"{self._session} {"x" * content_bytes} '.encode()
        self._done = done
        self._sent_at = 0.0
        self._count = 0
        self._buffer = b""
        self.latencies: list[tuple[float, float]] = []
        self.errors = 0
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        params = {"agent": "bench", "session": self._session}
        request = {"jsonrpc": "2.0", "id": 0, "method": "session.create", "params": params}
        transport.write(msgspec.json.encode(request) + b"\n")

    def start(self) -> None:
        self._send()

    def _send(self) -> None:
        self._count += 1
        self._sent_at = time.perf_counter()
        count = b"%d" % self._count
        self._transport.write(b"".join((self._head, count, self._id, count, self._content, count, b'"}}\n')))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._buffer.endswith(b"\n"):
            return
        answer, self._buffer = self._buffer, b""
        if not self.ready.done():
            self.ready.set_result(None)
            return
        now = time.perf_counter()
        if b'"error"' in answer:
            self.errors += 1
            print(answer[:300], file=sys.stderr)
        self.latencies.append((now, now - self._sent_at))
        if not self._done.is_set():
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.is_set():
            self.errors += 1


async def load(socket: str, *, connections: int, seconds: float, content_bytes: int, run: str) -> Measured:
    """Run the load and measure it, the warm-up left out."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    agents = []
    for number in range(connections):
        _, agent = await loop.create_unix_connection(lambda n=number: Agent(n, run, content_bytes, done), socket)
        agents.append(agent)
    async with asyncio.timeout(60):
        await asyncio.gather(*(agent.ready for agent in agents))
    for agent in agents:
        agent.start()
    await asyncio.sleep(WARM_UP_S)
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    ended = time.perf_counter()
    done.set()
    times = sorted(taken for agent in agents for at, taken in agent.latencies if began <= at <= ended)
    if not times:
        raise RuntimeError("nothing was answered")
    return Measured(
        writes=len(times),
        answered=sum(len(agent.latencies) for agent in agents),
        seconds=ended - began,
        p50_ms=times[len(times) // 2] * 1e3,
        p99_ms=times[len(times) * 99 // 100] * 1e3,
        errors=sum(agent.errors for agent in agents),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.closed_loop")
    parser.add_argument("socket")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--content-bytes", type=int, default=1500)
    parser.add_argument("--run", default="run")
    given = parser.parse_args()
    measured = uvloop.run(
        load(
            given.socket,
            connections=given.connections,
            seconds=given.seconds,
            content_bytes=given.content_bytes,
            run=given.run,
        )
    )
    print(msgspec.json.encode(measured).decode())


if __name__ == "__main__":
    main()
