"""Operations on sessions: every write that a client, an importer or another part of the daemon makes.

An operation takes the actor and the params of the method of the same name, and returns an ``Accepted``: the result once
the write is durable. ``admitted`` does what all of them share: load the session, queue for its lock, answer a request
that comes again, refuse one that the session's state does not allow. The bodies decide and write; between a decision
and its write nothing awaits.
"""

import binascii
import secrets as random
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import Any, Final, TypeVar

import msgspec

from ctxd.errors import CtxdError, purged
from ctxd.indexing.discovery import FoundFile, discover, discover_named
from ctxd.indexing.indexer import Indexed, Indexer
from ctxd.indexing.shell.candidates import candidates
from ctxd.mounts.mapping import normalise
from ctxd.objects.document import AsOf, Stored
from ctxd.objects.generated_ids import is_reserved
from ctxd.objects.kinds import is_deleted, is_purged, is_unread
from ctxd.objects.version_documents import renamed, system_prompt
from ctxd.offload import Lane
from ctxd.secrets.guard import Capture
from ctxd.sessions import transitions
from ctxd.sessions.reconciliation import attribute, found_for, freshen, portions, reconciled, until_durable
from ctxd.sessions.registry import Sessions
from ctxd.sessions.segments import NOTHING, CollapseCalls, SessionDelta
from ctxd.sessions.session import (
    Accepted,
    Actor,
    LiveSession,
    Ticket,
    Transaction,
    WriteRequest,
    again,
    kept_result,
    write_request,
)
from ctxd.sessions.settings import SessionSettings, normalised
from ctxd.sessions.state import SessionState
from ctxd.sessions.text_capture import INLINE_CHARS_MAX, captured, off_loop, toolcall_captured
from ctxd.sessions.visibility import as_first_seen
from ctxd.store.writes import NotCached, Replay
from ctxd_protocol.events import starts_turn
from ctxd_protocol.ids import system_prompt_id, toolcall_alias
from ctxd_protocol.methods import files as file_methods
from ctxd_protocol.methods import sessions as session_methods
from ctxd_protocol.methods.row import WriteResult
from ctxd_protocol.objects import Receipt
from ctxd_protocol.secrets import SecretPolicy
from ctxd_protocol.session_types import Collapse, SessionView

OUTPUT_INLINE_CHARS_MAX: Final = 16 * 1024
"""Characters of a command and its output that are parsed on the loop: some milliseconds. More go to a thread."""

Decision = Callable[[SessionState, str], SessionDelta]
P = TypeVar("P", bound=msgspec.Struct)
Operation = Callable[..., Coroutine[Any, Any, Accepted]]
"""``(actor, params, request=None)``; without a request one is made of the params."""


def admitted(
    kind: str,
    result: type[msgspec.Struct] | Callable[["Operations", str, Replay], Coroutine[Any, Any, Accepted]],
    *,
    paused: bool = False,
    heads: Callable[[Any], Sequence[str]] = lambda params: (),
) -> Callable[[Callable[["Operations", Transaction, P], Coroutine[Any, Any, Accepted]]], Operation]:
    """Decorate the body of the operation ``kind`` on the session that its params name.

    ``result``: the type that a kept result decodes to, or a function that answers a request that comes again.
    ``paused``: the operation is possible on a session that is not active. ``heads``: ids to have cached.
    The operation raises: CtxdError session_not_found, session_closed, session_not_active, idempotency_mismatch, those
    of the body, and those of the store. Cancel: safe until the body wrote.
    """

    def decorate(body: Callable[["Operations", Transaction, P], Coroutine[Any, Any, Accepted]]) -> Operation:
        @wraps(body)
        async def operation(
            self: "Operations",
            actor: Actor,
            params: Any,  # noqa: ANN401 - the method's own struct
            request: WriteRequest | None = None,
        ) -> Accepted:
            request = request or write_request(kind, actor.principal, params)
            if getattr(params, "valid_time", None) is not None:
                self._require_datable(actor, params.valid_time)
            live = await self.sessions.live(params.session)
            with Ticket(live.lock.queue) as ticket:
                replay = await live.admit(ticket, request, heads=heads(params), paused=paused)
                if replay is not None:
                    if isinstance(result, type):
                        return again(replay, result)
                    return await result(self, params.session, replay)
                guard = self.sessions.guard
                # Tags of a sandbox's texts are its own: see ``Guard.by``.
                confined = actor.capability != "host"
                tx = Transaction(live, request, confined, guard.by(live.session) if confined else guard)
                accepted = await body(self, tx, params)
            if tx.basis:
                # Outside the lock: the version may be another session's, and none has to wait for it here.
                await until_durable(self.store, tx.basis)
            return accepted

        return operation

    return decorate


