"""The wire as a program without a client library sees it: one JSON text a line, one call at a time."""

import itertools
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
import msgspec

REPLY_S_MAX = 30.0
"""Longest wait for one answer. A daemon that is alive and slower than this is broken."""


class Gone(Exception):
    """The connection ended before the answer came: what became of the call is unknown."""


class Refused(Exception):
    """The daemon answered with an error; ``code`` is symbolic, ``outcome`` what became of a write."""

    def __init__(self, error: dict[str, Any]) -> None:
        data = error.get("data") or {}
        self.code: str = data.get("code", str(error.get("code")))
        self.outcome: str | None = data.get("outcome")
        self.retryable: bool = data.get("retryable", False)
        super().__init__(f"{self.code}: {error.get('message')}")


class Wire:
    """One connection. Not for use by two tasks at once."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._ids = itertools.count(1)

    @classmethod
    async def open(cls, socket: Path) -> "Wire":
        """Connect. Raises: Gone if nobody listens."""
        try:
            return cls(await anyio.connect_unix(socket))
        except OSError as error:
            raise Gone(str(error)) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection at once."""
        await anyio.aclose_forcefully(self._stream)

    async def send(self, data: bytes) -> None:
        """Send bytes as they are. Raises: Gone."""
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise Gone(str(error)) from error

    async def line(self) -> bytes:
        """The next line, without its end. Raises: Gone, TimeoutError."""
        searched = 0
        with anyio.fail_after(REPLY_S_MAX):
            while (end := self._buffer.find(b"\n", searched)) < 0:
                searched = len(self._buffer)
                try:
                    self._buffer += await self._stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                    raise Gone(str(error)) from error
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    async def call(self, method: str, **params: Any) -> Any:
        """The result of one call; notifications that come first are skipped.

        Raises: Refused, Gone, TimeoutError.
        """
        number = next(self._ids)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        await self.send(msgspec.json.encode(request) + b"\n")
        while True:
            reply = msgspec.json.decode(await self.line())
            if reply.get("id") == number:
                break
        if "error" in reply:
            raise Refused(reply["error"])
        return reply["result"]
