"""Artifacts: bytes of any size under their BLAKE3, in chunks that artifacts share, in packs.

What ``keep`` returns is on the disk, so whatever refers to it afterwards never dangles. Every byte that is read is
compared with its hash.

Bytes that a write is about to refer to are held: they are not removed meanwhile. A removal is claimed first, which
fails while there is a hold and makes new ones wait; whether something refers to the bytes is looked up after that.
Chunks that a writer has found or written are pinned until its artifact refers to them.
"""

import errno
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from blake3 import blake3

from ctxd import dbfile
from ctxd.artifacts import recovery
from ctxd.artifacts.chunking import CHUNK_BYTES_MAX, Chunker
from ctxd.artifacts.disk import erase, sync_folder
from ctxd.artifacts.index import Index, IndexEntry, count_uses, entry_of, record_faults, use_faults
from ctxd.artifacts.packs import (
    CHUNK,
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
from ctxd.objects.document import Artifact

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_LOOSE_FOLDER: Final = re.compile(r"[0-9a-f]{2}")
_TEMPORARY: Final = ".tmp-*"
_PIECE_BYTES: Final = 1024 * 1024
_LOOKED_UP: Final = 256
"""Chunks that are looked up at a time."""


class ArtifactStore:
    """A folder of artifacts, for any thread. Calls block. ``create`` comes before the first ``keep``."""

    def __init__(self, root: Path, unused: Callable[[str], None] = lambda _: None) -> None:
        """``unused`` receives, on any thread, each ref whose last hold ended without a use. It does not raise."""
        self._root = root
        self._packs = Packs(root / "packs")
        self._unused = unused
        # Reentrant: a hold may be collected, and so end, while the same thread is inside.
        self._changed = threading.Condition(threading.RLock())
        self._removing: set[str] = set()
        self._holds: Counter[str] = Counter()
        self._writing = threading.Lock()
        self._pins: Counter[bytes] = Counter()
        self._reading = threading.Lock()
        self._reader: Index | None = None

    @property
    def _database(self) -> Path:
        return recovery.database(self._root)

    def create(self) -> None:
        """Make the folder if it is missing, take in what a crash left behind the index, and remove what nothing uses.

        A missing or damaged index is rebuilt. Artifacts that an earlier version kept in a file each are moved into
        packs. Raises: OSError; ``dbfile``'s errors.
        """
        self._root.mkdir(mode=0o700, exist_ok=True)
        sync_folder(self._root.parent)
        for folder in self._loose_folders():
            for path in folder.glob(_TEMPORARY):
                erase(path)
        try:
            self._open()
        except (dbfile.FileDamaged, dbfile.SqlFailed):
            self._open(rebuild=True)
        self._pack_loose()

    def _open(self, *, rebuild: bool = False) -> None:
        with self._reading:
            # It may be open on a file that is about to be replaced.
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        self._index, end = recovery.open_index(self._root, self._packs, rebuild=rebuild)
        try:
            with dbfile.faults(), self._writing:
                self._packs.open(end)
                self._drop(self._index.unused_chunks())
        except (dbfile.FileDamaged, dbfile.SqlFailed):
            self._packs.close()
            self._index.close()
            raise

    def close(self, *, tidy: bool = True) -> None:
        """Close all files; with ``tidy`` empty the index's log before. Only a hold may end afterwards."""
        with self._writing, self._reading:
            if self._reader is not None:
                self._reader.close()
            if hasattr(self, "_index"):
                self._packs.close()
                self._index.close(tidy=tidy)

    # --- writing ---

    def keep(self, data: bytes) -> Artifact:
        """Keep ``data`` and return a hold on it. On return it is on the disk. Damaged bytes of its name are replaced.

        Raises: OSError; ``apsw``'s errors.
        """
        with self.writer() as writer:
            writer.write(data)
            return writer.finish()

    def writer(self) -> "ArtifactWriter":
        """Return a writer of one artifact whose bytes come in pieces. Close it."""
        return ArtifactWriter(self)

    def add_chunks(self, chunks: Sequence[bytes], pinned: set[bytes]) -> list[bytes]:
        """Write those of ``chunks`` that are not there, and pin all in ``pinned``. Returns: the hash of each."""
        hashes = [blake3(chunk).digest() for chunk in chunks]
        by_hash = dict(zip(hashes, chunks, strict=True))
        with self._writing:
            new = [hash for hash in by_hash if hash not in pinned]
            self._pins.update(new)
            pinned.update(new)
            known = self._index.chunks(new)
        missing = {
            hash: encode(CHUNK, hash, by_hash[hash])
            for hash in new
            if hash not in known or not self._is_at(known[hash], hash, by_hash[hash])
        }
        if not missing:
            return hashes
        with self._writing:
            # Another writer may have written one meanwhile.
            now = self._index.chunks(missing)
            missing = {hash: record for hash, record in missing.items() if now.get(hash) == known.get(hash)}
            if missing:
                with self._packs.append(list(missing.values())) as locations, self._index.transaction():
                    self._index.put_chunks(list(zip(missing, locations, strict=True)))
                self._packs.bury(known[hash] for hash in missing if hash in known)
        return hashes

    def add_artifact(self, hash: bytes, size: int, kind: Kind, data: bytes, chunks: Collection[bytes]) -> Artifact:
        """Write the record of an artifact whose ``chunks`` are pinned, flush it and them, and return a hold on it."""
        ref = hash.hex()
        with self._changed:
            # One that is being removed must not be taken for one that stays.
            self._changed.wait_for(lambda: ref not in self._removing)
            self._holds[ref] += 1
        artifact = Artifact(ref, size, self._release)
        record = encode(kind, hash, data)
        with self._writing:
            old = self._index.artifact(hash)
            if old is None or not self._is_at(old.location, hash, data):
                # The index learns of records in the order of the pack: after a power cut it knows all up to some place.
                with self._packs.append([record]) as (location,):
                    sync(self._packs.descriptor())
                    hit("art.index")
                    with self._index.transaction():
                        self._index.put_artifact(hash, IndexEntry(size, location), chunks)
                self._packs.bury(() if old is None else (old.location,))
                return artifact
            descriptor = self._packs.descriptor()
        # A start may have found it behind a kill, not flushed.
        sync(descriptor)
        hit("art.index")
        return artifact

    def hold(self, ref: str) -> Artifact | None:
        """Return a hold on the artifact ``ref``; None if it is not there. Raises: ``apsw``'s errors."""
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
        """End the pins of a writer; with ``drop`` remove the chunks that nothing else uses."""
        pinned = list(pinned)
        with self._writing:
            self._pins.subtract(pinned)
            free = [hash for hash in pinned if not self._pins[hash]]
            for hash in free:
                del self._pins[hash]
            if drop:
                self._drop(self._index.unused_chunks(free))

    def _is_at(self, location: Location, hash: bytes, data: bytes) -> bool:
        """True if ``data`` is what is stored at ``location``. Of what cannot be read it was lost already."""
        try:
            record = self._packs.read(location)
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

        Raises: CtxdError ``corrupt`` if they are not there or do not match their name; ``dbfile.DiskFull`` for want of
        descriptors or memory.
        """
        data = b"".join(self.pieces(ref))
        if blake3(data).hexdigest() != ref:
            raise CtxdError("corrupt", f"artifact {ref} does not match its hash")
        return data

    def check(self, ref: str) -> int:
        """Compare the bytes of ``ref`` with their name, a chunk at a time. Returns: how many. Raises: as ``read``."""
        hasher, size = blake3(), 0
        for piece in self.pieces(ref):
            hasher.update(piece)
            size += len(piece)
        if hasher.hexdigest() != ref:
            raise CtxdError("corrupt", f"artifact {ref} does not match its hash")
        return size

    def pieces(self, ref: str, first: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of ``ref`` from offset ``first`` up to ``end``, a chunk at a time, each as it was written.

        Raises: as ``read``.
        """
        assert _NAME.fullmatch(ref), "an artifact is named by 64 hex digits"
        try:
            with dbfile.faults():
                yield from self._pieces(bytes.fromhex(ref), first, end)
        except (dbfile.DiskFailed, dbfile.FileDamaged, dbfile.SqlFailed, DamagedRecord) as error:
            if isinstance(error, dbfile.FileDamaged):
                recovery.report_damage(self._root)
            raise CtxdError("corrupt", f"artifact {ref} cannot be read: {error}") from error

    def _pieces(self, hash: bytes, first: int, end: int | None) -> Iterator[bytes]:
        entry = self._entry(hash)
        if entry is None:
            yield self._loose(hash.hex()).read_bytes()[first:end]
            return
        record = self._record(hash, entry.location, self._artifact_location)
        if entry_of(record).size != entry.size:
            raise DamagedRecord(record.location, f"the index says that it has {entry.size} bytes")
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
                    yield data[max(0, first - at) : None if end is None else end - at]
                at += size

    def _record(self, hash: bytes, location: Location, look_up: Callable[[bytes], Location | None]) -> PackRecord:
        """The record ``hash`` at ``location``, or where it was moved to meanwhile."""
        while True:
            try:
                record = self._packs.read(location)
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

    def size(self, ref: str) -> int | None:
        """The size of ``ref`` in bytes; None if it is not there."""
        entry = self._entry(bytes.fromhex(ref))
        if entry is not None:
            return entry.size
        path = self._loose(ref)
        return path.stat().st_size if path.exists() else None

    def holds(self, ref: str) -> bool:
        """True if ``ref`` is in the index, damaged or not."""
        return self.size(ref) is not None

    def matching(self, prefix: str, limit: int) -> list[str]:
        """At most ``limit`` names that begin with ``prefix``, hex digits. Raises: ``dbfile``'s errors."""
        first = bytes.fromhex(prefix.ljust(64, "0"))
        with dbfile.faults(), self._reading:
            reader = self._opened()
            found = [] if reader is None else reader.artifacts(first, limit, inclusive=True)
        return [ref for hash in found if (ref := hash.hex()).startswith(prefix)]

    def names(self) -> Iterator[str]:
        """The names of all there are."""
        after = ""
        while batch := self.names_after(after):
            yield from batch
            after = batch[-1]

    def names_after(self, after: str, limit: int = 1_000) -> list[str]:
        """At most ``limit`` names beyond ``after``, in order. Raises: OSError; ``dbfile``'s errors."""
        with dbfile.faults(), self._reading:
            reader = self._opened()
            packed = [] if reader is None else [hash.hex() for hash in reader.artifacts(bytes.fromhex(after), limit)]
        return sorted({*packed, *(name for name in self._loose_names() if name > after)})[:limit]

    # --- removal ---

    def claim_removal(self, refs: Iterable[str]) -> list[str]:
        """Claim and return those of ``refs`` without a hold or a claim: every ``keep`` of one waits until
        ``remove`` or ``disclaim`` was called for it."""
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
        """Overwrite and remove the bytes of ``ref`` and of the chunks that no other artifact has; on return they are
        off the disk, and the claim has ended. A missing one is no error.

        Raises: OSError; ``apsw``'s errors.
        """
        try:
            erase(self._loose(ref))
            with self._writing:
                self._remove(bytes.fromhex(ref))
        finally:
            self.disclaim((ref,))

    def _remove(self, hash: bytes) -> None:
        entry = self._index.artifact(hash)
        if entry is None:
            return
        try:
            record = self._packs.read(entry.location)
            chunks = {part for part, _ in parts_of(record)} if record.hash == hash else None
        except (DamagedRecord, FileNotFoundError):
            chunks = None
        if chunks:
            # A crash behind this leaves chunks without a use, which the next start removes. Flushed: once a chunk is
            # overwritten, nothing may count on it.
            with self._index.transaction(synced=True):
                self._index.remove_artifact(hash, chunks)
        # Before the index forgets it: the next removal goes on where a crash cut this one.
        self._packs.erase((entry.location,))
        if chunks:
            self._drop(self._index.unused_chunks(chunks))
            return
        with self._index.transaction(synced=True):
            self._index.remove_artifact(hash, ())
            if chunks is None:
                # Its chunks cannot be read from it: they are those that no other manifest names.
                counted = count_uses(self._packs, self._index)
                self._index.set_uses({hash: counted[hash] for hash in self._index.chunk_uses()})
        if chunks is None:
            self._drop(self._index.unused_chunks())

    def _drop(self, unused: dict[bytes, Location]) -> None:
        """Overwrite and forget chunks that have no use, but for those that a writer is about to use."""
        dropped = {hash: location for hash, location in unused.items() if not self._pins[hash]}
        if dropped:
            self._packs.erase(dropped.values())
            with self._index.transaction():
                self._index.remove_chunks(dropped)

    def remove_unused(self, claimed: Sequence[str], used: Collection[str]) -> None:
        """Remove ``claimed`` except for those that are ``used``; on return, also after an error, no claim is left.

        Raises: OSError; ``apsw``'s errors.
        """
        left = list(claimed)
        try:
            while left:
                # A claim ends with the removal: the next one on the same bytes is not ours to end.
                if (ref := left.pop()) in used:
                    self.disclaim((ref,))
                else:
                    self.remove(ref)
        finally:
            self.disclaim(left)
        with self._writing:
            self._index.empty_log()

    def repack(self) -> int:
        """Move what is live in packs that are mostly dead into the newest one, and remove them. Returns: how many.

        A crash leaves records twice, of which the index names one. Raises: OSError; ``apsw``'s errors.
        """
        removed = 0
        with self._writing:
            live = self._index.live_bytes()
            sizes = self._index.pack_sizes()
        for number, size in sizes.items():
            if number == self._packs.writing or live.get(number, 0) * 2 > size:
                continue
            # A crash, or another repack, may have removed the file already.
            with suppress(FileNotFoundError):
                for record in records(self._packs.path(number)):
                    if isinstance(record, PackRecord) and record.kind in (CHUNK, WHOLE, MANIFEST):
                        self._move(record)
            with self._writing:
                # Nothing can point there any more but what could not be read, which stays for a repair.
                if self._index.live_bytes().get(number, 0) == 0:
                    hit("art.repack")
                    self._packs.remove(number)
                    with self._index.transaction():
                        self._index.remove_pack(number)
                    removed += 1
        return removed

    def _move(self, record: PackRecord) -> None:
        """Write a record that the index names to the newest pack, let the index name it there, and erase it here.

        One that the index does not name is what an interrupted repack had moved already.
        """
        with self._writing:
            if record.kind == CHUNK:
                is_live = self._index.chunks((record.hash,)).get(record.hash) == record.location
            else:
                entry = self._index.artifact(record.hash)
                is_live = entry is not None and entry.location == record.location
            if is_live:
                with self._packs.append([encode(record.kind, record.hash, record.data)]) as (location,):
                    sync(self._packs.descriptor())
                    hit("art.index")
                    with self._index.transaction(synced=True):
                        if record.kind == CHUNK:
                            self._index.put_chunks([(record.hash, location)])
                        else:
                            self._index.put_artifact(record.hash, entry_of(record)._replace(location=location), ())
            self._packs.bury((record.location,))

    # --- verification ---

    def faults(self) -> Iterator[str]:
        """Compare packs and index record by record, beside reading every artifact. Blocks.

        Yields: a sentence for each fault. Raises: ``dbfile``'s errors.
        """
        with dbfile.faults():
            if not self._database.exists():
                return
            reader = Index(self._database, write=False)
            try:
                yield from reader.integrity()
                yield from record_faults(self._packs, reader)
                yield from use_faults(self._packs, reader)
            finally:
                reader.close()

    # --- artifacts of earlier versions, a file each ---

    def _loose(self, ref: str) -> Path:
        return self._root / ref[:2] / ref

    def _loose_folders(self) -> list[Path]:
        if not self._root.is_dir():
            return []
        return sorted(path for path in self._root.iterdir() if _LOOSE_FOLDER.fullmatch(path.name) and path.is_dir())

    def _loose_names(self) -> Iterator[str]:
        """Names of artifacts that have a file each, as earlier versions wrote them."""
        for folder in self._loose_folders():
            yield from sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))

    def _pack_loose(self) -> None:
        for ref in self._loose_names():
            path = self._loose(ref)
            data = path.read_bytes()
            # A damaged one stays where it is, so that what refers to it is reported with it.
            if blake3(data).hexdigest() == ref:
                with dbfile.faults():
                    self.keep(data).used = True
                erase(path)
        for folder in self._loose_folders():
            with suppress(OSError):
                folder.rmdir()


class ArtifactWriter:
    """Writes one artifact whose bytes come in pieces, with a bounded part of them in memory. Not for two threads."""

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
        """Add ``data`` at the end. Raises: as ``ArtifactStore.keep``."""
        self._hasher.update(data)
        view = memoryview(data)
        for at in range(0, len(view), _PIECE_BYTES):
            piece = bytes(view[at : at + _PIECE_BYTES])
            self._size += len(piece)
            if self._size <= CHUNK_BYTES_MAX:
                self._head += piece
                continue
            head, self._head = self._head, b""
            self._add(self._chunker.cut(head + piece))

    def _add(self, chunks: list[bytes]) -> None:
        hashes = self._store.add_chunks(chunks, self._pinned)
        self._parts += zip(hashes, map(len, chunks), strict=True)

    def finish(self) -> Artifact:
        """Return a hold on the artifact, which is on the disk. Raises: as ``ArtifactStore.keep``."""
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
        """Let go of the chunks; of an artifact that is not finished they are removed. Raises: as ``finish``."""
        pinned, self._pinned = self._pinned, set()
        if pinned:
            self._store.unpin(pinned, drop=not self._is_kept)