def _membership(kind: str, decide: Decision) -> Operation:
    """The operation ``kind``, which changes the sets as ``decide`` does. Raises: what ``decide`` raises."""

    @admitted(kind, session_methods.MembershipResult)
    async def body(_: "Operations", tx: Transaction, params: session_methods.MembershipParams) -> Accepted:
        id = transitions.resolve(tx.live.state, params.session, params.object)
        return _moved(tx, id, decide(tx.live.state, id))

    return body


class _Created(msgspec.Struct, frozen=True):
    """Stored result of ``session.create`` for a resend: the session is read as of its write."""

    session: str


class Operations:
    """The operations over one store's sessions. ``collapse``, ``policy``: defaults of a session created without."""

    def __init__(self, sessions: Sessions, indexer: Indexer, collapse: Collapse, policy: SecretPolicy) -> None:
        self.sessions = sessions
        self.store = sessions.store
        self._indexer = indexer
        self._collapse = collapse
        self._policy = policy
        self._parsing = Lane("commands")

    def by_method(self) -> dict[str, Operation]:
        """Every operation under the name of its method."""
        return {
            "session.create": self.create,
            "session.configure": self.configure,
            "session.pause": self.pause,
            "session.resume": self.resume,
            "session.close": self.close,
            "session.append": self.append,
            "session.set_system_prompt": self.set_system_prompt,
            "session.activate": self.activate,
            "session.deactivate": self.deactivate,
            "session.pin": self.pin,
            "session.unpin": self.unpin,
            "session.pool_add": self.pool_add,
            "session.pool_remove": self.pool_remove,
            "toolcall.record": self.record_toolcall,
            "file.index": self.index_file,
            "file.discover": self.discover,
            "tool.observe": self.observe,
        }

    def _require_datable(self, actor: Actor, valid_time: int) -> None:
        """Raises: CtxdError invalid_params unless ``actor`` may write at ``valid_time``."""
        if actor.capability != "host":
            message = "valid_time is for the host's own connections: a sandbox records what is so now"
            raise CtxdError("invalid_params", message, hint="Leave valid_time out.", outcome="not_applied")
        self.store.require_past((valid_time,))

    # --- life ---

    async def create(
        self, actor: Actor, params: session_methods.SessionCreateParams, request: WriteRequest | None = None
    ) -> Accepted:
        """Create a session.

        Raises: CtxdError session_exists, invalid_params, invalid_path, too_large, idempotency_mismatch, and those of
        the store. Cancel: safe.
        """
        request = request or write_request("session.create", actor.principal, params)
        if params.detect_filesystems and params.filesystem_id is not None:
            raise CtxdError(
                "invalid_params",
                "filesystem_id and detect_filesystems exclude each other",
                hint="Leave out filesystem_id for an agent on the host, detect_filesystems for a sandboxed one.",
                outcome="not_applied",
            )
        session = f"s-{random.token_hex(8)}" if params.session is None else params.session
        settings = SessionSettings(
            agent=params.agent,
            principal=actor.principal,
            created_at=0,
            ordinal=0,
            filesystem_id=self.sessions.host_filesystem_id if params.filesystem_id is None else params.filesystem_id,
            detect_filesystems=params.detect_filesystems,
            workdir=params.workdir,
            mounts=params.mounts,
            prefixes=await self._indexer.visibility.resolve_prefixes(params.mounts),
            collapse=self._collapse if params.collapse is None else params.collapse,
            budget_tokens=params.budget_tokens,
            labels=params.labels,
            secrets=self._policy if params.secrets is None else params.secrets,
        )
        kept = kept_result(request, _Created(session))
        made = await self.sessions.create(request, session, settings, params.system_prompt, kept)
        if isinstance(made, Replay):
            return await self._view_again(msgspec.json.decode(made.result, type=_Created).session, made)
        live, pending = made
        # From now on, not from its first file on: a planted link may wait for another session's reading.
        self._indexer.visibility.confine(live.mounts)
        view = live.view()
        return Accepted(pending, lambda receipt: _view_result(view, receipt))

    async def _view_as_of(self, session: str, replay: Replay) -> tuple[Receipt, SessionView]:
        receipt = replay.receipt
        if receipt is None:
            assert replay.pending is not None, "a write is durable or pending"
            receipt = await replay.pending.wait()
        return receipt, (await self.sessions.as_of(session, AsOf(tx=receipt.seq))).view()

    async def _view_again(self, session: str, replay: Replay) -> Accepted:
        receipt, view = await self._view_as_of(session, replay)
        return Accepted(None, lambda _: session_methods.SessionResult(session=view, receipt=receipt))

    async def _resumed_again(self, session: str, replay: Replay) -> Accepted:
        kept = msgspec.json.decode(replay.result, type=session_methods.Reconciled)
        receipt, view = await self._view_as_of(session, replay)
        return Accepted(
            None,
            lambda _: session_methods.SessionResumeResult(session=view, reconciled=kept, receipt=receipt),
        )

    @admitted("session.configure", _view_again)
    async def configure(self, tx: Transaction, params: session_methods.SessionConfigureParams) -> Accepted:
        """Change settings; those left out stay as they are."""
        given: dict[str, Any] = {
            name: value
            for name in ("workdir", "mounts", "collapse", "labels", "secrets")
            if (value := getattr(params, name)) is not None
        }
        if params.mounts is not None:
            given["prefixes"] = await self._indexer.visibility.resolve_prefixes(params.mounts)
            self.sessions.visibility.require_free_mounts(params.session)
        if params.budget_tokens is not None:
            given["budget_tokens"] = params.budget_tokens or None
        return self._set(tx, **given)

    @admitted("session.pause", _view_again, paused=True)
    async def pause(self, tx: Transaction, _: session_methods.SessionPauseParams) -> Accepted:
        """Pause the session: it takes no writes until it is resumed."""
        return self._set(tx, state="paused")

    @admitted("session.close", _view_again, paused=True)
    async def close(self, tx: Transaction, _: session_methods.SessionWriteParams) -> Accepted:
        """Close the session for good."""
        return self._set(tx, state="closed")

    def _set(self, tx: Transaction, **changes: Any) -> Accepted:  # noqa: ANN401 - values of settings
        """Write changed settings. The result is the whole session."""
        live = tx.live
        wanted = msgspec.structs.replace(live.settings, **changes)
        settings = normalised(wanted, self.sessions.guard, self.sessions.host_filesystem_id)
        if settings == live.settings:
            return tx.unchanged(session_methods.SessionResult(session=live.view(), receipt=None))
        pending = live.commit(tx.request, settings=settings)
        self._indexer.visibility.confine(live.mounts)
        view = live.view()
        return Accepted(pending, lambda receipt: _view_result(view, receipt))

    @admitted("session.resume", _resumed_again, paused=True)
    async def resume(self, tx: Transaction, _: session_methods.SessionWriteParams) -> Accepted:
        """Check every file of the session against its source, and make the session active (spec 1 §3.6)."""
        live = tx.live
        found = await freshen(live, self._indexer, live.state.files(live.state.index), tx.request)
        settings = msgspec.structs.replace(live.settings, state="active")
        report = reconciled(found)
        if settings == live.settings and not found.changed:
            return tx.unchanged(
                session_methods.SessionResumeResult(session=live.view(), reconciled=report, receipt=None)
            )
        # The operation id goes with the last slice: a resend after a cut between two checks the files again.
        pending = live.commit(
            tx.request,
            puts=found.documents,
            signatures=found.signatures,
            floor_vt=found.floor_vt,
            settings=settings,
            result=report,
        )
        view = live.view()
        return Accepted(
            pending,
            lambda receipt: session_methods.SessionResumeResult(
                session=_at(view, receipt), reconciled=report, receipt=receipt
            ),
        )

    # --- chat ---

    @admitted("session.append", session_methods.SessionAppendResult)
    async def append(self, tx: Transaction, params: session_methods.SessionAppendParams) -> Accepted:
        """Append messages or events to the chat; each user message or prompt starts a turn."""
        live = tx.live
        events = transitions.events_from(params.messages, params.events)
        events = await captured(tx.guard, live.settings.secrets, events)
        delta = transitions.append(live.state, params.session, events, live.settings.collapse)
        turn = live.state.turn + sum(map(starts_turn, events))
        return tx.commit(session_methods.SessionAppendResult(turn=turn, receipt=None), delta)

    @admitted("session.set_system_prompt", WriteResult)
    async def set_system_prompt(self, tx: Transaction, params: session_methods.SystemPromptParams) -> Accepted:
        """Replace the system prompt."""
        live, id = tx.live, system_prompt_id(params.session)
        head = await self.store.get(id, AsOf.given(params.valid_time, None))
        capture = Capture(tx.guard, live.settings.secrets)
        content = await off_loop(len(params.content), lambda: capture.text(params.content))
        document = await self.store.keep(system_prompt(params.session, content, capture.secrets))
        result = WriteResult(receipt=None)
        if head is not None and head.document.content_hash == document.content_hash:
            return tx.unchanged(result)
        floor_vt = 0 if head is None else head.valid_time + 1
        return tx.commit(result, puts=(document,), floor_vt=floor_vt, valid_time=params.valid_time)

    # --- sets ---

    @admitted("session.activate", session_methods.MembershipResult)
    async def activate(self, tx: Transaction, params: session_methods.MembershipParams) -> Accepted:
        """Make an object active. A file that is unread or was deleted is read in the same write.

        Raises: CtxdError content_unavailable if there is no text to show; file_not_found if the file is gone;
        source_unreachable if it cannot be read now; path_escapes_mount, corrupt.
        """
        live = tx.live
        id = transitions.resolve(live.state, params.session, params.object)
        delta = transitions.activate(live.state, id)
        if not delta or id in live.state.active:
            return _moved(tx, id, delta)
        head = (await self.store.heads((id,)))[id]
        if head is None:
            raise CtxdError("corrupt", f"object {id} is in the index of {live.session} but not in the store")
        visibility = self.sessions.visibility
        hidden = visibility.restricts(live.session) and await visibility.shown(live, head) is None
        if hidden or is_unread(head.document) or is_deleted(head.document):
            indexed = await self._read_for_activation(live, head)
            return _moved(tx, id, delta, **indexed.writes)
        if head.content_ref is None:
            raise _unavailable(head)
        return _moved(tx, id, delta)

    async def _read_for_activation(self, live: LiveSession, known: Stored) -> Indexed:
        """Read a file that is known by name only, or was deleted. The caller writes it before its next await."""
        id = known.document.id
        try:
            indexed = await self._indexer.index_object(live.mounts, id, cause="read", policy=live.settings.secrets)
        except CtxdError as error:
            if is_deleted(known.document) and error.code != "path_escapes_mount":
                raise _unavailable(known) from error
            if error.code == "unsupported":
                raise _without_text(id, error.message) from error
            raise
        head = self.store.peek(id)
        if indexed.document is None:
            if not isinstance(head, Stored) or head.content_ref is None:
                raise _without_text(id, "it has none")
        elif indexed.document.content is None:
            raise _without_text(id, f"the file is {indexed.kind}")
        return indexed

    deactivate = _membership("session.deactivate", transitions.deactivate)
    pin = _membership("session.pin", transitions.pin)
    unpin = _membership("session.unpin", transitions.unpin)
    pool_add = _membership("session.pool_add", transitions.pool_add)
    pool_remove = _membership("session.pool_remove", transitions.pool_remove)

    # --- tool calls and files ---

    @admitted("toolcall.record", file_methods.ToolcallRecordResult, heads=lambda params: (params.id,))
    async def record_toolcall(self, tx: Transaction, params: file_methods.ToolcallRecordParams) -> Accepted:
        """Record a tool call and its output; it is active at once (spec 1 §5.7). A repeat is ``unchanged``.

        Raises: CtxdError toolcall_conflict, purged, invalid_params.
        """
        live = tx.live
        capture = Capture(tx.guard, live.settings.secrets)
        if len(params.content) <= INLINE_CHARS_MAX:
            params = toolcall_captured(capture, params)
        else:
            params = await off_loop(len(params.content), partial(toolcall_captured, capture, params))
        make = partial(transitions.toolcall_document, live.state, live.session, params, capture.secrets)
        early = None
        if len(params.content) > INLINE_CHARS_MAX:
            early = await self.store.keep(await off_loop(len(params.content), partial(make, params.id)))
        while isinstance((place := self._place(live, params.id, tx.confined))[1], NotCached):
            await self.store.heads(place[:1])
        id, head = place
        if id not in live.state.index:
            if head is not None:
                raise _conflict(id)
            document = make(id) if early is None else renamed(early, id)
            delta = transitions.call(live.state, id, live.settings.collapse)
            result = file_methods.ToolcallRecordResult(
                object=id,
                outcome="created",
                collapsed=tuple(id for each in delta if isinstance(each, CollapseCalls) for id in each.objects),
                unresolved=tuple(document.payload.get("unresolved_refs", ())),
                receipt=None,
            )
            return tx.commit(result, delta, puts=(document,), valid_time=params.valid_time)
        head = (await self.store.heads((id,)))[id]
        if head is not None and is_purged(head.document):
            raise purged(id)
        # A reference that was unresolved then still is for this comparison, whatever the index holds now.
        known = () if head is None else tuple(head.document.payload.get("unresolved_refs", ()))
        again_made = await off_loop(len(params.content), partial(make, id, unresolved=known))
        if head is None or head.document.content_hash != again_made.content_hash:
            raise _conflict(id)
        return tx.unchanged(
            file_methods.ToolcallRecordResult(
                object=id, outcome="unchanged", collapsed=(), unresolved=known, receipt=None
            )
        )

    def _place(self, live: LiveSession, own_id: str, confined: bool) -> tuple[str, Stored | None | NotCached]:
        """The id under which the session keeps the tool call, and its newest version; ``MISSING`` if not in memory.

        The id is the harness's own, or an alias if that is taken or reserved. A confined actor gets an alias unless the
        session has the id already: whether an id is free would show what other sessions have.
        """
        index = live.state.index
        if not is_reserved(own_id) and (not confined or own_id in index):
            head = self.store.peek(own_id)
            if isinstance(head, NotCached) or own_id in index:
                return own_id, head
            if head is None and toolcall_alias(live.session, own_id) not in index:
                return own_id, None
        alias = toolcall_alias(live.session, own_id)
        return alias, self.store.peek(alias)

    @admitted("file.index", file_methods.FileIndexResult)
    async def index_file(self, tx: Transaction, params: file_methods.FileIndexParams) -> Accepted:
        """Index a file that the agent read or edited, or check it; how it was met decides its place (spec 1 §5.6)."""
        live = tx.live
        indexed = await self._index(tx, params)
        if params.cause == "edit" and indexed.outcome == "unchanged" and params.valid_time is None:
            indexed = await attribute(self.store, indexed)
        # No await from here to the write: another session's version cannot come between.
        delta = NOTHING if indexed.kind == "missing" else transitions.met(live.state, indexed.object, params.cause)
        result = file_methods.FileIndexResult(
            object=indexed.object,
            outcome=indexed.outcome,
            kind=indexed.kind,
            source_hash=indexed.source_hash,
            char_count=indexed.char_count,
            receipt=None,
        )
        if tx.confined:
            result, indexed = as_first_seen(live.state, params.cause, result, indexed)
        if indexed.document is None and not delta:
            tx.basis = indexed.basis
            return tx.unchanged(result)
        if params.valid_time is not None:
            self.sessions.visibility.note_past(indexed.object)
        return tx.commit(result, delta, **indexed.writes, valid_time=params.valid_time)

    async def _index(self, tx: Transaction, params: file_methods.FileIndexParams) -> Indexed:
        """Index the file. An edit of a file in the session's index that is confirmed to be gone is its deletion."""
        live, content = tx.live, content_of(params)
        if params.valid_time is not None:
            if content is None:
                message = "valid_time needs the content: the daemon reads the file as it is now"
                raise CtxdError("invalid_params", message, hint="Give content too.", outcome="not_applied")
            return await self._indexer.index_past(
                live.mounts, live.settings.workdir, params.path, content, params.valid_time, live.settings.secrets
            )
        index = partial(
            self._indexer.index,
            live.mounts,
            live.settings.workdir,
            params.path,
            content=content,
            policy=live.settings.secrets,
            # A sandbox's content is an observation of its own, not a version of a file that others read too.
            observer=params.session if tx.confined else None,
            knows=live.state.index.__contains__ if tx.confined else None,
        )
        try:
            return await index(cause=params.cause)
        except CtxdError as error:
            if params.cause != "edit" or error.code != "file_not_found":
                raise
            id, _ = await self._indexer.resolve(live.mounts, live.settings.workdir, params.path)
            # Only the session's own index decides: the answer must not show which files other sessions know.
            if id not in live.state.index:
                raise
            indexed = await index(cause="check")
            if indexed.kind != "missing" or indexed.outcome == "orphaned":
                raise
            return indexed

    @admitted("file.discover", file_methods.ToolObserveResult)
    async def discover(self, tx: Transaction, params: file_methods.FileDiscoverParams) -> Accepted:
        """Add the files at the given paths to the index and the pool, unread."""
        live = tx.live
        find = partial(discover, self._indexer, live.mounts, live.settings.workdir, params.paths, params.valid_time)
        return _discovered(tx, await found_for(tx, self._indexer, find), params.valid_time)

    @admitted("tool.observe", file_methods.ToolObserveResult)
    async def observe(self, tx: Transaction, params: file_methods.ToolObserveParams) -> Accepted:
        """Add the files that a command line and its output name to the index and the pool, unread."""
        live = tx.live
        workdir = live.settings.workdir
        cwd = workdir if params.cwd is None else normalise(params.cwd, workdir)
        named = partial(candidates, params.command, params.output, cwd)
        if len(params.command) + len(params.output) <= OUTPUT_INLINE_CHARS_MAX:
            found = named()
        else:
            found = await self._parsing.run(named)
        find = partial(discover_named, self._indexer, live.mounts, found.paths, params.valid_time)
        return _discovered(tx, await found_for(tx, self._indexer, find), params.valid_time)


