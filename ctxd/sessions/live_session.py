"""Live session: state in memory, the lock that orders writes, and the only write path of a session.

The state is the fold of the session's segments and its head; nothing else in memory may influence a context, so
that a reloaded session is the same session. A write is decided under the lock, submitted to the store, and applied at
once; if the write is lost later, this object is dropped and the session is loaded again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, TypeVar

import anyio
import msgspec
from blake3 import blake3

from ctxd.errors import CtxdError
from ctxd.mounts.mapping import MountTable
from ctxd.objects.document import NOW, AsOf, Document
from ctxd.objects.generated_ids import observations, segment_id
from ctxd.secrets.redaction import Guard
from ctxd.sessions.lineage import Lineage
from ctxd.sessions.session_settings import SessionSettings, origin_of, title_of
from ctxd.sessions.session_state import SessionState, apply, snapshot
from ctxd.sessions.sessions_elsewhere import NO_MOVED_SESSIONS, MovedSession
from ctxd.sessions.stored_session import (
    ENTERING,
    LARGE_BYTES,
    NOTHING,
    RUN,
    ActivateObjects,
    AppendChat,
    CollapseCalls,
    DeactivateObjects,
    HideObjects,
    ReadObjects,
    RecordCalls,
    SessionDelta,
    SessionHead,
    delta_events,
    events_size,
    head_document,
    kept_in_run,
    preview_of,
    segment_document,
    to_text,
)
from ctxd.store.idempotency import Resend
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import NotCached, Pending, Replay, Write
from ctxd_protocol.event_types import Event, PromptEvent, starts_turn
from ctxd_protocol.ids import chat_id, system_prompt_id
from ctxd_protocol.methods.declaration import Capability
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.session_types import SessionStatus, SessionView


class Ticket(msgspec.Struct, eq=False):
    """A place in a lock's ``queue``, from ``__enter__`` to ``__exit__``."""

    queue: deque["Ticket"]
    _reached: anyio.Event | None = None

    async def reached(self) -> None:
        """Wait for the lock. Cancel: safe; the place in the queue is kept until ``leave``."""
        if self.queue[0] is not self:
            self._reached = anyio.Event()
            await self._reached.wait()

    def leave(self, *_: object) -> None:
        """Give up the place; if it held the lock, wake the next in line."""
        if self.queue[0] is not self:
            self.queue.remove(self)
            return
        self.queue.popleft()
        if self.queue and (waiting := self.queue[0]._reached) is not None:
            waiting.set()

    def __enter__(self) -> "Ticket":
        self.queue.append(self)
        return self

    __exit__ = leave


