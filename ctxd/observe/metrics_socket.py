"""HTTP server of the daemon's metrics on a Unix socket. ``ctxd/prometheus_metrics.py`` owns their names and labels.

The socket has mode 0600, so any user who may read the metrics may also call the daemon. Slow, large or frequent
requests take a bounded number of connections, bytes and seconds.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import TaskStatus

ASKING_MAX: Final = 8
"""Maximum simultaneous connections; a scraper needs one."""

REQUEST_BYTES_MAX: Final = 8192
ASKING_S: Final = 5.0
"""Maximum seconds from a connection's start to its end."""

_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


async def serve_metrics(
    bound: socket.socket,
    metrics: Callable[[], Awaitable[bytes]],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``GET /metrics`` on the listening socket ``bound`` until cancelled. ``metrics`` returns the body."""
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

    server = await asyncio.start_unix_server(answer, sock=bound, limit=REQUEST_BYTES_MAX)
    try:
        task_status.started()
        await anyio.sleep_forever()
    finally:
        server.close()


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
