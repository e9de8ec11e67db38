"""The one connection that writes: transactions of many writes, and the durable head.

All parts of a write go into one transaction: its journal row, versions, texts, and additions to its session's index.
Runs on one thread at a time and does not use the event loop. ``sqlite_file.DiskFull`` leaves the file unchanged;
``sqlite_file.DiskFailed`` leaves it in an unknown state, and nothing may be written after it.
"""

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from ctxd import limits, sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.backends.sqlite import SqliteBackend
from ctxd.backends.stored_version import Version
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.failpoints import ARMED, hit
from ctxd.file_writes import erase
from ctxd.objects.generated_ids import COMMIT_PREFIX
from ctxd.secrets.keyfile import load_key
from ctxd.store import commit_index, component_text_index, damage_checks, journal, migrations, schema
from ctxd.store import purge as purging
from ctxd.store.compression import JOURNAL_WALK, Compression
from ctxd.store.head_witness import Head, WitnessFile
from ctxd.store.state_directory import StateDir
from ctxd.store.write_types import PurgeRequest, QueuedWrite, purged_ids, split_at_purges

_JOURNAL_HEAD: Final = f"INSERT INTO journal({journal.COLUMNS})"
_JOURNAL_ROW: Final = "(?,?,?,?,?,?,?,?,?,?,?)"
_CLASSES_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_INDEXED: Final = (COMMIT_PREFIX, component_text_index.PREFIX)
_PROBE: Final = bytes(64 * 1024)
_FREE_SHARE_MIN: Final = 20
"""On a filesystem smaller than this times ``DISK_FREE_MIN``, only one part in this has to stay free."""


class Durations:
    """Histogram of durations. ``bounds`` are the upper ends of its buckets, in seconds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float) -> None:
        """Add a duration of ``seconds``."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum_s += seconds

    def cumulated(self) -> list[tuple[str, int]]:
        """For each bucket, its upper end as text, the last being ``+Inf``, and the number of durations up to it."""
        total, rows = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), list(self.counts), strict=True):
            total += count
            rows.append((bound, total))
        return rows


class NotCommitted(Exception):
    """A transaction failed for another reason than the disk, and was rolled back: one of its writes cannot be made.
    ``__cause__`` is the reason."""


class PurgeFailed(Exception):
    """A purge cannot be made, and has its ``failure`` now: in the next transaction, its row records that nothing was
    purged. The writes beside it do not depend on it."""


class StateRemoved(Exception):
    """The state directory no longer contains the open files: nothing more may be acknowledged."""


