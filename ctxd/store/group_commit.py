"""Group commit: the queue of accepted writes, the thread that commits them, and the loop between both.

While one transaction runs, the next one gathers. A full disk fails the transaction and everything behind it, and is
probed until it has room. A failed disk ends the loop: nothing is acknowledged after it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, TypeVar, cast

import anyio
import anyio.lowlevel
from anyio.to_thread import run_sync

from ctxd import dbfile, limits
from ctxd.errors import CtxdError
from ctxd.failpoints import ARMED, hit
from ctxd.offload import LoopHandle
from ctxd.store.committer import Committer, StateRemoved
from ctxd.store.health import Health
from ctxd.store.writes import Pending, QueuedWrite
from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.objects import Receipt

Work = Callable[[], Any]
Report = Callable[[Any, BaseException | None], None]


class CommitThread:
    """``report`` receives the result or exception of each call on the loop, before the next one. It does not raise."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._given: SimpleQueue[Work | None] = SimpleQueue()
        self.give: Callable[[Work], None] = self._given.put
        """Queue a call. Only while no other call runs or is queued."""

    def take_back(self) -> bool:
        """Cancel the queued call. Returns: True if it had not started."""
        with suppress(Empty):
            return self._given.get_nowait() is not None
        return False

    def stop(self) -> None:
        """End ``run`` after the current call."""
        self._given.put(None)

    async def run(self) -> None:
        """Make calls until ``stop``. Cancel: has no effect; call ``stop``."""
        with anyio.CancelScope(shield=True):
            await run_sync(self._work, LoopHandle(), limiter=anyio.CapacityLimiter(1))

    def _work(self, loop: LoopHandle) -> None:
        while (work := self._given.get()) is not None:
            try:
                result, raised = work(), None
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                result, raised = None, error
            # The loop waits for this thread to end, so it has not ended itself.
            loop.schedule(self._report, result, raised)
            del work, result, raised


Outcome = Literal["not_applied", "unknown"]
T = TypeVar("T")

_GOING_DOWN: Final = "the daemon is going down"

_TOLD_AT_ONCE: Final = 32
"""Writes whose callers are resumed in one iteration of the loop: about a millisecond."""

_GATHERED_TURNS: Final = 4
"""Turns of the loop for which the next transaction waits after one of more than ``_SMALL`` writes: as many are about to
come again, and each that comes in time saves a part of a transaction."""

_SMALL: Final = 8
"""Writes of a transaction after which the next one does not wait: few writes are behind it."""


