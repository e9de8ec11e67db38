"""Background scrub: re-reads the whole journal, its versions, texts and artifacts slowly, and reports what is damaged.

The end of a pass checks the head witness and the key of secrets. A flipped bit is served as an error once it is read,
but nothing reads most of a store. A pass takes as long as the store is large at ``limits.SCRUB_BYTES_PER_S``; it
resumes where the last run of the daemon left it.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ctxd import dbfile, limits
from ctxd.backends.stored_version import DamagedVersion
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.objects.document import Page
from ctxd.offload import Lane, NoThread
from ctxd.store import journal
from ctxd.store.follow import Follower
from ctxd.store.reads import Reader, answered
from ctxd.store.statedir import StateDir
from ctxd.store.witness import WitnessFile


class Checked(NamedTuple):
    """Result of one step: the last row that it read, the bytes behind it, and a sentence for each damage."""

    seq: int
    size: int
    damage: tuple[str, ...]


class Scrub:
    """One pass after the other over the journal. ``seq`` and ``finished_ms`` are for the status."""

    def __init__(self, clock: Clock, damaged: Callable[[str], None]) -> None:
        """``damaged`` is called on the loop with a sentence for each damage."""
        self._clock = clock
        self._damaged = damaged
        self.seq = 0
        self.finished_ms: int | None = None

    async def run(self, follower: Follower, reader: Reader, directory: StateDir) -> None:
        """Read pass after pass until cancelled, with ``reader`` for itself. Cancel: safe."""
        lane = Lane("scrub")
        await self._clock.sleep(limits.SCRUB_DELAY_S)
        while True:
            await follower.wait(0)
            try:
                await self._check_rows(follower, reader, lane)
                await self._check_files(reader, directory, lane)
            except (CtxdError, NoThread) as error:
                if isinstance(error, NoThread) or error.code == "disk_full":
                    # Want of descriptors, memory or threads is no damage: the pass goes on where it was.
                    await self._clock.sleep(limits.SCRUB_PAUSE_S)
                    continue
                self._damaged(error.message)
            self.finished_ms = self._clock.wall_ms()
            await self._clock.sleep(limits.SCRUB_PAUSE_S)
            follower.mark(0)

    async def _check_rows(self, follower: Follower, reader: Reader, lane: Lane) -> None:
        self.seq = follower.after
        while (step := await lane.run(answered, lambda: check(reader, self.seq))).seq != self.seq:
            for sentence in step.damage:
                self._damaged(sentence)
            follower.mark(step.seq)
            self.seq = step.seq
            await self._clock.sleep(step.size / limits.SCRUB_BYTES_PER_S)

    async def _check_files(self, reader: Reader, directory: StateDir, lane: Lane) -> None:
        found = await lane.run(answered, lambda: file_damage(reader, directory))
        if found:
            # A commit writes the witness meanwhile: damage is what both looks find.
            await self._clock.sleep(limits.WITNESS_S)
            found &= await lane.run(answered, lambda: file_damage(reader, directory))
        for sentence in sorted(found):
            self._damaged(sentence)


def file_damage(reader: Reader, directory: StateDir) -> set[str]:
    """Compare the head witness and the key of secrets with the journal; blocks. Raises: ``dbfile``'s errors."""
    witness = WitnessFile(directory.witness)
    witnessed = witness.read()
    fault = journal.key_fault(reader.connection, directory.key)
    # The journal is read after the witness, so that it is never behind.
    lost = "" if witnessed is None else journal.contradiction(reader.connection, witnessed)
    return {each for each in (*witness.complaints, fault, lost) if each}


def check(reader: Reader, after: int) -> Checked:
    """Check the rows beyond ``after`` that fit one step, at least one if there is one; blocks.

    One snapshot: a purge rewrites rows, versions and texts together. Raises: ``dbfile``'s errors.
    """
    connection = reader.connection
    connection.execute("BEGIN")
    try:
        chain = journal.chain_at(connection, after) or b""
        rewritten = journal.rewriting(connection)
        size, damage, unread, seq = 0, list[str](), list[str](), after
        for row in journal.read_rows(connection, after=after, limit=limits.SCRUB_STEP_ROWS):
            fault = journal.first_fault((row,), rewritten, after=seq, chain=chain)
            damage += [fault] if fault is not None else _damage_of(reader, row, unread)
            seq, chain = row.seq, row.chain
            size += len(row.body) + reader.content_size(row)
            if size >= limits.SCRUB_STEP_BYTES:
                break
    finally:
        connection.execute("COMMIT")
    # The artifact of a purged text is gone before this snapshot ends: damage is what is still referred to.
    for ref in dict.fromkeys(unread):
        try:
            reader.contents((ref,))
        except CtxdError as error:
            if error.code == "corrupt":
                damage.append(error.message)
    return Checked(seq, size, tuple(damage))


def _damage_of(reader: Reader, row: journal.Row, unread: list[str]) -> Iterator[str]:
    """Compare everything that ``row`` put with the tables and indexes that reads rest on. ``unread`` receives the
    hashes of texts that cannot be read."""
    if row.op_id is not None:
        query = "SELECT seq FROM journal INDEXED BY journal_op WHERE op_id=? AND principal=?"
        if reader.connection.execute(query, (row.op_id, row.principal)).fetchall() != [(row.seq,)]:
            yield f"operation {row.op_id} of row {row.seq} is not found by its id"
    for version in journal.fold(row):
        try:
            just_before = Page(after=(version.valid_time, version.tx - 1), limit=1)
            found = reader.versions.history(version.id, page=just_before, corrections=True)
            if found != [version]:
                yield f"the version of {version.id} in write {row.seq} is not found, or not as it was written"
        except (DamagedVersion, UnicodeDecodeError) as error:
            yield str(error)
            continue
        if version.content is not None:
            yield from _text_damage(reader, version.content.hex(), unread)


def _text_damage(reader: Reader, ref: str, unread: list[str]) -> Iterator[str]:
    try:
        reader.contents((ref,))
    except CtxdError as error:
        if reader.referenced((ref,)):
            unread.append(ref)
        else:
            yield error.message


def quiet(connection: dbfile.Connection) -> None:
    """Let ``connection`` keep few pages in memory: what a scrub reads is not read again soon."""
    connection.execute("PRAGMA cache_size=-1024").fetchall()
