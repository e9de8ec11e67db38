"""Assembly of a session's current context: freshen, render, compose, record.

Files that changed on disk are read again first, so that a context is never stale; then the session's rendering is
brought up to date, others having their turn in between; then, without an await, the context is composed and recorded.
The record's transaction is therefore the one at which the store shows the very versions that were rendered.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import msgspec

from ctxd import limits
from ctxd.assembly.append_assembly import (
    Grown,
    KeptWindow,
    Rendering,
    Wanted,
    context_of_window,
    form_of,
    grow,
    record_of,
    render,
    target_for,
    tools_hash,
    tools_text,
)
from ctxd.assembly.append_planner import AppendWindow, LastRequest
from ctxd.assembly.assembly_archive import Archive
from ctxd.assembly.assembly_record import (
    Assembled,
    Recorded,
    context_of,
    document_of,
    new_context_id,
    note_request,
    read_record,
)
from ctxd.assembly.calibration import MeasuredRequest, calibrated
from ctxd.assembly.composition import Composition, Heads, SectionPieces, View, compose, too_long
from ctxd.assembly.repack_policy import Aim, Kind
from ctxd.assembly.repack_window import UNJUDGED_CUTS, Moment, rules_for
from ctxd.assembly.request_bodies import RequestTarget
from ctxd.assembly.request_figures import (
    cost_of,
    judged,
    measured_requests,
    next_request,
    unjudged,
    with_figures,
)
from ctxd.assembly.token_budget import sha256, stable_prefix
from ctxd.assembly.window_items import WindowItem
from ctxd.clock import Clock
from ctxd.epochs.component import Provider
from ctxd.epochs.component_loading import ComponentObserver
from ctxd.epochs.fold import Begin, Components, EpochHead, LostRace, append
from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.models import Models
from ctxd.objects.document import Document, Stored
from ctxd.sessions.reconciliation import freshen
from ctxd.sessions.registry import Sessions
from ctxd.sessions.segments import HideObjects
from ctxd.sessions.session import LiveSession, Ticket, WriteRequest
from ctxd.store.idempotency import mismatch
from ctxd.store.store import VersionStore
from ctxd.store.writes import NotCached, Pending, Replay, Write
from ctxd_protocol.context_types import BudgetPlan
from ctxd_protocol.session_types import ComponentName

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the contexts that are kept. A session whose own is larger is rendered whole at each assembly."""

SESSIONS_KEPT_MAX: Final = 32
"""Sessions whose rendering is kept. One of 10,000 objects takes about 8 MiB; one that is not kept is rendered whole."""


class _KeptNumber(msgspec.Struct, frozen=True):
    """Stored result of ``context.assemble`` for a resend: the assembly is rendered again from its record."""

    number: int


class KeptContext(msgspec.Struct, eq=False):
    """Rendered components of one session, its newest record, and the context that this recorded.

    ``key``: the state that the components show, None for one that is out of date. ``context_ids``: all that the session
    has recorded, None before they are read; ``record``, ``composition`` and ``answer`` are None before one is known.
    ``recalled``: the newest record was looked for.
    ``window``: that of the layout ``append``, None before it is read.
    """

    live: LiveSession
    components: Sequence[SectionPieces]
    context_ids: set[str] | None
    recalled: bool = False
    key: tuple[Any, ...] | None = None
    record: Recorded | None = None
    composition: Composition | None = None
    answer: Assembled | None = None
    window: KeptWindow | None = None

    @property
    def size(self) -> int:
        """Bytes that are kept, about."""
        composed = 0 if self.composition is None else self.composition.size
        return composed + (0 if self.window is None else self.window.size)


class _NextPart(NamedTuple):
    """Addition of the next assembly to a window: the part, and the documents of new component texts, from the valid
    time ``floor_vt`` on."""

    kept: KeptContext
    before: KeptWindow
    grown: Grown
    texts: tuple[Document, ...]
    floor_vt: int


