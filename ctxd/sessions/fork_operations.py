"""Forks of sessions: a fork continues another session from a given moment and shares its beginning, see ``lineage``.

A fork writes a head, the system prompt and the entries; its cost does not depend on the size of the session.
"""

import secrets as random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from ctxd.errors import CtxdError
from ctxd.formatting import moment
from ctxd.objects.commit_document import Fields, Position, commit_id, entity_id
from ctxd.objects.document import AsOf, Document, Page, Stored, renamed, system_prompt
from ctxd.objects.generated_ids import entry_id, number_of, segments_prefix
from ctxd.secrets.redaction import Capture
from ctxd.sessions.live_session import Accepted, Actor, WriteRequest, again, find_replay, kept_result, write_request
from ctxd.sessions.operation_admission import OperationGroup
from ctxd.sessions.secret_redaction import off_loop
from ctxd.sessions.session_catalog import no_session
from ctxd.sessions.session_settings import (
    ContinuedCommit,
    CreatedSession,
    ForkBase,
    SessionSettings,
    continued,
    mount_table,
    normalised,
    template_of,
)
from ctxd.sessions.session_state import EventPosition
from ctxd.sessions.stored_session import SessionHead, head_document, read_head
from ctxd.store import commit_index
from ctxd.store.commit_index import CommitFilter
from ctxd.store.journal import newest_at
from ctxd.store.write_types import Pending, Replay, Write
from ctxd_protocol.ids import session_object_id, system_prompt_id
from ctxd_protocol.methods.sessions import SessionCreateParams, SessionForkParams, SessionForkResult

_COMMITS_AT_ONCE: Final = 50
"""Commits of a chain that are read at once: the first one usually decides."""


class ForkMoment(NamedTuple):
    """A moment of a session at which it can be forked: ``head`` is the head then, of the session or of an ancestor.

    ``at``: the time of the moment, up to the row ``base.tx``. ``continues``: the commit that the fork continues; None
    for the newest commit of that moment. ``purges``: the number of purges before it was read, after which content that
    the fork copies may be gone.
    """

    base: ForkBase
    at: AsOf
    head: SessionHead
    continues: ContinuedCommit | None
    purges: int


