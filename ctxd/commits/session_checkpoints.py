"""Checkpoints of sessions: commits that the daemon makes of their chats, and the current context, which refers to one.

The delta of such a commit contains the chat's events since the last one, in ``events-v1``; it is empty if only files
and tool calls outside the chat are new. The session as of the commit's journal sequence contains every write
acknowledged before. A commit stores its end position, so no event is in two deltas, even after a restart.
"""

from collections.abc import Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskStatus

from ctxd.capture.stream_checkpoints import Checkpoint, CheckpointTracker, Trigger, rank
from ctxd.commits.commit import read_fields
from ctxd.commits.commit_operations import Commits, NewCommit
from ctxd.errors import CtxdError
from ctxd.formats import events_v1
from ctxd.formats.cbor_array import joined
from ctxd.objects.commit_document import Fields, Position, commit_id, entity_id
from ctxd.objects.document import Page
from ctxd.sessions.chat import read_pages
from ctxd.sessions.compaction_kept_messages import with_kept_messages
from ctxd.sessions.live_session import LiveSession, SessionLock, WriteRequest
from ctxd.sessions.registry import Sessions
from ctxd.sessions.stored_session import SessionHead, delta_events, read_segment
from ctxd.store import commit_index
from ctxd.store.commit_index import CommitFilter
from ctxd.store.write_types import DurableWrites
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.event_types import CompactionEvent, Event
from ctxd_protocol.limits import PAGE_ITEMS_MAX

KIND: Final = "commit.checkpoint"
"""The kind of a checkpoint's journal row."""

_MAKE_COMMITS: Final = (KIND, "commit.import")

_IMPORT: Final = "session.adopt"
"""The kind of rows that import a session from another host."""

DELTA_BYTES_MAX: Final = 768 * 1024
"""Approximate bytes of a delta: it fits in the database, so that a purge can remove single messages from it."""

BATCH_S: Final = 0.2
"""Seconds for which tool calls are gathered into one commit."""

_NOTHING: Final = Position()
_EMPTY: Final = Checkpoint("explicit", joined([]), 0, 0)


class _Newest(msgspec.Struct, frozen=True):
    """The newest commit of a session: its id, None before the first, and its instant. ``position``: the end of its
    newest checkpoint of the chat. ``written``: valid time of the session's version that is fully committed."""

    commit: str | None = None
    at: int = -1
    position: Position = _NOTHING
    written: int = -1