REPEATS_MAX: Final = 10_000
"""Requests for an unchanged context that are remembered: nothing was written for them. Each takes some 300 bytes."""


class RenderCache:
    """Contexts of sessions between assemblies, least recently used evicted, within bounds of number and bytes.

    A rendering is current until a version of an object in the session's pool changes: by a write of the session itself,
    which the key shows, or by anybody's version of a file, which the store reports once it is durable. Of active files
    the key shows it at once: they were just compared with the disk. Other writes concern no rendering. ``cleared``
    counts how often all was dropped, since writes were lost or a purge was made.
    """

    def __init__(self, store: VersionStore) -> None:
        self.cleared = 0
        self._kept: OrderedDict[str, KeptContext] = OrderedDict()
        # Of all objects in a pool, only files get versions from others than the session.
        store.on_durable(self._invalidate, types=("file",))
        store.on_lost(self._clear)

    def get(self, live: LiveSession) -> KeptContext | None:
        """The kept context of ``live``, None without one."""
        kept = self._kept.get(live.session)
        if kept is None or kept.live is not live:
            return None
        self._kept.move_to_end(live.session)
        return kept

    def put(self, kept: KeptContext) -> None:
        """Keep ``kept``, and evict those used longest ago until all are within the bounds."""
        self._kept[kept.live.session] = kept
        size = sum(each.size for each in self._kept.values())
        while self._kept and (len(self._kept) > SESSIONS_KEPT_MAX or size > KEPT_BYTES_MAX):
            _, gone = self._kept.popitem(last=False)
            size -= gone.size

    def _invalidate(self, landed: Sequence[tuple[Write, Pending]]) -> None:
        """Mark the renderings that show a file with a new version; after a purge drop all, which may show its text."""
        if any(write.purge is not None for write, _ in landed):
            self._clear(frozenset())
            return
        for write, _ in landed:
            files = [document.id for document in write.puts if document.type == "file"]
            for session, kept in self._kept.items():
                if session != write.session and kept.key and not kept.live.state.pool.keys().isdisjoint(files):
                    kept.key = None

    def _clear(self, sessions: frozenset[str]) -> None:
        """Drop all: a lost version of a file may be in the rendering of any session."""
        self.cleared += 1
        self._kept.clear()


