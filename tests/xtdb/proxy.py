"""A proxy before a node that harms what passes it: which request, and how, follows from a seed.

It speaks to both sides in plain HTTP/1.1 over Unix sockets, one upstream connection a request, and touches bytes, not
meanings: a duplicated request reaches the node twice, a dropped reply was given, a lying one was not asked for.
"""

import asyncio
import random
import re
from collections import Counter
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

SECONDS_HELD: Final = 0.05
"""How long a delayed request or a held reply waits at most: longer than a node takes, shorter than a client waits."""

DRIP_BYTES: Final = 7
_TX_ID: Final = re.compile(rb'tx-id",(\d+)')


class Fault(StrEnum):
    """Fault of one request, its reply, or the connection of both."""

    NONE = "none"
    DELAY = "the request comes late"
    REORDER = "the request waits until another one has passed"
    DROP_REQUEST = "the request is lost"
    DROP_REPLY = "the reply is lost"
    DUPLICATE = "the request comes twice"
    TRUNCATE = "the reply ends in the middle"
    RESET = "the connection is reset in the middle of the reply"
    ERROR_BEFORE = "an error in place of the request"
    ERROR_AFTER = "an error in place of the reply"
    EMPTY = "an empty reply that says 200"
    GARBAGE = "a reply of garbage"
    WRONG_TYPE = "a reply of another type"
    LIE = "a submission is accepted that never was"
    DRIP = "the reply comes in drips"
    CLOSE_AFTER = "the connection is closed after the reply"


HARMFUL: Final = tuple(fault for fault in Fault if fault is not Fault.NONE)
_ERRORS: Final = (408, 500, 502, 503, 504)


class Schedule:
    """Schedule of faults: a function of ``seed``, with ``share`` of the requests harmed until healed."""

    def __init__(self, seed: int, share: float, faults: tuple[Fault, ...] = HARMFUL) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._faults = faults
        self.struck: Counter[Fault] = Counter()

    def heal(self) -> None:
        """Harm nothing from now on."""
        self._share = 0.0

    def next(self) -> Fault:
        """The fault of the next request."""
        fault = self._random.choice(self._faults) if self._random.random() < self._share else Fault.NONE
        self.struck[fault] += 1
        return fault

    def pick(self, upper: int) -> int:
        """A number below ``upper``, which is above 0."""
        return self._random.randrange(upper)


class Request(msgspec.Struct, frozen=True):
    """One request as it came: its first line and headers, and its body."""

    head: bytes
    body: bytes

    @property
    def submits(self) -> bool:
        """True if it is a transaction."""
        return b"/submit-tx" in self.head.partition(b"\r\n")[0]

    def closing(self) -> bytes:
        """Its bytes, with the wish that the connection ends after the reply."""
        lines = [line for line in self.head.split(b"\r\n") if line and not line.lower().startswith(b"connection:")]
        return b"\r\n".join((*lines, b"Connection: close", b"", b"")) + self.body


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; ``None`` at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        assert name.lower() != b"transfer-encoding", "the client says how long its bodies are"
    return Request(head, await reader.readexactly(length))


def reply(status: int, body: bytes, content_type: str = "application/transit+json") -> bytes:
    """A whole HTTP reply."""
    head = f"HTTP/1.1 {status} Chaos\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def kept_open(answer: bytes) -> bytes:
    """``answer`` without the announcement that its connection ends."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class ChaosProxy:
    """Proxy at ``path`` for the node at ``upstream``, with the faults of ``schedule``."""

    def __init__(self, path: Path, upstream: Path, schedule: Schedule) -> None:
        self.url = f"unix:{path}"
        self.schedule = schedule
        self._path = path
        self._upstream = upstream
        self._passed = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        self._newest_tx = 0

    @asynccontextmanager
    async def running(self):
        """Serve while inside."""
        server = await asyncio.start_unix_server(self._serve, self._path, limit=64 * 2**20)
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while (request := await read_request(reader)) is not None:
                if not await self._handle(request, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # The proxy ends; asyncio's server would report a cancelled callback as an error.
            pass
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _handle(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answer ``request``, or do not. Returns whether the connection goes on."""
        fault = self.schedule.next()
        if fault is Fault.LIE and not request.submits:
            fault = Fault.NONE
        if fault is Fault.DROP_REQUEST:
            return False
        if fault is Fault.ERROR_BEFORE:
            return await self._say(writer, reply(self._error(), b'["^ ","~:type","chaos"]'))
        if fault is Fault.LIE:
            # The id that the next transaction will have: the response of a node that loses it in a power cut.
            said = b'["^ ","~:xtdb.api/tx-id",%d,"~:xtdb.api/tx-time","~m1700000000000"]' % (self._newest_tx + 1)
            return await self._say(writer, reply(202, said))
        if fault is Fault.DELAY:
            await asyncio.sleep(SECONDS_HELD)
        if fault is Fault.REORDER:
            await self._let_another_pass()
        answer = await self._forward(request)
        if fault is Fault.DUPLICATE:
            answer = await self._forward(request)
        self._passed.set()
        self._passed = asyncio.Event()
        return await self._deliver(fault, answer, writer)

    async def _let_another_pass(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_HELD):
                await self._passed.wait()

    async def _forward(self, request: Request) -> bytes:
        """The node's whole answer; empty if it gives none."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._upstream)
        except OSError:
            return b""
        try:
            writer.write(request.closing())
            answer = kept_open(await reader.read())
            if request.submits and (found := _TX_ID.search(answer)) is not None:
                self._newest_tx = max(self._newest_tx, int(found[1]))
            return answer
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def _deliver(self, fault: Fault, answer: bytes, writer: asyncio.StreamWriter) -> bool:
        if not answer or fault is Fault.DROP_REPLY:
            return False
        if fault is Fault.ERROR_AFTER:
            return await self._say(writer, reply(self._error(), b'["^ ","~:type","chaos"]'))
        if fault is Fault.EMPTY:
            return await self._say(writer, reply(200, b""))
        if fault is Fault.GARBAGE:
            return await self._say(writer, reply(200, bytes(self.schedule.pick(256) for _ in range(40))))
        if fault is Fault.WRONG_TYPE:
            return await self._say(writer, reply(200, b"<html>not yours</html>", "text/html"))
        if fault in (Fault.TRUNCATE, Fault.RESET):
            await self._say(writer, answer[: self.schedule.pick(len(answer))])
            if fault is Fault.TRUNCATE:
                writer.close()
                await writer.wait_closed()
            return False
        if fault is Fault.DRIP:
            for first in range(0, min(len(answer), 40 * DRIP_BYTES), DRIP_BYTES):
                await self._say(writer, answer[first : first + DRIP_BYTES])
                await asyncio.sleep(0.001)
            answer = answer[40 * DRIP_BYTES :]
        await self._say(writer, answer)
        return fault is not Fault.CLOSE_AFTER

    def _error(self) -> int:
        return _ERRORS[self.schedule.pick(len(_ERRORS))]

    async def _say(self, writer: asyncio.StreamWriter, data: bytes) -> bool:
        writer.write(data)
        await writer.drain()
        return True