class GroupCommit:
    """Queue of accepted writes, and the loop that empties it. Knows neither heads nor operation ids."""

    def __init__(
        self,
        health: Health,
        landed: Callable[[Sequence[QueuedWrite]], None],
        lost: Callable[[Sequence[QueuedWrite]], None],
        fault: Callable[[Exception], None],
    ) -> None:
        """``landed`` receives entries whose ``Pending`` was just resolved, ``lost`` entries before theirs fail, and
        ``fault`` the exceptions of callbacks of a ``Pending``. None of the three raises."""
        self._health = health
        self._landed = landed
        self._lost = lost
        self._fault = fault
        self.queue: deque[QueuedWrite] = deque()
        """Accepted writes that no transaction has begun for, in the journal's order."""
        self.queued_bytes = 0
        self._flushing: Sequence[QueuedWrite] = ()
        self._purged: anyio.Event | None = None
        self._telling: Sequence[QueuedWrite] = ()
        self._last: Pending | None = None
        self._wake = anyio.Event()
        self._thread = CommitThread(self._told)
        # Ended calls of the thread whose writes are not resolved yet: entries, result, exception.
        self._ended: deque[tuple[Sequence[QueuedWrite], Any, BaseException | None]] = deque()
        self._busy = False
        self._stopping = False
        self._failure: Exception | None = None

    @property
    def waiting(self) -> int:
        """Writes that are not durable yet."""
        return len(self.queue) + len(self._begun())

    def put(self, entry: QueuedWrite) -> None:
        """Append an entry, which is next in the journal's order."""
        self.queue.append(entry)
        self.queued_bytes += entry.prepared.size
        self._last = entry.pending
        if not self._busy and not self._wake.is_set():
            self._wake.set()

    async def settle(self) -> None:
        """Return once everything put so far is durable or has failed. Cancel: safe."""
        last = self._last
        if last is None or last.done:
            return
        done = anyio.Event()
        last.on_done(lambda _: done.set())
        await done.wait()

    async def purges_finished(self) -> None:
        """Return once nothing outside the database holds what durable purges destroyed. Cancel: safe."""
        while self._committer.purging:
            if self._purged is None:
                self._purged = anyio.Event()
                # The loop may be waiting for a write.
                self._wake.set()
            await self._purged.wait()

    async def run(self, committer: Committer) -> Exception:
        """Commit batch after batch. Returns why the disk failed. Cancel: what is not durable fails as ``draining``."""
        self._committer = committer
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._serve)
                await self._thread.run()
            # The task group does not pass on that the loop was cancelled.
            await anyio.lowlevel.checkpoint_if_cancelled()
            assert self._failure is not None, "the loop ends with a failed disk, or is cancelled"
            return self._failure
        finally:
            self._health.drain()
            # Whatever else ends this may come after the commit.
            self._fail(self._begun(), "draining", _GOING_DOWN, "unknown")
            self._fail(self._clear(), "draining", _GOING_DOWN, "not_applied")

    async def _serve(self) -> None:
        """Commit until the disk fails, or until cancelled; the thread ends with this."""
        try:
            failure = None
            while failure is None:
                await anyio.lowlevel.checkpoint_if_cancelled()
                if self.queue and not self._busy and not self._ended:
                    self._start()
                failure = await (self._hear() if self._busy or self._ended else self._rest())
        except anyio.get_cancelled_exc_class():
            if (failure := await self._stop()) is None:
                raise
        finally:
            self._stopping = True
            self._thread.stop()
        self._failure = failure
        self._health.fail(str(failure))
        self._fail(self._begun(), "store_failed", str(failure), "unknown")
        self._fail(self._clear(), "store_failed", str(failure), "not_applied")

    async def _stop(self) -> Exception | None:
        """Begin nothing more, and see what has begun through. Returns: why the disk failed, if it did."""
        self._stopping = True
        if self._thread.take_back():
            self._busy = False
            batch, self._flushing = self._flushing, ()
            self._fail([*batch, *self._clear()], "draining", _GOING_DOWN, "not_applied")
        failure = None
        with anyio.CancelScope(shield=True):
            while failure is None and (self._busy or self._ended):
                failure = await self._hear()
        return failure

    def _start(self) -> None:
        """Begin the next transaction: all that waits, up to the bounds of one, and one write at least."""
        batch: list[QueuedWrite] = []
        size = 0
        while self.queue and len(batch) < limits.COMMIT_WRITES_MAX:
            next_size = self.queue[0].prepared.size
            if batch and size + next_size > limits.COMMIT_BYTES_MAX:
                break
            batch.append(self.queue.popleft())
            size += next_size
        self.queued_bytes -= size
        self._flushing = batch
        self._busy = True
        self._thread.give(partial(self._committer.commit, batch))

    def _clear(self) -> list[QueuedWrite]:
        """Remove and return every write that waits."""
        entries = list(self.queue)
        self.queue.clear()
        self.queued_bytes = 0
        return entries

    def _told(self, result: Any, raised: BaseException | None) -> None:  # noqa: ANN401 - any call's
        """Note how a call of the thread ended."""
        self._ended.append((self._flushing, result, raised))
        self._flushing = ()
        self._busy = False
        self._wake.set()

    async def _hear(self) -> Exception | None:
        """Wait for the end of one batch, and resolve its writes."""
        if not self._ended:
            self._wake = anyio.Event()
            await self._wake.wait()
            if not self._ended:
                return None
        batch, chains, raised = self._ended.popleft()
        self._telling = batch
        if raised is None:
            await self._land(batch, chains)
        elif isinstance(raised, dbfile.DiskFull):
            self._health.fill(str(raised))
            self._fail([*batch, *self._clear()], "disk_full", str(raised), "not_applied")
        elif isinstance(raised, StateRemoved):
            self._health.lose(str(raised))
            self._fail([*batch, *self._clear()], "data_loss", str(raised), "not_applied")
        elif isinstance(raised, dbfile.DiskFailed | dbfile.FileDamaged | dbfile.SqlFailed):
            return raised
        else:
            raise raised
        self._telling = ()
        return None

    async def _land(self, batch: Sequence[QueuedWrite], chains: Sequence[bytes]) -> None:
        """Resolve ``batch``, a few writes at a time, yielding to the loop between."""
        if ARMED:
            hit("journal.ack")
        for first in range(0, len(batch), _TOLD_AT_ONCE):
            if first:
                await _others(1)
            some = batch[first : first + _TOLD_AT_ONCE]
            for entry, chain in zip(some, chains[first : first + _TOLD_AT_ONCE], strict=True):
                pending = entry.pending
                for raised in pending.resolve(Receipt(pending.seq, chain.hex(), pending.vt)):
                    self._fault(raised)
            self._landed(some)
        if self._purged is not None:
            self._note_purges()
        if self._committer.low_space:
            self._health.fill("the filesystem of the state directory is nearly full")
        if len(batch) > _SMALL:
            await _others(_GATHERED_TURNS)

    def _note_purges(self) -> None:
        """Wake who waits for purges, once none is unfinished."""
        if self._purged is not None and not self._committer.purging:
            self._purged.set()
            self._purged = None

    async def _rest(self) -> Exception | None:
        """Wait for a write. Meanwhile finish purges, tidy up once, or look whether a full disk has room again."""
        tidied = False
        purge_delay = limits.PURGE_RETRY_S
        while not self.queue:
            full, purging = self._health.code == "disk_full", self._committer.purging
            if full:
                delay: float | None = limits.PROBE_S
            elif purging:
                delay = purge_delay
            else:
                delay = None if tidied else limits.CHECKPOINT_IDLE_S
            self._wake = anyio.Event()
            with anyio.move_on_after(delay):
                await self._wake.wait()
                continue
            try:
                if not full and purging:
                    await self._call(self._committer.finish_purges)
                    purge_delay = min(2 * purge_delay, limits.CHECKPOINT_IDLE_S)
                    self._note_purges()
                elif not full:
                    tidied = True
                    await self._call(self._committer.tidy)
                elif await self._call(self._committer.probe):
                    self._health.resume()
            except dbfile.DiskFull as error:
                self._health.fill(str(error))
            except (dbfile.DiskFailed, dbfile.FileDamaged, dbfile.SqlFailed) as error:
                return error
        return None

    async def _call(self, work: Callable[[], T]) -> T:
        """Call ``work`` on the thread and return its result."""
        self._busy = True
        self._thread.give(work)
        with anyio.CancelScope(shield=True):
            while not self._ended:
                self._wake = anyio.Event()
                await self._wake.wait()
        _, result, raised = self._ended.popleft()
        if raised is not None:
            raise raised
        return cast(T, result)

    def _begun(self) -> list[QueuedWrite]:
        """Return the writes of transactions that have begun and are not resolved yet."""
        batches = (self._telling, *(ended[0] for ended in self._ended), self._flushing)
        return [entry for batch in batches for entry in batch if not entry.pending.done]

    def _fail(self, entries: Sequence[QueuedWrite], code: ErrorCode, message: str, outcome: Outcome) -> None:
        if not entries:
            return
        self._lost(entries)
        for entry in entries:
            for raised in entry.pending.resolve(None, CtxdError(code, message, outcome=outcome)):
                self._fault(raised)


async def _others(turns: int) -> None:
    """Let others have so many turns of the loop. Cancel: has no effect before the end."""
    with anyio.CancelScope(shield=True):
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
