"""The calls of one connection, from admission to their single reply.

Knows no method by name except ``$/cancelRequest``, and sends nothing: later replies are passed to ``deliver``. Each
call gets one reply; a submitted write is never undone because its client left; a result that cannot be encoded fails
only its own call.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from types import CoroutineType
from typing import Any, Final

import anyio
import msgspec
from msgspec import UNSET, Raw, UnsetType
from structlog.typing import FilteringBoundLogger

from ctxd.failpoints import ARMED, hit
from ctxd.fd_passing import PassedFile
from ctxd.observe.call_counts import UNKNOWN_METHOD
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import MethodEntry, Table
from ctxd.rpc.listener_state import ListenerContext
from ctxd.rpc.reply_budget import ReplyBudget
from ctxd.rpc.sandbox_quota import QuotaMeter
from ctxd.rpc.scheduler import Suspended
from ctxd.rpc.wire_errors import cancelled_error, draining_error, error_of, timeout_error, with_outcome
from ctxd.sessions.live_session import Accepted, WriteRequest, write_request
from ctxd_protocol.errors import ErrorObject, Outcome
from ctxd_protocol.jsonrpc import Failure, Reply, Request, RequestId, encode, encode_all, error_object, refuse
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.daemon import CancelParams

Answer = Reply | Failure | list[msgspec.Raw]

BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of a batch's reply: the size of a client's largest frame. Further long members are refused."""

MEMBER_BYTES_SMALL: Final = 64 * 1024
"""Size of a member's reply that is never refused for its length: results of writes are shorter."""

WRITE_WINDOW: Final = 4
"""Maximum undecided writes of one connection while other connections have some too. A transaction takes all waiting
writes, and all of them wait for it; 4 are enough for pipelining."""

WRITES_BESIDE_INTERACTIVE: Final = 4
"""Undecided writes that all other connections share while one is interactive, at least one each: its write waits for
their transaction."""

_CANCEL: Final = msgspec.json.Decoder(CancelParams)


class BatchAnswers:
    """The replies of one batch; ``add`` returns the array once it is complete."""

    __slots__ = ("_answers", "_log", "_open", "ids", "size")

    def __init__(self, members: int, log: FilteringBoundLogger) -> None:
        self._open = members
        self._log = log
        self._answers: list[msgspec.Raw] = []
        self.size = 0
        self.ids: set[RequestId] = set()

    def add(self, answer: Reply | Failure | None) -> list[msgspec.Raw] | None:
        """Add a member's reply, None for a notification. Returns: the array after the last member, if not empty."""
        if answer is not None:
            encoded = _encode_one(answer, self._log)[:-1]
            if len(encoded) > MEMBER_BYTES_SMALL and self.size + len(encoded) > BATCH_BYTES_MAX:
                message = f"with this reply the batch reply would exceed {BATCH_BYTES_MAX:,} bytes"
                hint = "Send this call alone, or fewer calls in a batch."
                encoded = encode(refuse(answer.id, error_object("too_large", message, hint=hint)))[:-1]
            self.size += len(encoded)
            self._answers.append(msgspec.Raw(encoded))
        self._open -= 1
        return self._answers if self._open == 0 and self._answers else None


def _no_method(method: str) -> ErrorObject:
    """The error for a method that this connection may not call, or that does not exist."""
    if method not in METHODS:
        return error_object("method_not_found", "there is no such method here", hint="rpc.discover lists the methods.")
    message = f"this connection may not call {method}: its socket or its grants exclude the method"
    return error_object("method_not_found", message, hint="hello lists its methods; the host's socket has all.")


def encode_replies(replies: list[Any], *, log: FilteringBoundLogger, bytes_max: int | None = None) -> bytes:
    """Encode ``replies`` as frames. One that cannot be encoded, or is longer than ``bytes_max``, becomes an error."""
    if ARMED:
        hit("rpc.reply")
    try:
        frames = encode_all(replies)
    except Exception:  # noqa: BLE001 - a result that cannot be encoded fails its own call only
        frames = b"".join(_encode_one(answer, log) for answer in replies)
    if bytes_max is None or len(frames) <= bytes_max:
        return frames
    del frames
    return b"".join(_encode_short(answer, log, bytes_max) for answer in replies)


def whole_reply(answer: Reply, *, log: FilteringBoundLogger) -> Reply | Failure:
    """``answer`` with the content of its file, if it has one: for a client to which the file cannot be sent."""
    if type(answer.result) is not PassedFile:
        return answer
    try:
        return Reply("2.0", answer.id, answer.result.whole())
    except Exception as exc:  # noqa: BLE001 - the content cannot be read: that is the answer to its call only
        return refuse(answer.id, error_of(exc, method="commit.materialize", log=log))


