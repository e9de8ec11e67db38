"""Artifacts: bytes of any size, addressed by their BLAKE3, stored in packs as chunks that artifacts share.

``keep`` returns once the bytes are on the disk, so later references never dangle. Every read is verified.

Bytes that a write is about to refer to are held, so they are not removed meanwhile. A removal takes a claim first,
which fails while there is a hold and makes new holds wait; only then does it check for references. Chunks that a writer
has found or written are pinned until its artifact refers to them.
"""

import errno
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from blake3 import blake3

from ctxd import sqlite_file
from ctxd.artifacts import index_recovery
from ctxd.artifacts.chunking import CHUNK_BYTES_MAX, Chunker
from ctxd.artifacts.loose_files import LooseFiles
from ctxd.artifacts.pack_index import VERSION, Index, IndexEntry, entry_of
from ctxd.artifacts.packs import (
    CHUNK,
    DEAD,
    MANIFEST,
    WHOLE,
    DamagedRecord,
    Kind,
    Location,
    PackRecord,
    Packs,
    encode,
    manifest_of,
    parts_of,
    records,
    sync,
)
from ctxd.errors import CtxdError
from ctxd.failpoints import hit
from ctxd.file_writes import erase, sync_folder
from ctxd.objects.document import Artifact
from ctxd.worker_threads import yield_to_other_threads

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_PIECE_BYTES: Final = 256 * 1024  # Below the mmap threshold of ``process_setup.tune_malloc``.
_LOOKED_UP: Final = 256
"""Chunks per look-up."""


