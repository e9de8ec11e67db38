"""Starts of sessions from a template and a context (spec 3, Instantiation).

A fresh start, a resumption and a fork are one operation, whose context is empty, a moment of a session, or a commit. A
commit of a session on this host stands for that moment of the session. Any other commit, captured, imported, or of a
session that is gone, is materialised and becomes the chat of the new session. So is a moment of a session whose newest
commits were never in its chat. Either way, the new session continues the commit's chain.
"""

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec

from ctxd.commits.commit import read_fields
from ctxd.commits.commit_operations import Commits
from ctxd.commits.commit_reads import CommitViewer
from ctxd.commits.materialize import Materializer
from ctxd.commits.session_checkpoints import SessionCheckpoints
from ctxd.errors import CtxdError
from ctxd.formats import events_v1
from ctxd.formats.cbor_array import UnreadableDelta, items
from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd.objects.commit_document import Fields, Position, commit_id, entity_id
from ctxd.objects.document import AsOf, Page, Stored, require_text
from ctxd.objects.generated_ids import segments_prefix
from ctxd.objects.version_state import is_purged
from ctxd.sessions.fork_operations import ForkMoment
from ctxd.sessions.lifecycle_operations import session_result
from ctxd.sessions.live_session import Accepted, Actor, WriteRequest, find_replay
from ctxd.sessions.operation_table import Operations
from ctxd.sessions.project_match import ProjectFilter
from ctxd.sessions.secret_redaction import events_captured, off_loop
from ctxd.sessions.session_catalog import Filters
from ctxd.sessions.session_loading import InitialChat, PurgedMeanwhile, batched
from ctxd.sessions.session_settings import ContinuedCommit
from ctxd.sessions.session_state import replay_deltas
from ctxd.sessions.stored_session import AppendChat, RecordCalls, SessionDelta, events_size
from ctxd.store import commit_index
from ctxd.store.commit_index import CommitFilter
from ctxd.store.write_types import DurableWrites, Replay
from ctxd_protocol.event_types import Event, ToolResultEvent
from ctxd_protocol.ids import session_object_id, system_prompt_id
from ctxd_protocol.methods.commits import CommitMaterializeParams, StartContext
from ctxd_protocol.methods.session_list import SessionListParams
from ctxd_protocol.methods.sessions import SessionCreateParams, SessionForkParams