def _view_result(view: SessionView, receipt: Receipt | None) -> session_methods.SessionResult:
    return session_methods.SessionResult(session=_at(view, receipt), receipt=receipt)


def _at(view: SessionView, receipt: Receipt | None) -> SessionView:
    """``view`` with the valid time that its newest write became durable with."""
    return view if receipt is None else msgspec.structs.replace(view, updated_at=receipt.vt)


def _moved(tx: Transaction, id: str, delta: SessionDelta, **writes: Any) -> Accepted:  # noqa: ANN401
    """Write a change of membership. The result's ``changed`` is true if the object's level or pin is another."""
    state = tx.live.state
    before = (state.level(id), id in state.pinned)
    after = transitions.outcome(state, id, delta)
    result = session_methods.MembershipResult(
        object=id, level=after[0], pinned=after[1], changed=before != after, receipt=None
    )
    return tx.commit(result, delta, **writes) if delta else tx.unchanged(result)


def _unavailable(head: Stored) -> CtxdError:
    payload = head.document.payload
    why = "it is deleted" if payload.get("deleted") else f"the file is {payload.get('kind', 'not text')}"
    return _without_text(head.document.id, why)


def _without_text(id: str, why: str) -> CtxdError:
    hint = "Its metadata line stays; index the file again once it holds text."
    return CtxdError("content_unavailable", f"{id} has no text: {why}", hint=hint, outcome="not_applied")


