"""The running search index: it follows the journal outside the write path, and removes purged texts.

No write waits for it. It processes the journal in bounded steps and rests in between, for longer while the daemon has
other work. Work that fails for lack of disk space or memory is retried later; a file that is missing, damaged, or of
another schema is rebuilt.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal

import anyio
from anyio.abc import TaskStatus

from ctxd import sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.search import index_database, index_folder
from ctxd.search.index_database import IndexFile
from ctxd.search.indexing_pace import IndexingPace
from ctxd.search.journal_texts import IndexBatch, JournalTexts, PurgedEntities
from ctxd.store.journal_followers import Follower
from ctxd.store.state_directory import SEARCH_INDEX
from ctxd.store.version_reads import Reader
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import DurableWrites
from ctxd.worker_threads import Lane
from ctxd_protocol.status_types import SearchStatus

STEP_ROWS: Final = 512
"""Maximum journal rows per step."""

STEP_BYTES: Final = 1024 * 1024
"""Characters of text after which a step ends: about 20 ms of processor time."""

START_S: Final = 0.4
"""Seconds after a start until indexing begins."""

REOPENED_S: Final = 0.1
"""Seconds between two checks whether a rebuilt index is open."""

RETRY_S: Final = 5.0
"""Seconds until the next attempt after a shortage of space, memory or threads."""

REBUILD_PAUSE_S: Final = 60.0
"""Minimum seconds between two rebuilds for damage: if it recurs at once, a rebuild does not help."""

ERASE_RETRY_S: Final = 0.05
"""Seconds between two attempts to empty the log while a search is reading it."""

FILES: Final = tuple(f"{SEARCH_INDEX}/{index_database.NAME}{suffix}" for suffix in ("", "-wal"))
"""Files, relative to the state directory, that may hold words of a purged text."""


class SearchIndex:
    """The index of one store, to which ``serve`` has to be attached.

    ``generation`` changes whenever the file is opened. The file is in ``cache``; None for the state directory.
    """

    def __init__(self, clock: Clock, cache: Path | None) -> None:
        self._clock = clock
        self._cache = cache
        self._lane = Lane("search.index", bulk=True)
        self._purged: list[PurgedEntities] = []
        self._idle = anyio.CancelScope()
        self._pace = IndexingPace(clock)
        self._rebuilding = False
        self._rebuilt_at = -REBUILD_PAUSE_S
        self._index: IndexFile | None = None
        self._store: VersionStore | None = None
        self._clean = anyio.Event()
        self._is_clean = False
        self._reason = ""
        self._faults = 0
        self.generation = 0
        self.on_end: list[Callable[[], None]] = []
        """Functions called before the file is closed."""

    @property
    def path(self) -> Path:
        """The file of the index. The store must be open."""
        assert self._store is not None, "the store is open"
        return self._store.directory.root / SEARCH_INDEX / index_database.NAME

    async def serve(self, store: VersionStore, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow the journal of ``store`` until cancelled: pass this to ``store.attach``. Cancel: safe."""
        self._store = store
        store.on_durable(self._note_purges, types=())
        store.on_purge(FILES, self._erased)
        task_status.started()
        follower: Follower | None = None
        while True:
            try:
                if follower is None:
                    follower = await store.follow("search")
                await self._run(store, follower)
            except (sqlite_file.FileDamaged, sqlite_file.SqlFailed) as error:
                self._note_fault(store, f"the search index is damaged and will be rebuilt: {error}", error)
                await self._clock.sleep(max(0.0, self._rebuilt_at + REBUILD_PAUSE_S - self._clock.monotonic()))
                self._rebuilding = True
            except (sqlite_file.DiskFull, sqlite_file.DiskFailed, CtxdError, OSError) as error:
                self._note_fault(store, f"the search index waits: {error}", error)
                await self._clock.sleep(RETRY_S)

    def _end_searches(self) -> None:
        for end in self.on_end:
            end()

    def _note_fault(self, store: VersionStore, reason: str, error: Exception) -> None:
        self._faults += 1
        if reason != self._reason:
            self._reason = reason
            store.note_fault(error)

    async def _run(self, store: VersionStore, follower: Follower) -> None:
        """Open the index, and follow the journal until a rebuild is requested or something fails."""
        directory = store.directory
        with ExitStack() as stack:
            artifacts = ArtifactStore(directory.artifacts)
            reader = await self._lane.run(partial(Reader, directory.database, artifacts, reads_once=True))
            stack.callback(reader.close)
            texts = JournalTexts(reader)
            folder = await self._lane.run(index_folder.prepare, directory.root, self._cache)
            if folder.reason:
                store.note_fault(OSError(folder.reason))
            if self._rebuilding:
                await self._lane.run(index_database.remove, self.path)
                self._rebuilt_at = self._clock.monotonic()
            index = await self._lane.run(lambda: IndexFile.open(self.path, store.journal_id, fits=texts.fits))
            stack.callback(index.close)
            self._index, self._rebuilding = index, False
            self.generation += 1
            try:
                # After a start the first calls read a cold database, so they go before rows that are not indexed yet.
                await self._clock.sleep(START_S)
                if index.seq:
                    self._purged += await self._lane.run(texts.purges_after, index.seq)
                await self._follow(store, follower, index, texts)
            except anyio.get_cancelled_exc_class():
                # The daemon is ending. Close open searches, which would keep the log from being emptied.
                self._end_searches()
                with suppress(
                    sqlite_file.DiskFull, sqlite_file.DiskFailed, sqlite_file.FileDamaged, sqlite_file.SqlFailed
                ):
                    index.empty_log(beyond=0)
                raise

    async def _follow(self, store: VersionStore, follower: Follower, index: IndexFile, texts: JournalTexts) -> None:
        """Index new rows, and remove purged texts, until a rebuild is requested."""
        while not self._rebuilding:
            began = self._clock.monotonic()
            if self._purged:
                await self._forget(index, texts)
            step = await self._lane.run(self._step, index, texts)
            self._reason = ""
            if step is not None:
                if not self._purged and not self._rebuilding:
                    await self._pace.rest(self._clock.monotonic() - began)
                continue
            if index.rewrite_due:
                await self._erase(index)
            else:
                await self._lane.run(index.empty_log)
            self._note_clean(index)
            with anyio.CancelScope() as self._idle:
                if not self._rebuilding and not self._purged:
                    await follower.wait(index.seq)

    def _step(self, index: IndexFile, texts: JournalTexts) -> IndexBatch | None:
        batch = texts.batch(index, STEP_ROWS, STEP_BYTES)
        if batch is not None:
            _apply(index, batch, is_mark=True)
        return batch

    async def _forget(self, index: IndexFile, texts: JournalTexts) -> None:
        """Remove purged texts, even if the index is far behind: the rows still ahead no longer have them."""
        purged = list(self._purged)
        await self._lane.run(lambda: _apply(index, texts.without(index, purged), is_mark=False))
        del self._purged[: len(purged)]
        if index.rewrite_due:
            await self._erase(index)
        self._note_clean(index)

    async def _erase(self, index: IndexFile) -> None:
        while await self._lane.run(index.rewrite_shard):
            pass
        while not await self._lane.run(index.finish_rewrite):
            await self._clock.sleep(ERASE_RETRY_S)

    # --- purges

    def _note_purges(self, writes: DurableWrites) -> None:
        for write, _ in writes:
            if write.purge is not None and write.purge.done is not None:
                self._purged.append(PurgedEntities(write.purge.done.ids, write.purge.reclaimed is not None))
                self._is_clean = False
                self._idle.cancel()
                self._pace.interrupt()

    def _note_clean(self, index: IndexFile) -> None:
        if not self._purged and not index.rewrite_due:
            self._is_clean = True
            self._clean.set()
            self._clean = anyio.Event()

    async def _erased(self) -> None:
        """Return once the file holds no words of text purged before the call. Cancel: safe."""
        while not self._is_clean:
            await self._clean.wait()

    # --- queries and status

    async def rebuild(self) -> None:
        """Start a rebuild from the journal, and return once the new file is open. Cancel: safe; the rebuild continues.

        Raises: CtxdError ``store_unavailable`` if the file cannot be made; it is tried again."""
        before, faults = self.generation, self._faults
        self._begin_rebuild()
        while self.generation == before:
            if self._faults > faults:
                raise CtxdError("store_unavailable", self._reason, hint="Free the disk or correct its permissions.")
            await self._clock.sleep(REOPENED_S)

    def make_anew(self) -> None:
        """Start a rebuild because a search has found damage, unless the last one was recent."""
        if self._clock.monotonic() >= self._rebuilt_at + REBUILD_PAUSE_S:
            self._begin_rebuild()

    def _begin_rebuild(self) -> None:
        self._rebuilding = True
        self._idle.cancel()
        self._pace.interrupt()

    @property
    def is_open(self) -> bool:
        """True if the index can be searched, even if it is behind."""
        return self._index is not None

    def status(self) -> SearchStatus:
        """The figures of ``daemon.status``."""
        head = 0 if self._store is None or (receipt := self._store.head()) is None else receipt.seq
        if self._index is None:
            return SearchStatus(state="behind", reason=self._reason, seq=0, lag_rows=head, bytes=0)
        behind = max(0, head - self._index.seq)
        state: Literal["current", "behind", "failing"] = (
            "failing" if self._reason else "behind" if behind else "current"
        )
        return SearchStatus(
            state=state,
            reason=self._reason,
            seq=self._index.seq,
            lag_rows=behind,
            bytes=self._index.size,
            path=os.path.realpath(self.path),
        )


def _apply(index: IndexFile, batch: IndexBatch, *, is_mark: bool) -> None:
    mark = (batch.seq, batch.chain) if is_mark else None
    index.apply(batch.texts, replaced=batch.replaced.items(), sessions=batch.sessions, mark=mark, purged=batch.purged)
