"""Registry of sessions: create, look up, list, load and unload.

Limits the number of live sessions, and keeps the catalog of all heads, the source of listings and ``context.current``.
A session is loaded once, however many callers need it at the same time, and evicted only while it is idle.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.mounts.mapping import MountTable, normalise
from ctxd.objects.commit_document import Position, entity_id
from ctxd.objects.document import NOW, AsOf, Document, system_prompt
from ctxd.objects.generated_ids import names_commit
from ctxd.secrets.redaction import Capture, Guard, ephemeral_guard
from ctxd.sessions.lineage import Lineage, Part
from ctxd.sessions.live_session import LiveSession, SessionLock, WriteRequest, find_replay
from ctxd.sessions.sandbox_file_visibility import Visibility
from ctxd.sessions.secret_redaction import off_loop
from ctxd.sessions.session_catalog import Catalog, no_session, summary_of
from ctxd.sessions.session_loading import (
    EMPTY_CHAT,
    SEGMENTS_INLINE_MAX,
    InitialChat,
    InitialState,
    PurgedMeanwhile,
    build_initial_state,
    load,
)
from ctxd.sessions.session_settings import SessionSettings, mount_table, normalised
from ctxd.sessions.sessions_elsewhere import MovedSession
from ctxd.sessions.stored_session import SessionHead, head_document, read_head
from ctxd.sources.project_lookup import ProjectLookup
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import Pending, PurgeRequest, Replay, Write
from ctxd.worker_threads import Lane
from ctxd_protocol.ids import session_object_id
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.session_types import Project, SessionSummary

LIVE_SESSIONS_MAX: Final = 512
"""Sessions kept in memory; more only while they are in use. One of 10,000 objects takes about 10 MiB; a lower limit
means more loads."""

_HEADS: Final = "session:"
_OTHER_ID: Final = "Choose another id, or leave it out."


class Sessions:
    """The sessions of one store. Call ``start`` first."""

    def __init__(
        self,
        store: VersionStore,
        clock: Clock,
        *,
        host_filesystem_id: str,
        live_max: int = LIVE_SESSIONS_MAX,
        guard: Guard | None = None,
        indexer: Indexer | None = None,
        projects: ProjectLookup | None = None,
    ) -> None:
        """``indexer`` confirms versions for sandboxes, see ``Visibility``. ``projects`` finds the project of a
        directory; without it, sessions have none."""
        self.store = store
        self.guard = guard or ephemeral_guard()
        self.visibility = Visibility(store, indexer)
        self.catalog = Catalog()
        self.host_filesystem_id = host_filesystem_id
        self.clock = clock
        self._live_max = live_max
        self._projects = projects
        self._live: OrderedDict[str, LiveSession] = OrderedDict()
        self._loading: dict[str, SessionLock] = {}
        self._outdated = set[str]()
        self.purges = 0
        """Purges that became durable since the start."""
        self.moved_sessions: dict[str, MovedSession] = {}
        self.emptied: dict[str, SessionHead] = {}
        """The heads of sessions that were removed for good, or are being emptied."""
        self.shared = False
        """True if other hosts have sessions in the same log."""
        self.creating = SessionLock()
        """Held while a session is created."""
        self._ordinal = 0
        self.folding = Lane("session.load", inline=SEGMENTS_INLINE_MAX)
        """Folds sessions of many segments, one at a time."""
        self._on_live: list[Callable[[LiveSession], None]] = []
        self._on_head_with_checkpoints: list[Callable[[str, SessionHead], None]] = []
        store.on_lost(self._drop)
        store.on_durable(self._note, types=("session",))

    async def start(self) -> list[MountTable]:
        """Read the heads of all sessions. Returns: the mounts of sessions in sandboxes.

        Raises: CtxdError corrupt, store_failed.
        """
        sandboxed: list[MountTable] = []
        for stored in await self.store.scan(_HEADS):
            head = read_head(stored)
            self._ordinal = max(self._ordinal, head.settings.ordinal)
            if head.entering:
                continue
            if head.emptied is not None:
                self.emptied[stored.document.id.removeprefix(_HEADS)] = head
                continue
            self.catalog.put(stored.document.id.removeprefix(_HEADS), head, stored.valid_time)
            if head.settings.mounts and head.settings.filesystem_id != self.host_filesystem_id:
                sandboxed.append(mount_table(head.settings, self.host_filesystem_id))
        # Build the index now: in the first listing it would block the loop.
        self.catalog.indexed()
        return sandboxed

    async def project_at(self, directory: str, *, package: bool = False) -> Project:
        """Return the project of ``directory``, an absolute path of the host; with ``package``, the package that
        contains it.

        Raises: CtxdError invalid_path. Cancel: safe.
        """
        if not directory.startswith("/"):
            message = f"the directory {directory[:100]!r} is relative"
            raise CtxdError("invalid_path", message, hint="Give an absolute path of the host.", outcome="not_applied")
        path = normalise(directory)
        if self._projects is None:
            return Project(directory=path)
        return await self._projects.project_of(path, package=package)

    async def project_of(self, settings: SessionSettings) -> Project | None:
        """Return the project of a session with ``settings``: that of its working directory, translated to the host by
        its mounts; None if it is not on the host. Cancel: safe."""
        if self._projects is None or settings.workdir == "/":
            return None
        try:
            mounts = mount_table(settings, self.host_filesystem_id)
            place, prefix = mounts.locate(settings.workdir)
        except CtxdError:
            return None  # The write of these settings will be refused.
        if place.filesystem_id != self.host_filesystem_id and not (mounts.by_device and prefix is None):
            return None
        return await self._projects.project_of(place.path, in_sandbox=mounts.in_sandbox)

    @property
    def live_count(self) -> int:
        """Number of sessions in memory."""
        return len(self._live)

    @property
    def has_active(self) -> bool:
        """True if a session is active and has not moved to another host."""
        states = self.catalog.states().items()
        return any(state == "active" and session not in self.moved_sessions for session, state in states)

    def on_live(self, callback: Callable[[LiveSession], None]) -> None:
        """Call ``callback`` with each session that is created or loaded. It must not raise."""
        self._on_live.append(callback)

    def on_head_with_checkpoints(self, callback: Callable[[str, SessionHead], None]) -> None:
        """Call ``callback`` with each durable head of a session that has a checkpoint policy. It must not raise."""
        self._on_head_with_checkpoints.append(callback)

    def peek(self, session: str) -> LiveSession | None:
        """Return ``session`` if it is live, else None."""
        return self._live.get(session)

    def is_watched(self, session: str) -> bool:
        """Return True if the notices of ``session`` have a subscriber."""
        live = self._live.get(session)
        return live is not None and live.watched > 0

    async def live(self, session: str) -> LiveSession:
        """Return ``session``, loading it if necessary.

        It stays the current instance until the next await, and while its lock is held or queued for.
        Raises: CtxdError session_not_found, corrupt, store_failed. Cancel: safe.
        """
        live = self._live.get(session)
        # While calls wait for the load, later ones queue behind them, to keep the order of arrival.
        if live is not None and session not in self._loading:
            self._live.move_to_end(session)
            return live
        async with self.loading(session):
            while (live := self._live.get(session)) is None:
                self._outdated.discard(session)
                if self.store.is_purging():
                    await self.store.wait_for_writes()
                loaded = await self.as_of(session)
                # The session may have been created meanwhile, or the loaded state may be out of date.
                if session not in self._live and session not in self._outdated:
                    self._admit(loaded)
            return live

    @asynccontextmanager
    async def loading(self, session: str) -> AsyncIterator[None]:
        """While it is held, ``live`` of ``session`` waits: it is being loaded, or created by a call that came before.
        Cancel: safe."""
        lock = self._loading.setdefault(session, SessionLock())
        try:
            async with lock:
                yield
        finally:
            if lock.free:
                self._loading.pop(session, None)
                self._outdated.discard(session)

    async def as_of(self, session: str, at: AsOf = NOW) -> LiveSession:
        """Load ``session`` as of ``at``, read-only. Raises and cancel: as ``live``."""
        if session in self.emptied:
            raise no_session(session)
        if session not in self.catalog:
            # It may have been forked a moment ago.
            await self.store.wait_for_writes()
        lineage = self.lineage(session)
        found = await load(
            self.store, session, at, host_filesystem_id=self.host_filesystem_id, lane=self.folding, lineage=lineage
        )
        if found is None:
            raise no_session(session, shared=self.shared)
        return found

    def family(self, session: str) -> list[str]:
        """Return ``session`` and all sessions that share a beginning with it, in no order."""
        root = self.lineage(session).root
        return [root, *self.catalog.forks(root)]

    @asynccontextmanager
    async def purging(self, session: str) -> AsyncGenerator[list[str]]:
        """Yield the other sessions that share a beginning with ``session``, for a purge that the block submits: no
        session is forked meanwhile, and the others are unloaded at the end.

        Raises: CtxdError store_failed, draining. Cancel: safe.
        """
        async with self.creating:
            # Afterwards the catalog has every fork that was accepted before.
            await self.store.wait_for_writes()
            others = [other for other in self.family(session) if other != session]
            yield others
            for other in others:
                self.unload(other)

    def lineage(self, session: str) -> Lineage:
        """Return the lineage of ``session``. The head of a fork must be durable."""
        parts = [Part(session)]
        while True:
            _, segments, assemblies = parts[-1]
            newest = self.catalog.newest(parts[-1].session)
            head = self.emptied.get(parts[-1].session) if newest is None else newest[0]
            if head is None or (base := head.settings.base) is None:
                return Lineage(tuple(reversed(parts)))
            # A session inherits from an ancestor only the events that all sessions in between inherit.
            parts.append(Part(base.session, min(segments, base.segments), min(assemblies, base.assembly)))

    def commits_begun_with(self, session: str) -> dict[str, Position]:
        """Return the commits with which ``session`` and its ancestors began, by entity id: each with its end in the
        chat of the session that began with it."""
        began = dict[str, Position]()
        for each in self.lineage(session).sessions:
            known = self.catalog.newest(each)
            head = self.emptied.get(each) if known is None else known[0]
            if head is not None and (continues := head.settings.continues) is not None:
                began.setdefault(entity_id(continues.commit), continues.position)
        return began

    async def create(
        self,
        call: WriteRequest,
        session: str,
        settings: SessionSettings,
        prompt: str,
        result: bytes = b"",
        *,
        initial: InitialChat = EMPTY_CHAT,
    ) -> tuple[LiveSession, Pending] | Replay:
        """Create ``session`` with ``settings``, and set their time and ordinal. Returns the replay if ``call`` is a
        resend.

        Raises: CtxdError session_exists, invalid_path for a mount or working directory, idempotency_mismatch, and those
        of the store; PurgedMeanwhile. Cancel: safe; nothing is made before the store accepts it.
        """
        capture = Capture(self.guard, settings.secrets)
        content = await off_loop(len(prompt), lambda: capture.text(prompt))
        document = await self.store.keep(system_prompt(session, content, capture.secrets))
        first = await off_loop(initial.size, lambda: build_initial_state(session, initial.deltas))
        async with self.creating:
            if (replay := await find_replay(self.store, call)) is not None:
                return replay
            await self.require_new(session)
            if initial.is_stale():
                raise PurgedMeanwhile
            return self._submit_new(call, session, settings, document, result, first)

    async def require_new(self, session: str) -> None:
        """Raises: CtxdError session_exists if the id ``session`` was used before, invalid_params if it names a commit;
        corrupt, store_failed."""
        if names_commit(session):
            message = f"{session} cannot be the id of a session: it names a commit"
            raise CtxdError("invalid_params", message, hint=_OTHER_ID, outcome="not_applied")
        id = session_object_id(session)
        if (await self.store.heads((id,)))[id] is not None:
            raise CtxdError(
                "session_exists",
                f"session {session} {'was removed for good' if session in self.emptied else 'exists'}",
                hint=_OTHER_ID,
                outcome="not_applied",
            )

    def _submit_new(
        self,
        call: WriteRequest,
        session: str,
        settings: SessionSettings,
        prompt: Document,
        result: bytes,
        first: InitialState,
    ) -> tuple[LiveSession, Pending]:
        ordinal = self.next_ordinal()
        stamped = msgspec.structs.replace(settings, created_at=self.clock.wall_ms(), ordinal=ordinal)
        state = first.state
        head = SessionHead(
            settings=normalised(stamped, self.guard, self.host_filesystem_id),
            turn_count=state.turn,
            index_count=len(state.index),
            active_count=len(state.active),
            preview=first.preview,
            first_prompt=first.first_prompt,
        )
        write = Write(
            kind=call.kind,
            principal=call.principal,
            session=session,
            op_id=call.op_id,
            request=call.request,
            result=result,
            puts=(head_document(session, head), prompt, *first.segments),
            knows=tuple(state.index),
        )
        pending = self.store.submit(write)
        call.submitted = True
        live = LiveSession(
            self.store,
            session,
            head,
            state,
            [pending.seq] * len(first.segments),
            run=first.run,
            head_vt=pending.vt,
            updated_at=pending.vt,
            host_filesystem_id=self.host_filesystem_id,
            lineage=Lineage((Part(session),)),
        )
        live.last_pending = pending
        self._admit(live)
        return live, pending

    def next_ordinal(self) -> int:
        """Return the ordinal for a session that is about to be created."""
        self._ordinal += 1
        return self._ordinal

    def unload(self, session: str) -> None:
        """Drop the instance of ``session`` in memory and mark it as lost; the next use loads it again."""
        self._drop(frozenset((session,)))

    def summary(self, session: str) -> tuple[SessionSummary, Pending | None]:
        """Return a row of a listing, and the write that must be durable first. A live session has current figures."""
        live = self._live.get(session)
        if live is None:
            return self.catalog.summary(session), None
        head = SessionHead(
            settings=live.settings,
            turn_count=live.state.turn,
            index_count=len(live.state.index),
            active_count=len(live.state.active),
            preview=live.preview,
            first_prompt=live.first_prompt,
        )
        return summary_of(session, head, live.updated_at), live.barrier

    def summaries(self, sessions: Iterable[str]) -> tuple[list[SessionSummary], Pending | None]:
        """Return rows of a listing, and the write that must be durable first; see ``summary``."""
        rows: list[SessionSummary] = []
        last: Pending | None = None
        for session in sessions:
            if session not in self._live:
                rows.append(self.catalog.summary(session))
                continue
            row, barrier = self.summary(session)
            rows.append(row)
            if barrier is not None and (last is None or barrier.seq > last.seq):
                last = barrier
        return rows, last

    async def knowing(self, object_id: str) -> list[str]:
        """Return the ids of the sessions whose index has the object, sorted. Cancel: safe."""
        found = await self.store.knowing(object_id)
        forks = dict.fromkeys(fork for session in found for fork in self.catalog.forks(session))
        # The store has inherited objects only under the session that indexed them, not under its forks.
        more = [fork for fork in forks if fork not in found and object_id in (await self.live(fork)).state.index]
        return sorted((*found, *more))

    def _admit(self, live: LiveSession) -> None:
        live.moved_sessions = self.moved_sessions
        self._live[live.session] = live
        for callback in self._on_live:
            callback(live)
        if len(self._live) <= self._live_max:
            return
        for session, other in list(self._live.items()):
            if other.idle and other is not live:
                other.lost = True
                del self._live[session]
            if len(self._live) <= self._live_max:
                return

    def _drop(self, sessions: frozenset[str]) -> None:
        """Drop ``sessions`` from memory: their state is out of date, or shows writes that were lost."""
        for session in sessions:
            live = self._live.pop(session, None)
            if live is not None:
                live.lost = True
            if session in self._loading:
                self._outdated.add(session)

    def _note(self, writes: Sequence[tuple[Write, Pending]]) -> None:
        for write, pending in writes:
            self.purges += write.purge is not None
            if write.session is None:
                continue
            if write.purge is not None and write.purge.done is not None:
                for session in self.family(write.session):
                    self._hide(session, write.purge)
            for document in write.puts:
                if document.type == "session":
                    self._note_head(write.session, msgspec.convert(document.payload, SessionHead), pending)

    def _note_head(self, session: str, head: SessionHead, pending: Pending) -> None:
        if head.emptied is not None:
            self.emptied[session] = head
        if head.entering or head.emptied is not None:
            self.catalog.discard(session)
            return
        self.catalog.put(session, head, _vt(pending.receipt))
        if head.settings.checkpoint != "none":
            for callback in self._on_head_with_checkpoints:
                callback(session, head)

    def _hide(self, session: str, purge: PurgeRequest) -> None:
        """Remove purged texts from the catalog."""
        row = self.catalog.newest(session)
        if row is None or purge.restate is None:
            return
        head, valid_time = row
        restated = purge.restate(head_document(session, head))
        if restated is not None:
            self.catalog.put(session, msgspec.convert(restated.payload, SessionHead), valid_time)


def _vt(receipt: Receipt | None) -> int:
    assert receipt is not None, "a durable write has its receipt"
    return receipt.vt
