"""The calls of one connection, from their start to their only answer.

Owns which calls are unanswered, and their deadlines. Knows no method by name but
``$/cancelRequest`` and sends nothing: answers that come later are handed to ``deliver``. Promises: a call is answered
once; a write that was submitted is never undone because its client left.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import anyio
import msgspec
from msgspec import UNSET, Raw, UnsetType
from structlog.typing import FilteringBoundLogger

from ctxd.observe.tally import UNKNOWN_METHOD
from ctxd.rpc.dispatch import Entry, Table
from ctxd.rpc.identity import Caller
from ctxd.rpc.listener import ListenerContext
from ctxd.rpc.tasks import Suspended
from ctxd.rpc.wire_errors import cancelled_error, draining_error, error_of, timeout_error, with_outcome
from ctxd.sessions.session import Accepted, WriteRequest, write_request
from ctxd.store.writes import Pending
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.jsonrpc import Failure, Reply, Request, RequestId, encode, encode_all, error_object, refuse
from ctxd_protocol.methods.daemon import CancelParams

Answer = Reply | Failure | list[msgspec.Raw]

BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a batch's answer: as much as a frame may hold that a client sends. Further long members are refused."""

MEMBER_BYTES_SMALL: Final = 64 * 1024
"""Bytes of a member's answer that is never refused for its length: what a write answers is shorter."""


class BatchAnswers:
    """Gathers the answers of one batch; ``add`` gives the array once the last member has its own."""

    __slots__ = ("_answers", "_log", "_open", "_size", "ids")

    def __init__(self, members: int, log: FilteringBoundLogger) -> None:
        self._open = members
        self._log = log
        self._size = 0
        self._answers: list[msgspec.Raw] = []
        self.ids: set[RequestId] = set()

    def add(self, answer: Reply | Failure | None) -> list[msgspec.Raw] | None:
        """Note a member's answer, null for a notification; the whole array when it was the last and there is one."""
        if answer is not None:
            encoded = _encode_one(answer, self._log)[:-1]
            if len(encoded) > MEMBER_BYTES_SMALL and self._size + len(encoded) > BATCH_BYTES_MAX:
                message = f"with this answer the batch's would be longer than {BATCH_BYTES_MAX} bytes"
                hint = "Send this call by itself, or fewer in one batch."
                encoded = encode(refuse(answer.id, error_object("too_large", message, hint=hint)))[:-1]
            self._size += len(encoded)
            self._answers.append(msgspec.Raw(encoded))
        self._open -= 1
        return self._answers if self._open == 0 and self._answers else None


def encode_answers(answers: list[Any], *, log: FilteringBoundLogger) -> bytes:
    """``answers`` as frames. What cannot be encoded becomes an error, and is logged."""
    try:
        return encode_all(answers)
    except Exception:  # noqa: BLE001 - a result that cannot be encoded fails its own call only
        return b"".join(_encode_one(answer, log) for answer in answers)


def _encode_one(answer: Answer, log: FilteringBoundLogger) -> bytes:
    try:
        return encode(answer)
    except Exception as exc:  # noqa: BLE001 - see encode_answers
        assert not isinstance(answer, list), "a batch's members are encoded already"
        return encode(refuse(answer.id, error_of(exc, method="", log=log)))


_CANCEL: Final = msgspec.json.Decoder(CancelParams)
_SINGLES: Final = 3
"""InFlight that come alone, on end, after which their connection is interactive: one of many may do so by chance."""


class InFlightCall:
    """A call whose handler has not answered, or whose write is not durable.

    ``deadline`` is in the loop's seconds. ``ending`` is set when the call is ended before its handler: what was
    answered.
    """

    __slots__ = ("batch", "deadline", "done", "ending", "id", "key", "method", "scope", "undecided", "writes")

    def __init__(self, request: Request, entry: Entry, batch: BatchAnswers | None, deadline: float) -> None:
        self.id: RequestId | UnsetType = request.id
        self.key: Any = self if self.id is None or self.id is UNSET else self.id
        self.method = request.method
        self.writes = entry.writes
        self.batch = batch
        self.deadline = deadline
        self.scope: anyio.CancelScope | None = None
        self.ending: ErrorObject | None = None
        self.done = False
        # Whether it is a write that is neither durable nor known to have failed: cancelled, it is so for a while.
        self.undecided = entry.writes

    def end(self, ending: ErrorObject) -> None:
        """Have the handler stop, if it still runs."""
        self.ending = ending
        if self.scope is not None:
            self.scope.cancel()


