"""Contexts of a chain of 1,000 commits: the first one after a start, and one that was made before.

``materialise_cold`` is the first call after a start, whole content over the socket as a client of the host gets it (in
a file whose descriptor is passed), over reading the same bytes from one file and decoding their events; no page of the
database, of the snapshots or of the file is cached. The chain has been read before; ``materialise_first`` is the same
call when it never was: its newest commits are in no snapshot. ``materialise_warm`` is a repeated call with the content
in the line over the same bytes from a bare server: a dictionary, base64, msgspec and a uvloop Protocol (``python -m
bench.materialize SOCKET FILE``). Expected order of growth: O(n) in the bytes of the deltas when cold, and in the bytes
of the answer when warm.
"""

import asyncio
import os
import socket
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import cbor2
import msgspec
import uvloop

from bench.commits import chat, checkpoint, delta, forget_pages
from bench.figures import Figure
from bench.running import Caller, daemon, folder, serving

DEPTH = 1_000
STARTS = 5
CALLS = 100
_BUFFER_BYTES = 1024 * 1024


def run() -> Iterator[Figure]:
    """See the module."""
    with folder() as place:
        socket, state, file = place / "m.sock", place / "m", place / "context.cbor"
        texts, tip = chat(), None
        with daemon(socket, state), Caller(socket) as caller:
            caller.call("session.create", agent="bench", session="bench")
            for _ in range(DEPTH):
                tip = checkpoint(caller, delta(next(texts)), tip)
        cold = []
        for _ in range(1 + STARTS):
            with daemon(socket, state), LongCaller(socket) as caller:
                caller.call("daemon.status")
                for each in (state / "state.db", *state.glob("snapshots/*")):
                    forget_pages(each)
                seconds, content = passed(caller, tip)
                cold.append(seconds)
                warm = [called(caller, tip)[0] for _ in range(CALLS)]
        file.write_bytes(content)
        read = [decoded(file) for _ in range(STARTS)]
        with serving(["-m", "bench.materialize", str(place / "bare.sock"), str(file)], place / "bare.sock"):
            with LongCaller(place / "bare.sock") as caller:
                bare = [called(caller, tip)[0] for _ in range(CALLS)]
    first, mine, theirs = 1000 * cold[0], 1000 * median(cold[1:]), 1000 * median(read)
    detail = f"never read before: {first:.1f} ms, {theirs:.1f} ms from one file"
    yield Figure(name="materialise_first", value=first / theirs, goal=None, better="lower", detail=detail)
    detail = f"{DEPTH:,} commits, {len(content):,} bytes: {mine:.1f} ms over the socket, {theirs:.1f} ms from one file"
    yield Figure(name="materialise_cold", value=mine / theirs, goal=3.0, better="lower", detail=detail)
    mine, theirs = 1000 * median(warm), 1000 * median(bare)
    detail = f"{len(content):,} bytes: {mine:.2f} ms, {theirs:.2f} ms from a bare server"
    yield Figure(name="materialise_warm", value=mine / theirs, goal=2.0, better="lower", detail=detail)


class LongCaller(Caller):
    """A connection for long replies, which a small buffer would take apart."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = self._socket.makefile("rwb", _BUFFER_BYTES)

    def call_for_file(self, method: str, **params: object) -> tuple[Any, int]:
        """The result of a call, and the descriptor that came with it."""
        self._socket.sendall(
            msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + b"\n"
        )
        line, found = b"", list[int]()
        while not line.endswith(b"\n"):
            piece, descriptors, _, _ = socket.recv_fds(self._socket, _BUFFER_BYTES, 1)
            line += piece
            found += descriptors
        return msgspec.json.decode(line)["result"], found[0]


def called(caller: Caller, tip: str | None) -> tuple[float, bytes]:
    """Seconds of one call, with its content decoded from base64; and the content."""
    began = time.perf_counter()
    made = caller.call("commit.materialize", commit=tip, stop="root")
    content = msgspec.convert(made["content_base64"], bytes)
    return time.perf_counter() - began, content


def passed(caller: LongCaller, tip: str | None) -> tuple[float, bytes]:
    """Seconds of one call, with its content read from the file that is passed; and the content."""
    began = time.perf_counter()
    made, descriptor = caller.call_for_file("commit.materialize", commit=tip, stop="root", descriptor=True)
    content = os.pread(descriptor, made["size"], 0)
    seconds = time.perf_counter() - began
    os.close(descriptor)
    return seconds, content


def decoded(file: Path) -> float:
    """Seconds to read a file and to decode its events."""
    forget_pages(file)
    began = time.perf_counter()
    assert len(cbor2.loads(file.read_bytes())) == DEPTH
    return time.perf_counter() - began


class Bare(asyncio.Protocol):
    """One connection: each line is answered with the content."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self._contents = contents
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            request = msgspec.json.decode(line)
            found = {"content_base64": b64encode(self._contents[request["method"]]).decode()}
            answer = msgspec.json.encode({"jsonrpc": "2.0", "id": request["id"], "result": found})
            self._transport.write(answer + b"\n")  # type: ignore[attr-defined]


async def serve(path: str, content: bytes) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: Bare({"commit.materialize": content}), path)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2]).read_bytes()))
