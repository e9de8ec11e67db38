"""Assembly of a session's current context: refresh, render, compose, record.

First, files that changed on disk are read again, so that a context is never stale. Then the session's rendering is
brought up to date, yielding to other tasks in between. Last, the context is composed and recorded without an await, so
that the store, read as of the record's transaction, returns the very versions that were rendered.
"""

from collections.abc import Iterable, Mapping
from sys import getsizeof
from typing import Final

import msgspec

from ctxd import limits
from ctxd.assembly.append_assembly import AppendAssembler
from ctxd.assembly.assembly_record import (
    Assembled,
    KeptNumber,
    Recorded,
    context_of,
    document_of,
    form_of,
    new_context_id,
    read_record,
    tools_text,
)
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.render_cache import KeptContext, RenderCache
from ctxd.assembly.repack_policy import Aim
from ctxd.assembly.request_target import Wanted, WantedSpec
from ctxd.assembly.spec_layout import Composition, Heads, View, compose
from ctxd.assembly.spec_rendering import RENDERER
from ctxd.assembly.token_budget import sha256, stable_prefix
from ctxd.clock import Clock
from ctxd.epochs.component import Provider
from ctxd.epochs.component_loading import ComponentObserver
from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.models import Models
from ctxd.objects.document import Stored
from ctxd.sessions.live_session import LiveSession, Ticket, WriteRequest
from ctxd.sessions.reconciliation import refresh
from ctxd.sessions.registry import Sessions
from ctxd.sessions.stored_session import HideObjects
from ctxd.store.idempotency import mismatch
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import NotCached, Pending, Replay
from ctxd_protocol.context_types import BudgetPlan
from ctxd_protocol.session_types import ComponentName

_TEXT: Final = WantedSpec()


