"""``session.gc``: empties sessions that were removed long ago, and moves sessions long idle to the trash.

A session is emptied in steps, each of which can be repeated and is durable before the next. First its head is marked,
and the session no longer exists. Then its tool calls and observations, its records and entries, and its segments are
purged, in this order, as the segments are needed to find the others. Then every version of the head is replaced by one
that keeps the id reserved and the removal on record. After a crash, the next collection continues.

Objects that another session knows, texts that other entities share, files and artifacts stay, see ``PurgeRequest``. So
do commits, except those that the daemon made of the session and that nothing else reaches.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from ctxd.failpoints import hit
from ctxd.objects.commit_document import STORED_NAMES, commit_id
from ctxd.objects.document import Document, Page
from ctxd.objects.generated_ids import (
    assemblies_prefix,
    component_texts_prefix,
    entries_prefix,
    observations,
    segments_prefix,
)
from ctxd.objects.version_state import is_purged
from ctxd.sessions.live_session import Actor, LiveSession, SessionLock, WriteRequest
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_loading import batched, load
from ctxd.sessions.session_settings import SessionSettings
from ctxd.sessions.stored_session import SessionHead, head_document
from ctxd.store import commit_index, purge
from ctxd.store.write_types import PurgeRequest, Restate, Write
from ctxd_protocol.ids import session_object_id, system_prompt_id
from ctxd_protocol.methods import sessions as wire
from ctxd_protocol.object_types import filesystem_source
from ctxd_protocol.session_types import Removal

KIND: Final = "session.gc"
"""The kind of a write that retires a session or marks it as emptied."""

ENTITIES_AT_ONCE: Final = 128
"""Entities that one write purges: other writes wait for its few milliseconds of work."""

WORK_S: Final = 5.0
"""Seconds of work after which a call ends and leaves the rest to the next one."""

GAP_MS_MIN: Final = 60 * 60 * 1000
"""Gaps in the journal up to this length always count in full."""

_NAMES_AT_ONCE: Final = 1000
_FILES_AT_ONCE: Final = 500


class _Ages:
    """Ages by the host's clock, and the ages that the journal confirms.

    A clock that jumps forward makes everything old at once; the journal then has a gap (a time without writes) of
    that length. So a gap counts for at most a third of ``keep_ms``, or ``GAP_MS_MIN`` if that is more.
    """

    def __init__(self, now_ms: int, newest_ms: int, gaps: Sequence[tuple[int, int]], keep_ms: int) -> None:
        self.now_ms = now_ms
        self._end = max(now_ms, newest_ms)
        self._gaps = [*gaps, (newest_ms, self._end)]
        self._counted_ms = gap_ms_max(keep_ms)

    def confirmed(self, wall_ms: int, valid_time: int) -> int:
        """Return the age in ms that the journal confirms for a write at ``wall_ms`` with ``valid_time``."""
        beyond = [max(0, end - start - self._counted_ms) for start, end in self._gaps if start >= valid_time]
        return min(self.now_ms - wall_ms, self._end - valid_time - sum(beyond))


def gap_ms_max(keep_ms: int) -> int:
    """Return the longest time, in ms, that a gap in the journal counts for."""
    return max(keep_ms // 3, GAP_MS_MIN)


class SessionCollector:
    """Collector of removed and of idle sessions. One collection runs at a time."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._collecting = SessionLock()

    async def collect(self, actor: Actor, params: wire.SessionGcParams) -> wire.SessionGcResult:
        """Empty and retire sessions in the order of their ids, after those whose emptying was interrupted.

        Raises: CtxdError of the store. Cancel: safe; the next collection continues.
        """
        async with self._collecting:
            sessions, clock = self._sessions, self._sessions.clock
            longer_than = gap_ms_max(params.keep_ms)
            gaps = await self._store.read_index(partial(purge.find_time_gaps, longer_than=longer_than))
            ages = _Ages(clock.wall_ms(), self._store.newest_valid_time, gaps, params.keep_ms)
            ends = clock.monotonic() + WORK_S
            found: list[wire.CollectedSession] = []
            if params.cursor is None and not params.dry_run:
                for session, head in list(sessions.emptied.items()):
                    if head.emptied == "begun":
                        found.append(await self._empty(actor, session, head))
            for session in self._after(params.cursor or ""):
                if (collected := await self._collect(actor, session, ages, params)) is not None:
                    found.append(collected)
                if len(found) >= params.limit or clock.monotonic() >= ends:
                    return wire.SessionGcResult(sessions=tuple(found), next_cursor=session)
            return wire.SessionGcResult(sessions=tuple(found), next_cursor=None)

    def _after(self, after: str) -> Iterator[str]:
        while names := self._sessions.catalog.names(after, _NAMES_AT_ONCE):
            yield from names
            after = names[-1]

    async def _collect(
        self, actor: Actor, session: str, ages: _Ages, params: wire.SessionGcParams
    ) -> wire.CollectedSession | None:
        """Empty or retire ``session`` if it is old enough, or report why it is kept; None if it is not old enough."""
        known = self._sessions.catalog.newest(session)
        if known is None:
            return None
        (head, valid_time), removed = known, known[0].settings.removed
        wall = valid_time if removed is None else removed.at
        if ages.now_ms - wall < params.keep_ms:
            return None
        if removed is None:
            wall, valid_time = await self._last_write(session)
        age = ages.now_ms - wall
        if age < params.keep_ms:
            return None
        confirmed = age if params.force else ages.confirmed(wall, valid_time)
        reason = self._reason_to_keep(session)
        if reason is None and confirmed < params.keep_ms:
            reason = "clock"
        title = self._sessions.catalog.summary(session).title
        made = wire.CollectedSession(
            session=session, action="kept", title=title, age_ms=age, confirmed_ms=confirmed, reason=reason
        )
        if reason is not None:
            return made
        if removed is None:
            if not params.dry_run and not await self._retire(actor, session, ages.now_ms):
                return None
            return msgspec.structs.replace(made, action="retired")
        if not params.dry_run:
            emptied = await self._empty(actor, session, head)
            return msgspec.structs.replace(emptied, title=title, age_ms=age, confirmed_ms=confirmed)
        size = await self._store.read_index(partial(purge.reclaimable, ids=await self._parts(session)))
        return msgspec.structs.replace(made, action="emptied", bytes=size)

    def _reason_to_keep(self, session: str) -> wire.KeepReason | None:
        if self._sessions.catalog.forks(session):
            return "forked"
        if self._sessions.visibility.restricts(session):
            return "sandbox"
        live = self._sessions.peek(session)
        if live is not None and not live.idle:
            return "in_use"
        return "elsewhere" if session in self._sessions.moved_sessions else None

    async def _last_write(self, session: str) -> tuple[int, int]:
        """Return the time of the newest write of ``session`` by the host's clock, and its valid time."""
        head_id = session_object_id(session)
        newest = await self._store.scan(segments_prefix(session), page=Page(limit=1, ascending=False))
        stored = [*newest, *(head for head in (await self._store.heads((head_id,))).values() if head is not None)]
        return max((each.tx_time, each.valid_time) for each in stored)

    async def _retire(self, actor: Actor, session: str, now_ms: int) -> bool:
        """Move ``session`` to the trash. Returns: False if it is in use."""
        live = await self._sessions.live(session)
        if not live.idle:
            return False
        async with live.lock:
            live.require_current()
            settings = live.settings
            removed = Removal(at=now_ms, by=actor.principal, via=actor.via, state=settings.state, idle=True)
            pending = live.submit(
                WriteRequest(KIND, actor.principal),
                settings=msgspec.structs.replace(settings, state="removed", removed=removed),
            )
        await pending.wait()
        return True

    async def _empty(self, actor: Actor, session: str, head: SessionHead) -> wire.CollectedSession:
        if head.emptied is None:
            head = msgspec.structs.replace(head, emptied="begun")
            if not await self._mark(actor, await self._sessions.live(session), head):
                return wire.CollectedSession(session=session, action="kept", reason="forked")
        ids = await self._parts(session)
        size = await self._store.read_index(partial(purge.reclaimable, ids=ids))
        for some in batched(ids, ENTITIES_AT_ONCE):
            await self._purge(actor, PurgeRequest(some, str, reclaimed=session))
            hit("trash.purge")
        tombstone = head_document(session, _without_content(head))
        id = session_object_id(session)
        await self._purge(actor, PurgeRequest((), str, within=(id,), restate=_replacing(tombstone), reclaimed=session))
        self._sessions.emptied[session] = msgspec.structs.replace(head, emptied="done")
        await self._store.purge_residue()
        return wire.CollectedSession(session=session, action="emptied", bytes=size)

    async def _mark(self, actor: Actor, live: LiveSession, head: SessionHead) -> bool:
        """Mark the session as emptied. Returns: False if it was forked meanwhile."""
        id = session_object_id(live.session)
        async with live.lock:
            live.require_current()
            stored = (await self._store.heads((id,)))[id]
            # An accepted fork is in the catalog once it is durable; a marked session cannot be forked.
            await self._store.wait_for_writes()
            if self._reason_to_keep(live.session) == "forked":
                return False
            floor_vt = 0 if stored is None else stored.valid_time + 1
            write = Write(
                kind=KIND, principal=actor.principal, session=live.session, puts=(head_document(live.session, head),),
                floor_vt=floor_vt,
            )  # fmt: skip
            pending = self._store.submit(write)
            self._sessions.emptied[live.session] = head
            self._sessions.unload(live.session)
        await pending.wait()
        hit("trash.begun")
        return True

    async def _purge(self, actor: Actor, asked: PurgeRequest) -> None:
        await self._store.submit(Write(kind=purge.KIND, principal=actor.principal, purge=asked)).wait()

    async def _parts(self, session: str) -> list[str]:
        """Return the entities that belong to ``session`` alone, the segments last."""
        prefixes = (entries_prefix, component_texts_prefix, assemblies_prefix, segments_prefix)
        own: list[str] = [*await self._objects(session), system_prompt_id(session)]
        for prefix in prefixes:
            own += await self._store.read_index(partial(purge.entities, prefix=prefix(session)))
        return [*await self._checkpoints(session), *own]

    async def _checkpoints(self, session: str) -> list[str]:
        """Return the commits that the daemon made of ``session`` and that no tag, session or kept commit reaches."""
        found = await self._store.read_index(partial(commit_index.named_commits, session=session))
        made: dict[str, bool] = {}
        for some in batched((each.id for each in found), _FILES_AT_ONCE):
            for id, head in (await self._store.heads(some)).items():
                made[id] = head is not None and STORED_NAMES["position"] in head.document.payload
        begun = (head.settings.continues for head in self._sessions.catalog.heads())
        continued = {each.commit for each in begun if each is not None} if found else ()
        reached: set[int | None] = set()
        unreached: list[str] = []
        for each in found:
            is_reached = each.is_named or each.number in reached or commit_id(each.id) in continued
            if is_reached or not made[each.id]:
                reached.add(each.parent)
            else:
                unreached.append(each.id)
        return unreached

    async def _objects(self, session: str) -> list[str]:
        """Return the tool calls and observed files that only ``session`` knows; none once its first segment is purged,
        as they were purged before it."""
        own = await self._store.read_index(partial(purge.entities, prefix=segments_prefix(session)))
        first = (await self._store.heads(own[:1])).get(own[0]) if own else None
        if first is None or is_purged(first.document):
            return []
        host, lane = self._sessions.host_filesystem_id, self._sessions.folding
        lineage = self._sessions.lineage(session)
        loaded = await load(self._store, session, host_filesystem_id=host, lane=lane, lineage=lineage)
        assert loaded is not None, "a session that is emptied has its head"
        index = loaded.state.index
        found = [id for id, kind in index.items() if kind == "toolcall"]
        for some in batched((id for id, kind in index.items() if kind == "file"), _FILES_AT_ONCE):
            for id, stored in (await self._store.heads(some)).items():
                source = None if stored is None else filesystem_source(stored.document.source)
                if source is not None and source.filesystem_id == observations(session):
                    found.append(id)
        return list(await self._store.read_index(partial(purge.unknown_elsewhere, ids=found, session=session)))


def _without_content(head: SessionHead) -> SessionHead:
    """Return the head of an emptied session, which keeps its owner and its removal."""
    was = head.settings
    settings = SessionSettings(
        agent=was.agent, principal=was.principal, created_at=was.created_at, ordinal=was.ordinal,
        filesystem_id=was.filesystem_id, state=was.state, removed=was.removed,
    )  # fmt: skip
    return SessionHead(settings=settings, emptied="done")


def _replacing(tombstone: Document) -> Restate:
    """Return a function that replaces every version by ``tombstone``."""
    return lambda document: None if document.content_hash == tombstone.content_hash else tombstone