class Assembler:
    """Assembles contexts of live sessions, in the layout and with the token counter of ``archive``.

    ``models``: those that requests may be made for. ``providers``: those of the components that a session may have.
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
        self._models = models
        self._observer = ComponentObserver(store, sessions.guard, providers)
        self._aim: Aim = aim
        self._sessions = sessions
        self._indexer = indexer
        self._archive = archive
        self._clock = clock
        self._cache = RenderCache(store)
        # The newest requests that found their context recorded: digest and number, by principal and operation id.
        self._repeats: OrderedDict[tuple[str, str], tuple[bytes, int]] = OrderedDict()

    async def assemble(
        self,
        live: LiveSession,
        call: WriteRequest,
        *,
        chars_max: int | None = None,
        wanted: Wanted | None = None,
        target: RequestTarget | None = None,
    ) -> Assembled:
        """The context of ``live`` as it is now, recorded; if it is the one recorded last, that, and nothing is written:
        a resend of ``call`` gets it as long as this runs. ``wanted``: the form in the layout ``append``; None for the
        layout of ``archive``, and then ``target`` of the request that is made of it, None for text.

        Its answer may go out once ``pending`` is durable. Raises: CtxdError session_closed, session_not_active,
        too_large, corrupt, and those of the store. Cancel: safe; files that changed may have new versions then, and
        nothing is recorded.
        """
        with Ticket(live.lock.queue) as ticket:
            replay = await live.admit(ticket, call)
            if replay is not None:
                return await self._again(live, replay)
            if call.op_id is not None and (repeat := self._repeats.get((call.principal, call.op_id))) is not None:
                if repeat[0] != call.request:
                    raise mismatch(call.op_id)
                shown = await self._archive.show(live.session, number=repeat[1])
                return Assembled(msgspec.structs.replace(shown.context, receipt=None))
            await self._freshen(live, call)
            if wanted is not None:
                return await self._grown(live, call, wanted, chars_max)
            while True:
                kept = await self._rendered(live, chars_max)
                composition = compose(kept.components, live.settings.budget_tokens, self._archive.count)
                if kept.recalled:
                    break
                await self._recall(kept, composition)
            record, before, form = kept.record, kept.composition, form_of(target)
            is_same = record is not None and (record.turn, record.form) == (live.state.turn, form)
            # Most texts are the same objects when little changed.
            if is_same and record and before and before.texts == composition.texts:
                self._note_repeat(call, record.number)
                return self._repeated(kept, record, composition)
            return self._record(kept, call, composition, target)

    def _note_repeat(self, call: WriteRequest, number: int) -> None:
        if call.op_id is not None:
            self._repeats[call.principal, call.op_id] = (call.request, number)
            if len(self._repeats) > REPEATS_MAX:
                self._repeats.popitem(last=False)

    async def _grown(self, live: LiveSession, call: WriteRequest, wanted: Wanted, chars_max: int | None) -> Assembled:
        """The window of ``live`` in the form ``wanted``, grown by what came since and recorded."""
        while (next_part := await self._next_part(live, call, wanted)) is None:
            pass
        kept, before, grown, texts, floor_vt = next_part
        assert kept.context_ids is not None, "they were read"
        target, last = target_for(live.session, wanted, grown.spoken or grown.window.model), before.rendering
        is_same = last is not None and not grown.planned.refs and last.target == target
        came, request = grown, next_request(live.assembly + 1, before.record, target)
        moment, done = None, unjudged(came)
        if target is not None:
            moment = self._moment(live, before.window, target)
            # The budget may be another now.
            if not is_same or _exceeds(before, moment):
                known = calibrated(before.requests, live.state.usage, target.format, target.model)
                done = judged(came, moment, known, request)
        grown, decision = done.grown, done.decision
        if is_same and before.record is not None and (decision is None or decision.reason is None):
            return self._repeated_window(live, call, before, before.record)
        made, items = self._window_rendered(live, grown, target, chars_max)
        record = record_of(live, grown, made, last, self._clock.wall_ms(), decision)
        record = with_figures(record, before, came, done, request, moment)
        id = new_context_id(record.parent, record.sha256, record.assembled_at, live.settings.agent, kept.context_ids)
        record = msgspec.structs.replace(record, context_id=id)
        cost = cost_of(record, self._models)
        context = context_of_window(live.session, record, items, made, live.settings.budget_tokens, cost)
        document = document_of(live.session, record, tools_text(target), wanted.secrets)
        result, puts = _KeptNumber(record.number), (document, *texts)
        pending = live.commit(call, puts=puts, result=result, assembly=(record.number, id), floor_vt=floor_vt)
        kept.context_ids.add(id)
        window = grown.window
        window.base = record.number if grown.is_new else window.base
        window.take(grown.planned, grown.items)
        window.ends = window.ends_with(len(items))
        note_request(window, record)
        requests = measured_requests((record,), before.requests)
        kept.window = KeptWindow(window, record, made, Assembled(context, pending), requests)
        self._cache.put(kept)
        return Assembled(context, pending, carries_receipt=True)

    async def _next_part(self, live: LiveSession, call: WriteRequest, wanted: Wanted) -> _NextPart | None:
        """Everything that the next assembly of ``live`` adds; None if it was overtaken, and has to be observed again.
        Nothing awaits behind the last check."""
        kept, cleared = self._kept(live), self._cache.cleared
        if kept.window is None:
            await self._recall_window(kept)
        before = kept.window
        assert before is not None, "it was read"
        expected = _epoch_head(live, before)
        grown = await grow(
            self._archive.windows,
            live,
            before.window,
            cuts=self._cuts(live, wanted, before.window),
            components=await self._observed(live, call),
            address=self._observer.address,
            tools=None if wanted.format is None else tuple(tool.name for tool in wanted.tools),
        )
        texts, floor_vt = await self._observer.documents(live.session, grown.planned.texts)
        if cleared != self._cache.cleared:
            return None
        try:
            append(grown.window.epoch, _epoch_head(live, before), expected, grown.planned.event)
        except LostRace:
            return None
        return _NextPart(kept, before, grown, texts, floor_vt)

    def _repeated_window(self, live: LiveSession, call: WriteRequest, kept: KeptWindow, record: Recorded) -> Assembled:
        """The answer of ``record``, the newest one of the window ``kept``, to which nothing came."""
        self._note_repeat(call, record.number)
        if kept.answer is None:
            assert kept.rendering is not None, "it was compared"
            items, budget, cost = kept.window.flat(), live.settings.budget_tokens, cost_of(record, self._models)
            context = context_of_window(live.session, record, items, kept.rendering, budget, cost)
            kept.answer = Assembled(context, live.barrier)
        return kept.answer

    async def _observed(self, live: LiveSession, call: WriteRequest) -> Components:
        """The components of ``live`` as they are now; none without a setting that names some, and without entries."""
        if not live.settings.components and not live.settings.entries:
            return {}
        confined = self._sessions.visibility.restricts(live.session)
        return await self._observer.observe(live, call.without_id(), confined=confined)

    def _cuts(self, live: LiveSession, wanted: Wanted, window: AppendWindow) -> Mapping[Kind, int]:
        """Tokens to which contents are cut that enter ``window``. Raises: CtxdError invalid_params."""
        name = wanted.model or window.model
        if wanted.format is None or name is None:
            return UNJUDGED_CUTS
        return rules_for(self._models.get(name), live.settings.budget_tokens, wanted.max_tokens, self._aim).cuts

    def _moment(self, live: LiveSession, window: AppendWindow, target: RequestTarget) -> Moment:
        """Everything that a decision on the next request for ``target`` depends on beside the window. Raises: CtxdError
        invalid_params for an unknown model."""
        model, last = self._models.get(target.model), window.request
        before = last
        # Another model, format or list of tools has a cache of its own.
        asked = (target.format, target.model, tools_hash(target))
        if last is not None and (last.format, last.model, last.tools) != asked:
            last = None
        return Moment(
            turn=live.state.turn,
            kept={*live.state.pinned, *live.state.chosen},
            idle_s=None if last is None else max(0.0, (self._clock.wall_ms() - last.at_ms) / 1000),
            sent_items=0 if last is None else last.count,
            tools_tokens=self._archive.count(tools_text(target) or ""),
            begins=None if before is None else _switched(before, target),
            carried=window.carried,
            model=model,
            rules=rules_for(model, live.settings.budget_tokens, target.max_tokens, self._aim),
        )

    def _window_rendered(
        self, live: LiveSession, grown: Grown, target: RequestTarget | None, chars_max: int | None
    ) -> tuple[Rendering, list[WindowItem]]:
        """The grown window in the form of ``target``, and its items. Raises: CtxdError too_large."""
        items = grown.flat()
        made = render(live.session, items, target, grown.window.ends_with(len(items)), grown.window.renderer)
        most = min(limits.CONTEXT_CHARS_MAX, limits.CONTEXT_CHARS_MAX if chars_max is None else chars_max)
        if len(made.plain) > most:
            raise too_long(live.session, len(made.plain), most)
        return made, items

    async def _recall_window(self, kept: KeptContext) -> None:
        """Take up the window where an earlier life of the session, or of the daemon, left it."""
        live = kept.live
        last: Recorded | None = None
        requests: list[MeasuredRequest] = []
        context_ids: set[str] = set()
        if live.assembly:
            async with aclosing(self._archive.pages(live.session)) as pages:
                async for page in pages:
                    records = [*map(read_record, page)]
                    last = next((record for record in reversed(records) if record.window is not None), last)
                    requests = measured_requests(records, requests)
                    context_ids.update(record.context_id for record in records)
        kept.window = KeptWindow(AppendWindow()) if last is None else await self._archive.recall(live, last)
        kept.window.requests = requests
        kept.context_ids = kept.context_ids or context_ids

    def _kept(self, live: LiveSession) -> KeptContext:
        """The context kept of ``live``; a new one, empty, if none is."""
        kept = self._cache.get(live)
        if kept is None:
            kept = KeptContext(
                live, self._archive.layout(), None if live.assembly else set(), recalled=not live.assembly
            )
            self._cache.put(kept)
        return kept

    async def plan(
        self, live: LiveSession, budget_tokens: int | None, *, chars_max: int | None = None
    ) -> tuple[BudgetPlan, Pending | None]:
        """Return the budget plan of ``live`` for ``budget_tokens`` (None: no budget), and the write it waits for.

        Files are not read again and nothing is written. Raises: CtxdError too_large, corrupt, store_failed. Cancel:
        safe.
        """
        while True:
            async with live.lock:
                kept = await self._rendered(live, chars_max)
                cleared = self._cache.cleared
                made = compose(kept.components, budget_tokens, self._archive.count).plan
                barrier = live.barrier
            # The plan may show what other sessions wrote and can still lose.
            await self._store.settled()
            if self._cache.cleared == cleared:
                return made, barrier

    async def _again(self, live: LiveSession, replay: Replay) -> Assembled:
        """The answer to a request that comes again: the assembly that it recorded, with the receipt of that write."""
        receipt = await replay.durable()
        number = msgspec.json.decode(replay.result, type=_KeptNumber).number
        shown = await self._archive.show(live.session, number=number)
        return Assembled(msgspec.structs.replace(shown.context, receipt=receipt))

    async def _freshen(self, live: LiveSession, call: WriteRequest) -> None:
        """Read active files that changed; take out of the pool of a session in a sandbox the files whose newest version
        the sandbox may not see."""
        # Without the operation id: that goes with the record.
        if files := live.state.files(live.state.active):
            bare = call.without_id()
            fresh = await freshen(live, self._indexer, files, bare)
            if fresh.documents:
                live.commit(bare, puts=fresh.documents, signatures=fresh.signatures, floor_vt=fresh.floor_vt)
        if self._sessions.visibility.restricts(live.session):
            hidden = await self._sessions.visibility.hidden(live, live.state.pool)
            if hidden:
                live.commit(call.without_id(), (HideObjects(tuple(hidden)),))

    async def _rendered(self, live: LiveSession, chars_max: int | None) -> KeptContext:
        """The kept context of ``live`` with its components up to date; nothing awaits between the last look at a
        version and the return."""
        read: dict[str, Stored | None] = {}

        async def heads(ids: Iterable[str]) -> Heads:
            # What is not in memory is read once: there may be more than the cache of the store holds.
            found = {id: self._store.peek(id) for id in ids}
            if missing := [id for id, head in found.items() if isinstance(head, NotCached) and id not in read]:
                read.update(await self._store.heads(missing))
            return {id: read[id] if isinstance(head, NotCached) else head for id, head in found.items()}

        most = limits.CONTEXT_CHARS_MAX
        most = most if chars_max is None else min(chars_max, most)
        view = View(live=live, heads=heads, contents=self._store.contents, count=self._archive.count, chars_max=most)
        if live.state.chat_chars > most:
            raise view.too_long(live.state.chat_chars)
        while True:
            live.require_current()
            kept = self._kept(live)
            files = live.state.files(live.state.active)
            key = (live.last_pending, *map(self._store.peek, files))
            if kept.key == key:
                return kept
            kept.key = None
            before = (self._cache.cleared, self._store.next_seq)
            for component in kept.components:
                await component.update(view)
            if before == (self._cache.cleared, self._store.next_seq):
                kept.key = key
            elif before[0] != self._cache.cleared:
                # What was read may have been lost since.
                read.clear()

    async def _recall(self, kept: KeptContext, composition: Composition) -> None:
        """Take up where an earlier life of the session, or of the daemon, left off."""
        session = kept.live.session
        newest: Stored | None = None
        context_ids: set[str] = set()
        async with aclosing(self._archive.pages(session)) as pages:
            async for page in pages:
                records = [*map(read_record, page)]
                found = (stored for stored, record in zip(page, records, strict=True) if record.window is None)
                newest = next(reversed([*found]), newest)
                context_ids.update(record.context_id for record in records)
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
        kept.context_ids, kept.recalled = context_ids, True

    def _repeated(self, kept: KeptContext, record: Recorded, composition: Composition) -> Assembled:
        """The record's answer. The reasons, the versions and the plan are those of now: they may change where the text
        does not."""
        live, before = kept.live, kept.composition
        changed = before is None or composition.pieces != before.pieces or composition.plan != before.plan
        if kept.answer is None or (changed and self._will_be_durable(live, composition)):
            context = context_of(live.session, record, composition, composition.text())
            kept.answer, kept.composition = Assembled(context, live.barrier), composition
        return kept.answer

    def _will_be_durable(self, live: LiveSession, composition: Composition) -> bool:
        """True if every version shown is on the disk once the session's own writes are."""
        barrier, durable = live.barrier, self._store.head()
        reached = barrier.seq if barrier is not None else 0 if durable is None else durable.seq
        return all(piece.tx is None or piece.tx <= reached for piece in composition.pieces)

    def _record(
        self, kept: KeptContext, call: WriteRequest, composition: Composition, target: RequestTarget | None
    ) -> Assembled:
        """Record ``composition``, of which a request for ``target`` is made. Does not await."""
        live, before, ids = kept.live, kept.composition, kept.context_ids
        assert ids is not None, "the ids that are taken were read"
        text = composition.text()
        parent, now, digest = live.context_id or "", self._clock.wall_ms(), sha256(text)
        same = None
        if live.assembly:
            # The one before may be past rendering; then nothing is known to have stayed.
            same = 0 if before is None else stable_prefix(before.pieces, composition.pieces)
        record = Recorded(
            number=live.assembly + 1,
            segments=live.state.segments,
            turn=live.state.turn,
            context_id=new_context_id(parent, digest, now, live.settings.agent, ids),
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
            form=form_of(target),
        )
        context = context_of(live.session, record, composition, text)
        pending = live.commit(
            call,
            puts=(document_of(live.session, record, tools_text(target)),),
            result=_KeptNumber(record.number),
            assembly=(record.number, record.context_id),
        )
        ids.add(record.context_id)
        kept.record, kept.composition, kept.answer = record, composition, Assembled(context, pending)
        if kept.key is not None:
            # Of all that the key shows, this changed the newest write.
            kept.key = (pending, *kept.key[1:])
        self._cache.put(kept)
        return Assembled(context, pending, carries_receipt=True)


def _switched(last: LastRequest, target: RequestTarget) -> Begin | None:
    """The reason for a new context epoch if ``target`` is for another model than the ``last`` request."""
    if last.format != target.format:
        return "provider"
    return None if last.model == target.model else "model"


def _epoch_head(live: LiveSession, kept: KeptWindow) -> EpochHead:
    """Position at which the next event of ``live``, whose window is ``kept``, is appended."""
    return EpochHead(live.assembly, kept.window.epoch.epoch)


def _exceeds(kept: KeptWindow, moment: Moment) -> bool:
    """True if the newest request of ``kept`` has more tokens than it may have now."""
    most, record = moment.rules.budget_tokens, kept.record
    if most is None or record is None or record.window is None:
        return False
    reserve = record.window.figures.reserve
    # An estimate that is calibrated is of the whole request.
    return record.tokens + (moment.tools_tokens if reserve is None else reserve) > most