class InFlight:
    """The unanswered calls of one connection. ``deliver`` is told each answer that comes later, null for none."""

    __slots__ = ("_deliver", "_lane", "_singles", "_table", "_timer", "_undecided", "caller", "open")

    def __init__(self, lane: ListenerContext, caller: Caller, deliver: Callable[[Answer | None], None]) -> None:
        self._lane = lane
        self._table: Table = lane.table
        self._deliver = deliver
        self._timer: asyncio.TimerHandle | None = None
        # Writes that are neither durable nor known to have failed.
        self._undecided = 0
        # InFlight on end that came alone.
        self._singles = 0
        self.caller = caller
        self.open: dict[Any, InFlightCall] = {}

    @property
    def is_writing(self) -> bool:
        """Whether a write of this connection is neither durable nor known to have failed."""
        return self._undecided > 0

    @property
    def may_write(self) -> bool:
        """Whether another write may be begun: not before others had room in the next transaction."""
        return self._undecided < self._lane.writes_max(self._undecided)

    def note_received(self, calls: int) -> None:
        """``calls`` came in one block. If it is one, with none before it, time and again, somebody is interactive."""
        self._singles = self._singles + 1 if calls == 1 and len(self.open) <= 1 else 0
        if self._singles >= _SINGLES:
            self._lane.floor.turns.note_interactive()

    def writes(self, request: Request) -> bool:
        """Whether ``request`` is a write."""
        entry = self._table.get(request.method)
        return entry is not None and entry.writes

    def begin(self, request: Request, batch: BatchAnswers | None = None) -> Reply | Failure | None:
        """Carry out ``request``: its answer, or null if it has none or will have it later."""
        request_id = request.id
        entry = self._table.get(request.method)
        meter = self._lane.meter
        if meter is not None and (beyond := meter.refuse(request, entry, self._lane.in_flight)) is not None:
            self._note_failed(UNKNOWN_METHOD if entry is None else request.method, beyond)
            return None if request_id is UNSET else refuse(request_id, beyond)
        if entry is None:
            return self._decline(request)
        if request_id in self.open:
            return refuse(None, error_object("duplicate_id", "an earlier request with this id is not answered yet"))
        raw = request.params
        write: WriteRequest | None = None
        try:
            try:
                params = entry.params(raw) if raw is UNSET else entry.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError):
                params = entry.params(raw)
            if entry.writes:
                write = write_request(request.method, self.caller.principal, params)
                coroutine = entry.call(self.caller, params, write)
            else:
                coroutine = entry.call(self.caller, params)
            awaited = self._lane.tasks.step(coroutine)
        except StopIteration as done:
            result = done.value
        except Exception as exc:  # noqa: BLE001 - the place where a call's exceptions become its answer
            submitted = (write is not None and write.submitted) if entry.writes else None
            return self._failure(request_id, request.method, exc, submitted=submitted, ended=True)
        else:
            call = self._note(request, entry, batch)
            call.scope = self._lane.tasks.go_on(self._run(call, write, Suspended(coroutine, awaited)))
            return None
        if type(result) is Accepted:
            return self._accepted(request, entry, batch, result)
        self._lane.floor.tally.succeeded[request.method] += 1
        return None if request_id is UNSET else Reply("2.0", request_id, result)

    def begin_member(self, request: Request, batch: BatchAnswers) -> list[Raw] | None:
        """Carry out a member of ``batch``; the batch's answer if this completes it."""
        if request.id is not UNSET and request.id is not None:
            if request.id in batch.ids:
                return batch.add(refuse(None, error_object("duplicate_id", "the batch holds this id already")))
            batch.ids.add(request.id)
        before = len(self.open)
        answer = self.begin(request, batch)
        return None if len(self.open) > before else batch.add(answer)

    def drain(self) -> None:
        """Refuse every call from now on; those that are open go on."""
        self._table = {}

    def abandon(self) -> None:
        """The client is gone: stop its reads; its writes go on, unanswered."""
        if self._timer is not None:
            self._timer.cancel()
        self._lane.in_flight -= len(self.open)
        calls = list(self.open.values())
        self.open.clear()
        for call in calls:
            call.done = True
            if not call.writes:
                call.end(cancelled_error(writes=False))

    def _note(self, request: Request, entry: Entry, batch: BatchAnswers | None) -> InFlightCall:
        seconds = self._lane.timing.deadline_s
        call = InFlightCall(request, entry, batch, self._lane.loop.time() + seconds)
        self.open[call.key] = call
        self._lane.in_flight += 1
        if entry.writes:
            self._lane.writers += self._undecided == 0
            self._undecided += 1
        if self._timer is None:
            self._timer = self._lane.loop.call_later(seconds, self._expire)
        return call

    def _accepted(
        self, request: Request, entry: Entry, batch: BatchAnswers | None, accepted: Accepted
    ) -> Reply | Failure | None:
        pending = accepted.pending
        if pending is None or pending.done:
            answer = self._settled(request.id, request.method, accepted)
            self._note_ended(request.method, answer)
            return answer
        call = self._note(request, entry, batch)
        pending.on_done(lambda _: self._durable(call, accepted))
        return None

    def _decided(self, call: InFlightCall) -> None:
        if call.undecided:
            call.undecided = False
            self._undecided -= 1
            self._lane.writers -= self._undecided == 0

    def _give_up(self, call: InFlightCall) -> None:
        """Let others begin in place of a call that was ended before its handler answered."""
        self._decided(call)
        self._deliver(None)

    def _durable(self, call: InFlightCall, accepted: Accepted) -> None:
        self._decided(call)
        if call.done:
            self._deliver(None)
        else:
            self._finish(call, self._settled(call.id, call.method, accepted))

    def _settled(self, request_id: RequestId | UnsetType, method: str, accepted: Accepted) -> Reply | Failure | None:
        """The answer of a call whose write is decided."""
        pending: Pending | None = accepted.pending
        if pending is not None and pending.error is not None:
            return self._failure(request_id, method, pending.error)
        try:
            result = accepted.result(None if pending is None else pending.receipt)
        except Exception as exc:  # noqa: BLE001 - as in begin: it is the same call
            return self._failure(request_id, method, exc)
        return None if request_id is UNSET else Reply("2.0", request_id, result)

    async def _run(self, call: InFlightCall, write: WriteRequest | None, rest: Suspended) -> None:
        """Carry out the rest of a call. Cancel: safe; ended by its own scope, the call was answered already."""
        try:
            self._take(call, await rest)
        except Exception as exc:  # noqa: BLE001 - as in begin: it is the same call
            self._decided(call)
            submitted = None if write is None else write.submitted
            self._finish(call, self._failure(call.id, call.method, exc, submitted=submitted))
        except asyncio.CancelledError:
            self._give_up(call)
            raise
        finally:
            call.scope = None

    def _take(self, call: InFlightCall, result: Any) -> None:  # noqa: ANN401 - any method's result
        """Answer with ``result``, now or once its write is durable."""
        if type(result) is not Accepted:
            self._decided(call)
            self._finish(call, None if call.id is UNSET else Reply("2.0", call.id, result))
        elif result.pending is None:
            self._durable(call, result)
        else:
            result.pending.on_done(lambda _: self._durable(call, result))

    def _finish(self, call: InFlightCall, answer: Reply | Failure | None) -> None:
        if call.done:
            return
        call.done = True
        del self.open[call.key]
        self._lane.in_flight -= 1
        self._note_ended(call.method, answer)
        self._deliver(answer if call.batch is None else call.batch.add(answer))

    def _failure(
        self,
        request_id: RequestId | UnsetType,
        method: str,
        exc: BaseException,
        *,
        submitted: bool | None = None,
        ended: bool = False,
    ) -> Failure | None:
        error = error_of(exc, method=method, log=self._lane.log)
        if ended:
            self._note_failed(method, error)
        if submitted is not None:
            error = with_outcome(error, submitted=submitted)
        if request_id is UNSET:
            return refuse(None, error) if error.data.code == "invalid_request" else None
        return refuse(request_id, error)

    def _note_ended(self, method: str, answer: Reply | Failure | None) -> None:
        """Count a call that was answered; one without an answer has done what it was to do."""
        if type(answer) is Failure:
            self._note_failed(method, answer.error)
        else:
            self._lane.floor.tally.succeeded[method] += 1

    def _note_failed(self, method: str, error: ErrorObject) -> None:
        self._lane.floor.tally.failed[method, error.data.code] += 1

    def _decline(self, request: Request) -> Failure | None:
        """Answer what is in no table, or comes while the daemon stops."""
        if request.params is not UNSET and bytes(request.params)[:1] not in (b"{", b"["):
            error = error_object("invalid_request", "params is an array or an object, or left out")
            return refuse(None if request.id is UNSET else request.id, error)
        if request.id is UNSET:
            if request.method == "$/cancelRequest":
                self._cancel(request)
            return None
        if request.method in self._lane.table:
            method, error = request.method, draining_error(self._lane.timing.retry_after_ms)
        else:
            hint = "rpc.discover lists the methods."
            method, error = UNKNOWN_METHOD, error_object("method_not_found", "there is no such method here", hint=hint)
        self._note_failed(method, error)
        return refuse(request.id, error)

    def _cancel(self, request: Request) -> None:
        if request.params is UNSET:
            return
        try:
            named = _CANCEL.decode(request.params).id
        except msgspec.DecodeError:
            return
        call = self.open.get(named)
        if call is not None:
            self._end_early(call, cancelled_error(writes=call.writes))

    def _end_early(self, call: InFlightCall, ending: ErrorObject) -> None:
        """Answer ``ending`` now; what still runs of a read is stopped, a submitted write goes on."""
        call.end(ending)
        self._finish(call, None if call.id is UNSET else refuse(call.id, ending))

    def _expire(self) -> None:
        """End the calls whose time is up, and wait for the next one's. Calls stand in the order of their deadlines."""
        now = self._lane.loop.time()
        self._timer = None
        for call in list(self.open.values()):
            if call.deadline > now:
                self._timer = self._lane.loop.call_at(call.deadline, self._expire)
                return
            self._end_early(call, timeout_error(self._lane.timing.deadline_s, writes=call.writes))