class SessionLock:
    """Fair lock: one task at a time holds ``async with lock``, in order; a ``Ticket`` queues without awaiting."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: deque[Ticket] = deque()

    @property
    def free(self) -> bool:
        """True if the lock is neither held nor awaited."""
        return not self.queue

    async def __aenter__(self) -> None:
        ticket = Ticket(self.queue)
        self.queue.append(ticket)
        try:
            await ticket.reached()
        except BaseException:
            ticket.leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.queue[0].leave()


_encode: Final = msgspec.msgpack.Encoder().encode
_encode_result: Final = msgspec.json.Encoder().encode

R = TypeVar("R", bound=msgspec.Struct)


class WriteRequest(msgspec.Struct):
    """One call that writes. ``kind`` is the method's name; ``request`` a digest of it and its parameters, empty without
    ``op_id``.

    ``submitted`` is set by the code that submits a write for the request, or finds that one may have been submitted
    earlier under its operation id: if the call fails while it is false, nothing was written.
    """

    kind: str
    principal: str
    op_id: str | None = None
    request: bytes = b""
    submitted: bool = False

    def without_id(self) -> "WriteRequest":
        """Return a request of the same kind and principal, for writes besides the one with the operation id."""
        return WriteRequest(self.kind, self.principal)


class Accepted(msgspec.Struct, frozen=True):
    """A result that may be sent once ``pending`` is durable; ``result(receipt)`` builds it then. ``pending`` None:
    nothing was written, and ``result(None)`` may be sent at once."""

    pending: Pending | None
    result: Callable[[Receipt | None], Any]

    async def durable(self) -> Any:  # noqa: ANN401 - the operation's result
        """Wait until the write is durable, and build the result. Raises: CtxdError of the store. Cancel: safe."""
        return self.result(None if self.pending is None else await self.pending.wait())


def write_request(kind: str, principal: str, params: Any) -> WriteRequest:  # noqa: ANN401 - any write's params
    """Return the request for a call of the method ``kind`` with ``params`` by ``principal``."""
    op_id = getattr(params, "op_id", None)
    if op_id is None:
        return WriteRequest(kind, principal)
    names, values, added = _digested(params.__class__)
    given = dict(zip(names, values(params), strict=True))
    given["op_id"] = None
    # Parameters that later versions added come after the id. At their defaults they do not change the digest, so that a
    # call can be sent again after an update.
    for name, default in added:
        if (value := getattr(params, name)) != default:
            given[name] = value
    # Methods share parameter types: without the name, an unpin would get the stored reply of the pin before it.
    return WriteRequest(kind, principal, op_id, blake3(_encode((kind, given))).digest())


@cache
def _digested(
    params: type[msgspec.Struct],
) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[tuple[str, Any], ...]]:
    """Return the fields of ``params`` up to ``op_id``, a function that reads them, and later fields with defaults."""
    names = params.__struct_fields__
    added = names.index("op_id") + 1
    # With a single name attrgetter would return no tuple; so the id, the last of the names, is given twice.
    values = attrgetter(*names[:added], "op_id")
    later = zip(names[added:], params.__struct_defaults__[added - len(names) :], strict=False)
    return (*names[:added], "op_id"), values, tuple(later)


async def find_replay(
    store: VersionStore, call: WriteRequest, session: str | None = None, heads: Sequence[str] = ()
) -> Replay | None:
    """Return the stored reply to ``call``, on ``session``, if its operation id was used before, else None. May cache
    ``heads``. Raises: CtxdError idempotency_mismatch, corrupt, store_failed. Cancel: safe."""
    if call.op_id is None:
        return None
    # If reading the journal fails, it is unknown whether the write was submitted before.
    call.submitted = not store.is_new_operation((call.principal, call.op_id))
    if not call.submitted:
        return None
    replay = await store.replay((call.principal, call.op_id), Resend(call.kind, session, call.request), heads=heads)
    call.submitted = replay is not None
    return replay


def kept_result(call: WriteRequest, result: msgspec.Struct) -> bytes:
    """Return ``result``, still without receipt, in its stored form for a resend; empty if ``call`` has no id."""
    return b"" if call.op_id is None else _encode_result(result)


def with_receipt(result: R, replay: Replay) -> Accepted:
    """Return ``result`` with the receipt of the write that ``replay`` found, once that is durable."""
    if replay.pending is not None:
        return Accepted(replay.pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))
    return Accepted(None, lambda _: msgspec.structs.replace(result, receipt=replay.receipt))


def again(replay: Replay, result: type[R]) -> Accepted:
    """Return the first reply to a write that is sent again; ``result``: its type."""
    return with_receipt(msgspec.json.decode(replay.result, type=result), replay)


RECENT_CHARS_MAX: Final = 64 * 1024
"""Size of the newest events that a live session caches, in bytes of JSON: at most 32 MiB for 512 sessions."""


class LiveSession:
    """A session in memory. ``state``, ``settings`` and ``mounts`` may be read freely; only ``submit`` and ``restate``
    change them, under ``lock``.

    ``seqs``: the journal sequence of each segment. ``updated_at``: valid time of the newest write, in ms. ``assembly``
    and ``context_id``: the newest recorded assembly, 0 and None before the first. ``lost``: this object is out of date.
    ``watched``: number of subscriptions that need it in memory. ``lineage``: where its segments are stored.
    ``moved_sessions``: sessions that moved to other hosts.
    """

    def __init__(
        self,
        store: VersionStore,
        session: str,
        head: SessionHead,
        state: SessionState,
        seqs: list[int],
        *,
        run: list[SessionDelta | None],
        head_vt: int,
        updated_at: int,
        host_filesystem_id: str,
        lineage: Lineage,
        at: AsOf = NOW,
    ) -> None:
        self.store = store
        self.lineage = lineage
        self.at = at
        self.session, self.chat_ref = session, chat_id(session)
        self.state = state
        self.settings = head.settings
        self.assembly = head.assembly
        self.context_id = head.context_id
        self.preview, self.first_prompt = head.preview, head.first_prompt
        self.seqs = seqs
        # The deltas of the run that has no bundle yet, None for those too large for a bundle.
        self._run = run
        self.recent: dict[int, tuple[Event, ...]] = {}
        self._recent_sizes: dict[int, int] = {}
        self._recent_chars = 0
        self.updated_at = updated_at
        self.lock = SessionLock()
        self.last_pending: Pending | None = None
        self.lost = False
        self.watched = 0
        self.moved_sessions: Mapping[str, MovedSession] = NO_MOVED_SESSIONS
        self._head_vt = head_vt
        self._host_filesystem_id = host_filesystem_id
        self.mounts = self._mount_table()

    @property
    def barrier(self) -> Pending | None:
        """The newest write if it is not durable yet, else None: replies that show the state wait for it."""
        pending = self.last_pending
        return None if pending is None or pending.done else pending

    @property
    def idle(self) -> bool:
        """True if nothing is in flight, so that the session can be unloaded."""
        return self.lock.free and self.barrier is None and self.watched == 0

    def view(self) -> SessionView:
        """Return the session's current settings and sets. Cost: the size of its sets."""
        state, settings = self.state, self.settings
        return SessionView(
            session=self.session,
            agent=settings.agent,
            principal=settings.principal,
            state=settings.state,
            created_at=settings.created_at,
            updated_at=self.updated_at,
            chat_ref=self.chat_ref,
            system_prompt_ref=system_prompt_id(self.session),
            turn_count=state.turn,
            workdir=settings.workdir,
            filesystem_id=settings.filesystem_id,
            detect_filesystems=settings.detect_filesystems,
            mounts=settings.mounts,
            collapse=settings.collapse,
            budget_tokens=settings.budget_tokens,
            labels=settings.labels,
            secrets=settings.secrets,
            session_index=tuple(state.index),
            metadata_pool=tuple(state.pool),
            active_set=tuple(state.active),
            pinned_set=tuple(state.pinned),
            components=settings.components,
            entries=settings.entries,
            component_options=settings.component_options,
            removed=settings.removed,
            checkpoint=settings.checkpoint,
            project=settings.project,
            title=title_of(settings, self.first_prompt),
            archived=settings.archived,
            recorded=settings.recorded,
            origin=origin_of(settings),
        )

    async def admit(
        self,
        ticket: Ticket,
        call: WriteRequest,
        *,
        heads: Sequence[str] = (),
        states: Sequence[SessionStatus] = ("active",),
    ) -> Replay | None:
        """Wait for the lock; return the stored reply if ``call`` was applied before, else None.

        ``heads`` are in the store's cache afterwards. ``states``: those in which the session takes the call.
        Raises: CtxdError idempotency_mismatch, session_closed, session_removed, session_not_active, store_failed if a
        write before this was lost. Cancel: safe.
        """
        replay: Replay | None = None
        suspended = False
        if call.op_id is not None and not self.store.is_new_operation((call.principal, call.op_id)):
            replay = await find_replay(self.store, call, self.session, heads)
            suspended = True
        if replay is None:
            for id in heads:
                if isinstance(self.store.peek(id), NotCached):
                    await self.store.heads(heads)
                    suspended = True
                    break
        if ticket.queue[0] is not ticket:
            await ticket.reached()
            suspended = True
        if suspended and replay is None and call.op_id is not None:
            # The same call may have been ahead of this one in the queue.
            replay = await find_replay(self.store, call, self.session)
        if replay is None:
            if self.lost:
                self.require_current()
            if self.settings.state != "active" or self.session in self.moved_sessions:
                self._require_writable(states)
        return replay

    def submit(
        self,
        call: WriteRequest,
        delta: SessionDelta = NOTHING,
        *,
        puts: Iterable[Document] = (),
        result: msgspec.Struct | None = None,
        settings: SessionSettings | None = None,
        assembly: tuple[int, str] | None = None,
        signatures: dict[str, bytes] | None = None,
        floor_vt: int = 0,
        valid_time: int | None = None,
    ) -> Pending:
        """Write ``delta``, decided on ``state``, with ``puts``, atomically; ``state`` includes it at once.

        Called under the lock, without an await since the decision. ``floor_vt``: one above the valid time of the newest
        version of every entity in ``puts``. ``result``, without its receipt, is stored for a resend. ``settings``
        replaces the session's; ``assembly``: number and context id of the assembly in ``puts``. ``valid_time``: the
        past time from which ``puts`` hold, None for now; the session's own documents hold from their write.
        Raises: CtxdError of the store if it accepts no writes, invalid_params for a value that cannot be stored; then
        nothing changed.
        """
        if self.lost:
            self.require_current()
        documents = list(puts)
        valid_times = {} if valid_time is None else dict.fromkeys([document.id for document in documents], valid_time)
        index, adds_chat = self.state.index, False
        knows: dict[str, None] = {}
        for operation in delta:
            if isinstance(operation, AppendChat):
                adds_chat = True
            elif isinstance(operation, ENTERING):
                for id in operation.objects:
                    if id not in index:
                        knows[id] = None
        if delta:
            state, run = self.state, self._run
            if state.snapshot_due:
                delta = (snapshot(state), *delta)
            bundle = to_text(self.seqs[-len(run) :], run) if (state.segments + 1) % RUN == 0 else None
            documents.append(segment_document(segment_id(self.session, state.segments), delta, bundle))
        changes_head = adds_chat or settings is not None or assembly is not None
        head = self._head_after(delta, settings, assembly, len(knows)) if changes_head else None
        if head is not None:
            documents.append(head_document(self.session, head))
        write = Write(
            kind=call.kind,
            principal=call.principal,
            session=self.session,
            op_id=call.op_id,
            request=call.request,
            result=b"" if result is None or call.op_id is None else _encode_result(result),
            puts=tuple(documents),
            knows=tuple(knows),
            signatures=signatures or {},
            floor_vt=max(floor_vt, self._head_vt + 1) if head is not None else floor_vt,
            valid_times=valid_times,
        )
        pending = self.store.submit(write)
        call.submitted = True
        self._apply_write(delta, head, pending, adds_chat=adds_chat)
        return pending

    def restate(
        self,
        write: Write,
        event: Callable[[Event], Event],
        delta: Callable[[SessionDelta], SessionDelta],
        preview: Callable[[str], str],
        settings: Callable[[SessionSettings], SessionSettings],
    ) -> Pending:
        """Submit ``write``, which purges events, and once it is durable purge them from the live state: ``event``,
        ``delta``, ``preview`` and ``settings`` return their argument without purged content. Called under the lock,
        without an await since the decision; keep the lock until the write is durable or has failed, as until then it is
        unknown on which state to decide another. Raises: as ``submit``.
        """
        self.require_current()

        def erase(done: Pending) -> None:
            if done.error is not None:
                return
            self.recent = {number: tuple(map(event, events)) for number, events in self.recent.items()}
            self._recent_sizes = {number: events_size(events) for number, events in self.recent.items()}
            self._recent_chars = sum(self._recent_sizes.values())
            self._run = [None if each is None else delta(each) for each in self._run]
            self.preview, self.first_prompt = preview(self.preview), preview(self.first_prompt)
            self.settings = settings(self.settings)

        self.last_pending = pending = self.store.submit(write)
        pending.on_done(erase)
        return pending

    def require_here(self) -> None:
        """Raises: CtxdError session_owned_elsewhere if the session moved to another host."""
        if (moved := self.moved_sessions.get(self.session)) is not None:
            raise moved.error(self.session)

    def require_current(self) -> None:
        """Raises: CtxdError store_failed if a write in this state was lost, or the session was unloaded."""
        if self.lost:
            raise CtxdError(
                "store_failed",
                f"session {self.session} was unloaded, or lost a write before this one",
                hint="Send it again.",
                outcome="not_applied",
            )

    def _require_writable(self, states: Sequence[SessionStatus]) -> None:
        self.require_here()
        state = self.settings.state
        if state in states:
            return
        if state == "removed":
            message = f"session {self.session} is in the trash"
            raise CtxdError("session_removed", message, hint="Call session.restore first.", outcome="not_applied")
        if state == "closed":
            raise CtxdError(
                "session_closed",
                f"session {self.session} is closed",
                hint="Create another session; this one stays readable.",
                outcome="not_applied",
            )
        message = f"session {self.session} is paused"
        raise CtxdError("session_not_active", message, hint="Call session.resume first.", outcome="not_applied")

    def _apply_write(self, delta: SessionDelta, head: SessionHead | None, pending: Pending, *, adds_chat: bool) -> None:
        """Apply the accepted write to this object."""
        if delta:
            size = self._note_recent(self.state.segments, delta) if adds_chat else 0
            apply(self.state, delta)
            self.seqs.append(pending.seq)
            # A delta is larger than its events. One without chat is small, or the bundle leaves it out.
            self._run.append(None if size > LARGE_BYTES else kept_in_run(delta) if adds_chat else delta)
            if len(self._run) == RUN:
                self._run.clear()
        if head is not None:
            if head.settings is not self.settings:
                self.settings = head.settings
                self.mounts = self._mount_table()
            self.assembly, self.context_id = head.assembly, head.context_id
            self.preview, self.first_prompt = head.preview, head.first_prompt
            self._head_vt = pending.vt
        self.updated_at = pending.vt
        self.last_pending = pending

    def _note_recent(self, number: int, delta: SessionDelta) -> int:
        """Cache the events of segment ``number``, and evict the oldest beyond the bound. Returns their size."""
        self.recent[number] = events = delta_events(delta)
        self._recent_sizes[number] = size = events_size(events)
        self._recent_chars += size
        while self._recent_chars > RECENT_CHARS_MAX:
            oldest = next(iter(self.recent))
            del self.recent[oldest]
            self._recent_chars -= self._recent_sizes.pop(oldest)
        return size

    def _head_after(
        self, delta: SessionDelta, settings: SessionSettings | None, assembly: tuple[int, str] | None, indexed: int
    ) -> SessionHead | None:
        """Return the head to write with ``delta``, which adds ``indexed`` objects to the index; None if none is due."""
        state = self.state
        turn, preview, first = state.turn, self.preview, self.first_prompt
        moved: dict[str, bool] = {}
        for operation in delta:
            match operation:
                case AppendChat():
                    for event in operation.events:
                        if isinstance(event, PromptEvent) and starts_turn(event):
                            turn, preview = turn + 1, preview_of(event.text)
                            first = preview if turn == 1 else first
                case RecordCalls() | ReadObjects() | ActivateObjects():
                    moved |= dict.fromkeys(operation.objects, True)
                case CollapseCalls() | DeactivateObjects() | HideObjects():
                    moved |= dict.fromkeys(operation.objects, False)
        # In a paused session each event changes the head, which makes a checkpoint, as a pause does.
        if turn == state.turn and settings is None and assembly is None and self.settings.state == "active":
            return None
        number, context_id = assembly or (self.assembly, self.context_id)
        return SessionHead(
            settings=settings or self.settings,
            turn_count=turn,
            index_count=len(state.index) + indexed,
            active_count=len(state.active) + sum(active - (id in state.active) for id, active in moved.items()),
            preview=preview,
            first_prompt=first,
            assembly=number,
            context_id=context_id,
        )

    def _mount_table(self) -> MountTable:
        return MountTable(
            self.settings.mounts,
            filesystem_id=self.settings.filesystem_id,
            host_filesystem_id=self._host_filesystem_id,
            by_device=self.settings.detect_filesystems,
            observations=observations(self.session),
            resolved=self.settings.prefixes,
        )


