"""An HTTP server on a Unix socket that answers what a test tells it to, and breaks off where it is told to."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.abc import ByteStream

TRANSIT = "application/transit+json"


class Asked:
    """One request as it came: method, path below ``/_xtdb/``, parameters, body."""

    def __init__(self, method: str, target: str, body: bytes) -> None:
        split = urlsplit(target)
        self.method = method
        self.path = split.path.removeprefix("/_xtdb/")
        self.parameters = {name: values[0] for name, values in parse_qs(split.query).items()}
        self.body = body


Behaviour = Callable[[ByteStream], Awaitable[None]]
"""What is done about a request; the connection is closed if it raises ``Closed``."""


class Closed(Exception):
    """The server closes the connection."""


def answer(status: int, body: bytes, *, media_type: str = TRANSIT, length: int | None = None) -> Behaviour:
    """A whole answer; with ``length`` one that says it is of that many bytes, and ends with the connection."""

    async def behave(stream: ByteStream) -> None:
        said = len(body) if length is None else length
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\nContent-Length: {said}\r\n\r\n"
        await stream.send(head.encode() + body)
        if length is not None:
            raise Closed

    return behave


def unending(body: bytes) -> Behaviour:
    """An answer of unsaid length that breaks off in its middle, chunked."""

    async def behave(stream: ByteStream) -> None:
        head = f"HTTP/1.1 200 X\r\nContent-Type: {TRANSIT}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        await stream.send(head + b"%x\r\n%s\r\n" % (len(body), body))
        raise Closed

    return behave


async def hang(stream: ByteStream) -> None:
    """Never answer."""
    await anyio.sleep_forever()


async def vanish(stream: ByteStream) -> None:
    """Close the connection without an answer."""
    raise Closed


async def drip(stream: ByteStream) -> None:
    """Answer a byte at a time, for ever."""
    await stream.send(f"HTTP/1.1 200 X\r\nContent-Type: {TRANSIT}\r\nContent-Length: 1000000\r\n\r\n[".encode())
    while True:
        await stream.send(b" ")
        await anyio.sleep(0.01)


async def babble(stream: ByteStream) -> None:
    """Answer what is no HTTP."""
    await stream.send(b"\x00\x01\x02 how do you do\r\n\r\n")
    raise Closed


class Misbehaving:
    """The server: ``behave`` decides about each request. ``asked`` is what came, ``busiest`` how many connections were
    open at most."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self.behave: Callable[[Asked], Behaviour] = lambda asked: hang
        self.busiest = 0
        self._open = 0

    async def serve(self, stream: ByteStream) -> None:
        self._open += 1
        self.busiest = max(self.busiest, self._open)
        try:
            async with stream:
                buffered = b""
                while True:
                    asked, buffered = await _request(stream, buffered)
                    self.asked.append(asked)
                    await self.behave(asked)(stream)
        except (Closed, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self._open -= 1


async def _request(stream: ByteStream, buffered: bytes) -> tuple[Asked, bytes]:
    while b"\r\n\r\n" not in buffered:
        buffered += await stream.receive()
    head, _, rest = buffered.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    lengths = [int(field.split(":")[1]) for field in fields if field.lower().startswith("content-length:")]
    length = lengths[0] if lengths else 0
    while len(rest) < length:
        rest += await stream.receive()
    method, target, _ = line.split(" ")
    return Asked(method, target, rest[:length]), rest[length:]


@asynccontextmanager
async def misbehaving(directory: Path) -> AsyncIterator[Misbehaving]:
    """A server that runs as long as the block."""
    path = directory / "misbehaving.sock"
    server = Misbehaving(f"unix:{path}")
    async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, server.serve)
        yield server
        group.cancel_scope.cancel()
