"""A real RPC server on a real Unix socket inside the test's own loop, and a plain client that sees every byte."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import structlog

from ctxd.rpc.dispatch import Handler, build_table
from ctxd.rpc.listener_state import ListenerIdentity, ListenerSettings, Timing
from ctxd.rpc.socket_server import CONNECTIONS_MAX, Server
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.declaration import Capability

WAIT_S = 30.0
"""Seconds that a test waits for bytes before it fails."""


class Wire:
    """A client connection as bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with anyio.fail_after(WAIT_S):
            await self.writer.drain()

    async def line(self) -> bytes:
        """The next line without its end; empty once the server has closed."""
        with anyio.fail_after(WAIT_S):
            return (await self.reader.readline()).rstrip(b"\n")

    async def answer(self) -> Any:
        """The next line, decoded; null once the server has closed."""
        line = await self.line()
        return json.loads(line) if line else None

    async def call(self, method: str, params: Any = None, id: Any = 1) -> Any:
        """Send a call and wait for the next line."""
        await self.send(frame(method, params, id))
        return await self.answer()

    async def closed(self) -> bool:
        """Whether the server closes without saying anything more."""
        with anyio.fail_after(WAIT_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def frame(method: str, params: Any = None, id: Any = 1) -> bytes:
    """A call as a frame."""
    message = {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params})
    return json.dumps(message).encode() + b"\n"


class Loopback:
    """A running server and a way to connect to it."""

    def __init__(self, server: Server, path: Path) -> None:
        self.server = server
        self.path = path

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Wire]:
        wire = Wire(*await asyncio.open_unix_connection(self.path))
        try:
            yield wire
        finally:
            await wire.close()

    async def until(self, condition: Any) -> None:
        """Let the loop turn until ``condition()`` holds."""
        with anyio.fail_after(WAIT_S):
            while not condition():
                await anyio.lowlevel.checkpoint()


def settings_of(
    handlers: Mapping[str, Handler], *, capability: Capability = "host", session: str | None = None, **given: Any
) -> ListenerSettings:
    """A listener's settings that offer ``handlers`` to ``capability``, with ``session`` alone if it is given."""
    identity = ListenerIdentity(capability=capability, sessions=None if session is None else (session,))
    identity = given.get("identity", identity)
    usual: dict[str, Any] = {
        "table": build_table(handlers, identity.capability),
        "identity": identity,
        "limits": Limits(),
        "timing": Timing(),
        "connections_max": CONNECTIONS_MAX,
        "log": structlog.get_logger(),
    }
    return ListenerSettings(**(usual | given))


@contextlib.asynccontextmanager
async def serving(folder: Path, handlers: Mapping[str, Handler], **settings: Any) -> AsyncIterator[Loopback]:
    """A server over ``handlers`` at ``folder/ctxd.sock``; ended, tasks and connections included, on the way out."""
    path = folder / "ctxd.sock"
    own = {name: settings.pop(name) for name in ("gid", "shared", "accept") if name in settings}
    server = Server(path, settings_of(handlers, **settings), **own)
    async with anyio.create_task_group() as group:
        await group.start(server.run)
        try:
            yield Loopback(server, path)
        finally:
            group.cancel_scope.cancel()
