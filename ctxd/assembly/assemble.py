"""Assembly of a session's current context: freshen, load, compose, record.

Owns what is kept of sessions between assemblies, bounded by number of sessions, and the order of steps: files that
changed on disk are read again first, so that a context is never stale; what is not in memory is loaded; then, without
an await in between, the context is composed and recorded. The record's transaction is therefore the one at which the
store shows the very versions that were rendered.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec
from anyio.lowlevel import checkpoint

from ctxd import limits
from ctxd.assembly.archive import Archive
from ctxd.assembly.composition import Composition, Rendering, View, sha256
from ctxd.assembly.measure import stable_prefix
from ctxd.assembly.pieces import named
from ctxd.assembly.record import (
    Assembled,
    Recorded,
    context_of,
    document_of,
    new_context_id,
    read_record,
)
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.indexing.indexer import Indexer
from ctxd.mounts.mapping import MountTable
from ctxd.objects.document import Stored
from ctxd.sessions.chat import ChatPage, read_pages
from ctxd.sessions.reconciliation import freshen
from ctxd.sessions.registry import Sessions
from ctxd.sessions.segments import HideObjects, text_size
from ctxd.sessions.session import LiveSession, Ticket, WriteRequest
from ctxd.sessions.state import Place
from ctxd.store.store import VersionStore
from ctxd.store.writes import NOT_CACHED, NotCached, Pending, Replay, Write
from ctxd_protocol.context import BudgetPlan
from ctxd_protocol.ids import system_prompt_id
from ctxd_protocol.sessions import Message

CHAT_PORTION_CHARS: Final = 4 * 1024 * 1024
"""Characters of the chat that are loaded at once for an assembly."""

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the renderings that are kept. A session whose own is larger is rendered whole at each assembly."""

SESSIONS_KEPT_MAX: Final = 32
"""Sessions whose rendering is kept. One of 10,000 objects takes about 8 MiB; one that is not kept is rendered whole."""


class _KeptNumber(msgspec.Struct, frozen=True):
    """Stored result of ``context.assemble`` for a resend: the assembly is rendered again from its record."""

    number: int


class _NotInMemory(Exception):
    """A version or a text has to be loaded before the context can be composed."""


_TEXTS_AT_ONCE: Final = 16
"""Texts loaded at once: at most 16 MiB of what sandboxes record."""


def _require_short(live: LiveSession, size: int, chars_max: int | None) -> None:
    most = limits.CONTEXT_CHARS_MAX if chars_max is None else min(chars_max, limits.CONTEXT_CHARS_MAX)
    if size > most:
        raise CtxdError(
            "too_large",
            f"the context of session {live.session} has at least {size:,} characters, "
            f"{most:,} are assembled here at most",
            hint="Deactivate objects, collapse tool calls, or continue in a new session.",
            outcome="not_applied",
        )


class _Loaded(msgspec.Struct):
    """Versions and texts fetched for one assembly, beside what the store keeps in memory."""

    store: VersionStore
    heads: dict[str, Stored | None] = {}
    texts: dict[str, str] = {}
    said: dict[Place, tuple[Message, int]] = {}

    def message(self, place: Place) -> tuple[Message, int]:
        """The message at ``place`` of the chat, and the sequence of its write. Raises: _NotInMemory."""
        found = self.said.get(place)
        if found is None:
            raise _NotInMemory
        return found

    def head(self, id: str) -> Stored | None:
        """The newest accepted version. Raises: _NotInMemory."""
        stored = self.store.peek(id)
        if isinstance(stored, NotCached):
            stored = self.heads.get(id, NOT_CACHED)
            if isinstance(stored, NotCached):
                raise _NotInMemory
        return stored

    def content(self, ref: str) -> str:
        """The text named ``ref``. Raises: _NotInMemory."""
        text = self.texts.get(ref)
        if text is None:
            raise _NotInMemory
        return text