class Actor(msgspec.Struct, frozen=True):
    """Author of an operation. An actor without the ``capability`` host is confined: a sandbox, whose content is trusted
    for its own files only, and which must not learn which objects other sessions have."""

    principal: str
    capability: Capability

    @property
    def is_confined(self) -> bool:
        """True for a sandbox."""
        return self.capability != "host"

    @property
    def via(self) -> str:
        """The connection of the actor, for the audit log; "daemon" for the daemon itself."""
        return "daemon"


class Transaction(msgspec.Struct):
    """One admitted operation: the session under its lock, the request, and its author.

    ``is_confined``: of the ``actor``; ``sandbox``: its principal then. ``guard`` captures secrets in the actor's texts.
    ``basis``, set by the body: journal sequence that must be durable before a result without a write may be sent; 0 for
    none."""

    live: LiveSession
    request: WriteRequest
    is_confined: bool
    guard: Guard
    actor: Actor
    sandbox: str | None
    basis: int = 0

    def submit(self, result: Any, delta: SessionDelta = NOTHING, **writes: Any) -> Accepted:  # noqa: ANN401
        """Write ``delta`` and ``writes`` (see ``LiveSession.submit``). ``result`` is stored for a resend, and returned
        with its receipt. Raises: as ``LiveSession.submit``."""
        pending = self.live.submit(self.request, delta, result=result, **writes)
        return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))

    def unchanged(self, result: msgspec.Struct) -> Accepted:
        """Write nothing; ``result`` may be sent once all earlier writes of the session are durable."""
        self.live.require_current()
        return Accepted(self.live.barrier, lambda _: result)
