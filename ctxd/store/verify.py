"""Verification of a state directory: recomputes hashes, the chain, the fold of the journal, and references.

Reads one snapshot on a connection that writes nothing, so it works with or without a running daemon.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec
from blake3 import blake3

from ctxd import sqlite_file
from ctxd.artifacts import fsck
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.artifacts.chunking import cut
from ctxd.artifacts.packs import PackRecord, records
from ctxd.backends.sqlite import SqliteBackend
from ctxd.backends.stored_version import DamagedVersion, Version
from ctxd.errors import CtxdError, StateDirError
from ctxd.formatting import count
from ctxd.objects.commit_document import commit_hash
from ctxd.objects.document import Content, Document, decode_content, decode_document
from ctxd.objects.generated_ids import COMMIT_PREFIX
from ctxd.objects.hashing import BASE64, content_hash, identity_hash
from ctxd.store import chain_snapshots, commit_index, component_text_index, damage_checks, journal, schema
from ctxd.store.head_witness import WitnessFile
from ctxd.store.purge import KIND, is_unfinished
from ctxd.store.state_directory import SEARCH_INDEX

_MODULUS: Final = 2**256
_encoder: Final = msgspec.msgpack.Encoder()


class LogicalDigest:
    """An order-independent digest of versions, added one by one."""

    def __init__(self) -> None:
        self._sum = 0
        self.count = 0

    def add(self, version: Version) -> None:
        """Add ``version``."""
        row = (version.id, version.valid_time, version.tx, version.tx_time, version.body, version.content)
        self._sum = (self._sum + int.from_bytes(blake3(_encoder.encode(row)).digest(), "big")) % _MODULUS
        self.count += 1

    def hex(self) -> str:
        """The digest so far: 64 hex digits."""
        return f"{self._sum:064x}"


def digest(versions: Iterable[Version]) -> str:
    """The digest of ``versions``, which does not depend on their order."""
    total = LogicalDigest()
    for version in versions:
        total.add(version)
    return total.hex()


_EXIT_NO_STATE: Final = 10
_EXIT_IO: Final = 74
_PROBLEMS_MAX: Final = 1_000
_STEP: Final = 1_000
"""Rows between two progress reports."""

_SEARCHED_BYTES: Final = 1 << 20
_SAMPLE_BYTES: Final = 1024
_SAMPLES: Final = 64
_HALVED_BYTES: Final = 24
"""Texts of at least this many bytes are searched for by halves, because a page of the database may end within them."""

Severity = Literal["warning", "damage", "data_loss"]


@dataclass(frozen=True)
class Problem:
    """One finding: its severity, and a sentence."""

    severity: Severity
    message: str


@dataclass
class Problems:
    """The problems found so far."""

    problems: list[Problem] = field(default_factory=list)

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst problem; None without problems."""
        found = {problem.severity for problem in self.problems}
        order: tuple[Severity, ...] = ("data_loss", "damage", "warning")
        return next((severity for severity in order if severity in found), None)

    def note(self, severity: Severity, message: str) -> None:
        """Add a problem; past a thousand only the first of each severity."""
        if len(self.problems) < _PROBLEMS_MAX or all(known.severity != severity for known in self.problems):
            self.problems.append(Problem(severity, message))


@dataclass
class Report(Problems):
    """Progress and findings of a verification: ``phase`` is the current one, ``done`` counts its rows."""

    phase: str = ""
    done: int = 0
    rows: int = 0
    versions: int = 0
    contents: int = 0
    artifacts: int = 0
    orphan_artifacts: int = 0
    head_seq: int = 0
    head_chain: str = ""
    digest: str = ""
    residue: list[str] = field(default_factory=list)


Step = Callable[[str, int], None]
"""Progress callback: the phase, and the count done in it."""


def verified(root: Path, step: Step) -> Report:
    """Run ``verify`` to its end; ``step`` reports progress. Raises: as ``verify``."""
    report = Report()
    for report in verify(root):
        step(report.phase, report.done)
    return report


