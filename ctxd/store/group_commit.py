"""Commit queue: accepted writes that wait for their group commit, the thread that commits, and the loop that feeds it.

While one transaction runs, writes for the next one gather. A full disk fails the transaction and everything queued
behind it, and is probed until it has room. A failed disk ends the loop: nothing is acknowledged after it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from queue import SimpleQueue
from traceback import clear_frames
from typing import Any, Final, Literal, TypeVar

import anyio
import anyio.lowlevel

from ctxd import limits, sqlite_file
from ctxd.errors import CtxdError
from ctxd.failpoints import ARMED, hit
from ctxd.store.health import Health
from ctxd.store.idempotency import made_already
from ctxd.store.journal_writer import JournalWriter, NotCommitted, PurgeFailed, StateRemoved, internal_error
from ctxd.store.write_types import Pending, QueuedWrite
from ctxd.worker_threads import LoopHandle, in_thread
from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.object_types import Receipt

T = TypeVar("T")


class CommitThread:
    """A thread that runs one call at a time, for one task."""

    def __init__(self) -> None:
        self._given: SimpleQueue[tuple[Callable[[], Any], anyio.Event] | None] = SimpleQueue()
        self._result: Any = None
        self._raised: BaseException | None = None

    async def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the thread and return its result. Raises: as ``work``. Cancel: when ``work`` ends."""
        ended = anyio.Event()
        self._given.put((work, ended))
        with anyio.CancelScope(shield=True):
            await ended.wait()
        result, raised = self._result, self._raised
        self._result = self._raised = None
        if raised is not None:
            try:
                raise raised
            finally:
                # Its traceback refers to this frame, which refers to the failed writes.
                del raised
        return result  # type: ignore[no-any-return]  # of the one call that is under way

    def stop(self) -> None:
        """End ``run`` after the current call."""
        self._given.put(None)

    async def run(self) -> None:
        """Run calls until ``stop``. Cancel: has no effect; call ``stop``."""
        with anyio.CancelScope(shield=True):
            await in_thread(self._work, LoopHandle())

    def _work(self, loop: LoopHandle) -> None:
        while (given := self._given.get()) is not None:
            work, ended = given
            try:
                self._result = work()
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                self._raised = error
                # From Python 3.12 on, the frames of a context manager form a cycle with the exception that it
                # translates. It would keep the failed writes, whose content stays on the disk as long as they exist.
                clear_frames(None if error.__cause__ is None else error.__cause__.__traceback__)
            # The loop waits for this thread to end, so it is still running.
            loop.schedule(ended.set)
            del given, work


Outcome = Literal["not_applied", "unknown"]

_STOPPING: Final = "the daemon is stopping"

_RESOLVED_AT_ONCE: Final = 32
"""Writes whose callers resume in one iteration of the loop, about a millisecond's work."""

_GATHERED_TURNS: Final = 4
"""Loop iterations to wait before the next transaction after one of more than ``_SMALL`` writes: as many more are likely
to arrive, and each that arrives in time shares the flush."""

_SMALL: Final = 8
"""After a transaction of at most this many writes, the next one does not wait: few writes are likely to arrive."""