class ArtifactStore:
    """A folder of artifacts, for any thread. Methods block. Call ``create`` before the first ``keep``."""

    def __init__(self, root: Path, unused: Callable[[str], None] = lambda _: None) -> None:
        """``unused`` is called, on any thread, with each ref whose last hold ended without a use. It must not raise."""
        self._root = root
        self.packs = Packs(root / "packs")
        self._loose = LooseFiles(root)
        self._unused = unused
        # Reentrant, because the garbage collector may end a hold while the same thread has the lock.
        self._changed = threading.Condition(threading.RLock())
        self._removing: set[str] = set()
        self._holds: Counter[str] = Counter()
        self._writing = threading.Lock()
        self._pins: Counter[bytes] = Counter()
        self._reading = threading.Lock()
        self._reader: Index | None = None

    @property
    def _database(self) -> Path:
        return index_recovery.database(self._root)

    def create(self) -> sqlite_file.DiskFull | None:
        """Create the folder if missing, and index records that a crash left unindexed.

        A missing or damaged index is rebuilt. Artifacts that an earlier version kept in a file each are moved into
        packs. Returns: the error if lack of room kept some in their files; None if all are moved. Raises: OSError;
        ``sqlite_file``'s errors.
        """
        self._root.mkdir(mode=0o700, exist_ok=True)
        sync_folder(self._root.parent)
        try:
            self._open()
        except (sqlite_file.FileDamaged, sqlite_file.SqlFailed):
            self._open(rebuild=True)

        def keep(data: bytes) -> None:
            self.keep(data).used = True

        return self._loose.pack(keep)

    def _open(self, *, rebuild: bool = False) -> None:
        with self._reading:
            # The reader may have the file open that is about to be replaced.
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        self._index, end = index_recovery.open_index(self._root, self.packs, rebuild=rebuild)
        try:
            with sqlite_file.faults(), self._writing:
                self.packs.open(end)
        except (sqlite_file.FileDamaged, sqlite_file.SqlFailed):
            self.packs.close()
            self._index.close()
            raise

    def close(self, *, tidy: bool = True) -> None:
        """Close all files; with ``tidy``, empty the index's log first. Only holds may still end afterwards."""
        with self._writing, self._reading:
            if self._reader is not None:
                self._reader.close()
            if hasattr(self, "_index"):
                self.packs.close()
                self._index.close(tidy=tidy)

    # --- writing ---

    def keep(self, data: bytes) -> Artifact:
        """Store ``data`` durably and return a hold on it. Damaged bytes under its hash are replaced.

        Raises: OSError; ``apsw``'s errors.
        """
        with self.writer() as writer:
            writer.write(data)
            return writer.finish()

    def writer(self) -> "ArtifactWriter":
        """Return a writer for one artifact in pieces. Close it."""
        return ArtifactWriter(self)

    def add_chunks(self, chunks: Sequence[bytes], pinned: set[bytes]) -> list[bytes]:
        """Write those of ``chunks`` that are missing, and pin all in ``pinned``. Returns: the hash of each."""
        hashes = [blake3(chunk).digest() for chunk in chunks]
        by_hash = dict(zip(hashes, chunks, strict=True))
        with self._writing:
            new = [hash for hash in by_hash if hash not in pinned]
            self._pins.update(new)
            pinned.update(new)
            known = self._index.chunks(new)
        missing: dict[bytes, bytes] = {}
        for hash in new:
            yield_to_other_threads()
            if hash not in known or not self._is_at(known[hash], hash, by_hash[hash]):
                missing[hash] = encode(CHUNK, hash, by_hash[hash])
        if not missing:
            return hashes
        with self._writing:
            # Another writer may have written some meanwhile.
            now = self._index.chunks(missing)
            missing = {hash: record for hash, record in missing.items() if now.get(hash) == known.get(hash)}
            if missing:
                with self.packs.append(list(missing.values())) as locations, self._index.transaction():
                    self._index.put_chunks(list(zip(missing, locations, strict=True)))
                self.packs.bury(known[hash] for hash in missing if hash in known)
        return hashes

    def add_artifact(self, hash: bytes, size: int, kind: Kind, data: bytes, chunks: Collection[bytes]) -> Artifact:
        """Write the record of an artifact whose ``chunks`` are pinned, flush it and them, and return a hold on it."""
        ref = hash.hex()
        with self._changed:
            # Wait for a running removal of the same artifact, which would take it away.
            self._changed.wait_for(lambda: ref not in self._removing)
            self._holds[ref] += 1
        artifact = Artifact(ref, size, self._release)
        record = encode(kind, hash, data)
        with self._writing:
            old = self._index.artifact(hash)
            if old is None or not self._is_at(old.location, hash, data):
                # Index records in pack order, so that after a power cut the index covers a prefix of the pack.
                with self.packs.append([record]) as (location,):
                    sync(self.packs.descriptor())
                    hit("art.index")
                    with self._index.transaction():
                        self._index.put_artifact(hash, IndexEntry(size, location), chunks)
                self.packs.bury(() if old is None else (old.location,))
                return artifact
            descriptor = self.packs.descriptor()
        # A record that a start found after a kill may not be flushed.
        sync(descriptor)
        hit("art.index")
        return artifact

    def hold(self, ref: str) -> Artifact | None:
        """Return a hold on the artifact ``ref``; None if it does not exist. Raises: ``apsw``'s errors."""
        with self._changed:
            self._changed.wait_for(lambda: ref not in self._removing)
            self._holds[ref] += 1
        artifact = Artifact(ref, 0, self._release)
        size = self.size(ref)
        if size is None:
            artifact.used = True
            return None
        artifact.size = size
        return artifact

    def _release(self, artifact: Artifact) -> None:
        with self._changed:
            self._holds[artifact.ref] -= 1
            if self._holds[artifact.ref]:
                return
            del self._holds[artifact.ref]
        if not artifact.used:
            self._unused(artifact.ref)

    def unpin(self, pinned: Iterable[bytes], *, drop: bool) -> None:
        """End the pins of a writer; with ``drop``, remove chunks that nothing else uses."""
        pinned = list(pinned)
        with self._writing:
            self._pins.subtract(pinned)
            free = [hash for hash in pinned if not self._pins[hash]]
            for hash in free:
                del self._pins[hash]
            if drop:
                self._drop(self._index.unused_chunks(free))

    def _is_at(self, location: Location, hash: bytes, data: bytes) -> bool:
        """True if the record at ``location`` holds ``data``; False if it cannot be read."""
        try:
            record = self.packs.read(location)
        except (DamagedRecord, FileNotFoundError):
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        return (record.hash, record.data) == (hash, data)

    # --- reading ---

    def read(self, ref: str) -> bytes:
        """The bytes of ``ref``.

        Raises: CtxdError ``corrupt`` if they are missing or do not match their hash; ``sqlite_file.DiskFull`` if
        descriptors or memory are exhausted.
        """
        data = b"".join(self.pieces(ref))
        if blake3(data).hexdigest() != ref:
            raise CtxdError("corrupt", f"artifact {ref} does not match its hash")
        return data

    def check(self, ref: str) -> int:
        """Compare the bytes of ``ref`` with their hash, by chunks. Returns: their number. Raises: as ``read``."""
        hasher, size = blake3(), 0
        for piece in self.pieces(ref):
            hasher.update(piece)
            size += len(piece)
        if hasher.hexdigest() != ref:
            raise CtxdError("corrupt", f"artifact {ref} does not match its hash")
        return size

    def check_range(self, ref: str, first: int, end: int) -> int:
        """As ``check``, from offset ``first`` to ``end``: compares each chunk with its own hash, or the whole artifact
        with its hash if the range covers it. Returns: the offset reached."""
        size = self.size(ref)
        if first == 0 and size is not None and size <= end:
            return self.check(ref)
        return first + sum(map(len, self.pieces(ref, first, end)))

    def pieces(self, ref: str, first: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of ``ref`` from offset ``first`` up to ``end``, a verified chunk at a time.

        Raises: as ``read``.
        """
        assert _NAME.fullmatch(ref), "an artifact is named by 64 hex digits"
        try:
            with sqlite_file.faults():
                yield from self._pieces(bytes.fromhex(ref), first, end)
        except (sqlite_file.DiskFailed, sqlite_file.FileDamaged, sqlite_file.SqlFailed, DamagedRecord) as error:
            if isinstance(error, sqlite_file.FileDamaged):
                index_recovery.report_damage(self._root)
            raise CtxdError("corrupt", f"artifact {ref} cannot be read: {error}") from error

    def _pieces(self, hash: bytes, first: int, end: int | None) -> Iterator[bytes]:
        entry = self._entry(hash)
        if entry is None:
            yield self._loose.path(hash.hex()).read_bytes()[first:end]
            return
        record = self._record(hash, entry.location, self._artifact_location)
        if entry_of(record).size != entry.size:
            raise DamagedRecord(record.location, f"the index records {entry.size} bytes")
        if record.kind == WHOLE:
            yield record.data[first:end]
            return
        parts, at = parts_of(record), 0
        for batch in range(0, len(parts), _LOOKED_UP):
            wanted = parts[batch : batch + _LOOKED_UP]
            places = self._chunk_locations([part for part, _ in wanted])
            for part, size in wanted:
                if at + size > first and (end is None or at < end):
                    if part not in places:
                        raise DamagedRecord(record.location, f"chunk {part.hex()} is missing")
                    data = self._record(part, places[part], self._chunk_location).data
                    yield_to_other_threads()
                    yield data[max(0, first - at) : None if end is None else end - at]
                at += size

    def _record(self, hash: bytes, location: Location, look_up: Callable[[bytes], Location | None]) -> PackRecord:
        """The record ``hash`` at ``location``, or at the location that it was moved to meanwhile."""
        while True:
            try:
                record = self.packs.read(location)
                if record.hash != hash:
                    raise DamagedRecord(location, "the index names another record")
                return record
            except (DamagedRecord, FileNotFoundError):
                now = look_up(hash)
                if now is None or now == location:
                    raise
                location = now

    def _entry(self, hash: bytes) -> IndexEntry | None:
        with self._reading:
            return None if (reader := self._opened()) is None else reader.artifact(hash)

    def _artifact_location(self, hash: bytes) -> Location | None:
        return None if (entry := self._entry(hash)) is None else entry.location

    def _chunk_locations(self, hashes: Iterable[bytes]) -> dict[bytes, Location]:
        with self._reading:
            return {} if (reader := self._opened()) is None else reader.chunks(hashes)

    def _chunk_location(self, hash: bytes) -> Location | None:
        return self._chunk_locations((hash,)).get(hash)

    def _opened(self) -> Index | None:
        if self._reader is None and self._database.exists():
            self._reader = Index(self._database, write=False)
        return self._reader

    @contextmanager
    def reader(self) -> Iterator[Index | None]:
        """A connection to the index for long reads, closed at the end; None if there is no index of this version yet.
        Raises: ``apsw``'s and ``sqlite_file``'s errors."""
        if sqlite_file.user_version(self._database) != VERSION:
            yield None
            return
        reader = Index(self._database, write=False)
        try:
            yield reader
        finally:
            reader.close()

    def note_uses(self, uses: Mapping[str, int]) -> None:
        """Store when artifacts were last used, in ms since 1970, without a flush: a power cut may lose the newest."""
        with self._writing, self._index.transaction():
            self._index.note_uses({bytes.fromhex(ref): at for ref, at in uses.items()})

    def last_uses(self) -> dict[str, int]:
        """Return the stored last uses of the existing artifacts."""
        with self._reading:
            reader = self._opened()
            return {} if reader is None else {hash.hex(): at for hash, at in reader.last_uses().items()}

    def report_damage(self) -> None:
        """Let the next start rebuild the index."""
        index_recovery.report_damage(self._root)

    def size(self, ref: str) -> int | None:
        """The size of ``ref`` in bytes; None if it does not exist."""
        entry = self._entry(bytes.fromhex(ref))
        if entry is not None:
            return entry.size
        return self._loose.size(ref)

    def holds(self, ref: str) -> bool:
        """True if ``ref`` exists, damaged or not, and its removal has not begun."""
        if (entry := self._entry(bytes.fromhex(ref))) is None:
            return self._loose.size(ref) is not None
        try:
            return self.packs.read(entry.location).kind != DEAD
        except (DamagedRecord, OSError):
            return True

    def matching(self, prefix: str, limit: int) -> list[str]:
        """At most ``limit`` names that start with ``prefix``, in hex. Raises: ``sqlite_file``'s errors."""
        first = bytes.fromhex(prefix.ljust(64, "0"))
        with sqlite_file.faults(), self._reading:
            reader = self._opened()
            found = [] if reader is None else reader.artifacts(first, limit, inclusive=True)
        return [ref for hash in found if (ref := hash.hex()).startswith(prefix)]

    def names(self) -> Iterator[str]:
        """The names of all artifacts."""
        after = ""
        while batch := self.names_after(after):
            yield from batch
            after = batch[-1]

    def names_after(self, after: str, limit: int = 1_000) -> list[str]:
        """At most ``limit`` names after ``after``, in order. Raises: OSError; ``sqlite_file``'s errors."""
        with sqlite_file.faults(), self._reading:
            reader = self._opened()
            packed = [] if reader is None else [hash.hex() for hash in reader.artifacts(bytes.fromhex(after), limit)]
        return sorted({*packed, *(name for name in self._loose.names() if name > after)})[:limit]

    # --- removal ---

    def claim_removal(self, refs: Iterable[str]) -> list[str]:
        """Claim and return those of ``refs`` without a hold or a claim. A ``keep`` of a claimed one waits until
        ``remove`` or ``disclaim`` is called for it."""
        with self._changed:
            claimed = [ref for ref in dict.fromkeys(refs) if ref not in self._holds and ref not in self._removing]
            self._removing.update(claimed)
        return claimed

    def disclaim(self, refs: Iterable[str]) -> None:
        """End the claims on ``refs``."""
        with self._changed:
            self._removing.difference_update(refs)
            self._changed.notify_all()

    def remove(self, ref: str) -> None:
        """Overwrite and remove the bytes of ``ref`` and the chunks that no other artifact has; on return they are off
        the disk, and the claim has ended. A missing artifact is ignored.

        Raises: OSError; ``apsw``'s errors.
        """
        try:
            erase(self._loose.path(ref))
            with self._writing:
                self._remove(bytes.fromhex(ref))
        finally:
            self.disclaim((ref,))

    def _remove(self, hash: bytes) -> None:
        entry = self._index.artifact(hash)
        if entry is None:
            return
        chunks = {part: place for part, place in self._index.sole_parts(hash).items() if not self._pins[part]}
        # Erase the artifact's record first, so that no write of the same bytes relies on chunks that are gone. Update
        # the index last, so that after a crash or a disk failure the next removal can complete this one.
        self.packs.erase((entry.location,))
        self.packs.erase(chunks.values())
        with self._index.transaction(synced=True):
            self._index.remove_artifact(hash)
            self._index.remove_chunks(chunks)

    def remove_leftovers(self) -> int:
        """Overwrite and remove chunks without an artifact, which a crash left. Returns: their number.

        If a manifest refers to one anyway, it stays, and the next start rebuilds the index. Cost: linear in the chunks;
        with any to remove, also in the manifests. Raises: OSError; ``sqlite_file``'s errors.
        """
        with sqlite_file.faults(), self.reader() as reader:
            if reader is None:
                return 0
            left = reader.unused_chunks()
            for name in self.names() if left else ():
                # A verification reports unreadable records.
                with suppress(DamagedRecord, FileNotFoundError):
                    entry = self._entry(bytes.fromhex(name))
                    named = () if entry is None else parts_of(self.packs.read(entry.location))
                    for part, _ in named:
                        # A writer may have used it meanwhile; then the index shows that.
                        if part in left and reader.unused_chunks((part,)):
                            index_recovery.report_damage(self._root)
                            del left[part]
            with self._writing:
                unused = self._index.unused_chunks(left)
                self._drop(unused)
        return len(unused)

    def _drop(self, unused: dict[bytes, Location]) -> None:
        """Overwrite and remove unused chunks, except those pinned by writers."""
        dropped = {hash: location for hash, location in unused.items() if not self._pins[hash]}
        if dropped:
            self.packs.erase(dropped.values())
            end = self.packs.end_without(dropped.values())
            # Otherwise the index might take records written after the cut for ones that it has indexed.
            with self._index.transaction(synced=end is not None):
                self._index.remove_chunks(dropped)
                if end is not None:
                    self._index.set_pack_size(self.packs.writing, end)
            if end is not None:
                self.packs.cut(end)

    def remove_unused(self, claimed: Sequence[str], used: Collection[str]) -> None:
        """Remove ``claimed`` except those in ``used``; all claims end, even after an error.

        Raises: OSError; ``apsw``'s errors.
        """
        left = list(claimed)
        try:
            while left:
                # The removal ends the claim; a later claim on the same bytes belongs to another caller.
                if (ref := left.pop()) in used:
                    self.disclaim((ref,))
                else:
                    self.remove(ref)
        finally:
            self.disclaim(left)
        with self._writing:
            self._index.empty_log()

    def repack(self) -> int:
        """Move live records of mostly dead packs into the newest pack, and remove those packs. Returns: their number.

        A crash leaves duplicate records, of which the index refers to one. Raises: OSError; ``apsw``'s errors.
        """
        removed = 0
        with self._writing:
            live = self._index.live_bytes()
            sizes = self._index.pack_sizes()
        for number, size in sizes.items():
            if number == self.packs.writing or live.get(number, 0) * 2 > size:
                continue
            # A crash, or another repack, may have removed the file already.
            with suppress(FileNotFoundError):
                for record in records(self.packs.path(number)):
                    if isinstance(record, PackRecord) and record.kind in (CHUNK, WHOLE, MANIFEST):
                        self._move(record)
            with self._writing:
                # Only unreadable records may still be referred to; then keep the pack for a repair.
                if self._index.live_bytes().get(number, 0) == 0:
                    hit("art.repack")
                    self.packs.remove(number)
                    with self._index.transaction():
                        self._index.remove_pack(number)
                    removed += 1
        return removed

    def _move(self, record: PackRecord) -> None:
        """Copy a record that the index refers to into the newest pack, update the index, and erase the original.

        A record that the index does not refer to was already moved by an interrupted repack.
        """
        with self._writing:
            if record.kind == CHUNK:
                is_live = self._index.chunks((record.hash,)).get(record.hash) == record.location
            else:
                entry = self._index.artifact(record.hash)
                is_live = entry is not None and entry.location == record.location
            if is_live:
                with self.packs.append([encode(record.kind, record.hash, record.data)]) as (location,):
                    sync(self.packs.descriptor())
                    hit("art.index")
                    with self._index.transaction(synced=True):
                        if record.kind == CHUNK:
                            self._index.put_chunks([(record.hash, location)])
                        else:
                            self._index.put_artifact(record.hash, entry_of(record)._replace(location=location), ())
            self.packs.bury((record.location,))


class ArtifactWriter:
    """Writes one artifact in pieces, with bounded memory. Not for two threads."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._hasher = blake3()
        self._size = 0
        self._head = b""
        self._chunker = Chunker()
        self._parts: list[tuple[bytes, int]] = []
        self._pinned: set[bytes] = set()
        self._is_kept = False

    def __enter__(self) -> "ArtifactWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        """Append ``data``. Raises: as ``ArtifactStore.keep``."""
        self._hasher.update(data)
        for at in range(0, len(data), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            self._size += len(piece)
            if self._size <= CHUNK_BYTES_MAX:
                self._head += piece
                continue
            self._add(self._chunker.cut(self._head + piece))
            self._head = b""

    def _add(self, chunks: list[bytes]) -> None:
        hashes = self._store.add_chunks(chunks, self._pinned)
        self._parts += zip(hashes, map(len, chunks), strict=True)

    def finish(self) -> Artifact:
        """Make the artifact durable and return a hold on it. Raises: as ``ArtifactStore.keep``."""
        hash = self._hasher.digest()
        if self._size <= CHUNK_BYTES_MAX:
            artifact = self._store.add_artifact(hash, self._size, WHOLE, self._head, ())
        else:
            self._add(self._chunker.end())
            manifest = manifest_of(self._parts)
            artifact = self._store.add_artifact(hash, self._size, MANIFEST, manifest, self._pinned)
        self._is_kept = True
        return artifact

    def close(self) -> None:
        """Release the chunks; those of an unfinished artifact are removed. Raises: as ``finish``."""
        pinned, self._pinned = self._pinned, set()
        if pinned:
            self._store.unpin(pinned, drop=not self._is_kept)