def verify(root: Path) -> Iterator[Report]:
    """Check the state directory ``root``. Yields: the same report repeatedly as it grows, complete at the end.

    Raises: StateDirError with exit code 10 if there is no state, 74 if it cannot be opened, or descriptors or memory
    are exhausted.
    """
    database = root / "state.db"
    if not database.is_file():
        raise StateDirError(f"there is no state in {root}", exit_code=_EXIT_NO_STATE)
    report = Report()
    try:
        with sqlite_file.faults():
            sqlite_file.user_version(database)
            connection = sqlite_file.open_reader(database)
            try:
                connection.execute("BEGIN")
                yield from _Verification(root, connection, report).run()
            finally:
                connection.close()
    except sqlite_file.CannotOpen as error:
        remedy = "let this user read and write the directory, or copy it to a writable place and verify the copy"
        raise StateDirError(f"{root} cannot be verified: {error}", exit_code=_EXIT_IO, remedy=remedy) from error
    except (sqlite_file.FileDamaged, sqlite_file.DiskFailed, sqlite_file.SqlFailed, ValueError, TypeError) as error:
        report.note("damage", f"{database} cannot be read: {error}")
    except sqlite_file.DiskFull as error:
        message = f"{root} cannot be verified now: {error}"
        raise StateDirError(message, exit_code=_EXIT_IO, remedy=error.hint) from error
    yield report


def search(root: Path, texts: Iterable[bytes], step: Step) -> list[str]:
    """Search every file below ``root``, and those of its search index in the cache directory, for ``texts``, also in
    their JSON-escaped form.

    Reads in pieces, not through a memory map, because a running daemon may truncate or remove a file meanwhile.
    Returns: the paths of the files that contain one, relative to ``root``, in order. Raises: OSError.
    """
    texts = list(texts)
    wanted = {part for text in texts for form in (text, _as_json(text)) for part in _halves(form)}
    longest = max(map(len, wanted), default=0)
    found: list[str] = []
    # ``rglob`` does not follow links, and the search index may be one.
    below = {*root.rglob("*"), *(root / SEARCH_INDEX).rglob("*")}
    for path in sorted(path for path in below if path.is_file() and not path.is_symlink()):
        step("searching files", len(found))
        if path.suffix == ".pack" and _in_pack(path, texts, wanted):
            found.append(str(path.relative_to(root)))
            continue
        if path == root / "state.db" and _in_compressed_rows(path, wanted):
            found.append(str(path.relative_to(root)))
            continue
        if path.suffix == chain_snapshots.SUFFIX:
            with suppress(FileNotFoundError):
                joined = chain_snapshots.contents(path)
                if any(part in joined for part in wanted):
                    found.append(str(path.relative_to(root)))
            continue
        with suppress(FileNotFoundError), path.open("rb") as file:
            kept = b""
            while data := file.read(_SEARCHED_BYTES):
                data = kept + data
                if any(part in data for part in wanted):
                    found.append(str(path.relative_to(root)))
                    break
                kept = data[-longest:]
    return found


def _in_pack(path: Path, texts: Iterable[bytes], wanted: Iterable[bytes]) -> bool:
    """True if an uncompressed record of a pack holds one of ``wanted``, or a chunk or sample of one of ``texts``."""
    chunks = {blake3(chunk).digest() for text in texts for chunk in cut(text)}
    parts = {*wanted, *(sample for text in texts for sample in _samples(text))}
    return any(
        record.hash in chunks or any(part in record.data for part in parts)
        for record in records(path)
        if isinstance(record, PackRecord)
    )


def _in_compressed_rows(database: Path, wanted: Iterable[bytes]) -> bool:
    """True if a compressed row of content or of the journal holds one of ``wanted``."""
    parts = tuple(wanted)
    connection = sqlite_file.open_reader(database)
    try:
        texts = connection.execute("SELECT size, bytes FROM content WHERE length(bytes)<size")
        if any(part in data for size, stored in texts for data in (_unpacked(size, stored),) for part in parts):
            return True
        bodies = connection.execute("SELECT body FROM journal")
        return any(part in body for (stored,) in bodies for body in (journal.body_of(stored),) for part in parts)
    finally:
        connection.close()