class Assembler:
    """Assembles contexts of live sessions, in the layout ``append`` or in that of ``archive``, whose token counter it
    uses.

    ``models``: the models that requests may be made for. ``providers``: of the components that a session may have.
    ``aim``: of repacks.
    """

    def __init__(
        self,
        store: VersionStore,
        sessions: Sessions,
        indexer: Indexer,
        archive: Archive,
        models: Models,
        clock: Clock,
        *,
        providers: Mapping[ComponentName, Provider],
        aim: Aim = "cost",
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._indexer = indexer
        self._archive = archive
        self._clock = clock
        self._cache = RenderCache(store, archive)
        observer = ComponentObserver(store, sessions.guard, providers)
        self._append = AppendAssembler(self._cache, archive, observer, sessions.visibility, models, clock, aim)

    async def assemble(
        self,
        live: LiveSession,
        call: WriteRequest,
        form: WantedSpec | Wanted = _TEXT,
        *,
        chars_max: int | None = None,
    ) -> Assembled:
        """The current context of ``live`` in ``form``, recorded. If it equals the last one recorded, returns that and
        writes nothing; a resend of ``call`` gets the same one while it is remembered, see ``REPEATS_MAX``.

        The caller may send the result once ``pending`` is durable. Raises: CtxdError session_closed,
        session_not_active, too_large, corrupt, and those of the store. Cancel: safe; nothing is recorded, but changed
        files may have new versions.
        """
        return await self._assemble(live, call, form, chars_max, dry_run=False)

    async def _assemble(
        self, live: LiveSession, call: WriteRequest, form: WantedSpec | Wanted, chars_max: int | None, *, dry_run: bool
    ) -> Assembled:
        with Ticket(live.lock.queue) as ticket:
            replay = await live.admit(ticket, call)
            if replay is not None:
                return await self._again(live, replay, chars_max)
            if call.op_id is not None and (repeat := self._cache.repeats.get((call.principal, call.op_id))) is not None:
                if repeat[0] != call.request:
                    raise mismatch(call.op_id)
                shown = await self._archive.show(live.session, number=repeat[1], bytes_max=chars_max)
                return Assembled(msgspec.structs.replace(shown.context, receipt=None))
            await self._refresh(live, call)
            if isinstance(form, Wanted):
                return await self._append.assemble(live, call, form, chars_max, dry_run=dry_run)
            while True:
                kept = await self._rendered(live, chars_max)
                composition = compose(kept.components, live.settings.budget_tokens, self._archive.count)
                if kept.recalled:
                    break
                await self._recall(kept, composition)
            # Count it also if nothing new is recorded.
            self._cache.put(kept)
            record, before = kept.record, kept.composition
            is_same = record is not None and (record.turn, record.form) == (live.state.turn, form_of(form.target))
            # Most texts are the same objects when little changed.
            if is_same and record and before and before.texts == composition.texts:
                self._cache.note_repeat(call, record.number)
                return self._repeated(kept, record, composition)
            return self._record(kept, call, composition, form, dry_run=dry_run)

    async def dry_run(
        self,
        live: LiveSession,
        call: WriteRequest,
        form: WantedSpec | Wanted = _TEXT,
        *,
        chars_max: int | None = None,
    ) -> Assembled:
        """The context that ``assemble`` would record, without recording it: number 0 and no context id, unless it
        equals the last one recorded. Raises, and cancel: as ``assemble``."""
        while True:
            cleared, bare = self._cache.cleared, call.without_id()
            made = await self._assemble(live, bare, form, chars_max, dry_run=True)
            # It may show writes of other sessions that are not durable yet.
            await self._store.wait_for_writes()
            if self._cache.cleared == cleared:
                return made
            # It may have been unloaded while this waited.
            live = await self._sessions.live(live.session)

    async def plan(
        self, live: LiveSession, budget_tokens: int | None, *, chars_max: int | None = None
    ) -> tuple[BudgetPlan, Pending | None]:
        """Return the budget plan of ``live`` for ``budget_tokens`` (None: no budget), and the write that it depends on.

        Files are not read again and nothing is written. Raises: CtxdError too_large, corrupt, store_failed. Cancel:
        safe.
        """
        while True:
            async with live.lock:
                kept = await self._rendered(live, chars_max)
                cleared = self._cache.cleared
                made = compose(kept.components, budget_tokens, self._archive.count).plan
                self._cache.put(kept)
                barrier = live.barrier
            # The plan may include writes of other sessions that are not durable yet.
            await self._store.wait_for_writes()
            if self._cache.cleared == cleared:
                return made, barrier
            live = await self._sessions.live(live.session)

    async def _again(self, live: LiveSession, replay: Replay, chars_max: int | None) -> Assembled:
        """The result of a resend: the assembly that the first request recorded, with the receipt of that write."""
        receipt = await replay.durable()
        number = msgspec.json.decode(replay.result, type=KeptNumber).number
        shown = await self._archive.show(live.session, number=number, bytes_max=chars_max)
        return Assembled(msgspec.structs.replace(shown.context, receipt=receipt))

    async def _refresh(self, live: LiveSession, call: WriteRequest) -> None:
        """Read active files that changed. From the pool of a sandbox's session, remove files whose newest version the
        sandbox may not see."""
        # Without the operation id, which belongs to the write of the record.
        if files := live.state.files(live.state.active):
            bare = call.without_id()
            fresh = await refresh(live, self._indexer, files, bare)
            if fresh.documents:
                live.submit(bare, puts=fresh.documents, signatures=fresh.signatures, floor_vt=fresh.floor_vt)
        if self._sessions.visibility.restricts(live.session):
            hidden = await self._sessions.visibility.hidden(live, live.state.pool)
            if hidden:
                live.submit(call.without_id(), (HideObjects(tuple(hidden)),))

    async def _rendered(self, live: LiveSession, chars_max: int | None) -> KeptContext:
        """The kept context of ``live`` with its components up to date; nothing awaits between the last check of
        versions and the return."""
        read: dict[str, Stored | None] = {}

        async def heads(ids: Iterable[str]) -> Heads:
            # Heads that are not in memory are read once: there may be more of them than the store's cache holds.
            found = {id: self._store.peek(id) for id in ids}
            if missing := [id for id, head in found.items() if isinstance(head, NotCached) and id not in read]:
                read.update(await self._store.heads(missing))
            return {id: read[id] if isinstance(head, NotCached) else head for id, head in found.items()}

        most = limits.CONTEXT_CHARS_MAX
        most = most if chars_max is None else min(chars_max, most)
        view = View(
            live=live, heads=heads, contents=self._store.contents, count=self._archive.count, renderer=RENDERER,
            chars_max=most,
        )  # fmt: skip
        while True:
            live.require_current()
            kept = self._cache.of(live)
            files = live.state.files(live.state.active)
            key = (live.last_pending, *map(self._store.peek, files))
            if kept.key == key:
                if kept.chars > most:
                    raise view.too_long(kept.chars)
                return kept
            kept.key = None
            before = (self._cache.cleared, self._store.next_seq)
            for component in kept.components:
                await component.update(view)
            kept.chars = sum(len(piece.text) for component in kept.components for piece in component.pieces.values())
            kept.rendered = sum(
                component.other_bytes
                + sum(getsizeof(piece) + getsizeof(piece.text) for piece in component.pieces.values())
                for component in kept.components
            )
            if before == (self._cache.cleared, self._store.next_seq):
                kept.key = key
            elif before[0] != self._cache.cleared:
                # Versions that were read may have been lost since.
                read.clear()

    async def _recall(self, kept: KeptContext, composition: Composition) -> None:
        """Restore the newest record, its composition and the context ids after a restart of the daemon, or an
        eviction."""
        session = kept.live.session
        known = await self._archive.recordings(kept.live)
        newest = await self._archive.at(session, known.spec) if known.spec else None
        if newest is not None:
            kept.record = read_record(newest)
            if kept.record.sha256 == sha256(composition.text()):
                kept.composition = composition
            else:
                try:
                    kept.composition, _ = await self._archive.render_again(session, newest, kept.record)
                except CtxdError as error:
                    if error.code not in ("corrupt", "unsupported", "purged"):
                        raise
        kept.context_ids, kept.recalled = set(known.numbers), True

    def _repeated(self, kept: KeptContext, record: Recorded, composition: Composition) -> Assembled:
        """The reply for ``record``. Reasons, versions and plan are the current ones: they may change while the text
        does not."""
        live, before = kept.live, kept.composition
        changed = before is None or composition.pieces != before.pieces or composition.plan != before.plan
        if kept.answer is None or (changed and self._will_be_durable(live, composition)):
            context = context_of(live.session, record, composition, composition.text())
            kept.answer, kept.composition = Assembled(context, live.barrier), composition
        return kept.answer

    def _will_be_durable(self, live: LiveSession, composition: Composition) -> bool:
        """True if every version shown is durable once the session's own writes are."""
        barrier, durable = live.barrier, self._store.head()
        reached = barrier.seq if barrier is not None else 0 if durable is None else durable.seq
        return all(piece.tx is None or piece.tx <= reached for piece in composition.pieces)

    def _record(
        self,
        kept: KeptContext,
        call: WriteRequest,
        composition: Composition,
        form: WantedSpec,
        *,
        dry_run: bool,
    ) -> Assembled:
        """Record ``composition`` in ``form``. Does not await."""
        live, before, ids = kept.live, kept.composition, kept.context_ids
        assert ids is not None, "the ids that are taken were read"
        text = composition.text()
        parent, now, digest = live.context_id or "", self._clock.wall_ms(), sha256(text)
        same = None
        if live.assembly:
            # If the assembly before cannot be rendered any more, no common prefix is known.
            same = 0 if before is None else stable_prefix(before.pieces, composition.pieces)
        record = Recorded(
            number=0 if dry_run else live.assembly + 1,
            segments=live.state.segments,
            turn=live.state.turn,
            context_id="" if dry_run else new_context_id(parent, digest, now, live.settings.agent, ids),
            parent=parent,
            sha256=digest,
            bytes=composition.size,
            tokens=composition.plan.tokens_after,
            stable_prefix=same,
            assembled_at=now,
            active=tuple(
                (piece.object, piece.valid_time, piece.tx)
                for piece in composition.pieces
                if piece.is_active and piece.valid_time is not None and piece.tx is not None
            ),
            dropped=tuple((dropped.object, dropped.reason) for dropped in composition.plan.dropped),
            renderer=RENDERER,
            form=form_of(form.target),
        )
        context = context_of(live.session, record, composition, text)
        if dry_run:
            return Assembled(context, live.barrier)
        pending = live.submit(
            call,
            puts=(document_of(live.session, record, tools_text(form.target), form.secrets),),
            result=KeptNumber(record.number),
            assembly=(record.number, record.context_id),
        )
        ids.add(record.context_id)
        kept.record, kept.composition, kept.answer = record, composition, Assembled(context, pending)
        if kept.key is not None:
            # Recording changed only the first item of the key, the newest write.
            kept.key = (pending, *kept.key[1:])
        self._cache.put(kept)
        return Assembled(context, pending, carries_receipt=True)
