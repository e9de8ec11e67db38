"""Operation that records an event of a harness: it creates, resumes and pauses the session, and passes the reported
tool call or texts to the operations on tool calls and the chat."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Final

import anyio
import msgspec

from ctxd.errors import CtxdError
from ctxd.sessions.chat import read_pages
from ctxd.sessions.chat_operations import ChatOperations
from ctxd.sessions.compaction_kept_messages import with_kept_place
from ctxd.sessions.id_resolution import ids_of_call
from ctxd.sessions.lifecycle_operations import LifecycleOperations
from ctxd.sessions.live_session import Accepted, Actor, SessionLock, WriteRequest, find_replay, write_request
from ctxd.sessions.registry import Sessions
from ctxd.sessions.secret_redaction import INLINE_CHARS_MAX
from ctxd.sessions.toolcall_operations import ToolcallOperations
from ctxd.transcripts.harness_labels import HARNESS, NATIVE_CHARS_MAX, NATIVE_SESSION, SPAWNED_BY
from ctxd.transcripts.hook_events import HookedCall, HookInput, read_hook
from ctxd.transcripts.hook_reply import hook_reply
from ctxd.worker_threads import Lane
from ctxd_protocol.event_types import CompactionEvent, Event, ToolCallEvent, ToolResultEvent
from ctxd_protocol.ids import captured_session_id, native_op_id
from ctxd_protocol.methods.chat import SessionAppendParams
from ctxd_protocol.methods.hooks import SessionHookParams, SessionHookResult
from ctxd_protocol.methods.sessions import (
    SessionAnnotateParams,
    SessionCreateParams,
    SessionPauseParams,
    SessionWriteParams,
)
from ctxd_protocol.methods.toolcalls import ToolcallRecordParams
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.session_types import RecordedSession

KIND: Final = "session.hook"

_KNOWN: Final = frozenset({"toolcall_conflict", "purged"})
"""Error codes of recording a tool call whose id the session already has."""


_STARTED_MAX: Final = 64
"""Calls of a session whose starts are remembered."""

_SESSIONS_MAX: Final = 256
"""Sessions whose started calls are remembered."""


_ABSENT_MAX: Final = 1024
"""Calls that are remembered as those that no hook has reported in time."""

HELD_S: Final = 1.0
"""Maximum seconds for which a call waits for the hooks of the calls before it in the same response. The harness starts
them all at once; on a busy machine, one arrives up to half a second after a later one."""

_HELD_LONGER_S: Final = 0.3
"""Additional seconds in which the calls before it that are held themselves are recorded. The hook gives up after
``ctxd.hook.daemon_connection.DELIVERY_S``."""

_HELD_UNTIL_MS: Final = 3000
"""Age in milliseconds above which a call is not held back: an older event comes from a spool, where no concurrent hook
can overtake it."""


class _StartedCalls:
    """The ids of the newest calls that hooks have started, each with the id that its content gives it. In memory only:
    after a restart, the calls with an output decide which ids are used."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[str, str]] = {}

    def note(self, session: str, call: str, own: str) -> bool:
        """Note the start of ``call``. Returns: True if a call of other content was started under this id."""
        calls = self._sessions[session] = self._sessions.pop(session, {})
        while len(self._sessions) > _SESSIONS_MAX:
            self._sessions.pop(next(iter(self._sessions)))
        is_another = calls.setdefault(call, own) != own
        if is_another:
            calls[own] = own
        while len(calls) > _STARTED_MAX:
            calls.pop(next(iter(calls)))
        return is_another

    def has(self, session: str, call: str) -> bool:
        """True if ``call`` was started."""
        return call in self._sessions.get(session, ())


