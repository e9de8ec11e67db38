"""One connection: from received bytes to replies.

Owns a connection's buffers and its timers; independent of the methods. Complete lines are appended to the received
block, and the scheduler gives the connection slices in which it parses some lines and starts their calls: a receive may
contain thousands of lines, and parsing all at once would delay other connections. Each call gets one reply or the
connection ends; a misbehaving peer affects only this connection; at most ``Limits.in_flight`` calls and one receive are
in memory, and the bytes of replies that the peer has not read are bounded.
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, cast

import msgspec

from ctxd.failpoints import ARMED, hit
from ctxd.fd_passing import PassedFile, send_with_file
from ctxd.rpc.caller import Caller
from ctxd.rpc.in_flight_calls import Answer, BatchAnswers, InFlight, InFlightCall, encode_replies, whole_reply
from ctxd.rpc.listener_state import ListenerContext
from ctxd.rpc.scheduler import (
    CALLS_BESIDE_INTERACTIVE,
    CALLS_BESIDE_WRITES,
    INTERACTIVE_S,
    LINE_BYTES,
    SLICE_LINES,
    SLICE_S,
)
from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.jsonrpc import (
    BatchRequest,
    FrameDecoder,
    Notification,
    Reply,
    Request,
    Stray,
    encode,
    error_object,
    read_frame,
    refuse,
)

_PIECE_BYTES: Final = 8 * 1024
"""Bytes parsed at once, to the end of the line: about a hundred short calls, enough to amortise the cost."""

_LINES_AT_ONCE: Final = 128
"""Lines parsed at once if they may be short without being calls."""

_SINGLE_CALLS: Final = 3
"""Consecutive calls, each received alone with no earlier call open, that make a connection interactive."""

_LINE_END: Final = ord("\n")

_WRITE_BYTES: Final = 256 * 1024
"""Bytes of replies that end a slice. They go to the transport at once: one write, one wake-up of the client."""


class Connection(asyncio.Protocol):
    """One accepted connection. Everything happens on the loop; nothing here blocks or is called from a thread."""

    __slots__ = (
        "_block",
        "_calls",
        "_choked",
        "_closers",
        "_decoder",
        "_draining",
        "_ending",
        "_frame_began",
        "_frame_timer",
        "_held",
        "_items",
        "_listener",
        "_notices",
        "_open",
        "_queued",
        "_read_to",
        "_single",
        "_stall_timer",
        "_transport",
        "_unread",
        "_unsent",
        "_writable",
    )

    def __init__(self, listener: ListenerContext) -> None:
        self._listener = listener
        self._decoder = FrameDecoder(listener.limits.frame_bytes)
        # Complete lines, parsed up to ``_read_to``, and parsed items that are not started.
        self._block = b""
        self._read_to = 0
        self._items: list[Any] = []
        self._transport: asyncio.Transport | None = None
        self._calls: InFlight | None = None
        self._open: Mapping[Any, InFlightCall] = {}
        self._queued = False
        self._held = False
        self._single = 0
        # Replies for a client that does not read, with the bytes reserved for each.
        self._unsent: deque[tuple[Answer, int]] | None = None
        self._unread = 0
        self._notices: deque[bytes] | None = None
        self._closers: list[Callable[[], None]] | None = None
        self._writable: list[Callable[[], None]] | None = None
        self._choked = False
        self._draining = False
        self._ending = False
        self._frame_began = 0.0
        self._frame_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # --- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it with an error and close."""
        self._transport = cast(asyncio.Transport, transport)
        # Resume writing only once the peer has read everything, so that the amount of unread bytes is known.
        self._transport.set_write_buffer_limits(high=self._listener.timing.write_buffer_bytes, low=0)
        try:
            hit("conn.accept")
            admitted = self._listener.admit(self, transport.get_extra_info("socket").fileno())
        except OSError as exc:
            self._listener.log.warning("rpc.accept_failed", error=str(exc))
            self._transport.abort()
            return
        if isinstance(admitted, ErrorObject):
            self._ending = True
            self._transport.write(encode(refuse(None, admitted)))
            self._transport.close()
            return
        principal, number = admitted
        listener = self._listener
        caller = Caller(
            principal,
            listener.capability,
            listener.session,
            number,
            self._notify,
            self._on_close,
            self._on_writable,
            listener.sessions,
            listener.methods,
            listener.limits,
            listener.reply_bytes_max,
        )
        self._calls = InFlight(listener, caller, self._deliver)
        self._open = self._calls.open

    def data_received(self, data: bytes) -> None:
        """Append ``data`` to the received bytes, and request a slice if it completes a line."""
        if self._ending:
            return
        if ARMED:
            hit("conn.frame")
        decoder = self._decoder
        is_partial = data[-1] != _LINE_END
        pending = decoder.pending if is_partial else 0
        # Most data is whole lines.
        block = data if not is_partial and decoder.tail is None and decoder.fault is None else decoder.take(data)
        if block:
            self._block, self._read_to = (self._block[self._read_to :] + block if self._block else block), 0
        if block and not self._queued and not self._choked:
            self._queued = True
            # A client that makes one call at a time goes first, so that its call does not wait for a whole round.
            self._listener.scheduler.run(self, first=self._single >= _SINGLE_CALLS)
        elif self._items or self._block:
            self._hold()
        elif decoder.fault is not None:
            self._break_off(decoder.fault.code, str(decoder.fault), decoder.fault.hint)
        if is_partial and not self._ending and (block or not pending):
            self._time_frame()

    def eof_received(self) -> bool:
        """If the client has closed only its sending side, still reply to open calls; otherwise it is gone."""
        poll = select.poll()
        assert self._transport is not None, "the transport calls this while it lives"
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0)):
            return False
        self._ending = True
        return self._has_pending_replies()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel calls that only this client needs; submitted writes continue."""
        self._transport = None
        self._ending = True
        self._block, self._items = b"", []
        self._unsent = self._notices = None
        for timer in (self._frame_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        if self._calls is not None:
            self._calls.abandon()
        self._listener.leave(self)
        for closer in self._closers or ():
            closer()
        self._closers = self._writable = None

    def pause_writing(self) -> None:
        """Start no more calls until the client has read its replies, within a bounded time."""
        self._choked = True
        if self._transport is not None and self._calls is not None:
            self._unread = self._transport.get_write_buffer_size()
            self._calls.budget.take(self._unread)
        self._stall_timer = self._listener.loop.call_later(self._listener.timing.stall_s, self._give_up)

    def resume_writing(self) -> None:
        """Continue with received calls: the client has read everything."""
        self._choked = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._calls is not None and self._transport is not None:
            unread, self._unread = self._unread, 0
            self._calls.budget.give(unread)
        while self._unsent and not self._choked:
            self._deliver(*self._unsent.popleft())
        self._flush_notices()
        for callback in list(self._writable or ()):
            callback()
        self._go_on()

    # --- called by the server and the scheduler

    def drain(self) -> None:
        """Refuse new calls, finish those in flight, then close."""
        self._draining = True
        if self._calls is not None:
            self._calls.drain()
        self._close_if_idle()

    def abort(self) -> None:
        """Close at once, dropping unsent replies."""
        if self._transport is not None:
            self._transport.abort()

    def run_slice(self) -> bool:
        """Start received calls for one slice, and resume reading from the transport once none is left. Returns: True if
        another slice could start more now."""
        listener, tasks, now = self._listener, self._listener.tasks, perf_counter()
        scheduler, ends = listener.shared.scheduler, now + SLICE_S
        calls_beside = CALLS_BESIDE_WRITES if scheduler.writers else CALLS_BESIDE_INTERACTIVE
        calls_left = SLICE_LINES if now >= scheduler.interactive_until else calls_beside
        lines, cost, unsent = SLICE_LINES, 0, 0
        frames: list[bytes] = []
        # False once the remaining calls have to wait for something to end.
        may_go_on = True
        while may_go_on and calls_left > 0 and not self._choked and len(self._open) < listener.limits.in_flight:
            if not tasks.idle:
                tasks.grow()  # They are idle in the next iteration of the loop.
                break
            if ARMED:
                hit("rpc.dispatch")
            if not self._items:
                cost = self._read(now)
                lines -= cost
            begun = len(self._items)
            replies: list[Any] = []
            may_go_on = self._begin(replies, ends, calls_left)
            calls_left -= begun - len(self._items)
            if replies:
                frames.append(encode_replies(replies, log=listener.log, bytes_max=listener.reply_bytes_max))
                unsent += len(frames[-1])
            if not (self._items or self._block) or unsent >= _WRITE_BYTES or lines < cost or perf_counter() >= ends:
                break
        if frames and self._transport is not None:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if self._items or self._block:
            self._hold()
            self._queued = may_go_on and not self._choked and len(self._open) < listener.limits.in_flight
            return self._queued
        self._queued = False
        if self._held or self._draining or self._ending or self._decoder.fault is not None:
            self._read_on()
        return False

    # --- calls

    def _hold(self) -> None:
        """Stop receiving until all received calls are started."""
        if not self._held and self._transport is not None and not self._transport.is_closing():
            self._held = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Resume receiving, because all received calls are started, or end the connection if it is due to end."""
        if (fault := self._decoder.fault) is not None:
            self._break_off(fault.code, str(fault), fault.hint)
        elif self._held and self._transport is not None and not self._ending:
            self._held = False
            self._transport.resume_reading()
        self._close_if_idle()

    def _go_on(self) -> None:
        """Request a slice if received calls may be started."""
        if not self._items and not self._block:
            if self._draining or self._ending:
                self._close_if_idle()
        elif not self._queued and not self._choked and len(self._open) < self._listener.limits.in_flight:
            self._queued = True
            self._listener.scheduler.add(self)

    def _read(self, now: float) -> int:
        """Parse the next lines into items. Returns: their cost: 1 per line, including blank and malformed ones, and per
        member of a batch, and 1 more per ``LINE_BYTES``."""
        listener, piece, start = self._listener, self._block, self._read_to
        size = len(piece)
        if start or size > _PIECE_BYTES:
            piece = piece[start : piece.find(b"\n", min(start + _PIECE_BYTES, size) - 1) + 1]
        items: list[Any] | None = listener.reader.read(piece) if len(piece) <= listener.limits.frame_bytes else None
        lines, fault = 0, self._decoder.fault
        if items is None:
            # Do not scan a single long line again to count its end.
            items, lines = [], 1 if piece.find(b"\n") + 1 == len(piece) else piece.count(b"\n")
            if lines > _LINES_AT_ONCE:
                piece, lines = piece[: -len(piece.split(b"\n", _LINES_AT_ONCE)[-1])], _LINES_AT_ONCE
            for text in self._decoder.split(piece):
                frame = read_frame(text, closed=listener.capability != "host")
                if isinstance(frame, BatchRequest):
                    batch = BatchAnswers(len(frame.members), listener.log)
                    items += [(member, batch) for member in frame.members]
                elif isinstance(frame, Stray):
                    listener.strays += 1
                else:
                    items.append(frame)
        self._read_to = start + len(piece)
        # Nothing after a fault can be parsed.
        if self._read_to >= size or self._decoder.fault is not fault:
            self._block, self._read_to = b"", 0
        self._items = items
        listener.requests += len(items)
        # Require several in succession: one of many calls may arrive alone by chance.
        self._single = self._single + 1 if len(items) == 1 and not self._block and not self._open else 0
        if self._single >= _SINGLE_CALLS and listener.quota is None:
            listener.shared.scheduler.interactive_until = now + INTERACTIVE_S
        cost = max(lines, len(items)) + len(piece) // LINE_BYTES
        if listener.quota is not None:
            listener.quota.spend(cost)
        return cost

    def _begin(self, replies: list[Any], ends: float, calls_max: int) -> bool:
        """Start at most ``calls_max`` items until ``ends``, and add immediate replies to ``replies``. Returns: False if
        more may be started only after something has ended. A task must be idle."""
        assert self._calls is not None, "work comes after the connection was admitted"
        calls, tasks, open_calls = self._calls, self._listener.tasks, self._open
        begin, entry_of, in_flight_max = calls.begin, calls.table.get, self._listener.limits.in_flight
        items, self._items = self._items, []
        items, later = (items, []) if len(items) <= calls_max else (items[:calls_max], items[calls_max:])
        rest = iter(items)
        answer: Answer | None
        try:
            for item in rest:
                request, batch = item if type(item) is tuple else (item, None)
                if type(request) is not Request:
                    answer = request
                    if batch is not None:
                        answer = calls.add(batch, None if type(request) is Stray else request)
                    if answer is not None:
                        replies.append(answer)
                    continue
                entry = entry_of(request.method)
                if entry is not None and entry.is_metered and not calls.admit_or_wait(entry, self._go_on):
                    self._items = [item, *rest, *later]
                    return False
                answer = begin(request, entry) if batch is None else calls.begin_member(request, entry, batch)
                if answer is not None:
                    replies.append(answer)
                elif len(open_calls) >= in_flight_max or not tasks.idle:
                    break
                # Encode a large reply before building the next one. A look-up hardly takes longer than the clock.
                if not (entry and entry.looks_up) and (perf_counter() >= ends or (entry and entry.reply_bytes)):
                    break
        finally:
            tasks.leave()
        self._items = [*rest, *later]
        return True

    def _deliver(self, answer: Answer | None, reserved: int) -> None:
        """Send a later reply; to a client that does not read, once it does."""
        if answer is not None and self._choked:
            # Do not encode it yet: text that many replies share is in memory once, but would be encoded for each.
            self._unsent = self._unsent or deque()
            self._unsent.append((answer, reserved))
        else:
            if type(answer) is Reply and type(answer.result) is PassedFile:
                answer = self._send_file(answer, answer.result)
            if answer is not None and self._transport is not None:
                listener = self._listener
                self._transport.write(encode_replies([answer], log=listener.log, bytes_max=listener.reply_bytes_max))
            if reserved and self._calls is not None:
                self._calls.budget.give(reserved)
        if self._items or self._block or self._draining or self._ending:
            self._go_on()

    def _send_file(self, answer: Reply, passed: PassedFile) -> Answer | None:
        """Send a reply with its file. Returns: None if it was sent, otherwise the reply to send without a file."""
        transport = self._transport
        if transport is None:
            return None
        if not transport.is_closing() and not transport.get_write_buffer_size():
            line = encode(Reply("2.0", answer.id, passed.brief))
            connection = transport.get_extra_info("socket").fileno()
            if (sent := send_with_file(connection, line, passed.descriptor)) > 0:
                if sent < len(line):
                    transport.write(line[sent:])
                return None
        return whole_reply(answer, log=self._listener.log)

    # --- notifications

    def _notify(self, method: str, params: msgspec.Struct) -> bool:
        """Queue a notification; it is sent after the replies of this slice. Returns: False if the queue is full."""
        if self._transport is None or self._ending:
            return False
        if self._notices is None:
            self._notices = deque()
        if len(self._notices) >= self._listener.timing.notices:
            return False
        if not self._notices:
            self._listener.loop.call_soon(self._flush_notices)
        self._notices.append(encode(Notification("2.0", method, params)))
        return True

    def _flush_notices(self) -> None:
        while self._notices and not self._choked and self._transport is not None:
            self._transport.write(self._notices.popleft())

    def _on_close(self, callback: Callable[[], None]) -> None:
        if self._transport is None:
            callback()
            return
        if self._closers is None:
            self._closers = []
        self._closers.append(callback)

    def _on_writable(self, callback: Callable[[], None]) -> None:
        self._writable = [*(self._writable or ()), callback]

    # --- endings

    def _has_pending_replies(self) -> bool:
        """True if the client is waiting for a reply."""
        return bool(self._open or self._unsent or self._items or self._block)

    def _close_if_idle(self) -> None:
        if not (self._draining or self._ending) or self._has_pending_replies():
            return
        if self._transport is not None:
            self._ending = True
            self._transport.close()

    def _break_off(self, code: ErrorCode, message: str, hint: str = "") -> None:
        """Send an error for the stream, and close the connection."""
        self._ending = True
        self._block, self._items = b"", []
        if self._transport is not None:
            self._transport.write(encode(refuse(None, error_object(code, message, hint=hint))))
            self._transport.close()

    def _give_up(self) -> None:
        self._listener.log.warning("rpc.slow_reader", seconds=self._listener.timing.stall_s)
        self.abort()

    def _time_frame(self) -> None:
        """Restart the time limit of an incomplete line. The timer of an earlier line checks this when it fires."""
        self._frame_began = self._listener.loop.time()
        if self._frame_timer is None:
            self._frame_timer = self._listener.loop.call_later(self._listener.timing.frame_s, self._check_frame)

    def _check_frame(self) -> None:
        """Close if the line is still incomplete."""
        self._frame_timer = None
        if self._ending or not self._decoder.pending:
            return
        if self._items or self._block:  # The daemon itself has stopped reading.
            self._time_frame()
            return
        left = self._frame_began + self._listener.timing.frame_s - self._listener.loop.time()
        if left > 0:
            self._frame_timer = self._listener.loop.call_later(left, self._check_frame)
            return
        seconds = self._listener.timing.frame_s
        self._break_off("timeout", f"a frame was begun and not completed within {seconds:g} s")
