"""One connection: from received bytes to answered calls.

Owns a connection's buffers and its clocks; its calls are ``calls``'. Knows no method. Promises:
each call gets one answer or the connection ends; what a peer does or leaves undone costs this connection only; at most
``Limits.in_flight`` calls and one receive are held; a write that was submitted is never undone by a client that leaves.
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from ctxd.failpoints import hit
from ctxd.rpc.caller import Caller
from ctxd.rpc.calls import Answer, BatchAnswer, Call, Calls
from ctxd.rpc.faults import error_of
from ctxd.rpc.lane import Lane
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.framing import FrameDecoder
from ctxd_protocol.jsonrpc import (
    Batch,
    Failure,
    Notification,
    Request,
    Stray,
    encode,
    encode_all,
    error_object,
    read_frame,
    refuse,
)

Work = Request | Failure | tuple[Request | Failure | Stray, BatchAnswer]
"""What waits for its turn: a request, a refusal to send in its place, or either as a member of a batch."""

_ANSWERS_MAX: Final = 64
"""Answers that are encoded in one go: enough to spread the cost, few enough to notice when they grow large."""

_WRITE_BYTES: Final = 256 * 1024
"""Bytes of answers gathered before they are handed to the transport: one write, and one wake-up of the client."""


class Connection(asyncio.Protocol):
    """One accepted connection. Everything happens on the loop; nothing here blocks or is called from a thread."""

    __slots__ = (
        "_begin",
        "_calls",
        "_choked",
        "_closers",
        "_decoder",
        "_draining",
        "_ending",
        "_frame_began",
        "_frame_timer",
        "_lane",
        "_notices",
        "_open",
        "_stall_timer",
        "_transport",
        "_unsent",
        "_waiting",
        "_writable",
    )

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._decoder = FrameDecoder(lane.limits.frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._calls: Calls | None = None
        self._open: Mapping[Any, Call] = {}
        self._waiting: Sequence[Work] | None = None
        self._unsent: deque[Answer] | None = None
        self._notices: deque[bytes] | None = None
        self._closers: list[Callable[[], None]] | None = None
        self._writable: list[Callable[[], None]] | None = None
        self._choked = False
        self._draining = False
        self._ending = False
        self._frame_began = 0.0
        self._frame_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # --- what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or refuse it politely and close."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._lane.timing.write_buffer_bytes)
        try:
            hit("conn.accept")
            admitted = self._lane.admit(self, transport.get_extra_info("socket").fileno())
        except OSError as exc:
            self._lane.log.warning("rpc.accept_failed", error=str(exc))
            self._transport.abort()
            return
        if isinstance(admitted, ErrorObject):
            self._ending = True
            self._transport.write(encode(refuse(None, admitted)))
            self._transport.close()
            return
        principal, number = admitted
        lane = self._lane
        caller = Caller(
            principal, lane.capability, lane.session, number, self._notify, self._on_close, self._on_writable
        )
        self._calls = Calls(lane, caller, self._deliver)
        self._begin = self._calls.begin
        self._open = self._calls.open

    def data_received(self, data: bytes) -> None:
        """Answer what ``data`` completes, as far as the bounds allow; hold the rest and stop reading."""
        if self._ending:
            return
        hit("conn.frame")
        decoder = self._decoder
        pending = decoder.pending
        block = decoder.take(data)
        if block:
            items: Any = self._lane.reader.read(block) if len(block) <= self._lane.limits.frame_bytes else None
            if items is None:
                items = self._read_each(block)
            self._receive(items)
        if decoder.fault is not None:
            self._break_off(error_object(decoder.fault.code, str(decoder.fault), hint=decoder.fault.hint))
        elif decoder.pending and (block or not pending):
            self._time_frame()

    def eof_received(self) -> bool:
        """Answer what is open if the client has only closed its sending side; it is gone if it has closed both."""
        poll = select.poll()
        assert self._transport is not None, "the transport calls this while it lives"
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0)):
            return False
        self._ending = True
        return self._owes()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what only this client wanted; let submitted writes go on."""
        self._transport = None
        self._ending = True
        self._waiting = None
        self._unsent = self._notices = None
        for timer in (self._frame_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        if self._calls is not None:
            self._calls.abandon()
        self._lane.leave(self)
        for closer in self._closers or ():
            closer()
        self._closers = self._writable = None

    def pause_writing(self) -> None:
        """Take no more work until the client has read what it asked for; give it a bounded time."""
        self._choked = True
        self._stall_timer = self._lane.loop.call_later(self._lane.timing.stall_s, self._give_up)

    def resume_writing(self) -> None:
        """Go on with what was held."""
        self._choked = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        while self._unsent and not self._choked:
            self._write(self._encode([self._unsent.popleft()]))
        self._flush_notices()
        for callback in list(self._writable or ()):
            callback()
        self._go_on()

    # --- what the server asks

    def drain(self) -> None:
        """Refuse new calls, answer those in flight, then close."""
        self._draining = True
        if self._calls is not None:
            self._calls.drain()
        self._close_if_idle()

    def abort(self) -> None:
        """Close at once, unsent answers included."""
        if self._transport is not None:
            self._transport.abort()

    # --- calls

    def _read_each(self, block: bytes) -> list[Work]:
        closed = self._lane.capability != "host"
        work: list[Work] = []
        for text in self._decoder.split(block):
            frame = read_frame(text, closed=closed)
            if isinstance(frame, Batch):
                batch = BatchAnswer(len(frame.members))
                work.extend([(member, batch) for member in frame.members])
            elif isinstance(frame, Stray):
                self._lane.strays += 1
            else:
                work.append(frame)
        return work

    def _receive(self, items: Sequence[Work]) -> None:
        self._lane.requests += len(items)
        if self._waiting is not None:
            self._waiting = [*self._waiting, *items]
        elif self._is_full():
            self._hold(items)
        else:
            self._work(items)

    def _is_full(self) -> bool:
        return self._choked or len(self._open) >= self._lane.limits.in_flight

    def _hold(self, items: Sequence[Work]) -> None:
        self._waiting = items
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _work(self, items: Sequence[Work]) -> None:
        """Start the calls of ``items`` until a bound is met; hold the rest. Answers that are there go out together."""
        frames: list[bytes] = []
        unsent = 0
        for first in range(0, len(items), _ANSWERS_MAX):
            hit("rpc.dispatch")
            rest = iter(items[first : first + _ANSWERS_MAX])
            if answers := self._begin_some(rest):
                encoded = self._encode(answers)
                frames.append(encoded)
                unsent += len(encoded)
            if unsent >= _WRITE_BYTES:
                self._write(b"".join(frames))
                frames, unsent = [], 0
            if self._is_full() and (held := [*rest, *items[first + _ANSWERS_MAX :]]):
                self._hold(held)
                break
        if frames:
            self._write(b"".join(frames))

    def _begin_some(self, items: Iterator[Work]) -> list[Any]:
        """Start calls until the bound on open ones is met; the answers that are there at once."""
        answers: list[Any] = []
        begin, begun, open_max = self._begin, self._open, self._lane.limits.in_flight
        for item in items:
            answer = begin(item) if type(item) is Request else self._begin_other(item)
            if answer is not None:
                answers.append(answer)
            elif len(begun) >= open_max:
                break
        return answers

    def _begin_other(self, item: Work) -> Answer | None:
        assert self._calls is not None, "work comes after the connection was admitted"
        if not isinstance(item, tuple):
            return cast(Failure, item)
        member, batch = item
        if isinstance(member, Failure):
            return batch.add(member)
        if isinstance(member, Stray):
            return batch.add(None)
        return self._calls.begin_member(member, batch)

    def _go_on(self) -> None:
        if self._waiting is not None and not self._is_full():
            items, self._waiting = self._waiting, None
            self._work(items)
            if self._waiting is None and self._transport is not None and not self._ending:
                self._transport.resume_reading()
        self._close_if_idle()

    def _deliver(self, answer: Answer | None) -> None:
        """Send the answer of a call that took its time; to a client that does not read, once it does."""
        if answer is not None and self._choked:
            # Not encoded yet: what many answers share is in memory once, and encoded it would be once for each.
            self._unsent = self._unsent or deque()
            self._unsent.append(answer)
        elif answer is not None:
            self._write(self._encode([answer]))
        self._go_on()

    # --- sending

    def _write(self, frames: bytes) -> None:
        if self._transport is not None:
            hit("rpc.reply")
            self._transport.write(frames)

    def _encode(self, answers: list[Any]) -> bytes:
        try:
            return encode_all(answers)
        except Exception:  # noqa: BLE001 - a result that cannot be encoded fails its own call only
            return b"".join(self._encode_one(answer) for answer in answers)

    def _encode_one(self, answer: Answer) -> bytes:
        try:
            return encode(answer)
        except Exception as exc:  # noqa: BLE001 - see _encode
            error = error_of(exc, method="", log=self._lane.log)
            members = answer if isinstance(answer, list) else [answer]
            failures = [refuse(member.id, error) for member in members]
            return encode(failures) if isinstance(answer, list) else encode(failures[0])

    def _notify(self, method: str, params: msgspec.Struct) -> bool:
        """Queue a notification; false if the queue is full. It goes out after the answers of this turn of the loop."""
        if self._transport is None or self._ending:
            return False
        if self._notices is None:
            self._notices = deque()
        if len(self._notices) >= self._lane.timing.notices:
            return False
        if not self._notices:
            self._lane.loop.call_soon(self._flush_notices)
        self._notices.append(encode(Notification("2.0", method, params)))
        return True

    def _flush_notices(self) -> None:
        while self._notices and not self._choked and self._transport is not None:
            self._transport.write(self._notices.popleft())

    def _on_close(self, callback: Callable[[], None]) -> None:
        if self._transport is None:
            callback()
            return
        self._closers = [*(self._closers or ()), callback]

    def _on_writable(self, callback: Callable[[], None]) -> None:
        self._writable = [*(self._writable or ()), callback]

    # --- endings

    def _owes(self) -> bool:
        """Whether the client has an answer to come."""
        return bool(self._open or self._unsent) or self._waiting is not None

    def _close_if_idle(self) -> None:
        if not (self._draining or self._ending) or self._owes():
            return
        if self._transport is not None:
            self._ending = True
            self._transport.close()

    def _break_off(self, error: ErrorObject) -> None:
        """Say what is wrong with the stream, and end it."""
        self._ending = True
        self._waiting = None
        if self._transport is not None:
            self._transport.write(encode(refuse(None, error)))
            self._transport.close()

    def _give_up(self) -> None:
        self._lane.log.warning("rpc.slow_reader", seconds=self._lane.timing.stall_s)
        self.abort()

    def _time_frame(self) -> None:
        """A frame was begun: from now on it has its time. A timer that runs for an earlier one finds that by itself."""
        self._frame_began = self._lane.loop.time()
        if self._frame_timer is None:
            self._frame_timer = self._lane.loop.call_later(self._lane.timing.frame_s, self._check_frame)

    def _check_frame(self) -> None:
        """Close if the frame that was begun is still not complete."""
        self._frame_timer = None
        if self._ending or not self._decoder.pending:
            return
        if self._waiting is not None:  # It is this side that does not read on.
            self._time_frame()
            return
        left = self._frame_began + self._lane.timing.frame_s - self._lane.loop.time()
        if left > 0:
            self._frame_timer = self._lane.loop.call_later(left, self._check_frame)
            return
        seconds = self._lane.timing.frame_s
        self._break_off(error_object("timeout", f"a frame was begun and not completed within {seconds:g} s"))