def _samples(text: bytes) -> Iterator[bytes]:
    """Parts of a long text, each far shorter than a chunk."""
    if len(text) > _SAMPLE_BYTES:
        step = max(_SAMPLE_BYTES, len(text) // _SAMPLES)
        for at in range(0, len(text) - _SAMPLE_BYTES + 1, step):
            yield text[at : at + _SAMPLE_BYTES]


def _as_json(text: bytes) -> bytes:
    return msgspec.json.encode(text.decode(errors="ignore"))[1:-1]


def _halves(text: bytes) -> tuple[bytes, ...]:
    half = len(text) // 2
    return (text,) if len(text) < _HALVED_BYTES else (text[:half], text[half:])


class _PurgedMeanwhile(Exception):
    """A running daemon purged a text of the snapshot."""


class _Verification:
    def __init__(self, root: Path, connection: sqlite_file.Connection, report: Report) -> None:
        self._root = root
        self._connection = connection
        self._report = report
        self._artifacts = ArtifactStore(root / "artifacts")
        self._witness = WitnessFile(root / "head")
        self._versions = SqliteBackend(connection)
        self._folded = LogicalDigest()
        self._knows: set[tuple[str, str]] = set()
        self._newest_incarnation = 0
        # For each commit id, its newest transaction and the expected ``commit_index.row_of``.
        self._commits: dict[str, tuple[int, bytes]] = {}
        # Pairs of a source and a component text.
        self._sources: set[tuple[str, str]] = set()

    def run(self) -> Iterator[Report]:
        # Read it before taking the snapshot, because a daemon may be writing both.
        witnessed = self._witness.read()
        self._key()
        yield from self._structure()
        yield from self._journal()
        yield from self._projection()
        yield from self._contents()
        yield from self._artifact_files()
        self._index()
        if self._report.head_seq and (self._root / "LOCK").exists():
            for complaint in self._witness.complaints:
                self._report.note("warning", complaint)
        if witnessed is not None:
            lost = damage_checks.contradiction(self._connection, witnessed)
            if lost:
                self._report.note("data_loss", lost)

    def _key(self) -> None:
        key = self._root / "secrets.key"
        fault = damage_checks.key_fault(self._connection, key)
        # A backup has neither a key nor a lock file.
        if fault and (key.exists() or (self._root / "LOCK").exists()):
            self._report.note("damage", fault)

    def _phase(self, name: str) -> Report:
        self._report.phase, self._report.done = name, 0
        return self._report

    def _step(self) -> bool:
        self._report.done += 1
        return self._report.done % _STEP == 0

    def _structure(self) -> Iterator[Report]:
        yield self._phase("structure")
        version = int(self._connection.pragma("user_version"))
        if 0 < version < schema.SCHEMA_VERSION:
            message = f"the schema is {version}, not {schema.SCHEMA_VERSION}: start the daemon or run ctxd migrate"
            self._report.note("warning", message)
        elif version > schema.SCHEMA_VERSION:
            message = (
                f"the schema is {version}, not {schema.SCHEMA_VERSION}: verify it with the newer ctxd that wrote it"
            )
            self._report.note("damage", message)
        elif version != schema.SCHEMA_VERSION:
            self._report.note("damage", f"the schema is {version}, not {schema.SCHEMA_VERSION}")
        for (line,) in self._connection.execute("PRAGMA integrity_check(100)"):
            if line != "ok":
                self._report.note("damage", f"SQLite: {line}")

    def _journal(self) -> Iterator[Report]:
        yield self._phase("journal")
        report = self._report
        chain = journal.chain_at(self._connection, 0)
        if chain is None:
            report.note("damage", "the journal's first hash is missing")
            chain = b""
        rewritten = self._rewritten()
        for row in journal.read_rows(self._connection, after=0):
            fault = journal.first_fault((row,), rewritten.get, after=report.head_seq, chain=chain)
            if fault is not None:
                report.note("damage", fault)
            report.rows += 1
            report.head_seq, chain = row.seq, row.chain
            self._newest_incarnation = max(self._newest_incarnation, row.incarnation)
            self._fold(row)
            if self._step():
                yield report
        report.head_chain = chain.hex()

    def _rewritten(self) -> dict[int, journal.Rewritten]:
        """Return the rows that purges rewrote, by sequence, as recorded by the purges."""
        found: dict[int, journal.Rewritten] = {}
        recorded: dict[str, int] = {}
        for seq, body in self._connection.execute("SELECT seq, body FROM journal WHERE kind=? ORDER BY seq", (KIND,)):
            try:
                record = journal.decode_body(journal.body_of(body)).purged
            except (ValueError, TypeError):
                # The pass over all rows reports it.
                continue
            for one in record.rows if record is not None else ():
                if one.seq < seq:
                    found[one.seq] = one
                    recorded[journal.rewritten_name(one.seq)] = seq
        names = self._connection.execute("SELECT name, value FROM meta WHERE name GLOB 'purged:*'")
        if {name: int.from_bytes(value, "big") for name, value in names} != recorded:
            self._report.note("damage", "the rows that purges rewrote differ from those on record")
        if is_unfinished(self._connection):
            message = "a purge is incomplete: state.db-wal may hold its text, also compressed, where --absent misses it"
            self._report.note("warning", f"{message}; start the daemon to complete the purge")
        return found

    def _fold(self, row: journal.Row) -> None:
        try:
            body = journal.decode_body(row.body)
            for version in journal.read_versions(row):
                self._folded.add(version)
                self._sources.update((source, version.id) for source in component_text_index.sources_of(version))
        except (ValueError, TypeError) as error:
            self._report.note("damage", f"journal row {row.seq} cannot be read: {error}")
            return
        self._knows.update((id, f"session:{row.session}") for id in body.knows)
        if row.op_id is not None:
            query = "SELECT seq FROM journal WHERE op_id=? AND principal=?"
            found = self._connection.execute(query, (row.op_id, row.principal)).fetchall()
            if found != [(row.seq,)]:
                self._report.note("damage", f"operation {row.op_id} of row {row.seq} is not found by its id")

    def _projection(self) -> Iterator[Report]:
        yield self._phase("versions")
        report, projected = self._report, LogicalDigest()
        for version in self._versions.everything(self._note_damaged):
            projected.add(version)
            self._document(version)
            report.versions += 1
            if self._step():
                yield report
        report.digest = projected.hex()
        if report.digest != self._folded.hex():
            counts = f"{count(projected.count, 'version')} stored, {self._folded.count:,} in the journal"
            report.note("damage", f"the stored versions differ from the journal: {counts}")
        query = """SELECT o.id, s.id FROM knows LEFT JOIN entity AS o ON o.n=knows.object
            LEFT JOIN entity AS s ON s.n=knows.session"""
        stored: set[tuple[str, str]] = set(self._connection.execute(query))
        for id, session in stored ^ self._knows:
            what = (
                "is stored, but not in the journal" if (id, session) in stored else "is in the journal, but not stored"
            )
            report.note("damage", f"the index entry of {id} in {session} {what}")

    def _note_damaged(self, error: DamagedVersion) -> None:
        self._report.note("damage", str(error))

    def _document(self, version: Version) -> None:
        if version.body is None:
            return
        try:
            document = decode_document(version.id, version.body)
            self._note_commit(version, document)
            # Content of an artifact or a commit may be too large for memory, and is verified by its own hash.
            has_text = version.content is not None and document.type not in ("artifact", "commit")
            text = self._content(version.content) if has_text and version.content is not None else None
            if identity_hash(document.type, document.source, document.id) != document.identity_hash:
                self._report.note("damage", f"{version.id} at {version.valid_time} has another identity hash")
            if document.type == "commit":
                is_right = self._is_commit_hash(version, document)
            else:
                is_right = content_hash(document.payload, text) == document.content_hash
            if not is_right:
                self._report.note("damage", f"{version.id} at {version.valid_time} has another content hash")
        except _PurgedMeanwhile:
            return
        except (CtxdError, ValueError, TypeError) as error:
            self._report.note("damage", f"{version.id} at {version.valid_time} cannot be read: {error}")

    def _note_commit(self, version: Version, document: Document) -> None:
        if not version.id.startswith(COMMIT_PREFIX) or (fields := commit_index.fields_of(document)) is None:
            return
        if version.tx >= self._commits.get(version.id, (0, b""))[0]:
            self._commits[version.id] = (version.tx, commit_index.row_of(version.id, fields))

    def _is_commit_hash(self, version: Version, document: Document) -> bool:
        """True if the content hash is right. Earlier versions of ctxd hashed the content itself, not its hash."""
        ref, payload = version.content, document.payload
        if ref is not None and not self._connection.execute("SELECT 1 FROM content WHERE hash=?", (ref,)).fetchone():
            raise ValueError(f"content {ref.hex()} is missing")
        if commit_hash(payload, None if ref is None else ref.hex()) == document.content_hash:
            return True
        if ref is None:
            return False
        content = self._content(ref)
        payload = {**payload, "encoding": BASE64} if isinstance(content, bytes) else payload
        return content_hash(payload, content) == document.content_hash

    def _content(self, ref: bytes) -> Content:
        row = self._connection.execute("SELECT size, bytes FROM content WHERE hash=?", (ref,)).fetchone()
        if row is None:
            raise ValueError(f"content {ref.hex()} is missing")
        if row[1] is not None:
            return decode_content(sqlite_file.unpack_content(*row))
        try:
            return decode_content(self._artifacts.read(ref.hex()))
        except CtxdError as error:
            if self._purged_since(ref):
                raise _PurgedMeanwhile from error
            raise

    def _purged_since(self, ref: bytes) -> bool:
        """True if the text ``ref`` of this snapshot is no longer in the database: a daemon purged it meanwhile."""
        newer = sqlite_file.open_reader(self._root / "state.db")
        try:
            return newer.execute("SELECT 1 FROM content WHERE hash=?", (ref,)).fetchone() is None
        finally:
            newer.close()

    def _contents(self) -> Iterator[Report]:
        yield self._phase("content")
        for ref, size, data in self._connection.execute(f"SELECT hash, size, bytes FROM content WHERE {journal.HELD}"):
            if data is None:
                try:
                    is_right = self._artifacts.check(ref.hex()) == size
                except CtxdError as error:
                    if not self._purged_since(ref):
                        self._report.note("damage", error.message)
                    continue
            else:
                data = _unpacked(size, data)
                is_right = blake3(data).digest() == ref and len(data) == size
            if not is_right:
                self._report.note("damage", f"content {ref.hex()} does not match its hash")
            self._report.contents += 1
            if self._step():
                yield self._report

    def _artifact_files(self) -> Iterator[Report]:
        yield self._phase("artifacts")
        for ref in self._artifacts.names():
            try:
                self._artifacts.check(ref)
            except CtxdError as error:
                if self._artifacts.holds(ref) and not self._purged_since(bytes.fromhex(ref)):
                    self._report.note("damage", error.message)
            self._report.artifacts += 1
            referred = self._connection.execute("SELECT bytes IS NULL FROM content WHERE hash=?", (bytes.fromhex(ref),))
            if not any(spilled for (spilled,) in referred):
                self._report.orphan_artifacts += 1
            if self._step():
                yield self._report
        for fault in fsck.faults(self._artifacts):
            self._report.note("damage", fault)

    def _index(self) -> None:
        counted = self._connection.execute("SELECT value FROM meta WHERE name='incarnation'").fetchone()
        if counted is None or int.from_bytes(counted[0], "big") < self._newest_incarnation:
            self._report.note("damage", "the count of starts is behind the journal")
        query = "SELECT count(*) FROM signature WHERE entity NOT IN (SELECT n FROM entity)"
        (strays,) = self._connection.execute(query).fetchone() or (0,)
        if strays:
            self._report.note("warning", f"{count(strays, 'signature')} without an entity")
        other = 0
        for id, row in commit_index.rows(self._connection):
            other += self._commits.pop(id, (0, b""))[1] != row
        if self._commits:
            self._report.note("damage", f"the index of commits lacks {count(len(self._commits), 'commit')}")
        if other:
            self._report.note("damage", f"the index of commits differs from the store for {count(other, 'commit')}")
        # A state last used by an earlier version has no such index until the next start.
        if component_text_index.exists(self._connection):
            self._sources.difference_update(component_text_index.pairs(self._connection))
            if self._sources:
                lacking = count(len(self._sources), "source")
                self._report.note("damage", f"the index of component texts lacks {lacking}")


def _unpacked(size: int, stored: bytes) -> bytes:
    """The bytes of a row of ``content``; empty if it is damaged, which matches no hash."""
    try:
        return sqlite_file.unpack_content(size, stored)
    except ValueError:
        return b""