def _encode_one(answer: Answer, log: FilteringBoundLogger) -> bytes:
    try:
        return encode(answer)
    except Exception as exc:  # noqa: BLE001 - see encode_replies
        assert not isinstance(answer, list), "a batch's members are encoded already"
        return encode(refuse(answer.id, error_of(exc, method="", log=log)))


def _encode_short(answer: Answer, log: FilteringBoundLogger, bytes_max: int) -> bytes:
    frame = _encode_one(answer, log)
    if len(frame) <= bytes_max or isinstance(answer, list):
        return frame
    message = f"the reply has {len(frame):,} bytes; the limit for a sandbox is {bytes_max:,}"
    return encode(refuse(answer.id, error_object("too_large", message, hint="Request less, or smaller pages.")))


class InFlightCall(msgspec.Struct, eq=False):
    """A call whose handler has not returned, or whose write is not durable.

    ``key`` is its id, or unique where it has none. ``deadline`` is in the loop's seconds. ``undecided``: its write is
    neither durable nor known to have failed; it stays set after the call is cancelled. ``reserved``: bytes taken for
    it.
    """

    id: int | str | None | UnsetType
    key: Any
    method: str
    writes: bool
    reserved: int
    batch: BatchAnswers | None
    deadline: float
    undecided: bool
    scope: anyio.CancelScope | None = None
    done: bool = False


