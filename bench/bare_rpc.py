"""The bare server that the daemon's RPC is held against: a uvloop Protocol and msgspec, nothing else.

``python -m bench.bare_rpc SOCKET RESULT`` answers ``context.current`` with ``RESULT``, decoded once and encoded for
each request: the same bytes as the daemon's. It reads a line, looks the method up, decodes params, encodes the answer,
and writes once a receive. It bounds nothing and checks nothing.
"""

import asyncio
import sys
from typing import Any

import msgspec
import uvloop

from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.methods.context import ContextCurrentParams


class Request(msgspec.Struct):
    """A request, as far as it is read."""

    id: int
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class Reply(msgspec.Struct):
    """An answer."""

    jsonrpc: str
    id: int
    result: Any


class Bare(asyncio.Protocol):
    """One connection."""

    def __init__(self, result: CurrentContext) -> None:
        self._rest = b""
        self._decode = msgspec.json.Decoder(Request).decode
        self._params = msgspec.json.Decoder(ContextCurrentParams).decode
        self._encode_into = msgspec.json.Encoder().encode_into
        self._methods = {"context.current": lambda params: result}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        out = bytearray()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            request = self._decode(line)
            result = self._methods[request.method](self._params(request.params))
            self._encode_into(Reply("2.0", request.id, result), out, -1)
            out += b"\n"
        self._transport.write(out)


async def serve(path: str, result: CurrentContext) -> None:
    server = await asyncio.get_running_loop().create_unix_server(lambda: Bare(result), path)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], msgspec.json.decode(sys.argv[2], type=CurrentContext)))
