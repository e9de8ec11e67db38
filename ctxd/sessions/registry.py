"""Which sessions there are and which are live: create, look up, list, unload.

Owns the bound on live sessions and the catalog of all. A session is loaded once, however many ask for it at the same
time, and unloaded only while nothing of it is under way.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import msgspec

from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.mounts.mapping import MountTable, normalise
from ctxd.objects.next_version import system_prompt
from ctxd.secrets.guard import Guard, fleeting_guard
from ctxd.sessions.calls import Call
from ctxd.sessions.catalog import Catalog, no_session, summary_of
from ctxd.sessions.head import Head, Settings, head_document, read_head
from ctxd.sessions.live import LiveSession
from ctxd.sessions.loading import load
from ctxd.sessions.lock import SessionLock
from ctxd.sessions.moved_sessions import MovedSession
from ctxd.sessions.state import SessionState
from ctxd.store.answers import Replay
from ctxd.store.asked import Purge
from ctxd.store.versions import VersionStore
from ctxd.store.writes import Pending, Write
from ctxd_protocol.context import CurrentContext
from ctxd_protocol.ids import session_object_id
from ctxd_protocol.limits import SETTINGS_BYTES_MAX
from ctxd_protocol.objects import Receipt
from ctxd_protocol.sessions import SessionSummary

LIVE_SESSIONS_MAX: Final = 512
"""Sessions kept in memory while idle. One of 10,000 objects takes about 10 MiB; fewer make returns wait for a load."""

_HEADS: Final = "session:"


class Sessions:
    """The sessions of one store. ``start`` before anything else."""

    def __init__(
        self,
        store: VersionStore,
        clock: Clock,
        *,
        host_filesystem_id: str,
        live_max: int = LIVE_SESSIONS_MAX,
        guard: Guard | None = None,
    ) -> None:
        self.store = store
        self.guard = guard or fleeting_guard()
        self.catalog = Catalog()
        self.host_filesystem_id = host_filesystem_id
        self._clock = clock
        self._live_max = live_max
        self._live: OrderedDict[str, LiveSession] = OrderedDict()
        self._loading: dict[str, SessionLock] = {}
        self.moved_sessions: dict[str, MovedSession] = {}
        self._creating = SessionLock()
        self._ordinal = 0
        self._folding = anyio.CapacityLimiter(1)
        self._on_live: list[Callable[[LiveSession], None]] = []
        store.on_lost(self._drop)
        store.on_durable(self._note, types=("session",))

    async def start(self) -> list[MountTable]:
        """Know every session there is; returns the mounts of those in sandboxes.

        Raises: CtxdError corrupt, store_failed.
        """
        sandboxed: list[MountTable] = []
        for stored in await self.store.scan(_HEADS):
            head = read_head(stored)
            self._ordinal = max(self._ordinal, head.settings.ordinal)
            if head.entering:
                continue
            self.catalog.put(stored.document.id.removeprefix(_HEADS), head, stored.valid_time)
            if head.settings.mounts and head.settings.filesystem_id != self.host_filesystem_id:
                sandboxed.append(self._mount_table(head.settings))
        return sandboxed

    @property
    def live_count(self) -> int:
        """How many sessions are in memory."""
        return len(self._live)

    def on_live(self, callback: Callable[[LiveSession], None]) -> None:
        """Have ``callback`` told each session that comes into memory, made or loaded. It does not raise."""
        self._on_live.append(callback)

    def peek(self, session: str) -> LiveSession | None:
        """``session`` if it is live."""
        return self._live.get(session)

    def is_watched(self, session: str) -> bool:
        """Whether somebody subscribes to the notices of ``session``."""
        live = self._live.get(session)
        return live is not None and live.watched > 0

    def loaded(self, session: str) -> LiveSession | None:
        """``session`` if it is in memory, and nobody waits for it. It stays the current one until the next await."""
        live = self._live.get(session)
        if live is None or session in self._loading:
            return None
        self._live.move_to_end(session)
        return live

    async def live(self, session: str) -> LiveSession:
        """``session`` in memory, loaded if need be.

        It stays the current one until the next await, and for longer while its lock is queued for or held.
        Raises: CtxdError session_not_found, corrupt, store_failed. Cancel: safe.
        """
        if (live := self._live.get(session)) is not None:
            self._live.move_to_end(session)
            return live
        lock = self._loading.setdefault(session, SessionLock())
        try:
            async with lock:
                live = self._live.get(session)
                if live is None:
                    loaded = await self.as_of(session)
                    # It may have been created meanwhile.
                    live = self._live.get(session)
                    if live is None:
                        live = loaded
                        self._admit(live)
                return live
        finally:
            if lock.free:
                self._loading.pop(session, None)

    async def as_of(self, session: str, *, tx: int | None = None, valid_time: int | None = None) -> LiveSession:
        """``session`` as it was, for reading only. Raises and cancel: as ``live``."""
        found = await load(
            self.store,
            session,
            host_filesystem_id=self.host_filesystem_id,
            limiter=self._folding,
            tx=tx,
            valid_time=valid_time,
        )
        if found is None:
            raise no_session(session)
        return found

    async def create(
        self, call: Call, session: str, settings: Settings, prompt: str, result: bytes = b""
    ) -> tuple[LiveSession, Pending] | Replay:
        """Make ``session``, with ``settings`` but for their time and ordinal.

        Raises: CtxdError session_exists, invalid_path for a mount or working directory, idempotency_mismatch, and those
        of the store. Cancel: safe; nothing is made before the store accepts it.
        """
        async with self._creating:
            if call.op_id is not None:
                replay = await self.store.replay(call.principal, call.op_id, call.request)
                if replay is not None:
                    return replay
            id = session_object_id(session)
            if (await self.store.heads((id,)))[id] is not None:
                raise CtxdError(
                    "session_exists",
                    f"session {session} exists",
                    hint="Choose another id, or leave it out.",
                    outcome="not_applied",
                )
            return self._create(call, session, settings, prompt, result)

    def _create(
        self, call: Call, session: str, settings: Settings, prompt: str, result: bytes
    ) -> tuple[LiveSession, Pending]:
        ordinal = self.next_ordinal()
        stamped = msgspec.structs.replace(settings, created_at=self._clock.wall_ms(), ordinal=ordinal)
        head = Head(settings=self.normalised(stamped))
        capture = self.guard.capture(settings.secrets)
        prompt = capture.text(prompt)
        write = Write(
            kind=call.kind,
            principal=call.principal,
            session=session,
            op_id=call.op_id,
            request=call.request,
            result=result,
            puts=(head_document(session, head), system_prompt(session, prompt, capture.secrets)),
        )
        pending = self.store.submit(write)
        live = LiveSession(
            self.store,
            session,
            head,
            SessionState(),
            [],
            run=[],
            head_vt=pending.vt,
            updated_at=pending.vt,
            host_filesystem_id=self.host_filesystem_id,
        )
        live.last_pending = pending
        self._admit(live)
        return live, pending

    def next_ordinal(self) -> int:
        """The place in the order of creation of a session that is about to be made here."""
        self._ordinal += 1
        return self._ordinal

    def unload(self, session: str) -> None:
        """Have ``session`` read anew at its next use; who holds what is in memory is told that it is out of date."""
        self._drop(frozenset((session,)))

    def normalised(self, settings: Settings) -> Settings:
        """``settings`` with a plain working directory, and labels as they are to be kept.

        Raises: CtxdError invalid_path for that or for a mount, too_large for more of them than are kept.
        """
        size = len(msgspec.json.encode(settings))
        if size > SETTINGS_BYTES_MAX:
            raise CtxdError(
                "too_large",
                f"the session's settings take {size:,} bytes, {SETTINGS_BYTES_MAX:,} are possible",
                hint="Give fewer or shorter labels and mounts.",
                outcome="not_applied",
            )
        self._mount_table(settings)
        labels = self.guard.capture(settings.secrets).value(settings.labels)
        return msgspec.structs.replace(settings, workdir=normalise(settings.workdir), labels=labels)

    def _mount_table(self, settings: Settings) -> MountTable:
        host = self.host_filesystem_id
        return MountTable(settings.mounts, filesystem_id=settings.filesystem_id, host_filesystem_id=host)

    def summary(self, session: str) -> tuple[SessionSummary, Pending | None]:
        """A row of a listing, and the write it has to wait for. Figures of a live session are those of this moment."""
        live = self._live.get(session)
        if live is None:
            return self.catalog.summary(session), None
        head = Head(
            settings=live.settings,
            turn_count=live.state.turn,
            index_count=len(live.state.index),
            active_count=len(live.state.active),
            preview=live.preview,
        )
        return summary_of(session, head, live.updated_at), live.barrier

    def current(self, session: str | None) -> CurrentContext:
        """The durable context of ``session``; null: of the only session that is not closed.

        Raises: CtxdError session_not_found.
        """
        return self.catalog.current(session)

    async def knowing(self, object_id: str) -> list[str]:
        """The ids of the sessions in whose index the object is, sorted. Cancel: safe."""
        return await self.store.knowing(object_id)

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
        """A commit failed: what is in memory of ``sessions`` shows what never happened."""
        for session in sessions:
            live = self._live.pop(session, None)
            if live is not None:
                live.lost = True

    def _note(self, landed: Sequence[tuple[Write, Pending]]) -> None:
        for write, pending in landed:
            if write.session is None:
                continue
            if write.purge is not None:
                self._hide(write.session, write.purge)
            for document in write.puts:
                if document.type == "session":
                    head = msgspec.convert(document.payload, Head)
                    if head.entering:
                        self.catalog.discard(write.session)
                    else:
                        self.catalog.put(write.session, head, _vt(pending.receipt))

    def _hide(self, session: str, purge: Purge) -> None:
        """Show no more in listings what was purged."""
        row = self.catalog.newest(session)
        if row is None or purge.restate is None:
            return
        head, valid_time = row
        restated = purge.restate(head_document(session, head))
        if restated is not None:
            self.catalog.put(session, msgspec.convert(restated.payload, Head), valid_time)


def _vt(receipt: Receipt | None) -> int:
    assert receipt is not None, "a durable write has its receipt"
    return receipt.vt