class HookOperations:
    """The operation ``session.hook``, made of the operations on sessions, tool calls and the chat."""

    def __init__(
        self, sessions: Sessions, lifecycle: LifecycleOperations, chat: ChatOperations, toolcalls: ToolcallOperations
    ) -> None:
        self._sessions = sessions
        self._lifecycle = lifecycle
        self._chat = chat
        self._toolcalls = toolcalls
        self._reading = Lane("hook.input", inline=INLINE_CHARS_MAX, bulk=True)
        self._unread = SessionLock()
        """Held for each input until it is read, in the order of arrival."""
        self._recording: dict[str, SessionLock] = {}
        self._arrivals: dict[str, anyio.Event] = {}
        self._arrived: set[str] = set()
        self._absent: dict[str, None] = {}
        self._started = _StartedCalls()

    async def hook(self, actor: Actor, params: SessionHookParams, request: WriteRequest | None = None) -> Accepted:
        """Record the event in the session of the harness's own session; only once if the harness gives it an id.

        Raises: CtxdError invalid_params, session_closed, session_removed, and those of the store.
        """
        request = request or write_request(KIND, actor.principal, params)
        found = await self._read(params)
        result = SessionHookResult(session=found.session, outcome="captured", receipt=None)
        if found.call is None and not found.events:
            return Accepted(None, lambda _: msgspec.structs.replace(result, outcome="ignored"))
        try:
            if found.earlier and params.at is not None and self._sessions.clock.wall_ms() - params.at < _HELD_UNTIL_MS:
                await self._await_earlier(actor, found)
            async with self._alone(found.session):
                return await self._record_once(actor, params, found, request, result)
        finally:
            self._arrived.discard(found.start_op_id or "")
            self._wake(found.session)

    async def _read(self, params: SessionHookParams) -> HookInput:
        """Return the event in the input, and note that the hook of its call has arrived. A long input is read on a
        thread; later ones wait for it, so that the events of a session keep their order. Raises: CtxdError
        invalid_params, NoThread. Cancel: once the thread has ended."""
        read = partial(read_hook, params.harness, params.input, params.at)
        async with self._unread:
            try:
                found = await self._reading.run(read, size=len(params.input))
            except ValueError as error:
                hint = "Pass the hook's standard input unchanged."
                raise CtxdError("invalid_params", f"input: {error}", hint=hint, outcome="not_applied") from None
            if found.start_op_id is not None and (found.call is not None or found.events):
                self._arrived.add(found.start_op_id)
            return found

    async def _await_earlier(self, actor: Actor, found: HookInput) -> None:
        """Wait until the calls before that of ``found`` in the same response are recorded: ``HELD_S`` for their hooks
        to arrive, since a harness runs those at once, and not one for every call; ``_HELD_LONGER_S`` more for calls
        whose hooks have arrived. Raises: as ``hook``."""
        ends = anyio.current_time() + HELD_S
        for call in found.earlier:
            key = native_op_id(found.session, "start", call)
            while key not in self._absent:
                arrived = self._arrivals.setdefault(found.session, anyio.Event())
                if self._started.has(found.session, call) or await self._has_begun(actor, found.session, call, key):
                    break
                left = ends - anyio.current_time() + (_HELD_LONGER_S if key in self._arrived else 0.0)
                with anyio.move_on_after(max(0.0, left)) as waiting:
                    await arrived.wait()
                if not waiting.cancelled_caught:
                    continue
                async with self._unread:
                    pass  # The hook of the call may have arrived, with an input that is not read yet.
                if key not in self._arrived:
                    self._absent[key] = None
                    self._wake(found.session)
                elif left <= 0:
                    break
        while len(self._absent) > _ABSENT_MAX:
            self._absent.pop(next(iter(self._absent)))

    def _wake(self, session: str) -> None:
        """Let the calls that wait check again which calls of ``session`` are recorded or absent."""
        if (arrived := self._arrivals.pop(session, None)) is not None:
            arrived.set()

    @asynccontextmanager
    async def _alone(self, session: str) -> AsyncIterator[None]:
        """Let no other hook of ``session`` record an event meanwhile. The hooks for the start and the end of a call may
        run concurrently: no other one writes between the checks of one and its write."""
        lock = self._recording.setdefault(session, SessionLock())
        try:
            async with lock:
                yield
        finally:
            if lock.free:
                self._recording.pop(session, None)

    async def _has_begun(self, actor: Actor, session: str, call: str, start: str) -> bool:
        """Return True if a call or its output is recorded. Raises: as ``_is_accepted``."""
        if self._sessions.catalog.state(session) is None and self._sessions.peek(session) is None:
            return False
        if await self._is_accepted(actor, start) or await self._has_object(session, call):
            return True
        return await self._is_accepted(actor, native_op_id(session, "call", call))

    async def _record_once(
        self,
        actor: Actor,
        params: SessionHookParams,
        found: HookInput,
        request: WriteRequest,
        result: SessionHookResult,
    ) -> Accepted:
        """Record the parts of ``found`` that are not recorded yet. Raises: as ``hook``."""
        is_late = await self._open(actor, params, found)
        await self._note_permissions(actor, found)
        await self._append_texts(actor, found, request, is_late)
        found = await self._with_unused_id(actor, found)
        if found.is_start and await self._has_output(actor, found):
            live = await self._sessions.live(found.session)
            return Accepted(live.barrier, lambda _: msgspec.structs.replace(result, outcome="known"))
        if found.start_op_id is not None and not found.is_start and await self._is_accepted(actor, found.start_op_id):
            found = found.without_start()
        if found.kept:
            found = await self._with_kept_place(found)
        own = msgspec.structs.replace(request, op_id=found.op_id or request.op_id)
        try:
            found, accepted = await self._record(actor, found, own, is_late)
        except CtxdError as error:
            is_known = error.code in _KNOWN or (error.code == "idempotency_mismatch" and found.op_id is not None)
            if not is_known:
                raise
            live = await self._sessions.live(found.session)
            accepted = Accepted(live.barrier, lambda _: None)
            result = msgspec.structs.replace(result, outcome="known")
        finally:
            request.submitted = request.submitted or own.submitted
        if params.shorten_chars is not None:
            result = msgspec.structs.replace(result, output=hook_reply(params.harness, found, params.shorten_chars))
        if found.is_end:
            paused = await self._lifecycle.pause(actor, SessionPauseParams(session=found.session, wait=False))
            accepted = accepted if paused.pending is None else paused

        def answer(receipt: Receipt | None) -> SessionHookResult:
            # For a resend, the result has the receipt of the first write.
            written = accepted.result(receipt)
            return msgspec.structs.replace(result, receipt=None if written is None else written.receipt)

        return Accepted(accepted.pending, answer)

    async def _open(self, actor: Actor, params: SessionHookParams, found: HookInput) -> bool:
        """Create or resume the session. Returns: True if the event arrived late, after the end of the session, which
        then stays paused. Raises: as ``hook``."""
        session = found.session
        state = self._sessions.catalog.state(session)
        if state is None and self._sessions.peek(session) is None:
            labels = {HARNESS: params.harness, NATIVE_SESSION: found.native_session[:NATIVE_CHARS_MAX]}
            if found.spawned_by:
                labels[SPAWNED_BY] = captured_session_id(params.harness, found.spawned_by)
            template = SessionCreateParams(
                agent=params.harness,
                session=session,
                workdir=found.cwd,
                labels=labels,
                checkpoint="turn",
            )
            try:
                await self._lifecycle.create(actor, template)
            except CtxdError as error:
                # Two hooks of a new session may run concurrently.
                if error.code != "session_exists":
                    raise
        elif state == "paused":
            # Only hooks of tool calls can be late; a prompt continues the session, even if the clock went back.
            if found.start_op_id is not None and params.at is not None:
                if params.at < (await self._sessions.live(session)).updated_at:
                    return True
            await self._lifecycle.resume(actor, SessionWriteParams(session=session))
        return False

    async def _append_texts(self, actor: Actor, found: HookInput, request: WriteRequest, is_late: bool) -> None:
        """Append the texts before a tool call, unless the hook of another call of the same response has."""
        for op_id, event in found.texts:
            own = msgspec.structs.replace(request, op_id=op_id)
            try:
                params = SessionAppendParams(session=found.session, events=(event,))
                await self._chat.append(actor, params, own, also_paused=is_late)
            except CtxdError as error:
                if error.code != "idempotency_mismatch":
                    raise
            finally:
                request.submitted = request.submitted or own.submitted

    async def _with_kept_place(self, found: HookInput) -> HookInput:
        """Return ``found`` with the place of the first event that its compaction keeps. Raises: as ``hook``."""
        live = await self._sessions.live(found.session)
        events = [
            await with_kept_place(live, event, found.kept) if isinstance(event, CompactionEvent) else event
            for event in found.events
        ]
        return found._replace(events=tuple(events))

    async def _has_output(self, actor: Actor, found: HookInput) -> bool:
        """Return True if the output of the tool call that ``found`` starts is recorded, so that this hook is late.
        Raises: as ``_is_accepted``."""
        (event,) = found.events
        assert isinstance(event, ToolCallEvent)
        if event.sidechain is not None:
            return await self._is_accepted(actor, native_op_id(found.session, "call", event.call, event.sidechain))
        return await self._has_object(found.session, event.call) or await self._is_accepted(
            actor, native_op_id(found.session, "call", event.call)
        )

    async def _has_object(self, session: str, call: str) -> bool:
        """Return True if the output of a tool call is recorded as an object. Raises: CtxdError of the store."""
        live = await self._sessions.live(session)
        return any(live.state.is_a(id, "toolcall") for id in ids_of_call(call, session, live.lineage.ancestors))

    async def _with_unused_id(self, actor: Actor, found: HookInput) -> HookInput:
        """Return ``found``, with another id of its tool call if a call with other arguments has that id. Raises:
        CtxdError corrupt, store_failed."""
        event = found.events[0] if found.is_start else found.call
        if not isinstance(event, ToolCallEvent | HookedCall):
            return found
        another = found.of_another_call(event.tool, event.args)
        if another is found:
            return found
        if isinstance(event, HookedCall) and await self._has_output_of_other_kind(actor, found.session, event):
            return found.of_another_call(event.tool, event.args, *event.output)
        if found.is_start and self._started.note(found.session, event.call, another.call_id):
            return another
        if not found.is_start and self._started.has(found.session, another.call_id):
            return another
        live = await self._sessions.live(found.session)
        for id in ids_of_call(event.call, found.session, live.lineage.ancestors):
            stored = (await self._sessions.store.heads((id,)))[id] if live.state.is_a(id, "toolcall") else None
            # A start from before the output belongs to it, even if the harness has changed the arguments since.
            if stored is None or (isinstance(event, ToolCallEvent) and (event.at or 0) <= stored.valid_time):
                continue
            known = stored.document.payload
            # Arguments with secrets may be stored in another form.
            if "secrets" not in known and (known.get("tool"), known.get("args")) != (event.tool, event.args):
                return another
        return found

    async def _has_output_of_other_kind(self, actor: Actor, session: str, call: HookedCall) -> bool:
        """Return True if the id of ``call`` has an output as an object, and this one is recorded as events, or the
        reverse. Raises: CtxdError of the store."""
        if call.attachments:
            return await self._has_object(session, call.call)
        return await self._is_accepted(actor, native_op_id(session, "call", call.call))

    async def _is_accepted(self, actor: Actor, op_id: str) -> bool:
        """True if the operation ``op_id`` was accepted. Raises: CtxdError corrupt, store_failed."""
        try:
            return (
                await find_replay(self._sessions.store, WriteRequest("session.hook", actor.principal, op_id))
                is not None
            )
        except CtxdError as error:
            # The operation exists: the digests differ because its parameters are not known here.
            if error.code != "idempotency_mismatch":
                raise
            return True

    async def _note_permissions(self, actor: Actor, found: HookInput) -> None:
        """Store the permissions that the hook reports, if they have changed. Raises: as ``hook``."""
        before = (await self._sessions.live(found.session)).settings.recorded or RecordedSession()
        after = {**before.permissions, **found.permissions}
        if after != before.permissions:
            recorded = msgspec.structs.replace(before, permissions=after)
            await self._lifecycle.annotate(actor, SessionAnnotateParams(session=found.session, recorded=recorded))

    async def _record(
        self, actor: Actor, found: HookInput, request: WriteRequest, is_late: bool
    ) -> tuple[HookInput, Accepted]:
        """Record the event. Returns ``found``, with another id of its call if an earlier call has all but its output.
        Raises: as ``hook``; CtxdError toolcall_conflict, purged."""
        if found.call is None:
            params = SessionAppendParams(session=found.session, events=found.events)
            return found, await self._chat.append(actor, params, request, also_paused=is_late)
        call = found.call
        try:
            return found, await self._record_call(actor, found.session, call, request, is_late)
        except CtxdError as error:
            another = found.of_another_call(call.tool, call.args, *call.output)
            is_other = error.code == "toolcall_conflict" or (
                error.code == "idempotency_mismatch" and not await self._is_recorded(found.session, call)
            )
            if another.call is None or not is_other:
                raise
        own = msgspec.structs.replace(request, op_id=another.op_id or request.op_id)
        try:
            return another, await self._record_call(actor, found.session, another.call, own, is_late)
        finally:
            request.submitted = request.submitted or own.submitted

    async def _is_recorded(self, session: str, call: HookedCall) -> bool:
        """Return True if the chat has this output of a call, or one with secrets, which may be in another form; always
        True without attachments. Cost: a read of the whole chat. Raises: CtxdError of the store."""
        if not call.attachments:
            return True
        async with aclosing(read_pages(await self._sessions.live(session))) as pages:
            async for page in pages:
                if any(_is_output_of(call, event) for _, event in page.placed()):
                    return True
        return False

    async def _record_call(
        self, actor: Actor, session: str, call: HookedCall, request: WriteRequest, is_late: bool
    ) -> Accepted:
        if call.attachments:
            params = SessionAppendParams(session=session, events=call.events)
            return await self._chat.append(actor, params, request, also_paused=is_late)
        return await self._toolcalls.record(
            actor,
            ToolcallRecordParams(
                session=session,
                id=call.call,
                tool=call.tool,
                content=call.text,
                args=call.args,
                args_display=call.display,
                status=call.status,
                chat="result" if call.is_started else "call_and_result",
            ),
            request,
            also_paused=is_late,
        )


def _is_output_of(call: HookedCall, event: Event) -> bool:
    """True if ``event`` is the output of ``call``; also if the event has secrets, and so perhaps another text."""
    if not isinstance(event, ToolResultEvent) or event.sidechain is not None or event.call != call.call:
        return False
    return event.secrets is not None or (event.text, event.attachments) == (call.text, call.attachments)