class _KeptRendering:
    """Rendering of one session, its newest record, and the context that this recorded.

    ``is_current``: no version that it shows has changed since, but by a write of the session after ``newest``.
    """

    __slots__ = (
        "answer",
        "composition",
        "context_ids",
        "is_current",
        "live",
        "mounts",
        "newest",
        "recalled",
        "recorded",
        "rendering",
        "size",
    )

    def __init__(self, live: LiveSession) -> None:
        self.live = live
        self.mounts: MountTable = live.mounts
        self.rendering = Rendering()
        self.recorded: Recorded | None = None
        self.composition: Composition | None = None
        self.answer: Assembled | None = None
        self.context_ids: set[str] = set()
        self.recalled = live.assembly == 0
        self.newest: Pending | None = None
        self.is_current = False
        self.size = 0


class RenderCache:
    """Renderings of sessions between assemblies, least recently used evicted, within bounds of number and bytes.

    A rendering is current until a version of an object in the session's pool changes: by a write of the session itself,
    which its newest write shows, or by anybody's version of a file, which the store reports. Other writes concern it
    not. ``cleared`` counts how often all was dropped, since writes were lost or a purge was made.
    """

    def __init__(self, store: VersionStore) -> None:
        self.cleared = 0
        self._kept: OrderedDict[str, _KeptRendering] = OrderedDict()
        # Of all objects in a pool, only files get versions from others than the session.
        store.on_durable(self._invalidate, types=("file",))
        store.on_lost(self._clear)

    def of(self, live: LiveSession) -> _KeptRendering:
        """Return the rendering of ``live``, an empty one if none is kept."""
        kept = self._kept.get(live.session)
        if kept is None or kept.live is not live:
            kept = self._kept[live.session] = _KeptRendering(live)
        if kept.mounts is not live.mounts:
            # Every path may be called something else now.
            kept.mounts, kept.rendering, kept.is_current = live.mounts, Rendering(), False
        self._kept.move_to_end(live.session)
        while len(self._kept) > SESSIONS_KEPT_MAX:
            self._kept.popitem(last=False)
        return kept

    def holds(self, kept: _KeptRendering) -> bool:
        """True unless ``kept`` was dropped."""
        return self._kept.get(kept.live.session) is kept

    def put_back(self, kept: _KeptRendering) -> None:
        """Keep ``kept``, which was dropped while it was in use, without its rendering: that may show lost versions."""
        kept.rendering, kept.is_current = Rendering(), False
        self._kept[kept.live.session] = kept

    def bound(self, kept: _KeptRendering, size: int) -> None:
        """Evict the renderings used longest ago, ``kept``, of ``size`` bytes, last, until all are within the bound."""
        kept.size = size
        while sum(each.size for each in self._kept.values()) > KEPT_BYTES_MAX:
            self._kept.popitem(last=False)

    def _invalidate(self, landed: Sequence[tuple[Write, Pending]]) -> None:
        """Mark the renderings that show a file with a new version; after a purge drop all, which may show its text."""
        if any(write.purge is not None for write, _ in landed):
            self._clear(frozenset())
            return
        for write, _ in landed:
            files = [document.id for document in write.puts if document.type == "file"]
            for session, kept in self._kept.items():
                if kept.is_current and session != write.session:
                    kept.is_current = kept.live.state.pool.keys().isdisjoint(files)

    def _clear(self, sessions: frozenset[str]) -> None:
        """Drop all: a lost version of a file may be in the rendering of any session."""
        self.cleared += 1
        self._kept.clear()


