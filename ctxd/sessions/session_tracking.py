"""Tracking of the files that sessions have read: each change on disk becomes a version.

Decides which files are leased for which sessions, and writes changes that no session reported. Changes are read and
stored by the code that also runs before each assembly (``ctxd.indexing.stale_files``), so a failed watcher makes no
context stale. These writes have no author: every session that read the file is notified, and ``by_session`` is None.
While a session that follows the file is busy, the write is deferred for a limited time, as the session may be about to
report the change as its own; it may also do so later (``ctxd.sessions.reconciliation``). Membership never changes here.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import anyio
from anyio.abc import TaskStatus

from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.mounts.mapping import MountTable
from ctxd.objects.document import Stored
from ctxd.objects.version_state import is_deleted
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_settings import mount_table
from ctxd.sessions.stored_session import shown_in
from ctxd.store.write_types import Pending, Write
from ctxd.trackers.tracked_files import State, TrackedFile
from ctxd.trackers.tracker import FileTrackers, Followed
from ctxd.worker_threads import Lane
from ctxd_protocol.object_types import filesystem_source, source_label

CONFIGURE: Final = "session.configure"
"""The kind of a write that may change the mounts of a session."""

KIND: Final = "tracker.change"
"""The kind of writes by trackers; their ``principal`` is ``PRINCIPAL``."""

PRINCIPAL: Final = "ctxd"

RESTART_S: Final = 5.0
"""Seconds before failed trackers are restarted."""

LEASED_AT_A_TIME: Final = 1_000
"""Files of one session that are leased in one batch."""

BUSY_S: Final = 0.1
"""Seconds for which a session counts as busy after a write."""

ROWS_INLINE_MAX: Final = 2_000
"""Up to this many tracked files are sorted on the loop, in some 2 ms; more on a thread."""

Row = tuple[str, TrackedFile]


class Tracking:
    """Tracks files for the sessions of one store. ``room`` returns the number of further files that may be tracked for
    a session. ``failed`` is called with an exception of the trackers, which are then restarted."""

    def __init__(
        self,
        sessions: Sessions,
        indexer: Indexer,
        trackers: FileTrackers,
        clock: Clock,
        *,
        room: Callable[[str], int],
        failed: Callable[[Exception], None],
    ) -> None:
        self.trackers = trackers
        self.versions = 0
        self._sessions = sessions
        self._store = sessions.store
        self._indexer = indexer
        self._clock = clock
        self._failed = failed
        self.room = room
        self._anywhere = MountTable.of_host(sessions.host_filesystem_id)
        self._wanted: dict[str, dict[str, bool]] = {}
        self._leasing: str | None = None
        """The session whose files are being leased, unless it was let go meanwhile."""
        self._lease_due = anyio.Event()
        self._listing = Lane("tracker.list", inline=ROWS_INLINE_MAX)
        # Writes of all types: a session may write a file alone, when it edits one that it knows, and is then busy too.
        self._store.on_durable(self._note_durable)
        sessions.on_live(self._take_up)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Track until cancelled."""
        task_status.started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._lease)
            while True:
                try:
                    await self.trackers.run(self)
                except Exception as error:  # noqa: BLE001 - no session's calls depend on a tracker
                    self._failed(error)
                await self._clock.sleep(RESTART_S)

    # --- leasing ---

    def _note_durable(self, writes: Sequence[tuple[Write, Pending]]) -> None:
        now, leases = self._clock.monotonic(), self.trackers.tracked.leases
        for write, _ in writes:
            session = write.session
            if session is None:
                continue
            for document in write.puts:
                if document.type == "segment":
                    if ids := shown_in(document.payload):
                        self._want(session, ids, known=False)
                elif document.type == "session" and _state(document.payload) != "active":
                    self._let_go(session)
                    break
            else:
                if write.kind == CONFIGURE:
                    # Files outside the new mounts are no longer followed; the others are leased again.
                    self._let_go(session)
                # The session is in use: its leases are extended, or taken again.
                if session in leases:
                    leases[session] = now + self.trackers.lease_s
                elif (live := self._sessions.peek(session)) is not None:
                    self._take_up(live)

    def _take_up(self, live: LiveSession) -> None:
        """Track all files that ``live`` has read: it is in use after a restart, a pause, or a long idle time."""
        read = live.state.read
        if read and live.settings.state == "active" and live.session not in self.trackers.tracked.leases:
            # Also if it has read no files, so that its next write does not look for them again.
            self.trackers.renew(live.session)
            if files := live.state.files(read):
                self._want(live.session, files, known=True)

    def _want(self, session: str, ids: Iterable[str], *, known: bool) -> None:
        wanted = self._wanted.setdefault(session, {})
        for id in ids:
            wanted.setdefault(id, known)
        self._lease_due.set()

    def _let_go(self, session: str) -> None:
        self._wanted.pop(session, None)
        if self._leasing == session:
            self._leasing = None
        self.trackers.release(session)

    async def _lease(self) -> None:
        while True:
            await self._lease_due.wait()
            self._lease_due = anyio.Event()
            while self._wanted:
                self._leasing = next(iter(self._wanted))
                await self._lease_files(self._leasing, self._wanted.pop(self._leasing))

    async def _lease_files(self, session: str, wanted: Mapping[str, bool]) -> None:
        ids = list(wanted)
        for start in range(0, len(ids), LEASED_AT_A_TIME):
            try:
                files = await self._followable(session, ids[start : start + LEASED_AT_A_TIME])
            except CtxdError:
                # The store cannot be read now; the session's next write tries again.
                self._let_go(session)
            if self._leasing != session:
                # It was paused, or has other mounts, for which its files are looked up again.
                return
            for known in (True, False):
                some = {id: file for id, file in files.items() if wanted[id] is known}
                self.trackers.lease(session, some, known=known)

    async def _followable(self, session: str, ids: Sequence[str]) -> dict[str, Followed]:
        """Return the files among ``ids`` that the daemon may read for ``session``."""
        heads = await self._store.heads(ids)
        sources = {
            id: file
            for id, head in heads.items()
            if head and (file := filesystem_source(head.document.source)) is not None
        }
        here = await self._indexer.visibility.readable(self._mounts_of(session), list(sources.values()))
        found: dict[str, Followed] = {}
        for (id, source), is_here in zip(sources.items(), here, strict=True):
            head = heads[id]
            if is_here and head is not None:
                found[id] = Followed(source.path, head.tx_time)
        return found

    def _mounts_of(self, session: str) -> MountTable:
        live = self._sessions.peek(session)
        if live is not None:
            return live.mounts
        return mount_table(self._sessions.catalog.settings(session), self._sessions.host_filesystem_id)

    # --- storing changes ---

    def keeps(self, session: str) -> bool:
        """See ``ctxd.trackers.watcher_interface.Observer``."""
        return self._sessions.is_watched(session)

    def is_busy(self, id: str) -> bool:
        """See ``ctxd.trackers.watcher_interface.Observer``."""
        file = self.trackers.tracked.files[id]
        return any(self._is_at_work(session) for session in file.sessions)

    def _is_at_work(self, session: str) -> bool:
        live = self._sessions.peek(session)
        if live is not None and live.lock.queue:
            return True
        ends = self.trackers.tracked.leases.get(session)
        # Its leases end ``lease_s`` after its last write.
        return ends is not None and ends - self.trackers.lease_s > self._clock.monotonic() - BUSY_S

    async def changed(self, ids: Sequence[str]) -> Mapping[str, bool | None]:
        """Store the changes of ``ids``. See ``ctxd.trackers.watcher_interface.Observer``."""
        try:
            unreachable = await self._store_changes(ids)
        except CtxdError:
            # The store's failure is reported elsewhere; these files are retried until it accepts writes again.
            return {}
        return {id: None if id in unreachable else self._is_there(id) for id in ids}

    async def _store_changes(self, ids: Sequence[str]) -> set[str]:
        """Store new versions of changed files. Returns: the ids of files whose source is unreachable."""
        compared = await self._indexer.stale_files.compare(self._anywhere, ids)
        unreachable = set(compared.orphaned)
        for slice_ids in compared.slices:
            found = await self._indexer.stale_files.read_slice(slice_ids)
            unreachable.update(found.orphaned)
            if found.documents:
                # No await since the decision, so that no version of a session comes between.
                write = Write(
                    kind=KIND,
                    principal=PRINCIPAL,
                    puts=found.documents,
                    signatures=found.signatures,
                    floor_vt=found.floor_vt,
                )
                await self._store.submit(write).wait()
                self.versions += len(found.documents)
        return unreachable

    def _is_there(self, id: str) -> bool:
        head = self._store.peek(id)
        return not (isinstance(head, Stored) and is_deleted(head.document))

    # --- listing ---

    async def rows(self, *, after: str, state: State | None, limit: int) -> list[Row]:
        """Return rows of tracked files, sorted by path and id, after the sort key ``after``. Cancel: safe."""
        return await self._page(list(self.trackers.tracked.files.items()), after, state, limit)

    async def rows_of(self, session: str, *, after: str, state: State | None, limit: int) -> list[Row]:
        """As ``rows``, for all files that ``session`` has read, tracked or not. Raises: CtxdError session_not_found."""
        live = await self._sessions.live(session)
        waits = "not attached yet" if live.settings.state == "active" else f"the session is {live.settings.state}"
        read = live.state.files(live.state.read)
        heads = await self._store.heads(read)
        followable = await self._followable(session, read)
        rows: dict[str, TrackedFile] = {}
        for id, head in heads.items():
            if head is not None and head.document.source is not None:
                file = self.trackers.tracked.files.get(id)
                if file is None or session not in file.sessions:
                    file = TrackedFile(source_label(head.document.source), known=True, since=head.valid_time)
                    file.reason = waits if id in followable else "only its own agent can look at it"
                rows[id] = file
        return await self._page(list(rows.items()), after, state, limit)

    async def _page(self, rows: list[Row], after: str, state: State | None, limit: int) -> list[Row]:
        def page() -> list[Row]:
            behind = [row for row in rows if state in (None, row[1].state) and place_of(*row) > after]
            return heapq.nsmallest(limit, behind, key=lambda row: place_of(*row))

        return await self._listing.run(page, size=len(rows))


def place_of(id: str, file: TrackedFile) -> str:
    """Return the sort key of a file's row."""
    return f"{file.path}\0{id}"


def _state(payload: Mapping[str, object]) -> object:
    settings = payload.get("settings")
    return settings.get("state", "active") if isinstance(settings, dict) else "active"
