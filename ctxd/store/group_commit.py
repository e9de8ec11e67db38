"""The loop that makes accepted writes durable, a group at a time.

While one transaction runs, the next one gathers. A full disk fails the transaction and everything behind it, and is
probed until it has room. A failed disk ends the loop: nothing is acknowledged after it.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import anyio
from anyio.to_thread import run_sync

from ctxd import dbfile, limits
from ctxd.errors import CtxdError
from ctxd.failpoints import hit
from ctxd.store.committer import Committer
from ctxd.store.queue import Entry, Queue
from ctxd.store.state import Health
from ctxd.store.writes import Pending, note_submitted
from ctxd_protocol.objects import Receipt

Outcome = Literal["not_applied", "unknown"]


class GroupCommit:
    """The queue of accepted writes and what empties it. Knows neither heads nor operation ids: it tells of both
    ends."""

    def __init__(
        self,
        health: Health,
        landed: Callable[[Sequence[Entry]], None],
        lost: Callable[[Sequence[Entry]], None],
        fault: Callable[[Exception], None],
    ) -> None:
        """``landed`` is told of entries whose ``Pending`` was just resolved; ``lost`` of entries before theirs fail;
        ``fault`` what those raised who waited for a ``Pending``. None of the three raises."""
        self._health = health
        self._landed = landed
        self._lost = lost
        self._fault = fault
        self._queue = Queue()
        self._flushing: Sequence[Entry] = ()
        self._last: Pending | None = None
        self._wake = anyio.Event()
        self._limiter = anyio.CapacityLimiter(1)

    @property
    def full(self) -> bool:
        """Whether no further entry may be put."""
        return self._queue.full

    @property
    def waiting(self) -> int:
        """Writes that are not durable yet."""
        return len(self._queue) + len(self._flushing)

    def put(self, entry: Entry) -> None:
        """Append an entry, which is next in the journal's order."""
        self._queue.put(entry)
        self._last = entry.pending
        note_submitted()
        if not self._wake.is_set():
            self._wake.set()

    async def settle(self) -> None:
        """Return once everything put so far is durable or has failed. Cancel: safe."""
        last = self._last
        if last is None or last.done:
            return
        done = anyio.Event()
        last.on_done(lambda _: done.set())
        await done.wait()

    async def run(self, committer: Committer) -> Exception:
        """Commit batch after batch. Returns why the disk failed. Cancel: what is not durable fails as ``draining``."""
        try:
            while True:
                if not len(self._queue):
                    failure = await self._rest(committer)
                else:
                    failure = await self._commit(committer, self._queue.take())
                if failure is not None:
                    self._health.fail(str(failure))
                    self._fail(self._flushing, "store_failed", str(failure), "unknown")
                    self._fail(self._queue.clear(), "store_failed", str(failure), "not_applied")
                    return failure
        except anyio.get_cancelled_exc_class():
            # It comes before a transaction starts, or not before it has ended; see _commit.
            self._fail(self._flushing, "draining", "the daemon is going down", "not_applied")
            raise
        finally:
            self._health.drain()
            # Whatever else ends this may come after the commit.
            self._fail(self._flushing, "draining", "the daemon is going down", "unknown")
            self._fail(self._queue.clear(), "draining", "the daemon is going down", "not_applied")

    async def _commit(self, committer: Committer, batch: Sequence[Entry]) -> Exception | None:
        self._flushing = batch
        try:
            # Cancelled before the thread starts, or not before it has ended: a started transaction is always seen
            # through.
            chains = await run_sync(committer.commit, batch, limiter=self._limiter)
        except dbfile.DiskFull as error:
            self._health.fill(str(error))
            self._flushing = ()
            self._fail([*batch, *self._queue.clear()], "disk_full", str(error), "not_applied")
            return None
        except (dbfile.DiskFailed, dbfile.FileDamaged, dbfile.SqlFailed) as error:
            return error
        hit("journal.ack")
        self._flushing = ()
        for entry, chain in zip(batch, chains, strict=True):
            pending = entry.pending
            self._resolve(pending, Receipt(pending.seq, chain.hex(), pending.vt))
        self._landed(batch)
        if committer.low_space:
            self._health.fill("the filesystem of the state directory is nearly full")
        return None

    async def _rest(self, committer: Committer) -> Exception | None:
        """Wait for a write. Meanwhile tidy up once, or look whether a full disk has room again."""
        tidied = False
        while not len(self._queue):
            full = self._health.full
            delay = limits.PROBE_S if full else None if tidied else limits.CHECKPOINT_IDLE_S
            self._wake = anyio.Event()
            with anyio.move_on_after(delay):
                await self._wake.wait()
                continue
            try:
                if not full:
                    tidied = True
                    await run_sync(committer.tidy, limiter=self._limiter)
                elif await run_sync(committer.probe, limiter=self._limiter):
                    self._health.resume()
            except dbfile.DiskFull as error:
                self._health.fill(str(error))
            except (dbfile.DiskFailed, dbfile.FileDamaged, dbfile.SqlFailed) as error:
                return error
        return None

    def _fail(self, entries: Sequence[Entry], code: str, message: str, outcome: Outcome) -> None:
        if not entries:
            return
        self._flushing = ()
        self._lost(entries)
        for entry in entries:
            self._resolve(entry.pending, None, CtxdError(code, message, outcome=outcome))

    def _resolve(self, pending: Pending, receipt: Receipt | None, error: CtxdError | None = None) -> None:
        for raised in pending.resolve(receipt, error):
            self._fault(raised)