class JournalWriter:
    """The journal's only writer."""

    def __init__(self, directory: StateDir, artifacts: ArtifactStore, clock: Clock) -> None:
        """Open the file, creating it if missing.

        Raises: StateDirError if it is newer than this program or is not a database; ``sqlite_file.DiskFull``,
        ``sqlite_file.DiskFailed``.
        """
        self._path = directory.database
        self._key = directory.key
        self._artifacts = artifacts
        self._snapshots = directory.snapshots
        self._witness = WitnessFile(directory.witness)
        self._clock = clock
        self._looked = -limits.WITNESS_S
        self.head = Head(0, b"")
        self.head_vt = 0
        self.incarnation = 0
        self.journal_id = ""
        self.writer = ""
        self.commits = 0
        self._flush_s: deque[float] = deque(maxlen=limits.FLUSH_TIMES_KEPT)
        self.durations = Durations(_CLASSES_S)
        self.shortage: sqlite_file.DiskFull | None = None
        """The error for which further writes are refused; None while there is room."""
        self.unfinished_purges = 0
        """Number of purges after which something outside the database may still hold purged content."""
        self._removed = 0
        """Number of those for which all files but the write-ahead log are clean."""
        self.purges_clean = False
        """True if all files are clean, but the database still records unfinished purges."""
        self._files: dict[Path, tuple[int, int]] = {}
        self.marks: dict[str, int] = {}
        """Marks of followers, by name. Those that have changed are stored by the next transaction."""
        self._kept_marks: dict[str, int] = {}
        self.complaints: list[str] = []
        """Damage found at the start that does not prevent writes."""
        self._crowded = -limits.CROWDED_S
        self.compression_due = False
        """True if ``compress`` has to be called even under load."""
        self.follow_up_due = False
        """True if ``follow_up`` has to be called once the writes of the last transaction are acknowledged."""
        with sqlite_file.faults():
            migrations.migrate(self._path)
            self.shortage = self._artifacts.create()
            sqlite_file.forget_cached_pages(self._path)
            self._close_to_others()
            self._connection = sqlite_file.open_writer(self._path)
            self._versions = SqliteBackend(self._connection)
            version = int(self._connection.pragma("user_version"))
            if version == 0:
                self._create()
            self._connection.execute(commit_index.TABLES).fetchall()
            component_text_index.create(self._connection, self._versions)
            self._log = sqlite_file.WriteAheadLog(self._path, self._connection, self._witness.sync)
            self._compression = Compression(self._connection)

    # --- open and close ---

    def begin(self) -> str:
        """Check the tail of the file, and count this start.

        Returns: a description of damage that prevents writes, or an empty string. Raises: ``sqlite_file.DiskFull``,
        ``sqlite_file.DiskFailed``.
        """
        with sqlite_file.faults():
            damage = self._read_tail() or self._compare_witness()
            if not damage:
                self.incarnation += 1
                self._count_start()
                if purging.is_unfinished(self._connection):
                    self.unfinished_purges = 1
                    self._snapshots.drop()
                self._finish_purges_waiting()
                self._note_place()
            else:
                # A purge may be unfinished.
                self._snapshots.drop()
        return damage

    def _close_to_others(self) -> None:
        """Restrict the file to its owner before anything is written; its log gets the same mode."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.chmod(f"{self._path}{suffix}", 0o600)

    def _count_start(self) -> None:
        """Record this start. On a full disk the probe does so later, because the data can still be read."""
        try:
            with sqlite_file.faults(self._connection), self._transaction():
                self._set_meta("incarnation", self.incarnation.to_bytes(8, "big"))
                self._compare_key()
                if not self.writer:
                    journal.become_writer(self._connection)
            self.writer = journal.writer_id(self._connection)
        except sqlite_file.DiskFull as error:
            self.shortage = error

    def _compare_key(self) -> None:
        if damage_checks.key_fingerprint(self._connection) is None:
            # Create and record the key at the first start, so that a later change is noticed.
            load_key(self._key.parent)
            self._set_meta("key", damage_checks.fingerprint_of(self._key) or b"")
        elif fault := damage_checks.key_fault(self._connection, self._key):
            self.complaints.append(fault)

    def _create(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(schema.TABLES).fetchall()
        self._versions.create()
        self._set_meta("genesis", os.urandom(32))
        self._set_meta("incarnation", bytes(8))
        journal.renew_journal_id(self._connection)
        journal.become_writer(self._connection)
        self._connection.execute(f"PRAGMA user_version={schema.SCHEMA_VERSION}")
        self._connection.execute("COMMIT")

    def _read_tail(self) -> str:
        row = self._connection.execute("SELECT seq, chain, vt FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
        genesis = journal.chain_at(self._connection, 0)
        if genesis is None:
            return "the journal's first hash is missing"
        seq, chain, self.head_vt = row or (0, genesis, 0)
        self.head = Head(seq, bytes(chain))
        counted = self._connection.execute("SELECT value FROM meta WHERE name='incarnation'").fetchone()
        self.incarnation = int.from_bytes(counted[0], "big") if counted else 0
        self.journal_id = journal.journal_id(self._connection)
        self.writer = journal.writer_id(self._connection)
        first = self._tail_start(seq)
        before = journal.chain_at(self._connection, first)
        if before is None:
            return f"journal row {first} is missing"
        rows, rewritten = list(journal.read_rows(self._connection, after=first)), journal.rewriting(self._connection)
        return journal.first_fault(rows, rewritten, after=first, chain=before) or ""

    def _tail_start(self, seq: int) -> int:
        """The sequence after which rows are verified at a start, bounded by rows and bytes."""
        query = "SELECT seq, length(body) FROM journal WHERE seq>? ORDER BY seq DESC"
        first = max(0, seq - limits.TAIL_VERIFIED_ROWS)
        size = 0
        for row, length in self._connection.execute(query, (first,)):
            size += length
            if size > limits.TAIL_VERIFIED_BYTES:
                return int(row)
        return first

    def _compare_witness(self) -> str:
        witnessed = self._witness.read()
        if self.head.seq:
            self.complaints += self._witness.complaints
        return "" if witnessed is None else damage_checks.contradiction(self._connection, witnessed)

    def close(self, *, tidy: bool) -> None:
        """Close the files; with ``tidy``, first empty the write-ahead log and write the witness.

        Without ``tidy`` nothing is written: that could do harm after a disk failure, and hide a loss.
        Raises: ``sqlite_file.DiskFull``, ``sqlite_file.DiskFailed``; the files are closed anyway.
        """
        try:
            if tidy:
                with sqlite_file.faults():
                    self._finish_purges_waiting()
                    if self.marks != self._kept_marks:
                        with self._transaction():
                            self._keep_marks()
                    self._empty_log()
        finally:
            self._log.close()
            self._connection.close()
            self._witness.close()
            with sqlite_file.faults():
                self._artifacts.close(tidy=tidy)

    # --- write ---

    def commit(self, entries: Sequence[QueuedWrite]) -> list[bytes]:
        """Make ``entries`` durable, all or none. Returns: the chain hash of each.

        Raises: ``sqlite_file.DiskFull``, ``NotCommitted``: none was applied; with the cause ``PurgeFailed``, the same
        entries can be committed. ``sqlite_file.DiskFailed``: outcome
        unknown; write nothing more.
        """
        with sqlite_file.faults(self._connection):
            self._require_place()
            purges = any(entry.encoded.write.purge is not None for entry in entries)
            with self._transaction():
                chains: list[bytes] = []
                for run in split_at_purges(entries) if purges else (entries,):
                    before = chains[-1] if chains else self.head.chain
                    if (purge := run[0].encoded.write.purge) is not None:
                        self._purge(run[0], purge)
                    chains += self._insert(run, before)
                if self.purges_clean:
                    purging.finish(self._connection)
                if self.marks != self._kept_marks and self._clock.monotonic() - self._looked >= limits.WITNESS_S:
                    self._keep_marks()
            if self.purges_clean:
                self._note_purges_finished()
            pending = entries[-1].pending
            self.head, self.head_vt = Head(pending.seq, chains[-1]), pending.vt
            self.commits += 1
        if purges and any(id.startswith(COMMIT_PREFIX) for entry in entries for id in purged_ids(entry)):
            self._snapshots.drop()
        # The commit stands: a full disk from here on does not fail it.
        try:
            with sqlite_file.faults(self._connection):
                # At every commit, but rarely flushed: it takes two microseconds, and is current after a kill.
                self._witness.write(self.head, sync=False)
                self.follow_up_due = self._log.shorten_due or self.unfinished_purges > 0
                if (now := self._clock.monotonic()) - self._looked >= limits.WITNESS_S:
                    self._looked = now
                    behind = pending.seq - self._compression.places[JOURNAL_WALK]
                    self.compression_due = behind >= limits.COMPRESSION_BACKLOG_ROWS
                    self._require_space()
        except sqlite_file.DiskFull as error:
            self.shortage = error
        return chains

    def follow_up(self) -> None:
        """Shorten the write-ahead log if that is due, and take the next step of unfinished purges.

        Raises: ``sqlite_file.DiskFailed``.
        """
        self.follow_up_due = False
        try:
            with sqlite_file.faults(self._connection):
                if self._log.shorten_due:
                    self._log.shorten()
                if self.unfinished_purges:
                    self.finish_purges()
        except sqlite_file.DiskFull as error:
            self.shortage = error

    def _require_place(self) -> None:
        """Raises: StateRemoved if the open files are no longer those in the state directory."""
        for path, was in self._files.items():
            try:
                found = os.stat(path)
                same = (found.st_dev, found.st_ino) == was
            except (FileNotFoundError, NotADirectoryError):
                same = False
            if not same:
                raise StateRemoved(
                    f"{path} was removed or replaced; the acknowledged data is still open in this process: "
                    f"copy it from /proc/{os.getpid()}/fd before the daemon ends"
                )

    def _note_place(self) -> None:
        for path in (self._path, Path(f"{self._path}-wal")):
            with suppress(FileNotFoundError):
                found = os.stat(path)
                self._files[path] = (found.st_dev, found.st_ino)

    def _purge(self, entry: QueuedWrite, purge: PurgeRequest) -> None:
        """Purge, then set the body of the row that records the purge, which depends on the result."""
        encoded, purge.done = entry.encoded, None
        if encoded.failure is not None:
            encoded.body = purging.nothing_purged()
            return
        try:
            done = purging.apply(self._connection, self._versions, purge, entry.pending.seq, encoded.write.request)
        except sqlite_file.FAULTS:
            raise
        except Exception as error:
            # Without a savepoint, which would double the time of every purge.
            encoded.failure = _failure_of(error)
            raise PurgeFailed from error
        purge.done = done
        self.unfinished_purges += 1
        self.purges_clean = False
        encoded.body = done.body

    def finish_purges(self) -> None:
        """Take the next step in removing purged content outside the database; ``unfinished_purges`` is 0 at the end.

        First a thread removes artifacts and copies the write-ahead log; then the log is truncated, unless a reader is
        using it. The next transaction records the end: that of a write, so that the write waits for one flush, not for
        two, or one of its own. Never waits: call it again later.
        Raises: ``sqlite_file.DiskFailed``.
        """
        with suppress(sqlite_file.DiskFull), sqlite_file.faults(self._connection):
            if self._log.is_idle():
                self._finish_purges()

    def _finish_purges(self) -> None:
        if self.purges_clean:
            with self._transaction():
                purging.finish(self._connection)
            self._note_purges_finished()
            return
        if self._removed < self.unfinished_purges:
            left = {ref.hex(): ref for ref in purging.unfinished(self._connection)}
            claimed = self._artifacts.claim_removal(left)
            kept = {ref for ref in left if purging.is_kept(self._connection, left[ref])}
            self._artifacts.disclaim(kept.intersection(claimed))
            # Artifacts held by unfinished writes are left to a later call.
            done = self.unfinished_purges if left.keys() == kept.union(claimed) else self._removed
            self._log.beside(partial(self._remove, [ref for ref in claimed if ref not in kept], done))
            return
        hit("purge.truncate")
        self._empty_log()
        self.purges_clean = self._log.size == 0

    def _note_purges_finished(self) -> None:
        self.unfinished_purges = self._removed = 0
        self.purges_clean = False

    def _remove(self, refs: Sequence[str], done: int) -> None:
        """Clean all files but the write-ahead log, then set ``_removed`` to ``done``. After an error, which the next
        commit or upkeep raises, it is repeated."""
        try:
            hit("purge.unlink")
        except BaseException:
            self._artifacts.disclaim(refs)
            raise
        self._artifacts.remove_unused(refs, ())
        self._snapshots.erase()
        for copy in self._path.parent.glob(migrations.COPIES):
            erase(copy)
        self._removed = done

    def _finish_purges_waiting(self) -> None:
        """Take all steps of ``finish_purges`` and wait for them; at the start and the end, when no write is waiting."""
        for _ in range(4):
            if self.unfinished_purges:
                with suppress(sqlite_file.DiskFull):
                    self._log.wait()
                self.finish_purges()

    def _insert(self, entries: Sequence[QueuedWrite], chain: bytes) -> list[bytes]:
        """Insert all rows of ``entries``. ``chain`` is the hash before them. Returns: the chain hash of each.

        A write that comes alone is compressed at once, because the processor is idle. ``compress`` does so for others.
        """
        now, alone = self._clock.monotonic(), False
        if len(entries) > 1:
            self._crowded = now
        elif entries[0].encoded.size <= limits.COMPRESSED_STEP_BYTES:
            alone = now - self._crowded >= limits.CROWDED_S
        rows: list[tuple[Any, ...]] = []
        versions: list[Version] = []
        places: list[int | None] = []
        contents: dict[bytes, tuple[int, bytes | None]] = {}
        signatures: dict[str, bytes] = {}
        knows: list[tuple[str, str]] = []
        for entry in entries:
            encoded, write, tx_time = entry.encoded, entry.encoded.write, entry.tx_time
            seq, vt, body = entry.pending.seq, entry.pending.vt, encoded.body
            op_id = write.op_id if encoded.failure is None else None
            columns = (self.incarnation, write.principal, write.session, write.kind, op_id, vt, tx_time)
            b3 = journal.row_hash(*columns, body)
            chain = journal.link(chain, seq, b3)
            stored = sqlite_file.pack_body(body) if alone and len(body) >= limits.COMPRESSED_BYTES_MIN else body
            rows.append((seq, *columns, stored, b3, chain))
            made, found = journal.versions(encoded.puts, vt, seq, tx_time, len(body))
            versions += made
            places += found
            contents |= encoded.contents
            signatures |= write.signatures
            knows += [(id, f"session:{write.session}") for id in write.knows]
        if ARMED:
            hit("journal.insert")
        connection = self._connection
        sqlite_file.insert_rows(connection, _JOURNAL_HEAD, _JOURNAL_ROW, rows)
        content_rows = []
        for ref, (size, data) in contents.items():
            if alone and data is not None and len(data) == size >= limits.COMPRESSED_BYTES_MIN:
                data = sqlite_file.pack_content(data)
            content_rows.append((ref, size, data))
        sqlite_file.insert_rows(connection, "INSERT OR IGNORE INTO content(hash, size, bytes)", "(?,?,?)", content_rows)
        self._versions.append(versions, places)
        if indexed := [version for version in versions if version.id.startswith(_INDEXED)]:
            commit_index.fill(connection, self._versions, indexed)
            component_text_index.fill(connection, self._versions, indexed)
        numbers = self._versions.number([*signatures, *(id for pair in knows for id in pair)])
        pairs = [(numbers[object], numbers[session]) for object, session in knows]
        sqlite_file.insert_rows(connection, "INSERT OR IGNORE INTO knows(object, session)", "(?,?)", pairs)
        signed = [(numbers[id], signature) for id, signature in signatures.items()]
        sqlite_file.insert_rows(connection, "INSERT OR REPLACE INTO signature(entity, sig)", "(?,?)", signed)
        return [row[-1] for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if ARMED:
            hit("journal.begin")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            if ARMED:
                hit("journal.precommit")
            started = self._clock.monotonic()
            if ARMED:
                hit("journal.flush")
                hit("journal.commit")
            self._connection.execute("COMMIT")
            self._flush_s.append(took := self._clock.monotonic() - started)
            self.durations.note(took)
        except BaseException as error:
            # After some errors SQLite has already rolled back.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._versions.rolled_back()
            is_fault = isinstance(error, sqlite_file.FAULTS) and not isinstance(error, sqlite_file.ConstraintFailed)
            if isinstance(error, Exception) and not is_fault:
                raise NotCommitted(str(error)) from error
            raise
        try:
            if ARMED:
                hit("journal.postcommit")
        except OSError as error:
            # The transaction stands: no failure from here on may be reported as "not applied".
            raise sqlite_file.DiskFailed(str(error)) from error

    def _set_meta(self, name: str, value: bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta(name, value) VALUES (?,?)", (name, value))

    def flush_ms(self, percent: int) -> float:
        """Return the ``percent`` percentile of the durations of recent commits, in ms; 0 before the first."""
        times = sorted(self._flush_s.copy())
        return times[len(times) * percent // 100] * 1000 if times else 0.0

    # --- upkeep ---

    def _keep_marks(self) -> None:
        # The loop may set marks meanwhile. If the transaction rolls back, these marks are not stored until they change
        # again.
        for name, seq in list(self.marks.items()):
            if self._kept_marks.get(name) != seq:
                self._kept_marks[name] = seq
                self._set_meta(journal.follower_name(name), seq.to_bytes(8, "big"))

    def _empty_log(self) -> None:
        """Move the write-ahead log into the database, and flush the witness."""
        self._log.copy(truncate=True)
        self._witness.write(self.head, sync=True)

    def tidy(self) -> None:
        """Empty the write-ahead log if there is anything in it.

        Raises: ``sqlite_file.DiskFull``, ``sqlite_file.DiskFailed``.
        """
        if not self._log.is_copied:
            with sqlite_file.faults(self._connection):
                self._empty_log()

    def compress(self) -> bool:
        """Compress a few rows that were stored uncompressed. Returns: True unless none is left.

        Raises: ``sqlite_file.DiskFailed``.
        """
        self.compression_due = False
        # A step that finds no room is repeated later. The scrub reports damage.
        with (
            suppress(sqlite_file.DiskFull, sqlite_file.FileDamaged, sqlite_file.SqlFailed),
            sqlite_file.faults(self._connection),
        ):
            step = self._compression.next()
            if step is None:
                if self._compression.must_keep():
                    with self._transaction():
                        self._compression.keep()
                return False
            if step.shorter:
                self._require_space()
                with self._transaction():
                    self._compression.replace(step)
                if self._log.shorten_due:
                    self._log.shorten()
            self._compression.went_on(step)
            return True
        return False

    def _require_space(self) -> None:
        """Raises: ``sqlite_file.DiskFull`` if the disk lacks the room that the journal needs."""
        with sqlite_file.faults():
            disk = os.statvfs(self._path.parent)
        free = disk.f_bavail * disk.f_frsize
        if free < min(limits.DISK_FREE_MIN, disk.f_blocks * disk.f_frsize // _FREE_SHARE_MIN):
            raise sqlite_file.DiskFull("the filesystem of the state directory is nearly full")

    def probe(self) -> bool:
        """Return True if a transaction succeeds again.

        Raises: ``sqlite_file.DiskFailed``.
        """
        try:
            with sqlite_file.faults(self._connection):
                self._require_space()
                # There may be room in the database for the content of a log that cannot grow.
                self._empty_log()
                with self._transaction():
                    self._set_meta("probe", _PROBE)
                with self._transaction():
                    self._set_meta("probe", b"")
                    self._set_meta("incarnation", self.incarnation.to_bytes(8, "big"))
                self._empty_log()
        except sqlite_file.DiskFull:
            return False
        self.shortage = None
        return True


def _failure_of(error: Exception) -> CtxdError:
    """The error of a purge that ``error`` ended."""
    if isinstance(error, CtxdError):
        message, hint = f"nothing was purged: {error.message}", error.hint
        return CtxdError(error.code, message, hint=hint, outcome="not_applied")
    return internal_error("nothing was purged: the daemon failed", error)


def internal_error(message: str, cause: BaseException | None) -> CtxdError:
    """The error of a write that cannot be made because of a bug, which raised ``cause``."""
    failure = CtxdError("internal_error", message, hint="The daemon's log has the details.", outcome="not_applied")
    failure.__cause__ = cause
    return failure