class Assembler:
    """Assembles contexts of live sessions."""

    def __init__(
        self, store: VersionStore, sessions: Sessions, indexer: Indexer, archive: Archive, clock: Clock
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._indexer = indexer
        self._archive = archive
        self._clock = clock
        self._cache = RenderCache(store)

    async def assemble(self, live: LiveSession, call: WriteRequest, *, chars_max: int | None = None) -> Assembled:
        """The context of ``live`` as it is now, recorded; if it is the one recorded last, that, and nothing is written.

        Its answer may go out once ``barrier`` is durable. Raises: CtxdError session_closed, session_not_active,
        corrupt, and those of the store. Cancel: safe; files that changed may have new versions then, and nothing is
        recorded.
        """
        with Ticket(live.lock.queue) as ticket:
            replay = await live.admit(ticket, call)
            if replay is not None:
                return await self._again(live, replay)
            if files := live.state.files(live.state.active):
                await self._freshen(live, call, files)
            if self._sessions.visibility.restricts(live.session):
                await self._drop_hidden(live, call)
            kept = self._cache.of(live)
            composition = await self._compose(live, kept, chars_max)
            return self._settle(live, kept, call, composition)

    async def _again(self, live: LiveSession, replay: Replay) -> Assembled:
        """The answer to a request that comes again: the assembly that it recorded, with the receipt of that write."""
        receipt = replay.receipt
        if receipt is None:
            assert replay.pending is not None, "a write is durable or pending"
            receipt = await replay.pending.wait()
        number = msgspec.json.decode(replay.result, type=_KeptNumber).number
        shown = await self._archive.show(live.session, number=number)
        return Assembled(msgspec.structs.replace(shown.context, receipt=receipt))

    async def plan(
        self, live: LiveSession, budget_tokens: int | None, *, chars_max: int | None = None
    ) -> tuple[BudgetPlan, Pending | None]:
        """Return the budget plan of ``live`` for ``budget_tokens`` (None: no budget), and the write it waits for.

        Files are not read again and nothing is written. Raises: CtxdError corrupt, store_failed. Cancel: safe.
        """
        while True:
            async with live.lock:
                cleared = self._cache.cleared
                composition = await self._compose_as_is(live, budget_tokens, chars_max)
                barrier = live.barrier
            # The plan may show what other sessions wrote and can still lose.
            await self._store.settled()
            if self._cache.cleared == cleared:
                return composition.plan, barrier

    async def _compose_as_is(self, live: LiveSession, budget_tokens: int | None, chars_max: int | None) -> Composition:
        live.require_current()
        _require_short(live, live.state.chat_chars, chars_max)
        kept = self._cache.of(live)
        loaded = _Loaded(self._store)
        view = self._view(live, kept, loaded, budget_tokens)
        while True:
            await self._warm(live, kept, view)
            try:
                return kept.rendering.compose(view)
            except _NotInMemory:
                await self._load(live, kept, loaded, chars_max)

    async def _freshen(self, live: LiveSession, call: WriteRequest, files: list[str]) -> None:
        # Without the operation id: that goes with the record.
        bare = call.without_id()
        fresh = await freshen(live, self._indexer, files, bare)
        if fresh.documents:
            live.commit(bare, puts=fresh.documents, signatures=fresh.signatures, floor_vt=fresh.floor_vt)

    async def _drop_hidden(self, live: LiveSession, call: WriteRequest) -> None:
        """Take out of the pool of a session in a sandbox the files whose newest version the sandbox may not see."""
        hidden = await self._sessions.visibility.hidden(live, live.state.pool)
        if hidden:
            live.commit(call.without_id(), (HideObjects(tuple(hidden)),))

    async def _compose(self, live: LiveSession, kept: _KeptRendering, chars_max: int | None) -> Composition:
        """The context as of now; between its last look at a version and the return nothing awaits."""
        _require_short(live, live.state.chat_chars, chars_max)
        loaded = _Loaded(self._store)
        view = self._view(live, kept, loaded, live.settings.budget_tokens)
        while True:
            await self._warm(live, kept, view)
            live.require_current()
            if not self._cache.holds(kept):
                self._cache.put_back(kept)
            newest = live.last_pending
            moved = not kept.is_current or kept.newest is not newest
            try:
                composition = kept.rendering.compose(view, heads_moved=moved)
                if not moved and not self._is_repeat(live, kept, composition):
                    # Another session's write that waits for its flush may have moved a head unseen.
                    composition = kept.rendering.compose(view)
            except _NotInMemory:
                await self._load(live, kept, loaded, chars_max)
                continue
            if not kept.recalled:
                await self._recall(live, kept, composition)
                continue
            kept.newest, kept.is_current = newest, True
            return composition

    async def _warm(self, live: LiveSession, kept: _KeptRendering, view: View) -> None:
        """Render what is new in portions, others having their turn in between; what is not in memory is left out."""
        if kept.is_current and kept.newest is live.last_pending:
            return
        try:
            for _ in kept.rendering.warm(view):
                await checkpoint()
                if not self._cache.holds(kept):
                    # Writes were lost meanwhile, and a number may come to name another version.
                    return
        except _NotInMemory:
            return

    def _settle(
        self, live: LiveSession, kept: _KeptRendering, call: WriteRequest, composition: Composition
    ) -> Assembled:
        """Record ``composition``, unless it is the one recorded last. Does not await."""
        if self._is_repeat(live, kept, composition):
            return self._repeated(live, kept, composition)
        text = composition.text()
        recorded = self._record(live, kept, composition, sha256(text))
        context = context_of(live.session, recorded, composition, text)
        pending = live.commit(
            call,
            puts=(document_of(live.session, recorded),),
            result=_KeptNumber(recorded.number),
            assembly=(recorded.number, recorded.context_id),
        )
        kept.recorded, kept.composition = recorded, composition
        self._cache.bound(kept, composition.size)
        kept.context_ids.add(recorded.context_id)
        kept.answer = Assembled(context, pending)
        kept.newest = pending
        return Assembled(context, pending, carries_receipt=True)

    def _repeated(self, live: LiveSession, kept: _KeptRendering, composition: Composition) -> Assembled:
        """The record's answer. The reasons, the versions and the plan are those of now: they may change where the text
        does not."""
        before = kept.composition
        assert kept.recorded is not None and before is not None, "a repeat has a record"
        changed = composition.pieces != before.pieces or composition.plan != before.plan
        if kept.answer is None or (changed and self._will_be_durable(live, composition)):
            context = context_of(live.session, kept.recorded, composition, composition.text())
            kept.answer, kept.composition = Assembled(context, live.barrier), composition
        return kept.answer

    def _will_be_durable(self, live: LiveSession, composition: Composition) -> bool:
        """True if every version shown is on the disk once the session's own writes are."""
        barrier, durable = live.barrier, self._store.head()
        reached = barrier.seq if barrier is not None else 0 if durable is None else durable.seq
        return all(piece.tx is None or piece.tx <= reached for piece in composition.pieces)

    def _is_repeat(self, live: LiveSession, kept: _KeptRendering, composition: Composition) -> bool:
        recorded = kept.recorded
        if recorded is None or kept.composition is None or recorded.turn != live.state.turn:
            return False
        # Nearly all fragments are the same objects when little changed.
        return composition.fragments == kept.composition.fragments

    def _record(self, live: LiveSession, kept: _KeptRendering, composition: Composition, digest: str) -> Recorded:
        parent, now = live.context_id or "", self._clock.wall_ms()
        before = kept.composition
        same = None
        if live.assembly:
            # The one before may be past rendering; then nothing is known to have stayed.
            same = 0 if before is None else stable_prefix(before.fragments, composition.fragments)
        return Recorded(
            number=live.assembly + 1,
            segments=live.state.segments,
            turn=live.state.turn,
            context_id=new_context_id(parent, digest, now, live.settings.agent, kept.context_ids),
            parent=parent,
            sha256=digest,
            bytes=composition.size,
            tokens=composition.plan.tokens_after,
            stable_prefix=same,
            assembled_at=now,
            active=tuple(
                (piece.object, piece.valid_time, piece.tx)
                for piece in composition.pieces
                if piece.section == "active_content"
                and piece.object is not None
                and piece.valid_time is not None
                and piece.tx is not None
            ),
            dropped=tuple((dropped.object, dropped.reason) for dropped in composition.plan.dropped),
        )

    async def _recall(self, live: LiveSession, kept: _KeptRendering, composition: Composition) -> None:
        """Take up where an earlier life of the session, or of the daemon, left off."""
        records = await self._archive.records(live.session)
        kept.context_ids = {recorded.context_id for recorded in records}
        newest = await self._archive.newest(live.session)
        if newest is not None:
            kept.recorded = read_record(newest)
            if kept.recorded.sha256 == sha256(composition.text()):
                kept.composition = composition
            else:
                try:
                    kept.composition, _ = await self._archive.render_again(live.session, newest, kept.recorded)
                except CtxdError as error:
                    if error.code not in ("corrupt", "unsupported", "purged"):
                        raise
        kept.recalled = True

    async def _load(self, live: LiveSession, kept: _KeptRendering, loaded: _Loaded, chars_max: int | None) -> None:
        """Fetch every version and text that composing ``live`` looks at and that is not in memory.

        Raises: CtxdError too_large if they have more than ``chars_max`` characters with the chat.
        """
        state, prompt = live.state, system_prompt_id(live.session)
        turn, place = kept.rendering.chat_at
        is_rendered = turn == state.turn and place == len(state.turns[turn])
        if not is_rendered and (turn, place) not in loaded.said:
            await self._load_chat(live, kept, loaded)
        said = (message.toolcall for messages in state.turns for message in messages if message.toolcall is not None)
        shown = dict.fromkeys((*state.pool, *said, prompt))
        if ids := [id for id in shown if id not in loaded.heads and isinstance(self._store.peek(id), NotCached)]:
            loaded.heads |= await self._store.heads(ids)
        refs: list[str] = []
        for id in (*state.active, prompt):
            stored = self._store.peek(id)
            if isinstance(stored, NotCached):
                stored = loaded.heads.get(id)
            if stored is not None and stored.content_ref is not None and stored.content_ref not in loaded.texts:
                if kept.rendering.lacks(id, stored):
                    refs.append(stored.content_ref)
        # In portions, so that a context that is too long is refused before all of it is in memory.
        size = live.state.chat_chars + sum(map(len, loaded.texts.values()))
        for first in range(0, len(refs), _TEXTS_AT_ONCE):
            found = await self._store.contents(refs[first : first + _TEXTS_AT_ONCE])
            size += sum(map(len, found.values()))
            _require_short(live, size, chars_max)
            loaded.texts |= found

    async def _load_chat(self, live: LiveSession, kept: _KeptRendering, loaded: _Loaded) -> None:
        """Fetch the next portion of the chat: what was rendered of the one before is in the rendering."""
        loaded.said.clear()
        first, size = kept.rendering.chat_at, 0
        async for page in read_pages(live, first):
            loaded.said |= {place: (message, page.seq) for place, message in page.placed() if place >= first}
            size += text_size(message for place, message in page.placed() if place >= first)
            if size >= CHAT_PORTION_CHARS:
                return

    @staticmethod
    def _view(live: LiveSession, kept: _KeptRendering, loaded: _Loaded, budget_tokens: int | None) -> View:
        state = live.state
        for number in state.pages.within(kept.rendering.chat_at, (len(state.turns), 0)):
            segment = state.pages.segment(number)
            if (recent := live.recent.get(segment)) is not None:
                page = ChatPage(state.pages.first(number), live.seqs[segment], recent)
                loaded.said |= {place: (message, page.seq) for place, message in page.placed()}
        return View(
            session=live.session,
            seq=live.seqs[-1] if live.seqs else 0,
            state=state,
            message_at=loaded.message,
            prompt=system_prompt_id(live.session),
            head=named(loaded.head, live.settings.renamed) if live.settings.renamed else loaded.head,
            content=loaded.content,
            display=live.mounts.display,
            budget_tokens=budget_tokens,
        )
