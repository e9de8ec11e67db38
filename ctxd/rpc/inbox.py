"""Inbox of one connection: received bytes, cut into lines and read as requests piece by piece.

A receive may hold thousands of lines, and reading them all at once would keep every other connection waiting. Begins
no call.
"""

from typing import Any, Final

from ctxd.rpc.calls import BatchAnswers
from ctxd.rpc.listener import ListenerContext
from ctxd.rpc.scheduler import LINE_BYTES
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.framing import FrameDecoder
from ctxd_protocol.jsonrpc import BatchRequest, Failure, Request, Stray, error_object, read_frame

Work = Request | Failure | tuple[Request | Failure | Stray, BatchAnswers]
"""A request, a refusal to send in its place, or either as a member of a batch."""

_PIECE_BYTES: Final = 128
"""Bytes read for each line wanted: a short call has as many."""


class Inbox:
    """The received work of one connection, in its order."""

    __slots__ = ("_block", "_decoder", "_items", "_listener", "_read_to")

    def __init__(self, listener: ListenerContext) -> None:
        self._listener = listener
        self._decoder = FrameDecoder(listener.limits.frame_bytes)
        self._block = b""
        self._read_to = 0
        self._items: list[Any] = []

    @property
    def pending(self) -> int:
        """Bytes of a line that is not complete."""
        return self._decoder.pending

    @property
    def is_empty(self) -> bool:
        """True if no work waits to be taken."""
        return not self._items and not self._block

    @property
    def fault(self) -> ErrorObject | None:
        """The error that makes the stream unusable, once all work before it was taken; else None."""
        fault = self._decoder.fault
        if fault is None or not self.is_empty:
            return None
        return error_object(fault.code, str(fault), hint=fault.hint)

    def put(self, data: bytes) -> bool:
        """Add received bytes. True if they complete a line."""
        block = self._decoder.take(data)
        if not block:
            return False
        if self._read_to < len(self._block):
            block = self._block[self._read_to :] + block
        self._block, self._read_to = block, 0
        return True

    def take(self, lines: int) -> tuple[list[Any], int]:
        """The next work, from at most ``lines`` lines, and what reading it cost; a cost of 0 if nothing waits."""
        items = self._items
        cost = len(items) if items else self._read(lines)
        items = self._items
        if len(items) <= lines:
            self._items = []
            return items, cost
        self._items = items[lines:]
        return items[:lines], max(cost, lines)

    def give_back(self, items: list[Any]) -> None:
        """Put ``items``, the last ones taken, first again."""
        self._items[:0] = items

    def clear(self) -> None:
        """Forget everything."""
        self._block, self._read_to, self._items = b"", 0, []

    def _read(self, lines: int) -> int:
        """Read at most ``lines`` lines into items. Returns their cost."""
        piece = self._piece(lines)
        if not piece:
            return 0
        items = self._listener.reader.read(piece) if len(piece) <= self._listener.limits.frame_bytes else None
        if items is None:
            items = self._read_each(piece)
        self._listener.requests += len(items)
        self._items = items
        return piece.count(b"\n") + len(piece) // LINE_BYTES

    def _piece(self, lines: int) -> bytes:
        """The next whole lines, with their ends."""
        block, start, size = self._block, self._read_to, lines * _PIECE_BYTES
        piece = block
        if start or size < len(block):
            piece = block[start : block.find(b"\n", min(start + size, len(block)) - 1) + 1]
        if len(piece) > lines and piece.count(b"\n") > lines:
            piece = piece[: -len(piece.split(b"\n", lines)[lines])]
        self._read_to = start + len(piece)
        if self._read_to >= len(block):
            self._block, self._read_to = b"", 0
        return piece

    def _read_each(self, piece: bytes) -> list[Any]:
        closed = self._listener.capability != "host"
        work: list[Any] = []
        before = self._decoder.fault
        frames = self._decoder.split(piece)
        if self._decoder.fault is not before:
            self._block, self._read_to = b"", 0
        for text in frames:
            frame = read_frame(text, closed=closed)
            if isinstance(frame, BatchRequest):
                batch = BatchAnswers(len(frame.members), self._listener.log)
                work.extend([(member, batch) for member in frame.members])
            elif isinstance(frame, Stray):
                self._listener.strays += 1
            else:
                work.append(frame)
        return work
