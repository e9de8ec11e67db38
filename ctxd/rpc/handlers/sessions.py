"""``session.*``: each call to what the sessions do with it, and their answer to a result.

What may change in a session is decided in ``ctxd.sessions.transitions``, and in ``ctxd.sessions.activation`` whether an
object has text to activate. An answer that shows a state goes out once that state is durable.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.index import Indexer
from ctxd.objects.next_version import system_prompt
from ctxd.rpc.dispatch import Handler
from ctxd.rpc.identity import Caller
from ctxd.secrets.policy import DEFAULT
from ctxd.sessions import transitions
from ctxd.sessions.activation import Activation, activation
from ctxd.sessions.notices import Notices
from ctxd.sessions.redaction import captured, off_loop
from ctxd.sessions.registry import Sessions
from ctxd.sessions.resume import freshen, reconciled, to_check
from ctxd.sessions.segments import NOTHING, SessionDelta, SessionSettings
from ctxd.sessions.session import Accepted, LiveSession, WriteRequest, again, kept_result
from ctxd.sessions.state import SessionState
from ctxd.store.answers import Replay
from ctxd.store.writes import Pending
from ctxd_protocol.ids import system_prompt_id
from ctxd_protocol.methods import sessions as wire
from ctxd_protocol.methods.row import WriteResult
from ctxd_protocol.objects import Receipt
from ctxd_protocol.secrets import SecretPolicy
from ctxd_protocol.sessions import Collapse, Message, SessionView, Turn

Decision = Callable[[SessionState, str], SessionDelta]

_DECISIONS: Final[dict[str, Decision]] = {
    "session.deactivate": transitions.deactivate,
    "session.pin": transitions.pin,
    "session.unpin": transitions.unpin,
    "session.pool_add": transitions.pool_add,
    "session.pool_remove": transitions.pool_remove,
}


class _Created(msgspec.Struct, frozen=True):
    """What is kept of a create for a resend: the rest is read as of its write."""

    session: str


def handlers(
    sessions: Sessions, indexer: Indexer, notices: Notices, collapse: Collapse, policy: SecretPolicy = DEFAULT
) -> dict[str, Handler]:
    """The methods of this family by name. ``collapse``, ``policy``: those of a session that is created without."""
    family = _SessionCalls(sessions, indexer, notices, collapse, policy)
    table: dict[str, Handler] = {
        "session.create": family.create,
        "session.configure": family.configure,
        "session.list": family.list,
        "session.get": family.get,
        "session.pause": family.pause,
        "session.resume": family.resume,
        "session.close": family.close,
        "session.append": family.append,
        "session.set_system_prompt": family.set_system_prompt,
        "session.chat": family.chat,
        "session.activate": family.activate,
        "session.notices": family.notices,
    }
    return table | {name: _member(family, name) for name in _DECISIONS}


def _member(family: "_SessionCalls", name: str) -> Handler:
    decide = _DECISIONS[name]
    return lambda _, params, call: family.member(params, call, decide)


class _SessionCalls:
    def __init__(
        self, sessions: Sessions, indexer: Indexer, notices: Notices, collapse: Collapse, policy: SecretPolicy
    ) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._indexer = indexer
        self._notices = notices
        self._collapse = collapse
        self._policy = policy

    # --- life ---

    async def create(self, caller: Caller, params: wire.SessionCreateParams, call: WriteRequest) -> Accepted:
        if params.detect_filesystems and params.filesystem_id is not None:
            hint = "Leave out filesystem_id for an agent on the host, detect_filesystems for a sandboxed one."
            raise CtxdError(
                "invalid_params", "filesystem_id and detect_filesystems exclude each other", hint=hint,
                outcome="not_applied",
            )  # fmt: skip
        session = f"s-{secrets.token_hex(8)}" if params.session is None else params.session
        settings = SessionSettings(
            agent=params.agent,
            principal=caller.principal,
            created_at=0,
            ordinal=0,
            filesystem_id=(self._sessions.host_filesystem_id if params.filesystem_id is None else params.filesystem_id),
            detect_filesystems=params.detect_filesystems,
            workdir=params.workdir,
            mounts=params.mounts,
            prefixes=await self._indexer.resolve_prefixes(params.mounts),
            collapse=self._collapse if params.collapse is None else params.collapse,
            budget_tokens=params.budget_tokens,
            labels=params.labels,
            secrets=self._policy if params.secrets is None else params.secrets,
        )
        kept = kept_result(call, _Created(session))
        made = await self._sessions.create(call, session, settings, params.system_prompt, kept)
        if isinstance(made, Replay):
            return await self._view_again(msgspec.json.decode(made.result, type=_Created).session, made)
        live, pending = made
        # From now on, not from its first file on: a planted link may wait for another session's reading.
        self._indexer.confine(live.mounts)
        return _shown(live, pending)

    async def get(self, _: Caller, params: wire.SessionParams) -> Accepted:
        live = await self._sessions.live(params.session)
        async with live.lock:
            live.require_current()
            return _shown_unchanged(live)

    async def configure(self, _: Caller, params: wire.SessionConfigureParams, call: WriteRequest) -> Accepted:
        prefixes = None if params.mounts is None else await self._indexer.resolve_prefixes(params.mounts)

        def configured(settings: SessionSettings) -> SessionSettings:
            given = {
                name: value
                for name in ("workdir", "mounts", "collapse", "labels", "secrets")
                if (value := getattr(params, name)) is not None
            }
            if params.budget_tokens is not None:
                given["budget_tokens"] = params.budget_tokens or None
            if prefixes is not None:
                given["prefixes"] = prefixes
            return msgspec.structs.replace(settings, **given)

        return await self._set(call, params.session, configured)

    async def pause(self, _: Caller, params: wire.SessionWriteParams, call: WriteRequest) -> Accepted:
        return await self._set(call, params.session, _in_state("paused"), paused=True)

    async def close(self, _: Caller, params: wire.SessionWriteParams, call: WriteRequest) -> Accepted:
        return await self._set(call, params.session, _in_state("closed"), paused=True)

    async def _set(
        self,
        call: WriteRequest,
        session: str,
        change: Callable[[SessionSettings], SessionSettings],
        *,
        paused: bool = False,
    ) -> Accepted:
        """Write changed settings, and answer with the whole session."""
        live = await self._sessions.live(session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call, paused=paused)
            if replay is not None:
                return await self._view_again(session, replay)
            settings = self._sessions.normalised(change(live.settings))
            if settings == live.settings:
                return _shown_unchanged(live)
            pending = live.commit(call, settings=settings)
            self._indexer.confine(live.mounts)
            return _shown(live, pending)

    async def resume(self, _: Caller, params: wire.SessionWriteParams, call: WriteRequest) -> Accepted:
        live = await self._sessions.live(params.session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call, paused=True)
            if replay is not None:
                kept = msgspec.json.decode(replay.result, type=wire.Reconciled)
                receipt, view = await self._view_as_of(params.session, replay)
                return Accepted(
                    None, lambda _: wire.SessionResumeResult(session=view, reconciled=kept, receipt=receipt)
                )
            found = await freshen(live, self._indexer, to_check(live.state), call)
            settings = msgspec.structs.replace(live.settings, state="active")
            told = reconciled(found)
            if settings == live.settings and not found.changed:
                pending, view = live.barrier, live.view()
                return Accepted(
                    pending, lambda _: wire.SessionResumeResult(session=view, reconciled=told, receipt=None)
                )
            # The operation id goes with the last slice: a resend after a cut between two checks the files again.
            pending = live.commit(
                call,
                puts=found.documents,
                signatures=found.signatures,
                floor_vt=found.floor_vt,
                settings=settings,
                result=kept_result(call, told),
            )
            view = live.view()
            return Accepted(
                pending,
                lambda receipt: wire.SessionResumeResult(session=_at(view, receipt), reconciled=told, receipt=receipt),
            )

    async def _view_as_of(self, session: str, replay: Replay) -> tuple[Receipt, SessionView]:
        receipt = replay.receipt
        if receipt is None:
            assert replay.pending is not None, "a write is durable or pending"
            receipt = await replay.pending.wait()
        return receipt, (await self._sessions.as_of(session, tx=receipt.seq)).view()

    async def _view_again(self, session: str, replay: Replay) -> Accepted:
        receipt, view = await self._view_as_of(session, replay)
        return Accepted(None, lambda _: wire.SessionResult(session=view, receipt=receipt))

    async def list(self, _: Caller, params: wire.SessionListParams) -> Accepted:
        ids, cursor = self._sessions.catalog.page(
            state=params.state,
            agent=params.agent,
            label=params.label,
            text=params.text,
            limit=params.limit,
            cursor=params.cursor,
        )
        rows = [self._sessions.summary(session) for session in ids]
        barriers = [barrier for _, barrier in rows if barrier is not None]
        result = wire.SessionListResult(sessions=tuple(row for row, _ in rows), next_cursor=cursor)
        return Accepted(max(barriers, key=lambda barrier: barrier.seq, default=None), lambda _: result)

    # --- chat ---

    async def append(self, _: Caller, params: wire.SessionAppendParams, call: WriteRequest) -> Accepted:
        live = await self._sessions.live(params.session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call)
            if replay is not None:
                return again(replay, wire.SessionAppendResult)
            messages = await captured(self._sessions.guard, live.settings.secrets, params.messages)
            return _append(live, call, params, messages)

    async def set_system_prompt(self, _: Caller, params: wire.SystemPromptParams, call: WriteRequest) -> Accepted:
        live = await self._sessions.live(params.session)
        id = system_prompt_id(params.session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call)
            if replay is not None:
                return again(replay, WriteResult)
            head = (await self._store.heads((id,)))[id]
            capture = self._sessions.guard.capture(live.settings.secrets)
            content = await off_loop(len(params.content), lambda: capture.text(params.content))
            document = system_prompt(params.session, content, capture.secrets)
            if head is not None and head.document.content_hash == document.content_hash:
                return Accepted(live.barrier, lambda _: WriteResult(receipt=None))
            floor = 0 if head is None else head.valid_time + 1
            kept = kept_result(call, WriteResult(receipt=None))
            pending = live.commit(call, puts=(document,), floor_vt=floor, result=kept)
            return Accepted(pending, lambda receipt: WriteResult(receipt=receipt))

    async def chat(self, _: Caller, params: wire.ChatParams) -> Accepted:
        live = await self._sessions.live(params.session)
        async with live.lock:
            live.require_current()
            every = live.state.turns
            first = max(params.first_turn, 0 if every[0] else 1)
            end = min(first + params.limit, len(every))
            result = wire.ChatResult(
                session=params.session,
                turn_count=live.state.turn,
                turns=tuple(Turn(number=number, messages=tuple(every[number])) for number in range(first, end)),
                next_turn=end if end < len(every) else None,
            )
            return Accepted(live.barrier, lambda _: result)

    # --- sets ---

    async def member(self, params: wire.MembershipParams, call: WriteRequest, decide: Decision) -> Accepted:
        live = await self._sessions.live(params.session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call)
            if replay is not None:
                return again(replay, wire.MembershipResult)
            id = transitions.resolve(live.state, params.session, params.object)
            return _moved(live, call, id, Activation(decide(live.state, id)))

    async def activate(self, _: Caller, params: wire.MembershipParams, call: WriteRequest) -> Accepted:
        live = await self._sessions.live(params.session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call)
            if replay is not None:
                return again(replay, wire.MembershipResult)
            id = transitions.resolve(live.state, params.session, params.object)
            return _moved(live, call, id, await activation(self._store, self._indexer, live, id))

    async def notices(self, _: Caller, params: wire.NoticesParams) -> wire.NoticesResult:
        found, after = await self._notices.since(params.session, params.after, params.limit)
        return wire.NoticesResult(notices=tuple(found), next_after=after)


def _moved(live: LiveSession, call: WriteRequest, id: str, move: Activation) -> Accepted:
    """Write a change of membership, and say where the object is then. ``changed``: its level or its pin is another."""
    state, delta = live.state, move.delta
    if delta is NOTHING:
        same = wire.MembershipResult(
            object=id, level=state.level(id), pinned=id in state.pinned, changed=False, receipt=None
        )
        return Accepted(live.barrier, lambda _: same)
    before = (state.level(id), id in state.pinned)
    after = transitions.outcome(state, id, delta)
    result = wire.MembershipResult(object=id, level=after[0], pinned=after[1], changed=before != after, receipt=None)
    pending = live.commit(
        call,
        delta,
        puts=move.puts,
        signatures=move.signatures,
        floor_vt=move.floor_vt,
        result=kept_result(call, result),
    )
    return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))


def _in_state(state: str) -> Callable[[SessionSettings], SessionSettings]:
    return lambda settings: msgspec.structs.replace(settings, state=state)


def _shown(live: LiveSession, pending: Pending) -> Accepted:
    """The whole session, as of ``pending``."""
    view = live.view()
    return Accepted(pending, lambda receipt: wire.SessionResult(session=_at(view, receipt), receipt=receipt))


def _append(
    live: LiveSession, call: WriteRequest, params: wire.SessionAppendParams, messages: Sequence[Message]
) -> Accepted:
    delta = transitions.append(live.state, params.session, messages, live.settings.collapse)
    turn = live.state.turn + sum(message.role == "user" for message in messages)
    result = wire.SessionAppendResult(turn=turn, receipt=None)
    pending = live.commit(call, delta, result=kept_result(call, result))
    return Accepted(pending, lambda receipt: wire.SessionAppendResult(turn=turn, receipt=receipt))


def _shown_unchanged(live: LiveSession) -> Accepted:
    view = live.view()
    return Accepted(live.barrier, lambda _: wire.SessionResult(session=view, receipt=None))


def _at(view: SessionView, receipt: Receipt | None) -> SessionView:
    """``view`` with the time that its newest write became final with."""
    return view if receipt is None else msgspec.structs.replace(view, updated_at=receipt.vt)
