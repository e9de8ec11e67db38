"""Background scrub: re-reads the whole journal, its versions, texts and artifacts slowly, and reports damage.

A pass ends with the head witness and the key of secrets. Any read detects a flipped bit, but most of a store is rarely
read. A pass reads ``limits.SCRUB_BYTES_PER_S`` on average; after a restart it resumes where it was.
"""

from collections.abc import Callable

from ctxd import limits
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.store.damage_checks import check, file_damage
from ctxd.store.journal_followers import Follower
from ctxd.store.state_directory import StateDir
from ctxd.store.version_reads import Reader, run_read
from ctxd.worker_threads import Lane


class Scrub:
    """Repeated passes over the journal. ``seq`` and ``finished_ms`` are for the status."""

    def __init__(self, clock: Clock, damaged: Callable[[str], None]) -> None:
        """``damaged`` is called on the loop with a sentence for each damage."""
        self._clock = clock
        self._damaged = damaged
        self.seq = 0
        self.finished_ms: int | None = None

    async def run(self, follower: Follower, reader: Reader, directory: StateDir) -> None:
        """Run passes until cancelled; nothing else may use ``reader``. Cancel: safe."""
        lane = Lane("scrub", bulk=True)
        await self._clock.sleep(limits.SCRUB_DELAY_S)
        while True:
            await follower.wait(0)
            try:
                await self._check_rows(follower, reader, lane)
                await self._check_files(reader, directory, lane)
            except CtxdError as error:
                if error.code == "disk_full":
                    # A shortage of descriptors, memory or threads is not damage: the pass resumes where it was.
                    await self._clock.sleep(limits.SCRUB_PAUSE_S)
                    continue
                self._damaged(error.message)
            self.finished_ms = self._clock.wall_ms()
            await self._clock.sleep(limits.SCRUB_PAUSE_S)
            follower.mark(0)

    async def _check_rows(self, follower: Follower, reader: Reader, lane: Lane) -> None:
        self.seq = follower.after
        while (step := await lane.run(run_read, lambda: check(reader, self.seq))).seq != self.seq:
            for sentence in step.damage:
                self._damaged(sentence)
            follower.mark(step.seq)
            self.seq = step.seq
            await self._clock.sleep(step.size / limits.SCRUB_BYTES_PER_S)

    async def _check_files(self, reader: Reader, directory: StateDir, lane: Lane) -> None:
        found = await lane.run(run_read, lambda: file_damage(reader, directory))
        if found:
            # A commit may have written the witness meanwhile: only a difference that both checks find is damage.
            await self._clock.sleep(limits.WITNESS_S)
            found &= await lane.run(run_read, lambda: file_damage(reader, directory))
        for sentence in sorted(found):
            self._damaged(sentence)
