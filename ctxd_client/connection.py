"""One connection to the daemon: calls go out, answers come back in any order.

Owns the stream, the table of unanswered calls, and the two tasks that read and write. Nobody else writes to the
stream, so a cancelled call never leaves half a line behind: it asks the daemon to give up, and its late answer is
thrown away. When the stream ends, every waiting call learns it. Knows nothing of reconnecting.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

import anyio
from anyio.abc import ByteStream

from ctxd_client import wire
from ctxd_client.errors import CallFailed, ConnectionLost
from ctxd_client.wire import Call
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.events import NoticeEvent

RECEIVE_BYTES: Final = 256 * 1024
"""Bytes taken from the socket at once. Larger saves wake-ups on large answers; it is also what the kernel buffers at
most."""

OUTBOX_BYTES_MAX: Final = 1024 * 1024
"""Bytes of lines that wait for the socket before further calls wait too. One line may exceed it, else none could be
sent."""

CLOSE_S_MAX: Final = 1.0
"""Seconds that closing the socket may take before it is abandoned."""

R = TypeVar("R")


class _Waiting:
    """One call without an answer yet."""

    __slots__ = ("answer", "answered", "error", "sent")

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.answer: wire.Answer | None = None
        self.error: CallFailed | None = None
        self.sent = False


class Connection:
    """A connection over ``stream``; its owner starts ``run`` in a task group and keeps that alive as long as this is
    used."""

    def __init__(self, stream: ByteStream, *, on_event: Callable[[NoticeEvent], None]) -> None:
        self.limits = Limits()
        self._stream = stream
        self._on_event = on_event
        self._waiting: dict[int, _Waiting] = {}
        self._abandoned: set[int] = set()
        self._outbox: deque[tuple[int | None, bytes]] = deque()
        self._outbox_bytes = 0
        self._changed = anyio.Event()
        self._drained = anyio.Event()
        self._slots = anyio.Semaphore(self.limits.in_flight, fast_acquire=True)
        self._next_id = 0
        self._lost: CallFailed | None = None
        self._retired = False
        self._scope = anyio.CancelScope()

    def __repr__(self) -> str:
        """The state, for people."""
        state = "lost" if self._lost else "retired" if self._retired else "open"
        return f"<Connection {state}, {len(self._waiting)} waiting, {len(self._abandoned)} abandoned>"

    @property
    def usable(self) -> bool:
        """Whether a new call may be made."""
        return self._lost is None and not self._retired

    @property
    def unanswered(self) -> int:
        """How many calls the daemon has yet to answer, abandoned ones included."""
        return len(self._waiting) + len(self._abandoned)

    async def run(self) -> None:
        """Read and write until the stream ends, then tell every waiting call. Never raises but for cancellation."""
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._write)
                    await self._read()
                    group.cancel_scope.cancel()
        finally:
            self._end(ConnectionLost("the connection to the daemon ended"))
            with anyio.move_on_after(CLOSE_S_MAX, shield=True):
                await self._stream.aclose()

    async def call(self, call: Call[R]) -> R:
        """The result of ``call``.

        Waits while as many calls are unanswered as the daemon allows.
        Raises: what the daemon answered, ``TooLarge`` before sending, ``ConnectionLost`` when the stream ends first.
        Cancel: the daemon is asked to give the call up; whether a write was applied is then unknown.
        """
        self._next_id += 1
        id = self._next_id
        line = wire.request_line(id, call, bytes_max=self.limits.frame_bytes)
        await self._room()
        waiting = self._waiting[id] = _Waiting()
        self._post(id, line)
        try:
            await waiting.answered.wait()
        except BaseException:
            self._give_up(id)
            raise
        if waiting.error is not None:
            raise waiting.error
        answer = waiting.answer
        assert answer is not None, "an answered call has an answer or an error"
        if answer.error is not None:
            raise wire.failure(answer.error, call)
        return call.decode(answer.result)

    def adopt(self, limits: Limits) -> None:
        """Keep within ``limits``, which the daemon announced. Only while no call waits."""
        self.limits = limits
        self._slots = anyio.Semaphore(limits.in_flight, fast_acquire=True)

    def retire(self) -> None:
        """Take no new calls, and end once those that wait have their answers."""
        self._retired = True
        self._wake()
        self._end_if_idle()

    def close(self) -> None:
        """End at once; calls that wait get ``ConnectionLost``."""
        self._end(ConnectionLost("the client closed the connection"))
        self._scope.cancel()

    async def _room(self) -> None:
        """Take a slot: the daemon reads no more than so many calls ahead. Given back when the answer comes, or the
        end."""
        await self._slots.acquire()
        try:
            while self.usable and self._outbox_bytes >= OUTBOX_BYTES_MAX:
                await self._drained.wait()
            if self._lost is not None:
                raise ConnectionLost(self._lost.message, outcome="not_applied")
            if self._retired:
                raise ConnectionLost("the daemon is going away", outcome="not_applied")
        except BaseException:
            self._slots.release()
            raise

    def _post(self, id: int | None, line: bytes) -> None:
        self._outbox.append((id, line))
        self._outbox_bytes += len(line)
        self._changed.set()

    def _give_up(self, id: int) -> None:
        waiting = self._waiting.pop(id, None)
        if waiting is None or self._lost is not None:
            return
        if waiting.sent:
            self._abandoned.add(id)
            self._post(None, wire.cancel_line(id))
            return
        self._outbox = deque(entry for entry in self._outbox if entry[0] != id)
        self._outbox_bytes = sum(len(line) for _, line in self._outbox)
        self._slots.release()
        self._end_if_idle()

    async def _write(self) -> None:
        while True:
            while not self._outbox:
                self._changed = anyio.Event()
                await self._changed.wait()
            lines = [line for _, line in self._outbox]
            for id, _ in self._outbox:
                if id in self._waiting:
                    self._waiting[id].sent = True
            self._outbox.clear()
            self._outbox_bytes = 0
            self._wake()
            try:
                await self._stream.send(b"".join(lines))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the reader still takes the answers that came before, and then sees the end

    async def _read(self) -> None:
        lines = wire.Lines()
        try:
            while True:
                for line in lines.feed(await self._stream.receive(RECEIVE_BYTES)):
                    self._take(wire.parse(line))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        except CallFailed as error:
            self._end(error)

    def _take(self, answer: wire.Answer) -> None:
        if answer.method is not None:
            event = wire.event(answer)
            if event is not None:
                self._on_event(event)
            return
        if isinstance(answer.id, int):
            waiting = self._waiting.pop(answer.id, None)
            if waiting is not None:
                waiting.answer = answer
                waiting.answered.set()
                self._slots.release()
            elif answer.id in self._abandoned:
                self._abandoned.remove(answer.id)
                self._slots.release()
        self._end_if_idle()

    def _wake(self) -> None:
        self._drained.set()
        self._drained = anyio.Event()

    def _end_if_idle(self) -> None:
        if self._retired and not self._waiting:
            self.close()

    def _end(self, reason: CallFailed) -> None:
        if self._lost is None:
            self._lost = reason
        for waiting in self._waiting.values():
            waiting.error = (
                ConnectionLost(self._lost.message, outcome="unknown" if waiting.sent else "not_applied")
                if isinstance(self._lost, ConnectionLost)
                else self._lost
            )
            waiting.answered.set()
        for _ in range(self.unanswered):
            self._slots.release()
        self._waiting.clear()
        self._abandoned.clear()
        self._wake()
