"""What a connection has received and not begun: bytes first, calls when their turn comes.

Owns the way from bytes to requests. Reads frames piece by piece: a receive may hold thousands, and reading them all at
once would keep everybody else waiting. Begins nothing.
"""

from typing import Any, Final, cast

from ctxd.rpc.calls import BatchAnswers
from ctxd.rpc.listener import ListenerContext
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.framing import FrameDecoder
from ctxd_protocol.jsonrpc import Batch, Failure, Request, Stray, error_object, read_frame

Work = Request | Failure | tuple[Request | Failure | Stray, BatchAnswers]
"""What waits for its turn: a request, a refusal to send in its place, or either as a member of a batch."""

_LINE_END: Final = ord("\n")
_OBJECT: Final = ord("{")

_SHORT_BYTES: Final = 512
"""Bytes that hold no more calls than may be begun at once."""

_PIECE_BYTES: Final = 128
"""Bytes that are read for each call wanted: what a short call has."""


class Inbox:
    """The received work of one connection, in its order."""

    __slots__ = ("_block", "_decoder", "_items", "_lane", "_next", "_read_to")

    def __init__(self, lane: ListenerContext) -> None:
        self._lane = lane
        self._decoder = FrameDecoder(lane.limits.frame_bytes)
        self._block = b""
        self._read_to = 0
        self._items: list[Any] = []
        self._next = 0

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete."""
        return self._decoder.pending

    def __bool__(self) -> bool:
        """Whether anything waits to be begun."""
        return bool(self._items or self._block)

    @property
    def fault(self) -> ErrorObject | None:
        """Why the stream is of no further use, once all that stood before that has been begun."""
        fault = self._decoder.fault
        if fault is None or self:
            return None
        return error_object(fault.code, str(fault), hint=fault.hint)

    def take_short(self, data: bytes) -> list[Any] | None:
        """The calls of ``data`` if that is a few plain ones and nothing is before them, as almost always; else null,
        and it is to be taken in."""
        if data[-1] != _LINE_END or self._items or self._block or self._decoder.pending:
            return None
        if len(data) > _SHORT_BYTES:
            return self._take_one(data)
        items = self._lane.reader.read(data)
        if items is not None:
            self._lane.requests += len(items)
        return cast(list[Any] | None, items)

    def _take_one(self, data: bytes) -> list[Any] | None:
        """The call of ``data`` if that is one whole line, as most long receives are; else null."""
        end = len(data) - 1
        if data[0] != _OBJECT or data.find(b"\n") != end or end > self._lane.limits.frame_bytes:
            return None
        frame = read_frame(data[:end], closed=self._lane.capability != "host")
        if not isinstance(frame, Request):
            return None
        self._lane.requests += 1
        return [frame]

    def take(self, data: bytes) -> bool:
        """Take received bytes in. Returns: whether they complete a line."""
        block = self._decoder.take(data)
        if not block:
            return False
        if self._read_to < len(self._block):
            block = self._block[self._read_to :] + block
        self._block, self._read_to = block, 0
        return True

    def next(self, calls: int) -> list[Any]:
        """At most ``calls`` pieces of work that are next; none if nothing waits. What is not begun is to be given
        back."""
        while self._next >= len(self._items):
            if self._read_to >= len(self._block):
                return []
            self._items, self._next = self._read(calls * _PIECE_BYTES), 0
        items = self._items[self._next : self._next + calls]
        self._next += len(items)
        if self._next >= len(self._items):
            self._items, self._next = [], 0
        return items

    def give_back(self, items: list[Any]) -> None:
        """Have ``items``, the last ones of what ``next`` gave, come next again."""
        self._items, self._next = items + self._items[self._next :], 0

    def clear(self) -> None:
        """Forget everything."""
        self._block, self._read_to, self._items, self._next = b"", 0, [], 0

    def _read(self, size: int) -> list[Any]:
        """Read so many bytes, up to the end of a line."""
        block, start = self._block, self._read_to
        if start or size < len(block):
            end = block.find(b"\n", min(start + size, len(block)) - 1) + 1
            block = block[start:end]
            self._read_to = end
        else:
            self._read_to = len(block)
        if self._read_to >= len(self._block):
            self._block, self._read_to = b"", 0
        items: list[Any] | None = None
        if len(block) <= self._lane.limits.frame_bytes:
            items = self._lane.reader.read(block)
        if items is None:
            items = self._read_each(block)
        self._lane.requests += len(items)
        return items

    def _read_each(self, block: bytes) -> list[Work]:
        closed = self._lane.capability != "host"
        work: list[Work] = []
        before = self._decoder.fault
        frames = self._decoder.split(block)
        if self._decoder.fault is not before:
            self._block, self._read_to = b"", 0
        for text in frames:
            frame = read_frame(text, closed=closed)
            if isinstance(frame, Batch):
                batch = BatchAnswers(len(frame.members), self._lane.log)
                work.extend([(member, batch) for member in frame.members])
            elif isinstance(frame, Stray):
                self._lane.strays += 1
            else:
                work.append(frame)
        return work