class SessionCheckpoints:
    """The checkpoints of all sessions. ``run`` makes those that are due."""

    def __init__(self, sessions: Sessions, commits: Commits) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._commits = commits
        self._newest: dict[str, _Newest] = {}
        self._locks: dict[str, SessionLock] = {}
        self._due: dict[str, Trigger] = {}
        """Sessions to commit, with the trigger. For ``turn_boundary`` only whole turns are due."""
        self._purges = 0
        self._wake = anyio.Event()
        self._has_tool_policy = False
        self._has_compaction_policy = False
        self._store.on_durable(self._note, types=("commit", "session"))
        sessions.on_head_with_checkpoints(self._note_head)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Make due checkpoints until cancelled. If the store refuses one, the session's next trigger makes it."""
        task_status.started()
        catalog = self._sessions.catalog
        for session in catalog.states():
            # Turns that ended before the last shutdown.
            if (known := catalog.newest(session)) is not None and known[0].settings.checkpoint != "none":
                self._note_head(session, known[0])
                if known[0].settings.checkpoint == "compaction" and await self._has_new_compaction(session):
                    self._note_due(session, "compaction")
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._due:
                session = next(iter(self._due))
                trigger = self._due.pop(session)
                try:
                    await self.checkpoint(session, trigger, whole_turns=trigger == "turn_boundary")
                except CtxdError as error:
                    self._store.note_fault(error)
            # Tool calls within this time make one commit.
            if self._has_tool_policy:
                await self._sessions.clock.sleep(BATCH_S)

    def _note_due(self, session: str, trigger: Trigger) -> None:
        """Make a checkpoint of ``session`` soon. Of several triggers, the one of the highest rank is recorded."""
        self._due[session] = max(trigger, self._due.get(session, trigger), key=rank)
        self._wake.set()

    def _note_head(self, session: str, head: SessionHead) -> None:
        """Make a checkpoint of ``session`` soon: of whole turns if it is active, else of everything."""
        settings = head.settings
        if settings.checkpoint == "tool" and not self._has_tool_policy:
            self._has_tool_policy = True
            # Register this only when needed, because it runs for every recorded tool call.
            self._store.on_durable(self._note_calls, types=("toolcall",))
        is_active = settings.state == "active"
        if settings.checkpoint == "compaction":
            if not self._has_compaction_policy:
                self._has_compaction_policy = True
                # Register this only when needed, because it runs for every write to a chat.
                self._store.on_durable(self._note_compactions, types=("segment",))
            if is_active:
                return
        if settings.state == "removed":
            return
        newest = self._newest.get(session)
        if is_active and newest is not None and newest.position.turn >= head.turn_count:
            return
        if settings.state == "closed":
            self._note_due(session, "session_end")
        else:
            # A pause counts as an explicit request, because the session does not end.
            self._note_due(session, "turn_boundary" if is_active else "explicit")

    def _note_calls(self, writes: DurableWrites) -> None:
        for write, _ in writes:
            if write.session is None:
                continue
            known = self._sessions.catalog.newest(write.session)
            if known is not None and known[0].settings.checkpoint == "tool":
                self._note_due(write.session, "tool_call")

    def _note_compactions(self, writes: DurableWrites) -> None:
        for write, _ in writes:
            known = None if write.session is None else self._sessions.catalog.newest(write.session)
            if write.session is None or known is None or known[0].settings.checkpoint != "compaction":
                continue
            deltas = [read_segment(document) for document in write.puts if document.type == "segment"]
            if any(isinstance(event, CompactionEvent) for delta in deltas for event in delta_events(delta)):
                self._note_due(write.session, "compaction")

    async def _has_new_compaction(self, session: str) -> bool:
        """True if the chat of ``session`` has an uncommitted compaction."""
        if self._sessions.catalog.state(session) != "active" or session in self._sessions.moved_sessions:
            return False
        try:
            await self.load(session)
            live = await self._sessions.live(session)
            began = self._newest[session].position.chat
            async with aclosing(read_pages(live, began)) as pages:
                async for page in pages:
                    if any(at >= began and isinstance(event, CompactionEvent) for at, event in page.placed()):
                        return True
        except CtxdError as error:
            self._store.note_fault(error)
        return False

    def note_assembled(self, session: str) -> None:
        """Make a checkpoint of ``session`` soon if it was assembled since the newest one."""
        found = self._sessions.catalog.newest(session)
        if found is not None and found[0].assembly > self._newest.get(session, _Newest()).position.assembly:
            self._note_due(session, "tool_call")

    def known(self, session: str | None) -> CurrentContext:
        """The current context of ``session`` without its pending events: its newest commit, if loaded. None: the
        only open session. Raises: CtxdError session_not_found."""
        return self._known(self._sessions.catalog.current(session))

    def _known(self, current: CurrentContext) -> CurrentContext:
        if current.session is None:
            return current
        newest = self._newest.get(current.session)
        commit = None if newest is None else newest.commit
        return current if commit == current.context_id else msgspec.structs.replace(current, context_id=commit)

    def current(self, session: str | None) -> CurrentContext | Coroutine[Any, Any, CurrentContext]:
        """The current context of ``session``, after committing its new events; None: the only open session. Returns it
        without a coroutine if the session has not changed since the last commit.

        If the store refuses writes, it is the newest existing commit. Raises: CtxdError session_not_found; those of the
        store. Cancel: safe; the commit may have been made.
        """
        current = self._sessions.catalog.current(session)
        if current.session is None:
            return current
        return self._known(current) if self._is_committed(current.session) else self._committed(current.session)

    def _is_committed(self, session: str) -> bool:
        newest, durable = self._newest.get(session), self._sessions.catalog.newest(session)
        live = self._sessions.peek(session)
        return (
            newest is not None
            and durable is not None
            and newest.written == durable[1]
            # Replies and tool calls write no head: only a loaded session knows of them.
            and live is not None
            and live.updated_at == durable[1]
        )

    async def _committed(self, session: str) -> CurrentContext:
        try:
            # A running tool has requested it.
            await self.checkpoint(session, "tool_call")
        except CtxdError as error:
            if error.outcome != "not_applied" or self.known(session).context_id is None:
                raise
        return self.known(session)

    async def checkpoint(self, session: str, trigger: Trigger, *, whole_turns: bool = False) -> str | None:
        """Commit the new events of ``session``, durably; does nothing if there are none, or if it has moved to another
        host. ``whole_turns``: leave out the current turn. Returns: the newest commit of the session; None without one.

        Raises: CtxdError session_not_found, corrupt, and those of the store. Cancel: safe; the commit may have been
        made.
        """
        lock = self._locks.setdefault(session, SessionLock())
        try:
            async with lock:
                await self.load(session)
                if session not in self._sessions.moved_sessions:
                    while not await self._checkpoint(await self._sessions.live(session), trigger, whole_turns):
                        await self._store.wait_for_writes()
                return self._newest[session].commit
        finally:
            if lock.free:
                self._locks.pop(session, None)

    async def load(self, session: str) -> None:
        """Look up the newest commit of ``session``, for ``known``. Raises: CtxdError corrupt, store_failed."""
        if session in self._newest:
            return
        first = _Newest()
        position: Position | None = None
        source, made_by = session, None
        while position is None:
            first, position = await self._found(source, first, made_by)
            settings = self._sessions.catalog.settings(source)
            if (begun := settings.continues) is not None and await self._was_made(begun.commit, made_by):
                first = _Newest(begun.commit, 0) if first.commit is None else first
                position = position or begun.position
                break
            # A fork continues the chain that its parent had at the fork.
            base = settings.base
            if base is None:
                break
            source, made_by = base.session, base.tx if made_by is None else min(made_by, base.tx)
        loaded = msgspec.structs.replace(first, position=position or _NOTHING)
        # A newer commit may have become durable meanwhile.
        newer = self._newest.get(session)
        self._newest[session] = loaded if newer is None or newer.at < loaded.at else newer

    async def _was_made(self, commit: str, made_by: int | None) -> bool:
        """True if ``commit`` existed at the journal sequence ``made_by``: a session imported from another host may
        continue a commit that is later than its fork."""
        if made_by is None:
            return True
        found = await self._store.history(entity_id(commit), page=Page(limit=1))
        return bool(found) and found[0].tx <= made_by

    async def _found(self, session: str, first: _Newest, made_by: int | None) -> tuple[_Newest, Position | None]:
        """The newest commit of ``session`` up to the journal sequence ``made_by``, or ``first`` if that has one; and
        the end of the newest checkpoint."""
        before: tuple[int, int] | None = None
        while True:
            wanted = CommitFilter(session=session, before=before, tx=made_by)
            places = await self._store.read_index(
                partial(commit_index.list_commits, wanted=wanted, limit=PAGE_ITEMS_MAX)
            )
            for stored in (await self._store.bulk([place.id for place in places])).values():
                fields = read_fields(stored)
                if first.commit is None:
                    first = _Newest(commit_id(stored.document.id), fields.at)
                if fields.position is not None:
                    return first, fields.position
            if len(places) < PAGE_ITEMS_MAX:
                return first, None
            before = (places[-1].at, places[-1].number)

    def _note(self, writes: DurableWrites) -> None:
        for write, _ in writes:
            self._purges += write.purge is not None
            if write.kind == _IMPORT and write.session is not None:
                # It continues commits of another host.
                self._newest.pop(write.session, None)
            for document in write.puts:
                session = (
                    document.payload.get("in") if document.type == "commit" and write.kind in _MAKE_COMMITS else None
                )
                if session in self._newest:
                    fields, known = msgspec.convert(document.payload, Fields), self._newest[session]
                    if fields.at >= known.at:
                        self._newest[session] = msgspec.structs.replace(
                            known,
                            commit=commit_id(document.id),
                            at=fields.at,
                            position=fields.position or known.position,
                        )

    async def _checkpoint(self, live: LiveSession, trigger: Trigger, whole_turns: bool) -> bool:
        """Commit the new events of ``live``, a few pages of the chat at a time. Returns: False after a purge."""
        written, end = live.updated_at, _end_of(live)
        began = self._newest[live.session].position
        if whole_turns:
            end = msgspec.structs.replace(began, turn=live.state.turn, place=0)
            if end.chat <= began.chat:
                return True
        if end != began and end != _NOTHING:
            purges, tracker = self._purges, CheckpointTracker(frozenset(), bytes_max=DELTA_BYTES_MAX)
            cuts: list[Checkpoint] = []
            async for page in read_pages(live, began.chat, end.chat):
                places = [(place, event) for place, event in page.placed() if began.chat <= place < end.chat]
                cuts += _due(tracker, await with_kept_messages(live, places))
                if cuts:
                    cuts += tracker.cut("explicit")
                    turn, place = places[-1][0]
                    until = Position(turn, place + 1, began.assembly, began.objects)
                    if not await self._write(live, cuts, until, purges):
                        return False
                    cuts = []
            cuts += tracker.cut(trigger)
            is_new = self._newest[live.session].position != end and (cuts or not whole_turns)
            if is_new:
                if not await self._write(live, cuts or [_EMPTY._replace(trigger=trigger)], end, purges):
                    return False
        if not whole_turns:
            self._newest[live.session] = msgspec.structs.replace(self._newest[live.session], written=written)
        return True

    async def _write(self, live: LiveSession, cuts: Sequence[Checkpoint], end: Position, purges: int) -> bool:
        """Write ``cuts`` as consecutive commits, all or none, and wait until they are durable.

        Returns: False if there are more purges than ``purges`` now: events read before may be gone.
        """
        new = [
            NewCommit(
                cut.delta,
                Fields(
                    principal=live.settings.principal,
                    at=0,
                    format=events_v1.NAME,
                    checkpoint=cut.trigger,
                    commit_type="compaction" if cut.is_compaction else "delta",
                    session=live.session,
                    template=live.settings.agent,
                    message_count=cut.messages,
                    token_count=cut.tokens,
                    summary=cut.summary,
                    position=end,
                ),
            )
            for cut in cuts
        ]
        return await self._commits.append(
            self._newest[live.session].commit,
            new,
            WriteRequest(KIND, live.settings.principal),
            unless=lambda: self._purges != purges or self._store.is_purging(),
        )


def _due(tracker: CheckpointTracker, events: Iterable[tuple[Event, Sequence[Event]]]) -> list[Checkpoint]:
    """The checkpoints that are due after ``events``, each with the messages that it keeps."""
    return [cut for event, kept in events for cut in tracker.add([event], kept)]


def _end_of(live: LiveSession) -> Position:
    turns = live.state.turns
    return Position(len(turns) - 1, len(turns[-1]), live.assembly, len(live.state.index))