class CommitQueue:
    """Queue of accepted writes, and the loop that commits them. It does not know about heads or operation ids."""

    def __init__(
        self,
        health: Health,
        durable: Callable[[Sequence[QueuedWrite]], None],
        lost: Callable[[Sequence[QueuedWrite]], None],
        fault: Callable[[Exception], None],
        wake_followers: Callable[[], None],
    ) -> None:
        """``durable`` is called with entries just after their ``Pending`` is resolved, ``lost`` with entries just
        before theirs fails, and ``fault`` with exceptions of a ``Pending``'s callbacks. ``wake_followers`` is called at
        most once in ``FOLLOWERS_DELAY_S``, for all entries since. None of the four may raise."""
        self._health = health
        self._durable = durable
        self._lost = lost
        self._fault = fault
        self._wake_followers = wake_followers
        self._followers_due = inf
        self.queue: deque[QueuedWrite] = deque()
        """Accepted writes that are not in a transaction yet, in journal order."""
        self.queued_bytes = 0
        self._batch: Sequence[QueuedWrite] = ()
        self._alone = 0
        """Number of writes that get a transaction each, because one of them cannot be made."""
        self._purged: anyio.Event | None = None
        self._last: Pending | None = None
        self._wake: anyio.Event | None = None
        self._thread = CommitThread()
        self._journal_writer: JournalWriter | None = None
        """The writer of ``run``, None before it."""
        self._failure: Exception | None = None

    @property
    def waiting(self) -> int:
        """Writes that are not durable yet."""
        return len(self.queue) + sum(not entry.pending.done for entry in self._batch)

    def is_purging(self) -> bool:
        """True while an accepted purge is not durable: a write that is submitted now must not refer to content that
        the store had before."""
        entries = (*self._batch, *self.queue)
        return any(entry.encoded.write.purge is not None and not entry.pending.done for entry in entries)

    def put(self, entry: QueuedWrite) -> None:
        """Append an entry, the next in journal order."""
        self.queue.append(entry)
        self.queued_bytes += entry.encoded.size
        self._last = entry.pending
        if self._wake is not None:
            # Once for the whole group: setting an event again takes a hundredth of the time of a write.
            self._wake.set()
            self._wake = None

    def fail(self, failure: sqlite_file.DiskFailed) -> None:
        """End as if a transaction had raised ``failure``, once the running one has ended."""
        self._failure = failure
        if self._wake is not None:
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
        """Return once nothing outside the database holds content of durable purges. Cancel: safe."""
        while self._is_purge_unfinished():
            if self._purged is None:
                self._purged = anyio.Event()
                # The loop may be waiting for a write.
                if self._wake is not None:
                    self._wake.set()
            await self._purged.wait()

    def _is_purge_unfinished(self) -> bool:
        assert self._journal_writer is not None, "run has begun"
        return self._journal_writer.unfinished_purges > 0

    async def run(self, journal_writer: JournalWriter) -> Exception:
        """Commit batches until the disk fails. Returns: the failure. Cancel: the running transaction completes; writes
        that are not durable then fail as ``draining``."""
        self._journal_writer = journal_writer
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._serve, journal_writer)
                await self._thread.run()
            # The task group does not propagate the cancellation of the loop.
            await anyio.lowlevel.checkpoint_if_cancelled()
            assert self._failure is not None, "the loop ends with a failed disk, or is cancelled"
            return self._failure
        finally:
            self._health.drain()
            # Anything else that ends the loop may happen after the commit.
            self._fail(self._batch, "draining", _STOPPING, "unknown")
            self._fail(self._clear(), "draining", _STOPPING, "not_applied")

    async def _serve(self, journal_writer: JournalWriter) -> None:
        """Commit queued writes, and do upkeep while there are none, until the disk fails. Stops the thread."""
        try:
            while True:
                if not self.queue:
                    await self._idle(journal_writer)
                await anyio.lowlevel.checkpoint_if_cancelled()
                if self._failure is not None:
                    raise self._failure
                self._batch = batch = self._take_batch()
                try:
                    chains = await self._thread.call(partial(journal_writer.commit, batch))
                except sqlite_file.DiskFull as error:
                    self._health.fill(str(error), error.hint)
                    self._fail([*batch, *self._clear()], "disk_full", str(error), "not_applied", error.hint)
                except NotCommitted as error:
                    self._isolate(batch, error)
                except StateRemoved as error:
                    self._health.lose(str(error))
                    self._fail([*batch, *self._clear()], "data_loss", str(error), "not_applied")
                else:
                    await self._resolve(batch, chains)
                    await self._follow_up(journal_writer, gathers=len(batch) > _SMALL)
                # The next batch may be a long time away, and a write that is referenced keeps its content in memory.
                self._batch = batch = ()
        except (sqlite_file.DiskFailed, sqlite_file.FileDamaged, sqlite_file.SqlFailed) as failure:
            self._failure = failure
            self._health.fail(str(failure))
            self._fail(self._batch, "store_failed", str(failure), "unknown")
            self._fail(self._clear(), "store_failed", str(failure), "not_applied")
        finally:
            self._thread.stop()

    async def _idle(self, journal_writer: JournalWriter) -> None:
        """Wait for a write or a failure. Meanwhile wake the followers, once, then do upkeep."""
        purge_delay, followers_wait = limits.PURGE_RETRY_S, True
        idle_delay: float | None = limits.FOLLOWERS_DELAY_S
        while not self.queue and self._failure is None:
            full, purging = self._health.code == "disk_full", journal_writer.unfinished_purges > 0
            self._wake = anyio.Event()
            retry_delay = 0.0 if journal_writer.purges_clean else purge_delay
            with anyio.move_on_after(limits.PROBE_S if full else retry_delay if purging else idle_delay):
                await self._wake.wait()
                continue
            if followers_wait:
                followers_wait, self._followers_due = False, inf
                self._wake_followers()
                idle_delay = limits.CHECKPOINT_IDLE_S - limits.FOLLOWERS_DELAY_S
                if not (full or purging):
                    continue
            idle_delay = await self._do_upkeep(journal_writer, full=full, purging=purging)
            purge_delay = min(2 * purge_delay, limits.CHECKPOINT_IDLE_S)

    def _take_batch(self) -> Sequence[QueuedWrite]:
        """Remove and return the writes of the next transaction: at least one, and as many as its limits allow."""
        batch: list[QueuedWrite] = []
        size = 0
        most = 1 if self._alone else limits.COMMIT_WRITES_MAX
        self._alone = max(0, self._alone - 1)
        while self.queue and len(batch) < most:
            next_size = self.queue[0].encoded.size
            if batch and size + next_size > limits.COMMIT_BYTES_MAX:
                break
            batch.append(self.queue.popleft())
            size += next_size
        self.queued_bytes -= size
        return batch

    def _isolate(self, batch: Sequence[QueuedWrite], error: NotCommitted) -> None:
        """Put ``batch``, whose transaction failed with ``error``, back into the queue to find the write at fault; fail
        that one as ``internal_error``, or as ``cancelled`` if the journal has its ``op_id``, and those behind it, which
        may depend on it, as ``store_failed``. After a purge that cannot be made, the same batch is committed without
        it."""
        is_again = isinstance(error.__cause__, PurgeFailed)
        if is_again or len(batch) > 1:
            self._alone = 0 if is_again else len(batch)
            self.queue.extendleft(reversed(batch))
            self.queued_bytes += sum(entry.encoded.size for entry in batch)
            return
        self._fault(error)
        # The newest first: sequences are assigned again from the oldest.
        message, hint = "a write before this one could not be made", "Send it again."
        self._fail(self._clear(), "store_failed", message, "not_applied", hint)
        failure = internal_error("the daemon failed to carry out the write", error.__cause__)
        outcome: Outcome = "not_applied"
        if isinstance(error.__cause__, sqlite_file.ConstraintFailed) and "journal.op_id" in str(error.__cause__):
            failure, outcome = made_already(), "unknown"
        self._fail(batch, failure.code, failure.message, outcome, failure.hint)

    def _clear(self) -> list[QueuedWrite]:
        """Remove and return every queued write."""
        entries = list(self.queue)
        self.queue.clear()
        self.queued_bytes = 0
        return entries

    async def _resolve(self, batch: Sequence[QueuedWrite], chains: Sequence[bytes]) -> None:
        """Resolve ``batch``, a few writes at a time, yielding to the loop in between."""
        if ARMED:
            hit("journal.ack")
        for first in range(0, len(batch), _RESOLVED_AT_ONCE):
            if first:
                await _yield_to_loop(1)
            some = batch[first : first + _RESOLVED_AT_ONCE]
            for entry, chain in zip(some, chains[first : first + _RESOLVED_AT_ONCE], strict=True):
                pending = entry.pending
                for raised in pending.resolve(Receipt(pending.seq, chain.hex(), pending.vt), entry.encoded.failure):
                    self._fault(raised)
            self._durable(some)

    async def _follow_up(self, journal_writer: JournalWriter, *, gathers: bool) -> None:
        """Do what is due after a transaction whose writes are acknowledged: they do not wait for it. Refuse further
        writes if there is a shortage, and wake the followers if they are due. ``gathers``: let writes arrive."""
        if journal_writer.follow_up_due:
            await self._thread.call(journal_writer.follow_up)
        if self._purged is not None:
            self._note_purges()
        if (shortage := journal_writer.shortage) is not None:
            self._health.fill(str(shortage), shortage.hint)
        if gathers:
            await _yield_to_loop(_GATHERED_TURNS)
        if (now := anyio.current_time()) >= self._followers_due:
            self._followers_due = inf
            self._wake_followers()
        else:
            self._followers_due = min(self._followers_due, now + limits.FOLLOWERS_DELAY_S)
        if journal_writer.compression_due:
            await self._thread.call(journal_writer.compress)

    def _note_purges(self) -> None:
        """Wake callers of ``purges_finished`` if no purge is unfinished."""
        if self._purged is not None and not self._is_purge_unfinished():
            self._purged.set()
            self._purged = None

    async def _do_upkeep(self, journal_writer: JournalWriter, *, full: bool, purging: bool) -> float | None:
        """Do one of: probe a full disk for room, take the next step of unfinished purges or of compression, tidy up.

        Returns: the seconds without a write until the next call; None if there is nothing left to do.
        """
        try:
            if full:
                if await self._thread.call(journal_writer.probe):
                    self._health.resume()
            elif purging:
                await self._thread.call(journal_writer.finish_purges)
                self._note_purges()
            elif not self._health.lost and await self._thread.call(journal_writer.compress):
                return limits.COMPRESSION_PAUSE_S
            else:
                await self._thread.call(journal_writer.tidy)
                return None
        except sqlite_file.DiskFull as error:
            self._health.fill(str(error), error.hint)
        return limits.CHECKPOINT_IDLE_S

    def _fail(
        self, entries: Sequence[QueuedWrite], code: ErrorCode, message: str, outcome: Outcome, hint: str = ""
    ) -> None:
        """Fail those of ``entries`` that are not resolved yet."""
        entries = [entry for entry in entries if not entry.pending.done]
        if not entries:
            return
        self._lost(entries)
        for entry in entries:
            for raised in entry.pending.resolve(None, CtxdError(code, message, hint=hint, outcome=outcome)):
                self._fault(raised)


async def _yield_to_loop(iterations: int) -> None:
    """Let other tasks run for this many iterations of the loop. Cancel: takes effect at the end."""
    with anyio.CancelScope(shield=True):
        for _ in range(iterations):
            await anyio.lowlevel.checkpoint()