def _conflict(id: str) -> CtxdError:
    return CtxdError(
        "toolcall_conflict",
        f"tool call {id} was recorded with another payload",
        hint="A tool call is recorded once: give each its own id.",
        outcome="not_applied",
    )


def content_of(params: file_methods.FileIndexParams) -> bytes | None:
    """The bytes that the params carry, None if the daemon is to read the file.

    Raises: CtxdError invalid_params for both contents, or for content that is not valid.
    """
    if params.content is not None and params.content_base64 is not None:
        raise CtxdError("invalid_params", "give content or content_base64, not both", outcome="not_applied")
    try:
        if params.content_base64 is not None:
            return binascii.a2b_base64(params.content_base64, strict_mode=True)
        return None if params.content is None else params.content.encode()
    except ValueError as error:
        raise CtxdError("invalid_params", f"content: {error}", outcome="not_applied") from error


def _discovered(tx: Transaction, found: Sequence[FoundFile], valid_time: int | None) -> Accepted:
    """Put the stubs of ``found``, as of ``valid_time`` (None: now), and add the files it names to the session.

    No await lies between its finding and the write: another session's version cannot come between.
    """
    live = tx.live
    delta = transitions.discover(live.state, [one.object for one in found if one.object is not None])
    stubs = [one.document for one in found if one.document is not None]
    rows = tuple(
        file_methods.Discovered(path=one.path, outcome=one.outcome, object=one.object, reason=one.reason)
        for one in found
    )
    result = file_methods.ToolObserveResult(objects=rows, receipt=None)
    if not stubs and not delta:
        return tx.unchanged(result)
    floor_vt = max(one.floor_vt for one in found)
    # The operation id goes with the last portion, as the sets do: stubs without those do no harm.
    *early, last = portions(stubs)
    for documents in early:
        live.commit(tx.request.without_id(), puts=documents, floor_vt=floor_vt, valid_time=valid_time)
    return tx.commit(result, delta, puts=last, floor_vt=floor_vt, valid_time=valid_time)