class ForkOperations(OperationGroup):
    """Forks of the sessions of one store."""

    async def fork(self, actor: Actor, params: SessionForkParams, request: WriteRequest | None = None) -> Accepted:
        """Fork a session.

        Raises: CtxdError session_not_found, also for a moment before its beginning; session_removed, session_exists,
        session_owned_elsewhere, commit_not_found, invalid_params, idempotency_mismatch, and those of the store.
        Cancel: safe; nothing is made before the store accepts it.
        """
        request = request or write_request("session.fork", actor.principal, params)
        session = f"s-{random.token_hex(8)}" if params.fork is None else params.fork
        async with self.sessions.creating:
            if (replay := await find_replay(self.store, request)) is not None:
                return again(replay, SessionForkResult)
            await self.sessions.require_new(session)
            changes = {"state": "active", "archived": False}
            pending, result = await self._forked(actor, request, session, params, changes)
        return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))

    async def create_fork(
        self,
        actor: Actor,
        params: SessionCreateParams,
        source: SessionForkParams,
        moment: ForkMoment,
        request: WriteRequest,
    ) -> tuple[str, Pending] | Replay:
        """Fork a session at ``moment``, that of ``source``, with the settings of ``params``.

        Returns: the id of the fork, and its write, or the replay of an earlier request. Raises and cancel: as ``fork``;
        also invalid_path, too_large.
        """
        session = f"s-{random.token_hex(8)}" if params.session is None else params.session
        given = template_of(params)
        if "mounts" in given:
            given["prefixes"] = await self.indexer.visibility.resolve_prefixes(params.mounts)
        if not given.keys().isdisjoint(("workdir", "mounts")):
            settings = msgspec.structs.replace(self._newest(source.session).settings, **given)
            given["project"] = await self.sessions.project_of(settings)
        async with self.sessions.creating:
            if (replay := await find_replay(self.store, request)) is not None:
                return replay
            await self.sessions.require_new(session)
            changes = {"state": params.state, "archived": params.archived, **given}
            prompt, created = params.system_prompt or None, CreatedSession(session)
            pending, _ = await self._forked(actor, request, session, source, changes, moment, prompt, created)
            return session, pending

    async def _forked(
        self,
        actor: Actor,
        request: WriteRequest,
        session: str,
        source: SessionForkParams,
        changes: Mapping[str, Any],
        moment: ForkMoment | None = None,
        prompt: str | None = None,
        created: CreatedSession | None = None,
    ) -> tuple[Pending, SessionForkResult]:
        """Submit the fork ``session`` of the moment ``source``, with ``changes`` of its settings, and ``prompt`` in
        place of its system prompt. ``moment``: that of ``source``, if it is known. ``created``: the result of
        ``session.create``, which normalises the settings; None for ``session.fork``. Starts again if anything is purged
        meanwhile: content that the fork copies may be gone."""
        while True:
            base, at, head, continues, purges = moment or await self.moment_of(source)
            moment = None
            settings = msgspec.structs.replace(continued(head.settings), base=base, continues=continues, **changes)
            if created is not None:
                settings = normalised(settings, self.sessions.guard, self.sessions.host_filesystem_id)
            puts = await self._own_documents(base.session, at, settings, session)
            if prompt is not None:
                capture = Capture(self.sessions.guard, settings.secrets)
                text = await off_loop(len(prompt), partial(capture.text, prompt))
                own = await self.store.keep(system_prompt(session, text, capture.secrets))
                puts = [own, *(each for each in puts if each.id != own.id)]
            # The session may have been removed for good since its head was read.
            self._newest(base.session)
            if self.sessions.purges == purges and not self.store.is_purging():
                break
        settings = msgspec.structs.replace(
            settings,
            principal=actor.principal,
            created_at=self.sessions.clock.wall_ms(),
            ordinal=self.sessions.next_ordinal(),
        )
        result = SessionForkResult(session=session, base=base.session, tx=base.tx, turn=head.turn_count, receipt=None)
        write = Write(
            kind=request.kind,
            principal=request.principal,
            session=session,
            op_id=request.op_id,
            request=request.request,
            result=kept_result(request, created or result),
            # As of a row of an import, the session is incomplete, but the beginning that the fork shares is complete.
            puts=(head_document(session, msgspec.structs.replace(head, settings=settings, entering=False)), *puts),
        )
        pending = self.store.submit(write)
        request.submitted = True
        self.indexer.visibility.confine(mount_table(settings, self.sessions.host_filesystem_id))
        return pending, result

    def _newest(self, session: str) -> SessionHead:
        """Return the newest durable head of ``session``. Raises: CtxdError session_not_found, session_removed,
        session_owned_elsewhere."""
        known = self.sessions.catalog.newest(session)
        if known is None:
            raise no_session(session, shared=self.sessions.shared)
        if (moved := self.sessions.moved_sessions.get(session)) is not None:
            raise moved.error(session)
        if known[0].settings.state == "removed":
            message = f"session {session} is in the trash"
            raise CtxdError("session_removed", message, hint="Call session.restore first.", outcome="not_applied")
        return known[0]

    async def moment_of(self, params: SessionForkParams) -> ForkMoment:
        """Return the moment that ``params`` mean. Raises: as ``fork``."""
        purges = self.sessions.purges
        # Writes accepted before the call become durable, and enter the catalog.
        await self.store.wait_for_writes()
        session, head = params.session, self._newest(params.session)
        receipt = self.store.head()
        assert receipt is not None, "a session that is known was written"
        at, continues = AsOf.given(params.valid_time, params.tx), None
        if params.commit is not None:
            if at.is_past:
                raise CtxdError("invalid_params", "commit excludes valid_time and tx", outcome="not_applied")
            session, at, continues = await self._commit(params, params.commit)
        is_past, at = params.commit is None and at.is_past, AsOf(at.valid_time, min(at.tx, receipt.seq))
        while (stored := await self.store.get(session_object_id(session), at)) is None:
            base = self.sessions.catalog.settings(session).base
            if base is None:
                message = f"session {params.session} began at {moment(head.settings.created_at)}"
                raise CtxdError("session_not_found", message, hint="Choose that time or a later one.")
            session, at = base.session, AsOf(at.valid_time, min(at.tx, base.tx))
        then, segments = read_head(stored), await self._segments(session, at)
        if params.valid_time is not None:
            at = await self._known_by(session, at, stored, segments)
        base = ForkBase(session, segments, then.assembly, at.tx)
        if is_past:
            continues = await self._newest_within(base, at)
        return ForkMoment(base, at, then, continues, purges)

    async def _known_by(self, session: str, at: AsOf, head: Stored, segments: int) -> AsOf:
        """Return ``at`` up to the newest row of its valid time, or to a later one that wrote ``head`` or a segment at a
        past valid time: what ``session`` had by then is inherited by a fork, and nothing later."""
        newest = await self.store.read_index(partial(newest_at, valid_time=at.valid_time))
        id = self.sessions.lineage(session).segment_id(segments - 1) if segments else None
        last = None if id is None else (await self.store.heads((id,)))[id]
        return AsOf(at.valid_time, min(at.tx, max(newest, head.tx, 0 if last is None else last.tx)))

    async def _commit(self, params: SessionForkParams, commit: str) -> tuple[str, AsOf, ContinuedCommit | None]:
        """Return the session of the commit, the moment up to which the commit holds its chat, and the commit if it was
        made later than that: a checkpoint of whole turns is made once the next turn has begun."""
        found = await self.store.history(entity_id(commit), page=Page(limit=1))
        if not found:
            hint = "commit.list lists the commits."
            raise CtxdError("commit_not_found", f"there is no commit {commit}", hint=hint, outcome="not_applied")
        fields = msgspec.convert(found[0].document.payload, Fields)
        session = fields.session
        if session is None or session not in self.sessions.lineage(params.session).sessions:
            if (inherited := await self._inherited(params.session, commit, found[0].tx)) is not None:
                return params.session, AsOf(tx=found[0].tx), inherited
            message = f"commit {commit} belongs to {f'session {session}' if session else 'no session'}"
            message += f", not to {params.session}"
            hint = "Name the session that the commit belongs to."
            raise CtxdError("invalid_params", message, hint=hint, outcome="not_applied")
        at = AsOf(tx=found[0].tx)
        if fields.position is None or (end := await self._end_of_chat(session, at, fields.position)) == at:
            return session, at, None
        # Of several commits in one write, only the last holds the whole chat up to that position.
        newest = CommitFilter(session=session, tx=at.tx, until=fields.at)
        last = await self.store.read_index(partial(commit_index.newest, wanted=newest))
        if last is None or msgspec.convert(last.document.payload, Fields).position != fields.position:
            return session, at, None
        return session, end, ContinuedCommit(commit_id(last.document.id), fields.position)

    async def _end_of_chat(self, session: str, at: AsOf, position: Position) -> AsOf:
        """Return the last moment up to ``at`` at which the chat of ``session`` ended at ``position``; ``at`` itself if
        the chat still ends there, or if no write ended exactly there."""
        live = await self.sessions.as_of(session, at)
        pages, turns = live.state.pages, live.state.turns
        later = pages.within(position.chat, (len(turns), 0))
        if position.chat >= (len(turns) - 1, len(turns[-1])) or pages.first(later.start) != position.chat:
            return at
        return AsOf(tx=live.seqs[pages.segment(later.start)] - 1)

    async def placed(self, session: str, tip: str) -> AsyncGenerator[tuple[Stored, Position | None]]:
        """Yield the commit ``tip`` and its ancestors, up to the one with which ``session`` or an ancestor of it began:
        each with its end in the chat of ``session``, None if it was never in that chat. Raises: those of the store."""
        sessions = self.sessions.lineage(session).sessions
        began = self.sessions.commits_begun_with(session)
        id = entity_id(tip)
        while True:
            chain = partial(commit_index.chain_versions, tip=id, limit=_COMMITS_AT_ONCE + 1)
            some = [stored for stored, _ in await self.store.read_index(chain)]
            for stored in some[:_COMMITS_AT_ONCE]:
                fields = msgspec.convert(stored.document.payload, Fields)
                if (position := began.get(stored.document.id)) is not None:
                    yield stored, position
                    return
                yield stored, fields.position if fields.session in sessions else None
            if len(some) <= _COMMITS_AT_ONCE:
                return
            id = some[_COMMITS_AT_ONCE].document.id

    async def end_of_chat(self, base: ForkBase) -> EventPosition:
        """Return the end of the chat that a fork at ``base`` shares, as the place of the next event. Raises and cancel:
        as ``Sessions.live``."""
        state = (await self.sessions.live(base.session)).state
        return state.pages.first_from(base.segments) or (len(state.turns) - 1, len(state.turns[-1]))

    async def _newest_within(self, base: ForkBase, at: AsOf) -> ContinuedCommit | None:
        """Return the newest commit of the session of ``base`` that has nothing of its chat after ``base``, for example
        a checkpoint of whole turns, which is made once the next turn has begun. None without one, and if no commit is
        later than ``at``: then it is the newest commit of that moment."""
        latest = CommitFilter(session=base.session)
        then = msgspec.structs.replace(latest, tx=at.tx, until=at.valid_time)
        tip, made = [
            await self.store.read_index(partial(commit_index.newest, wanted=wanted)) for wanted in (latest, then)
        ]
        if tip is None or (made is not None and made.document.id == tip.document.id):
            return None
        end = await self.end_of_chat(base)
        found: str | None = None
        async with aclosing(self.placed(base.session, commit_id(tip.document.id))) as commits:
            async for stored, position in commits:
                id = stored.document.id
                if found is None and (
                    position.chat <= end
                    if position is not None
                    else at.includes((await self.store.history(id, page=Page(limit=1)))[0])
                ):
                    found = commit_id(id)
                if found is not None and position is not None:
                    return ContinuedCommit(found, position)
        return None if found is None else ContinuedCommit(found, Position())

    async def _inherited(self, session: str, commit: str, tx: int) -> ContinuedCommit | None:
        """Return ``commit``, made by row ``tx``, if ``session`` was imported from another host and inherited it there
        from the session that it was forked from; else None."""
        begun = self.sessions.catalog.settings(session).continues
        chain = [] if begun is None else await self._chain(begun.commit, commit)
        if chain[-1:] != [entity_id(commit)]:
            return None
        head = await self.store.get(session_object_id(session), AsOf(tx=tx))
        if head is None:
            return None
        for stored in (await self.store.bulk(await self._chain(commit))).values():
            if (position := msgspec.convert(stored.document.payload, Fields).position) is not None:
                return ContinuedCommit(commit, position)
        return ContinuedCommit(commit, Position())

    async def _chain(self, tip: str, last: str = "") -> list[str]:
        walk = partial(commit_index.chain, tip=entity_id(tip), last=entity_id(last) if last else "")
        return await self.store.read_index(walk)

    async def _segments(self, session: str, at: AsOf) -> int:
        """Return the number of segments of ``session`` as of ``at``, by bisection: later segments have later times."""
        lineage = self.sessions.lineage(session)
        newest = await self.store.scan(segments_prefix(session), page=Page(limit=1, ascending=False))
        low = lineage.inherited
        high = number_of(newest[0].document.id) + 1 if newest else low
        if newest and at.includes(newest[0]):
            return high
        while low < high:
            middle = (low + high) // 2
            id = lineage.segment_id(middle)
            stored = (await self.store.heads((id,)))[id]
            if stored is None:
                raise CtxdError("corrupt", f"{id} is missing")
            low, high = (middle + 1, high) if at.includes(stored) else (low, middle)
        return low

    async def _own_documents(self, base: str, at: AsOf, settings: SessionSettings, session: str) -> list[Document]:
        """Return the system prompt and the entries of the session ``base`` at ``at``, renamed for ``session``."""
        own = {str(system_prompt_id(base)): str(system_prompt_id(session))}
        own |= {entry_id(base, key): entry_id(session, key) for key in settings.entries}
        found: dict[str, Stored] = await self.store.bulk(list(own), at, content=True)
        return [await self.store.keep(renamed(stored.document, own[id])) for id, stored in found.items()]