CHAT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum bytes of a context that becomes a chat, which is one write."""

_SEGMENT_BYTES: Final = 512 * 1024
"""Approximate bytes of the events in one segment."""

_LATEST_MAX: Final = 16
"""Sessions of a principal, those with the newest turns, that are checked for the newest write."""

_PAGE: Final = 100


class SessionStart:
    """Starts of the sessions of one store."""

    def __init__(
        self, operations: Operations, commits: Commits, checkpoints: SessionCheckpoints, materializer: Materializer
    ) -> None:
        self._operations = operations
        self._sessions = operations.sessions
        self._store = operations.sessions.store
        self._commits = commits
        self._checkpoints = checkpoints
        self._materializer = materializer
        self._purges = 0
        # Without a type: only writes that purge.
        self._store.on_durable(self._note_purge, types=())

    def _note_purge(self, writes: DurableWrites) -> None:
        self._purges += sum(write.purge is not None for write, _ in writes)

    async def start(self, actor: Actor, params: SessionCreateParams, request: WriteRequest) -> Accepted:
        """Start a session with the template and context of ``params``.

        Raises: CtxdError commit_not_found, also for a principal without one; those of ``LifecycleOperations.create``,
        ``ForkOperations.fork`` and ``Materializer.materialize``. Cancel: safe until the store has accepted it.
        """
        lifecycle, context = self._operations.lifecycle, params.context
        if context is None:
            return await lifecycle.create(actor, params, request)
        _require_one(context)
        # Do this first: the context may have changed since the first call.
        if (replay := await find_replay(self._store, request)) is not None:
            return await lifecycle.created_again(replay)
        viewer = CommitViewer(actor, None)
        tip, source = None, None
        if context.session is not None:
            source = SessionForkParams(session=context.session, valid_time=context.valid_time, tx=context.tx)
        else:
            tip = await self._commits.find(viewer, await self._commit_of(context, actor, params.agent))
            session = read_fields(tip).session
            if session is not None and await self._has_chat(session, tip):
                source = SessionForkParams(session=session, commit=commit_id(tip.document.id))
        if source is not None:
            moment = await self._operations.forks.moment_of(source)
            tip = await self._beyond_chat(source, moment)
            if tip is None:
                return await self._forked(actor, params, source, moment, request)
        assert tip is not None, "a context that is no moment of a session is a commit"
        commit, fields = commit_id(tip.document.id), read_fields(tip)
        while True:
            try:
                return await self._restored(viewer, params, commit, fields, request)
            except PurgedMeanwhile:
                await self._store.wait_for_writes()

    async def _commit_of(self, context: StartContext, actor: Actor, template: str | None) -> str:
        """The commit that ``context`` names, or the newest one of its principal. Raises: CtxdError commit_not_found."""
        if context.commit is not None:
            return context.commit
        assert context.principal is not None, "one of three is given"
        principal = context.principal or actor.principal
        if context.project is None:
            return await self._newest_of(principal, template)
        return await self._newest_in(context.project, principal, template)

    async def _forked(
        self,
        actor: Actor,
        params: SessionCreateParams,
        source: SessionForkParams,
        moment: ForkMoment,
        request: WriteRequest,
    ) -> Accepted:
        forked = await self._operations.forks.create_fork(actor, params, source, moment, request)
        if isinstance(forked, Replay):
            return await self._operations.lifecycle.created_again(forked)
        session, pending = forked
        await pending.wait()
        view = (await self._sessions.live(session)).view()
        return Accepted(pending, lambda receipt: session_result(view, receipt))

    async def _has_chat(self, session: str, commit: Stored) -> bool:
        """True if ``session`` is on this host and had a chat or objects when the commit was made. Raises: CtxdError
        session_removed if it is in the trash, corrupt, store_failed."""
        known = self._sessions.catalog.newest(session)
        if known is None or session in self._sessions.moved_sessions:
            return False
        if known[0].settings.state == "removed":
            message = f"session {session} of commit {commit_id(commit.document.id)} is in the trash"
            raise CtxdError("session_removed", message, hint="Call session.restore first.", outcome="not_applied")
        made = (await self._store.history(commit.document.id, page=Page(limit=1)))[0]
        lineage = self._sessions.lineage(session)
        if lineage.inherited:
            return True
        first = await self._store.scan(segments_prefix(session), AsOf(tx=made.tx), Page(limit=1))
        return bool(first)

    async def _beyond_chat(self, source: SessionForkParams, moment: ForkMoment) -> Stored | None:
        """The commit that a fork at ``moment``, that of ``source``, continues, if its conversation is longer than the
        chat of that moment: the chat ends with an older commit, and a client has committed more. None if the chat
        includes the commit, or if a client's commits end before the chat does.

        Raises: those of the store.
        """
        forks, base = self._operations.forks, moment.base
        commit = source.commit if moment.continues is None else moment.continues.commit
        if commit is not None:
            tip = await self._store.newest(entity_id(commit))
        else:
            tip = await self._commits.newest_at(base.session, base.tx)
        if tip is None:
            return None
        end, is_longer = Position(), False
        async with aclosing(forks.placed(base.session, commit_id(tip.document.id))) as commits:
            async for stored, position in commits:
                if position is not None:
                    end = position
                    break
                is_longer = is_longer or _has_conversation(stored)
        return tip if is_longer and end.chat >= await forks.end_of_chat(base) else None

    # --- the newest commit of a principal ---

    async def _newest_of(self, principal: str, template: str | None) -> str:
        """Commit the newest session of ``principal``, and return its newest commit that is in a known format and not of
        a session in the trash.

        Raises: CtxdError commit_not_found, and those of the store.
        """
        wanted = CommitFilter(principal=principal, template=template)
        newest = await self._newest_readable(wanted)
        writes = [
            (await self._last_write(session), session)
            for session in self._sessions.catalog.latest(principal, template, _LATEST_MAX)
        ]
        for at, session in sorted(writes, reverse=True):
            if newest is not None and at <= read_fields(newest).at:
                break
            # Commit acknowledged events that a crash left uncommitted. Skip a session without new ones: an agent that
            # is restarted may have got no further than creating it.
            was = self._store.head()
            tip = await self._checkpoints.checkpoint(session, "explicit")
            if tip is not None and was is not None:
                made = (await self._store.heads((entity_id(tip),)))[entity_id(tip)]
                if made is not None and made.tx > was.seq:
                    break
        found = await self._newest_readable(wanted)
        if found is not None:
            return commit_id(found.document.id)
        of = "" if template is None else f" of the template {template}"
        message = f"{principal} has no commit{of}"
        raise CtxdError("commit_not_found", message, hint="commit.list lists the commits.")

    async def _newest_readable(self, wanted: CommitFilter) -> Stored | None:
        """The newest commit that matches ``wanted``, in a known format and not of a session in the trash."""
        before: tuple[int, int] | None = None
        while True:
            wanted = msgspec.structs.replace(wanted, before=before)
            places = await self._store.read_index(partial(commit_index.list_commits, wanted=wanted, limit=_PAGE))
            for stored in (await self._store.heads([place.id for place in places])).values():
                if stored is None:
                    continue
                fields = read_fields(stored)
                is_removed = fields.session is not None and self._sessions.catalog.state(fields.session) == "removed"
                if fields.format in DELTA_FORMATS and not is_removed:
                    return stored
            if len(places) < _PAGE:
                return None
            before = (places[-1].at, places[-1].number)

    async def _newest_in(self, directory: str, principal: str, template: str | None) -> str:
        """Commit the session of ``principal`` that was used last in the project at ``directory``, and return its newest
        commit. Sessions without a commit are skipped.

        Raises: CtxdError commit_not_found, invalid_path, and those of the store.
        """
        at = await self._sessions.project_at(directory, package=True)
        filters = Filters(SessionListParams(agent=template), ProjectFilter(at))
        found: list[tuple[int, str]] = []
        for last, session in self._sessions.catalog.recent(filters, principal, _LATEST_MAX):
            known = self._sessions.catalog.newest(session)
            # For an imported session, the time of its events counts, not that of the import.
            is_imported = known is not None and known[0].settings.recorded is not None and not known[0].turn_count
            found.append((last if is_imported else max(last, await self._last_write(session)), session))
        for _, session in sorted(found, reverse=True):
            await self._checkpoints.checkpoint(session, "explicit")
            newest = await self._store.read_index(partial(commit_index.newest, wanted=CommitFilter(session=session)))
            if newest is not None:
                return commit_id(newest.document.id)
        of_agent = f" with the agent {template}" if template else ""
        message = f"no session of {principal}{of_agent} in {directory} has work to continue"
        hint = f"ctx resume {principal} continues its newest work in any project."
        raise CtxdError("commit_not_found", message, hint=hint, outcome="not_applied")

    async def _last_write(self, session: str) -> int:
        """The valid time of the newest write of ``session``; -1 without one."""
        newest = await self._store.scan(segments_prefix(session), page=Page(limit=1, ascending=False))
        heads = (await self._store.heads((session_object_id(session),))).values()
        return max([each.valid_time for each in (*newest, *heads) if each is not None], default=-1)

    # --- a commit without a session here ---

    async def _restored(
        self, viewer: CommitViewer, params: SessionCreateParams, commit: str, fields: Fields, request: WriteRequest
    ) -> Accepted:
        """Start a session whose chat is the context of ``commit``. Raises: PurgedMeanwhile."""
        purges = self._purges
        wanted = CommitMaterializeParams(commit=commit, format=events_v1.NAME, content=False)
        made = await self._materializer.context(viewer, wanted)
        size = made.figures.size
        if size > CHAT_BYTES_MAX:
            message = f"the context of {commit} is {size:,} bytes; a session can start from at most {CHAT_BYTES_MAX:,}"
            hint = "Commit a compaction after it, and start from that."
            raise CtxdError("too_large", message, hint=hint, outcome="not_applied")
        known = None if fields.session is None else self._sessions.catalog.newest(fields.session)
        like = None if known is None else known[0].settings
        if like is None and params.agent is None and fields.template:
            params = msgspec.structs.replace(params, agent=fields.template)
        if like is not None and fields.session is not None and not params.system_prompt:
            prompt = await self._store.get(system_prompt_id(fields.session), content=True)
            if prompt is not None and prompt.document.content is not None:
                params = msgspec.structs.replace(params, system_prompt=require_text(prompt.document.content))
        try:
            events = await off_loop(size, lambda: tuple(events_v1.events(items(made.content.read(0, size)))))
        except UnreadableDelta as error:  # Such as JSON that is nested hundreds of levels deep.
            message = f"no session can begin with the context of {commit}: {error}"
            hint = "Commit a compaction after it, and start from that."
            raise CtxdError("unsupported", message, hint=hint, outcome="not_applied") from None
        policy = params.secrets or (self._operations.lifecycle.policy if like is None else like.secrets)
        events = await events_captured(self._sessions.guard, policy, events)
        deltas = list(_segments(*await self._with_calls(events)))
        state = await off_loop(size, partial(replay_deltas, deltas))
        end = Position(state.turn, len(state.turns[-1]), 0, len(state.index))
        return await self._operations.lifecycle.create(
            viewer.actor,
            params,
            request,
            like=like,
            continues=ContinuedCommit(commit, end),
            initial=InitialChat(deltas, size, lambda: self._purges != purges or self._store.is_purging()),
        )

    async def _with_calls(self, events: Sequence[Event]) -> tuple[list[str], list[Event]]:
        """The tool calls in this store that hold outputs of ``events``; and the events, with a note in place of an
        output that is gone."""
        named = [event.object for event in events if isinstance(event, ToolResultEvent) and event.object is not None]
        there: dict[str, None] = {}
        for some in batched(dict.fromkeys(named), _PAGE):
            for id, head in (await self._store.heads(some)).items():
                if head is not None and head.document.type == "toolcall" and not is_purged(head.document):
                    there[id] = None
        kept = [
            msgspec.structs.replace(event, object=None, text="[The output is gone.]")
            if isinstance(event, ToolResultEvent) and event.object is not None and event.object not in there
            else event
            for event in events
        ]
        return list(there), kept


def _has_conversation(commit: Stored) -> bool:
    """True if a context can contain messages of ``commit``."""
    fields = read_fields(commit)
    is_read = fields.format in DELTA_FORMATS and not is_purged(commit.document)
    return is_read and (fields.is_boundary or fields.message_count > 0)


def _require_one(context: StartContext) -> None:
    """Raises: CtxdError invalid_params unless ``context`` gives exactly one."""
    given = [context.commit, context.session, context.principal]
    if given.count(None) != len(given) - 1:
        message = "a context is exactly one of commit, session and principal"
        raise CtxdError("invalid_params", message, hint="Leave context out for an empty one.", outcome="not_applied")
    if context.project is not None and context.principal is None:
        message = "project requires principal"
        raise CtxdError("invalid_params", message, hint="Give an empty principal for your own.", outcome="not_applied")
    if context.session is None and (context.valid_time, context.tx) != (None, None):
        message = "valid_time and tx are moments of a session"
        raise CtxdError("invalid_params", message, hint="Name the session in the context.", outcome="not_applied")


def _segments(calls: Sequence[str], events: Sequence[Event]) -> Iterator[SessionDelta]:
    """The segments of a chat of ``events``, each of about ``_SEGMENT_BYTES``; the first one records ``calls``."""
    known = (RecordCalls(tuple(calls)),) if calls else ()
    some, size = list[Event](), 0
    for event in events:
        some.append(event)
        size += events_size((event,))
        if size >= _SEGMENT_BYTES:
            yield (*known, AppendChat(tuple(some)))
            known, some, size = (), [], 0
    if some or known:
        yield (*known, AppendChat(tuple(some)))