class InFlight:
    """The calls of one connection without a reply yet. ``deliver`` receives each later reply, or None, with the bytes
    reserved for it."""

    __slots__ = (
        "_deliver",
        "_listener",
        "_quota",
        "_succeeded",
        "_timer",
        "_undecided",
        "budget",
        "caller",
        "open",
        "table",
    )

    def __init__(
        self, listener: ListenerContext, caller: Caller, deliver: Callable[[Answer | None, int], None]
    ) -> None:
        self._listener = listener
        self.table: Table = listener.table
        self._deliver = deliver
        self._timer: asyncio.TimerHandle | None = None
        self._undecided = 0
        self.budget = ReplyBudget(listener.connection_reply_bytes, listener.replies)
        self._quota = listener.quota
        self._succeeded = listener.shared.tally.succeeded
        self.caller = caller
        self.open: dict[Any, InFlightCall] = {}

    def admit_or_wait(self, entry: MethodEntry, retry: Callable[[], None]) -> bool:
        """True if a call of ``entry`` may begin now. Else, if it lacks bytes, ``retry`` is called when some are given
        back; a write waits for the connection's own writes, which call ``deliver``."""
        if entry.writes and self._undecided and self._undecided >= self._window():
            return False
        if entry.reply_bytes and not self.budget.has_room(entry.reply_bytes):
            self.budget.when_room(entry.reply_bytes, retry)
            return False
        return True

    def begin(
        self, request: Request, entry: MethodEntry | None, batch: BatchAnswers | None = None
    ) -> Reply | Failure | None:
        """Execute ``request`` with the method ``entry``, if it exists. A task must be idle, because the first step runs
        as this task, which the caller leaves afterwards.

        Returns: the reply, or None if there is no reply or it comes later.
        """
        request_id, raw = request.id, request.params
        if self._quota is not None and (beyond := self._beyond(self._quota, request, entry)) is not None:
            return None if request_id is UNSET else refuse(request_id, beyond)
        if entry is None or request_id in self.open:
            return self._decline(request)
        write: WriteRequest | None = None
        try:
            try:
                params = entry.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as misfit:
                params = entry.other_params(raw, misfit)
            write = write_request(request.method, self.caller.principal, params) if entry.writes else None
            result = entry.call(self.caller, params) if write is None else entry.call(self.caller, params, write)
            if type(result) is CoroutineType:
                self._listener.tasks.enter()
                rest = Suspended(result, result.send(None))
                call = self._note(request, entry, batch)
                call.scope = self._listener.tasks.run_rest(self._run(call, write, rest))
                return None
        except StopIteration as done:
            result = done.value
            if type(result) is PassedFile:
                return self._whole(request, result)
        except Exception as exc:  # noqa: BLE001 - the place where a call's exceptions become its answer
            return self._failure(request_id, request.method, exc, write, ended=True)
        if type(result) is Accepted:  # As in ``_complete``, but most replies need no entry in the table.
            if result.pending is not None and not result.pending.done:
                call = self._note(request, entry, batch)
                result.pending.on_done(lambda _: self._finish(call, result))
                return None
            return self._settled(request_id, request.method, result)
        # Most calls end here: another function call would add about 7 %.
        self._succeeded[request.method] += 1
        return None if request_id is UNSET else Reply("2.0", request_id, result)

    def _whole(self, request: Request, passed: PassedFile) -> Reply | Failure | None:
        """The reply to ``request`` with the content of a file, None for a notification."""
        answer = None if request.id is UNSET else whole_reply(Reply("2.0", request.id, passed), log=self._listener.log)
        self._count(request.method, answer)
        return answer

    def begin_member(self, request: Request, entry: MethodEntry | None, batch: BatchAnswers) -> list[Raw] | None:
        """Execute a member of ``batch``. Returns: the batch's reply if this completes it."""
        if request.id is not UNSET and request.id is not None:
            if request.id in batch.ids:
                return self.add(batch, refuse(None, error_object("duplicate_id", "the batch holds this id already")))
            batch.ids.add(request.id)
        before = len(self.open)
        answer = self.begin(request, entry, batch)
        return None if len(self.open) > before else self.add(batch, answer)

    def add(self, batch: BatchAnswers, answer: Reply | Failure | None) -> list[Raw] | None:
        """Add ``answer`` to ``batch``, and take its bytes until the batch is complete. Returns: the batch's reply."""
        before = batch.size
        whole = batch.add(answer)
        self.budget.take(batch.size - before)
        if whole is not None:
            self.budget.give(batch.size)
        return whole

    def drain(self) -> None:
        """Refuse all further calls; open ones continue."""
        self.table = {}

    def abandon(self) -> None:
        """Cancel reads, because the client is gone; its writes continue without a reply."""
        if self._timer is not None:
            self._timer.cancel()
        self._listener.in_flight -= len(self.open)
        calls = list(self.open.values())
        self.open.clear()
        self.budget.give(self.budget.held)
        for call in calls:
            call.done = True
            if not call.writes and call.scope is not None:
                call.scope.cancel()

    def _window(self) -> int:
        """The number of undecided writes that this connection may have."""
        scheduler = self._listener.shared.scheduler
        # A sandbox's writes narrow the windows of sandboxes only.
        writers = scheduler.writers - (scheduler.sandbox_writers if self._quota is None else 0)
        if writers == 1:
            return self._listener.limits.in_flight
        if perf_counter() < scheduler.interactive_until:
            return max(1, WRITES_BESIDE_INTERACTIVE // max(1, writers - 1))
        return WRITE_WINDOW

    def _beyond(self, quota: QuotaMeter, request: Request, entry: MethodEntry | None) -> ErrorObject | None:
        """The quota's refusal of ``request``; None if it is within the quota."""
        beyond = quota.refuse(request, entry, self._listener.in_flight)
        if beyond is not None:
            self._note_failed(UNKNOWN_METHOD if entry is None else request.method, beyond)
        return beyond

    def _decline(self, request: Request) -> Failure | None:
        """The reply to a call of an unknown method, with the id of an open call, or while the daemon stops."""
        if request.method in self.table:
            return refuse(None, error_object("duplicate_id", "an earlier request with this id is still in flight"))
        if request.params is not UNSET and bytes(request.params)[:1] not in (b"{", b"["):
            error = error_object("invalid_request", "params is an array or an object, or left out")
            return refuse(None if request.id is UNSET else request.id, error)
        if request.id is UNSET:
            if request.method == "$/cancelRequest":
                self._cancel(request)
            return None
        if request.method in self._listener.table:
            method, error = request.method, draining_error(self._listener.timing.retry_after_ms)
        else:
            method, error = UNKNOWN_METHOD, _no_method(request.method)
        self._note_failed(method, error)
        return refuse(request.id, error)

    def _note(self, request: Request, entry: MethodEntry, batch: BatchAnswers | None) -> InFlightCall:
        seconds = self._listener.timing.deadline_s
        key = object() if request.id is None or request.id is UNSET else request.id
        deadline = self._listener.loop.time() + seconds
        call = InFlightCall(
            request.id, key, request.method, entry.writes, entry.reply_bytes, batch, deadline, entry.writes
        )
        self.open[key] = call
        self._listener.in_flight += 1
        if call.reserved:
            self.budget.take(call.reserved)
        if entry.writes:
            if self._undecided == 0:
                self._listener.shared.scheduler.writers += 1
                self._listener.shared.scheduler.sandbox_writers += self._quota is not None
            self._undecided += 1
        if self._timer is None:
            self._timer = self._listener.loop.call_later(seconds, self._expire)
        return call

    # --- endings

    async def _run(self, call: InFlightCall, write: WriteRequest | None, rest: Suspended) -> None:
        """Execute the rest of a call. Cancel: safe; if its own scope ended it, the reply was already sent."""
        try:
            self._complete(call, await rest)
        except Exception as exc:  # noqa: BLE001 - same reason as in begin()
            self._finish(call, self._failure(call.id, call.method, exc, write))
        except asyncio.CancelledError:
            call.done = True  # The reply was sent before, or the listener is ending.
            self._finish(call, None)
            raise
        finally:
            call.scope = None

    def _complete(self, call: InFlightCall, result: Any) -> None:  # noqa: ANN401 - any method's result
        """Reply with ``result``, now or once its write is durable."""
        if type(result) is not Accepted:
            self._finish(call, None if call.id is UNSET else Reply("2.0", call.id, result))
        elif result.pending is None:
            self._finish(call, result)
        else:
            result.pending.on_done(lambda _: self._finish(call, result))

    def _count(self, method: str, answer: Reply | Failure | None) -> None:
        if type(answer) is Failure:
            self._note_failed(method, answer.error)
        else:
            self._succeeded[method] += 1

    def _settled(self, request_id: RequestId | UnsetType, method: str, accepted: Accepted) -> Reply | Failure | None:
        """The reply of a call whose write is decided; counts the call."""
        pending = accepted.pending
        if pending is not None and pending.error is not None:
            return self._failure(request_id, method, pending.error, ended=True)
        try:
            result = accepted.result(None if pending is None else pending.receipt)
        except Exception as exc:  # noqa: BLE001 - same reason as in begin()
            # Without a write of its own, this may be the reply to a resend.
            outcome: Outcome = "unknown" if pending is None else "applied"
            is_write = self._listener.table[method].writes
            return self._failure(request_id, method, exc, ended=True, outcome=outcome if is_write else None)
        self._succeeded[method] += 1
        return None if request_id is UNSET else Reply("2.0", request_id, result)

    def _finish(self, call: InFlightCall, ended: Reply | Failure | Accepted | None, *, decided: bool = True) -> None:
        """Send the reply of ``call``, which has ``ended``, unless it was sent. ``decided`` False: a write continues."""
        if decided and call.undecided:
            call.undecided = False
            self._undecided -= 1
            if self._undecided == 0:
                self._listener.shared.scheduler.writers -= 1
                self._listener.shared.scheduler.sandbox_writers -= self._quota is not None
        if call.done:
            self._deliver(None, 0)  # It no longer blocks another write.
            return
        if call.batch is not None and type(ended) is Reply:
            ended = whole_reply(ended, log=self._listener.log)
        call.done = True
        del self.open[call.key]
        self._listener.in_flight -= 1
        if isinstance(ended, Accepted):
            answer = self._settled(call.id, call.method, ended)
        else:
            answer = ended
            self._count(call.method, answer)
        if call.batch is None:
            self._deliver(answer, call.reserved)
            return
        whole = self.add(call.batch, answer)
        self.budget.give(call.reserved)
        self._deliver(whole, 0)

    def _failure(
        self,
        request_id: RequestId | UnsetType,
        method: str,
        exc: BaseException,
        write: WriteRequest | None = None,
        *,
        ended: bool = False,
        outcome: Outcome | None = None,
    ) -> Failure | None:
        error = error_of(exc, method=method, log=self._listener.log)
        if outcome is not None:
            error = msgspec.structs.replace(error, data=msgspec.structs.replace(error.data, outcome=outcome))
        if ended:
            self._note_failed(method, error)
        if write is not None:
            error = with_outcome(error, submitted=write.submitted)
        if request_id is UNSET:
            return refuse(None, error) if error.data.code == "invalid_request" else None
        return refuse(request_id, error)

    def _note_failed(self, method: str, error: ErrorObject) -> None:
        self._listener.shared.tally.failed[method, error.data.code] += 1

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
        """Reply with ``ending`` now; a read is cancelled, a submitted write continues."""
        if call.scope is not None:
            call.scope.cancel()
        self._finish(call, None if call.id is UNSET else refuse(call.id, ending), decided=False)

    def _expire(self) -> None:
        """End calls past their deadline, and schedule the next deadline. Calls are ordered by deadline."""
        now = self._listener.loop.time()
        self._timer = None
        for call in list(self.open.values()):
            if call.deadline > now:
                self._timer = self._listener.loop.call_at(call.deadline, self._expire)
                return
            self._end_early(call, timeout_error(self._listener.timing.deadline_s, writes=call.writes))
