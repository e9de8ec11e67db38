"""Forks of sessions: a session that goes on from a moment of another and shares its beginning, see ``lineage``.

A fork writes a head, the system prompt and the entries; its cost does not depend on what the session holds.
"""

import secrets as random

import msgspec

from ctxd.errors import CtxdError
from ctxd.formatting import moment
from ctxd.objects.commit_fields import STORED_NAMES, entity_id
from ctxd.objects.document import AsOf, Document, Page, Stored, renamed
from ctxd.objects.generated_ids import entry_id, number_of, segments_prefix
from ctxd.sessions.operation_steps import OperationGroup
from ctxd.sessions.registry import no_session
from ctxd.sessions.segments import SessionHead, head_document, read_head
from ctxd.sessions.session import Accepted, Actor, WriteRequest, again, find_replay, kept_result, write_request
from ctxd.sessions.settings import ForkBase, mount_table
from ctxd.store.writes import Write
from ctxd_protocol.ids import session_object_id, system_prompt_id
from ctxd_protocol.methods.sessions import SessionForkParams, SessionForkResult


class ForkOperations(OperationGroup):
    """Forks of the sessions of one store."""

    async def fork(self, actor: Actor, params: SessionForkParams, request: WriteRequest | None = None) -> Accepted:
        """Fork a session.

        Raises: CtxdError session_not_found, also for a moment before its beginning; session_removed, session_exists,
        session_owned_elsewhere, commit_not_found, invalid_params, unsupported with several hosts on one log,
        idempotency_mismatch, and those of the store. Cancel: safe; nothing is made before the store accepts it.
        """
        request = request or write_request("session.fork", actor.principal, params)
        if self.sessions.shared:
            hint = "Hand the session itself over: session.pause, then session.resume on the other host."
            message = "sessions of several hosts on one log cannot be forked"
            raise CtxdError("unsupported", message, hint=hint, outcome="not_applied")
        session = f"s-{random.token_hex(8)}" if params.fork is None else params.fork
        async with self.sessions.creating:
            if (replay := await find_replay(self.store, request)) is not None:
                return again(replay, SessionForkResult)
            await self.sessions.require_new(session)
            base, head = await self._moment(params)
            puts = await self._own_documents(base, head, session)
            settings = msgspec.structs.replace(
                head.settings,
                principal=actor.principal,
                created_at=self.sessions.clock.wall_ms(),
                ordinal=self.sessions.next_ordinal(),
                state="active",
                base=base,
            )
            head = msgspec.structs.replace(head, settings=settings)
            result = SessionForkResult(
                session=session, base=base.session, tx=base.tx, turn=head.turn_count, receipt=None
            )
            # Since its head was read the session may have been removed for good.
            self._newest(base.session)
            write = Write(
                kind=request.kind,
                principal=request.principal,
                session=session,
                op_id=request.op_id,
                request=request.request,
                result=kept_result(request, result),
                puts=(head_document(session, head), *puts),
            )
            pending = self.store.submit(write)
            request.submitted = True
        self.indexer.visibility.confine(mount_table(settings, self.sessions.host_filesystem_id))
        return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))

    def _newest(self, session: str) -> SessionHead:
        """The newest durable head of ``session``. Raises: CtxdError session_not_found, session_removed,
        session_owned_elsewhere."""
        known = self.sessions.catalog.newest(session)
        if known is None:
            raise no_session(session, shared=self.sessions.shared)
        if known[0].settings.state == "removed":
            message = f"session {session} is in the trash"
            raise CtxdError("session_removed", message, hint="Call session.restore first.", outcome="not_applied")
        return known[0]

    async def _moment(self, params: SessionForkParams) -> tuple[ForkBase, SessionHead]:
        """The moment that ``params`` mean, and the head of the session, or the ancestor of it, that was there then."""
        # What was accepted before the call is durable, and in the catalog.
        await self.store.settled()
        session, head = params.session, self._newest(params.session)
        receipt = self.store.head()
        assert receipt is not None, "a session that is known was written"
        at = AsOf.given(params.valid_time, params.tx)
        if params.commit is not None:
            if at.is_past:
                raise CtxdError("invalid_params", "commit excludes valid_time and tx", outcome="not_applied")
            session, at = await self._commit(params, params.commit)
        at = AsOf(at.valid_time, min(at.tx, receipt.seq))
        while (stored := await self.store.get(session_object_id(session), at)) is None:
            base = self.sessions.catalog.settings(session).base
            if base is None:
                message = f"session {params.session} began at {moment(head.settings.created_at)}"
                raise CtxdError("session_not_found", message, hint="Choose that time or a later one.")
            session, at = base.session, AsOf(at.valid_time, min(at.tx, base.tx))
        then = read_head(stored)
        return ForkBase(session, await self._segments(session, at), then.assembly, at.tx), then

    async def _commit(self, params: SessionForkParams, commit: str) -> tuple[str, AsOf]:
        """The session that the commit is of, and the journal sequence at which it was made."""
        found = await self.store.history(entity_id(commit), page=Page(limit=1))
        if not found:
            hint = "commit.list has the commits there are."
            raise CtxdError("commit_not_found", f"there is no commit {commit}", hint=hint, outcome="not_applied")
        session = found[0].document.payload.get(STORED_NAMES["session"])
        if session not in self.sessions.lineage(params.session).sessions:
            message = f"commit {commit} is of {f'session {session}' if session else 'no session'}, not {params.session}"
            hint = "Name the session that the commit is of."
            raise CtxdError("invalid_params", message, hint=hint, outcome="not_applied")
        return session, AsOf(tx=found[0].tx)

    async def _segments(self, session: str, at: AsOf) -> int:
        """The number of segments that ``session`` had ``at`` a moment, found by halving: times rise with numbers."""
        lineage = self.sessions.lineage(session)
        newest = await self.store.scan(segments_prefix(session), page=Page(limit=1, ascending=False))
        low = lineage.inherited
        high = number_of(newest[0].document.id) + 1 if newest else low
        while low < high:
            middle = (low + high) // 2
            id = lineage.segment_id(middle)
            stored = (await self.store.heads((id,)))[id]
            if stored is None:
                raise CtxdError("corrupt", f"{id} is missing", hint="Run `ctxd verify`.")
            low, high = (middle + 1, high) if at.includes(stored) else (low, middle)
        return low

    async def _own_documents(self, base: ForkBase, head: SessionHead, session: str) -> list[Document]:
        """The system prompt and the entries of the session ``base`` then, as those of ``session``."""
        own = {str(system_prompt_id(base.session)): str(system_prompt_id(session))}
        own |= {entry_id(base.session, key): entry_id(session, key) for key in head.settings.entries}
        found: dict[str, Stored] = await self.store.bulk(list(own), AsOf(tx=base.tx), content=True)
        return [await self.store.keep(renamed(stored.document, own[id])) for id, stored in found.items()]
