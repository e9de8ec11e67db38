"""A Unix socket on which the daemon's metrics are told to whoever asks in HTTP, and nothing else.

Owns that listener. It is the owner's alone (0600), so who may read it may call the daemon too. Promise: who asks
slowly, much or often costs a bounded number of connections, bytes and seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskStatus

from ctxd.rpc.binding import bind_socket, inode_of, remove_socket

ASKING_MAX: Final = 8
"""Connections at once; a scraper needs one."""

REQUEST_BYTES_MAX: Final = 8192
ASKING_S: Final = 5.0
"""Seconds from a connection's start to its end."""

_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


async def serve_metrics(
    path: Path, metrics: Callable[[], Awaitable[bytes]], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Answer ``GET /metrics`` at ``path`` with what ``metrics`` tells, until cancelled; the socket is gone then.

    Raises: StateDirError if the socket cannot be had.
    """
    bound = bind_socket(path)
    inode = inode_of(path)
    asking = anyio.CapacityLimiter(ASKING_MAX)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asking.acquire_nowait()
        except anyio.WouldBlock:
            writer.transport.abort()
            return
        try:
            async with asyncio.timeout(ASKING_S):
                writer.write(await _answer_to(await reader.readuntil(b"\r\n\r\n"), metrics))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, TimeoutError):
            writer.transport.abort()
        finally:
            asking.release()
            writer.close()

    try:
        server = await asyncio.start_unix_server(answer, sock=bound, limit=REQUEST_BYTES_MAX)
        try:
            task_status.started()
            await anyio.sleep_forever()
        finally:
            server.close()
    finally:
        remove_socket(path, inode)
        bound.close()


async def _answer_to(request: bytes, metrics: Callable[[], Awaitable[bytes]]) -> bytes:
    method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
    target = rest.partition(b" ")[0].partition(b"?")[0]
    if target not in (b"/metrics", b"/"):
        return _response(b"404 Not Found", b"GET /metrics\n")
    if method not in (b"GET", b"HEAD"):
        return _response(b"405 Method Not Allowed", b"GET /metrics\n")
    body = await metrics()
    return _response(b"200 OK", body) if method == b"GET" else _response(b"200 OK", body).partition(body)[0]


def _response(status: bytes, body: bytes) -> bytes:
    fields = (b"Content-Type: " + _TYPE, b"Content-Length: %d" % len(body), b"Connection: close")
    return b"\r\n".join((b"HTTP/1.1 " + status, *fields, b"", body))
