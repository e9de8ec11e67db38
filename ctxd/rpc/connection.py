"""One connection: from received bytes to answered calls.

Owns a connection's buffers and its timers; knows no method. There is one way in: received bytes go into the inbox, and
the scheduler gives the connection slices in which it begins what the inbox holds. Each call gets one answer or the
connection ends; whatever a peer does or leaves undone costs this connection only; at most ``Limits.in_flight`` calls
and one receive are held, and the bytes of answers that the peer has not read are bounded.
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, cast

import msgspec

from ctxd.failpoints import ARMED, hit
from ctxd.rpc.calls import Answer, InFlight, InFlightCall, encode_answers
from ctxd.rpc.identity import Caller
from ctxd.rpc.inbox import Inbox, Work
from ctxd.rpc.listener import ListenerContext
from ctxd.rpc.scheduler import Slice
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.jsonrpc import Failure, Notification, Request, Stray, encode, error_object, refuse

_LINES_AT_ONCE: Final = 128
"""Lines read and answers encoded in one go: enough to spread the cost."""

_LINE_END: Final = ord("\n")

_WRITE_BYTES: Final = 256 * 1024
"""Bytes of answers gathered before they are handed to the transport: one write, and one wake-up of the client."""


class Connection(asyncio.Protocol):
    """One accepted connection. Everything happens on the loop; nothing here blocks or is called from a thread."""

    __slots__ = (
        "_calls",
        "_choked",
        "_closers",
        "_draining",
        "_ending",
        "_frame_began",
        "_frame_timer",
        "_held",
        "_inbox",
        "_listener",
        "_notices",
        "_open",
        "_queued",
        "_stall_timer",
        "_transport",
        "_unread",
        "_unsent",
        "_writable",
    )

    def __init__(self, listener: ListenerContext) -> None:
        self._listener = listener
        self._inbox = Inbox(listener)
        self._transport: asyncio.Transport | None = None
        self._calls: InFlight | None = None
        self._open: Mapping[Any, InFlightCall] = {}
        self._queued = False
        self._held = False
        # Answers for a client that does not read, with the bytes reserved for each.
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
        # Writing goes on only once the peer has read everything, so that what it has not read is known.
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
            listener.answer_bytes_max,
        )
        self._calls = InFlight(listener, caller, self._deliver)
        self._open = self._calls.open

    def data_received(self, data: bytes) -> None:
        """Put ``data`` into the inbox, and ask for a slice if that completes a line."""
        if self._ending:
            return
        if ARMED:
            hit("conn.frame")
        inbox = self._inbox
        is_partial = data[-1] != _LINE_END
        pending = inbox.pending if is_partial else 0
        completed = inbox.put(data)
        if completed and not self._queued and not self._choked:
            self._queued = True
            self._listener.scheduler.run(self)
        elif not inbox.is_empty:
            self._hold()
        elif inbox.fault is not None:
            self._break_off(inbox.fault)
        if is_partial and not self._ending and (completed or not pending):
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
        """Cancel what only this client wanted; submitted writes go on."""
        self._transport = None
        self._ending = True
        self._inbox.clear()
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
        """Begin nothing more until the client has read its answers; give it a bounded time."""
        self._choked = True
        if self._transport is not None and self._calls is not None:
            self._unread = self._transport.get_write_buffer_size()
            self._calls.budget.take(self._unread)
        self._stall_timer = self._listener.loop.call_later(self._listener.timing.stall_s, self._give_up)

    def resume_writing(self) -> None:
        """Go on with what was held: the client has read everything."""
        self._choked = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._calls is not None and self._transport is not None:
            unread, self._unread = self._unread, 0
            self._calls.budget.give(unread)
        while self._unsent and not self._choked:
            answer, reserved = self._unsent.popleft()
            self._send([answer], reserved)
        self._flush_notices()
        for callback in list(self._writable or ()):
            callback()
        self._go_on()

    # --- called by the server and the scheduler

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

    def run_slice(self) -> bool:
        """Begin calls of the inbox for one slice, and read on once it is empty. True if another could begin more."""
        may_go_on = not self._is_blocked() and self._begin(Slice())
        if self._inbox.is_empty:
            self._queued = False
            if self._inbox.fault is not None:
                self._break_off(self._inbox.fault)
            elif self._held and self._transport is not None and not self._ending:
                self._held = False
                self._transport.resume_reading()
            if self._draining or self._ending:
                self._close_if_idle()
            return False
        self._hold()
        self._queued = may_go_on and not self._is_blocked()
        return self._queued

    # --- calls

    def _is_blocked(self) -> bool:
        """True if nothing may be begun until an answer has been sent."""
        return self._choked or len(self._open) >= self._listener.limits.in_flight

    def _hold(self) -> None:
        """Read no more until all that was received is begun."""
        if not self._held and self._transport is not None and not self._transport.is_closing():
            self._held = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Ask for a slice if the inbox holds work that may be begun."""
        if not self._inbox.is_empty and not self._queued and not self._is_blocked():
            self._queued = True
            self._listener.scheduler.add(self)
        elif self._draining or self._ending:
            self._close_if_idle()

    def _begin(self, piece: Slice) -> bool:
        """Begin work of the inbox until ``piece`` is over. False if more may be begun only once something has ended."""
        inbox, quota = self._inbox, self._listener.quota
        frames: list[bytes] = []
        unsent, may_go_on = 0, True
        while may_go_on:
            if ARMED:
                hit("rpc.dispatch")
            items, cost = inbox.take(_LINES_AT_ONCE)
            piece.lines -= cost
            if quota is not None:
                quota.spend(cost)
            answers: list[Any] = []
            may_go_on = self._begin_some(items, answers, piece)
            if answers:
                frames.append(self._encode(answers))
                unsent += len(frames[-1])
            if unsent >= _WRITE_BYTES:
                self._write(b"".join(frames))
                frames, unsent = [], 0
                may_go_on = may_go_on and not self._choked
            if inbox.is_empty or piece.lines <= 0 or perf_counter() >= piece.ends:
                break
        if frames:
            self._write(frames[0] if len(frames) == 1 else b"".join(frames))
        return may_go_on

    def _begin_some(self, items: list[Work], answers: list[Any], piece: Slice) -> bool:
        """Begin ``items``, and gather the answers that are there at once; give the rest back. False if more may be
        begun only after something has ended."""
        assert self._calls is not None, "work comes after the connection was admitted"
        calls, tasks, entry_of, open_calls = self._calls, self._listener.tasks, self._calls.table.get, self._open
        begin, in_flight_max, ends = calls.begin, self._listener.limits.in_flight, piece.ends
        rest = iter(items)
        if not tasks.idle:
            self._inbox.give_back(items)
            return self._grow(piece)
        tasks.enter()
        try:
            for item in rest:
                request = item if type(item) is Request else self._request_of(item, answers)
                if request is None:
                    continue
                entry = entry_of(request.method)
                is_large = False
                if entry is not None and entry.is_metered:
                    if calls.must_wait(entry, self._go_on):
                        self._inbox.give_back([item, *rest])
                        return False
                    is_large = entry.answer_bytes > 0
                answer: Answer | None
                if request is item:
                    answer = begin(request, entry)
                else:
                    answer = calls.begin_member(request, entry, cast(Any, item)[1])
                if answer is not None:
                    answers.append(answer)
                elif len(open_calls) >= in_flight_max or not tasks.idle:
                    self._inbox.give_back(list(rest))
                    return self._grow(piece)
                # A large answer is sent before the next one is made.
                if is_large or perf_counter() >= ends:
                    self._inbox.give_back(list(rest))
                    break
        finally:
            tasks.leave()
        return True

    def _grow(self, piece: Slice) -> bool:
        """True if only an idle task lacks, which is there in the next iteration of the loop."""
        piece.lines = 0
        if not self._listener.tasks.idle:
            self._listener.tasks.grow()
        return not self._is_blocked()

    def _request_of(self, item: Work, answers: list[Any]) -> Request | None:
        """The request that ``item`` is; for other work None, with its answer in ``answers``."""
        assert self._calls is not None, "work comes after the connection was admitted"
        if type(item) is not tuple:
            answers.append(item)
            return None
        member, batch = item
        if type(member) is Request:
            return member
        answer = self._calls.add(batch, None if isinstance(member, Stray) else cast(Failure, member))
        if answer is not None:
            answers.append(answer)
        return None

    def _deliver(self, answer: Answer | None, reserved: int) -> None:
        """Send the answer of a call that took its time; to a client that does not read, once it does."""
        if answer is not None and self._choked:
            # Not encoded yet: text that many answers share is in memory once, and encoded it would be once for each.
            self._unsent = self._unsent or deque()
            self._unsent.append((answer, reserved))
        elif answer is not None:
            self._send([answer], reserved)
        elif reserved and self._calls is not None:
            self._calls.budget.give(reserved)
        self._go_on()

    # --- sending

    def _send(self, answers: list[Any], reserved: int) -> None:
        self._write(self._encode(answers))
        if reserved and self._calls is not None:
            self._calls.budget.give(reserved)

    def _write(self, frames: bytes) -> None:
        if self._transport is not None:
            if ARMED:
                hit("rpc.reply")
            self._transport.write(frames)

    def _encode(self, answers: list[Any]) -> bytes:
        return encode_answers(answers, log=self._listener.log, bytes_max=self._listener.answer_bytes_max)

    def _notify(self, method: str, params: msgspec.Struct) -> bool:
        """Queue a notification; False if the queue is full. It goes out after the answers of this slice."""
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
        self._closers = [*(self._closers or ()), callback]

    def _on_writable(self, callback: Callable[[], None]) -> None:
        self._writable = [*(self._writable or ()), callback]

    # --- endings

    def _owes(self) -> bool:
        """True if the client has an answer to come."""
        return bool(self._open or self._unsent or not self._inbox.is_empty)

    def _close_if_idle(self) -> None:
        if not (self._draining or self._ending) or self._owes():
            return
        if self._transport is not None:
            self._ending = True
            self._transport.close()

    def _break_off(self, error: ErrorObject) -> None:
        """Send the fault of the stream, and end it."""
        self._ending = True
        self._inbox.clear()
        if self._transport is not None:
            self._transport.write(encode(refuse(None, error)))
            self._transport.close()

    def _give_up(self) -> None:
        self._listener.log.warning("rpc.slow_reader", seconds=self._listener.timing.stall_s)
        self.abort()

    def _time_frame(self) -> None:
        """Give a line that was begun its time from now on. A timer of an earlier line finds that by itself."""
        self._frame_began = self._listener.loop.time()
        if self._frame_timer is None:
            self._frame_timer = self._listener.loop.call_later(self._listener.timing.frame_s, self._check_frame)

    def _check_frame(self) -> None:
        """Close if the line that was begun is still not complete."""
        self._frame_timer = None
        if self._ending or not self._inbox.pending:
            return
        if not self._inbox.is_empty:  # The daemon is the one that does not read on.
            self._time_frame()
            return
        left = self._frame_began + self._listener.timing.frame_s - self._listener.loop.time()
        if left > 0:
            self._frame_timer = self._listener.loop.call_later(left, self._check_frame)
            return
        seconds = self._listener.timing.frame_s
        self._break_off(error_object("timeout", f"a frame was begun and not completed within {seconds:g} s"))
