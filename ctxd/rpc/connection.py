"""One connection: from received bytes to answered calls.

Owns a connection's buffers and its clocks; its calls are ``calls``'. Knows no method. Promises:
each call gets one answer or the connection ends; what a peer does or leaves undone costs this connection only; at most
``Limits.in_flight`` calls and one receive are held; a write that was submitted is never undone by a client that leaves.
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, cast

import msgspec

from ctxd.failpoints import hit
from ctxd.rpc.calls import Answer, InFlight, InFlightCall, encode_answers
from ctxd.rpc.identity import Caller
from ctxd.rpc.inbox import Inbox, Work
from ctxd.rpc.listener import ListenerContext
from ctxd.rpc.scheduler import CALLS_SHARED, TURN_S
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.jsonrpc import Failure, Notification, Request, Stray, encode, error_object, refuse

_ANSWERS_MAX: Final = 64
"""Answers that are encoded in one go: enough to spread the cost, few enough to notice when they grow large."""

_LOOKS: Final = 8
"""How often a turn looks at the clock, if it has calls enough."""

_ANSWERS_MIN: Final = 4
"""InFlight begun between two looks: a look costs as much as a part of a short call."""

_WRITE_BYTES: Final = 256 * 1024
"""Bytes of answers gathered before they are handed to the transport: one write, and one wake-up of the client."""


class Connection(asyncio.Protocol):
    """One accepted connection. Everything happens on the loop; nothing here blocks or is called from a thread."""

    __slots__ = (
        "_begin_call",
        "_calls",
        "_choked",
        "_closers",
        "_draining",
        "_ending",
        "_frame_began",
        "_frame_timer",
        "_intake",
        "_lane",
        "_notices",
        "_open",
        "_queued",
        "_stall_timer",
        "_transport",
        "_unsent",
        "_writable",
    )

    def __init__(self, lane: ListenerContext) -> None:
        self._lane = lane
        self._intake = Inbox(lane)
        self._transport: asyncio.Transport | None = None
        self._calls: InFlight | None = None
        self._open: Mapping[Any, InFlightCall] = {}
        self._queued = False
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
            principal,
            lane.capability,
            lane.session,
            number,
            self._notify,
            self._on_close,
            self._on_writable,
            lane.sessions,
            lane.methods,
            lane.limits,
        )
        self._calls = InFlight(lane, caller, self._deliver)
        self._begin_call = self._calls.begin
        self._open = self._calls.open

    def data_received(self, data: bytes) -> None:
        """Answer what ``data`` completes, as far as the bounds allow; hold the rest and read on once that is begun."""
        if self._ending:
            return
        hit("conn.frame")
        intake = self._intake
        if not self._is_full() and (items := intake.take_short(data)) is not None:
            self._begin_short(items)
            return
        pending, waited = intake.pending, bool(intake)
        completed = intake.take(data)
        if completed and not waited and not self._is_full():
            self._begin(CALLS_SHARED)
        if intake:
            self._hold()
        elif intake.fault is not None:
            self._break_off(intake.fault)
        if not self._ending and intake.pending and (completed or not pending):
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
        self._intake.clear()
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

    def take_turn(self, calls: int) -> bool:
        """As ``turns.Runnable``: begin held calls, and read on once there are none."""
        stopped = self._is_full() or self._begin(calls)
        self._queued = bool(self._intake) and not stopped
        if self._intake:
            return self._queued
        if self._intake.fault is not None:
            self._break_off(self._intake.fault)
        elif self._transport is not None and not self._ending:
            self._transport.resume_reading()
        self._close_if_idle()
        return False

    def beside_writers(self) -> bool:
        """As ``turns.Runnable``: whether others wait for writes of theirs."""
        return self._calls is not None and self._lane.writers > self._calls.is_writing

    def _is_full(self) -> bool:
        """True if nothing may be begun until something else has happened."""
        return self._choked or len(self._open) >= self._lane.limits.in_flight

    def _hold(self) -> None:
        """Read no more until all that was received is begun."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._want_turn()

    def _want_turn(self) -> None:
        if not self._queued and not self._is_full():
            self._queued = True
            self._lane.turns.want(self)

    def _begin_short(self, items: list[Any]) -> None:
        hit("rpc.dispatch")
        answers: list[Any] = []
        self._begin_some(items, answers)
        if answers:
            self._write(self._encode(answers))
        assert self._calls is not None, "work comes after the connection was admitted"
        self._calls.note_received(len(items) + bool(self._intake))
        if self._intake:
            self._hold()

    def _begin(self, calls: int) -> bool:
        """Begin at most ``calls`` held calls, until the turn is over or a bound is met. Answers that are there go out
        together. Returns: whether a bound was met."""
        stopped = False
        frames: list[bytes] = []
        unsent = 0
        ends = perf_counter() + TURN_S
        at_once = min(max(calls // _LOOKS, _ANSWERS_MIN), _ANSWERS_MAX)
        while calls > 0 and (items := self._intake.next(min(calls, at_once))):
            hit("rpc.dispatch")
            calls -= len(items)
            answers: list[Any] = []
            stopped = self._begin_some(items, answers)
            if answers:
                encoded = self._encode(answers)
                frames.append(encoded)
                unsent += len(encoded)
            if unsent >= _WRITE_BYTES:
                self._write(b"".join(frames))
                frames, unsent = [], 0
            if stopped or self._choked or perf_counter() >= ends:
                break
        if frames:
            self._write(b"".join(frames))
        return stopped or self._is_full()

    def _begin_some(self, items: list[Any], answers: list[Any]) -> bool:
        """Begin ``items`` and gather the answers that are there at once. Returns: whether a bound was met; the rest is
        given back."""
        assert self._calls is not None, "work comes after the connection was admitted"
        begin, begun, open_max = self._begin_call, self._open, self._lane.limits.in_flight
        may_write: bool | None = None
        for place, item in enumerate(items):
            if not self._lane.tasks.idle:
                self._lane.tasks.grow()
                self._intake.give_back(items[place:])
                return False
            if may_write is None:
                may_write = self._calls.may_write
            if not may_write and self._writes(item):
                self._intake.give_back(items[place:])
                return True
            answer = begin(item) if type(item) is Request else self._begin_other(item)
            if answer is not None:
                answers.append(answer)
            elif len(begun) >= open_max:
                self._intake.give_back(items[place + 1 :])
                return True
            else:
                may_write = None  # To be looked up if there is another.
        return False

    def _writes(self, item: Work) -> bool:
        request = item[0] if isinstance(item, tuple) else item
        return self._calls is not None and isinstance(request, Request) and self._calls.writes(request)

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
        if self._intake:
            self._want_turn()
        if self._draining or self._ending:
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
        return encode_answers(answers, log=self._lane.log)

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
        return bool(self._open or self._unsent or self._intake)

    def _close_if_idle(self) -> None:
        if not (self._draining or self._ending) or self._owes():
            return
        if self._transport is not None:
            self._ending = True
            self._transport.close()

    def _break_off(self, error: ErrorObject) -> None:
        """Say what is wrong with the stream, and end it."""
        self._ending = True
        self._intake.clear()
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
        if self._ending or not self._intake.pending:
            return
        if self._intake:  # It is this side that does not read on.
            self._time_frame()
            return
        left = self._frame_began + self._lane.timing.frame_s - self._lane.loop.time()
        if left > 0:
            self._frame_timer = self._lane.loop.call_later(left, self._check_frame)
            return
        seconds = self._lane.timing.frame_s
        self._break_off(error_object("timeout", f"a frame was begun and not completed within {seconds:g} s"))
