"""Freshness: which of many files changed since they were read, and the documents to write for those.

A watcher may miss an event; a stat does not. ``compare`` takes one stat per file, in one thread hop; ``read_slice``
reads only files whose signature differs from their entry. An entry combines the signature with the source hash of the
content read under it, so it is never mistaken for another version's. Used before every assembly and at resume. Changed
files are read in slices of bounded size: a caller that writes each slice before it reads the next holds only one in
memory.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from ctxd.indexing.file_version_decision import (
    SANDBOXES,
    DocumentBuilder,
    Observed,
    ReadSource,
    decide_outcome,
    is_due,
    is_overtaken,
)
from ctxd.indexing.host_visibility import HostVisibility
from ctxd.mounts.mapping import MountTable
from ctxd.objects.document import Document, Stored, is_large
from ctxd.objects.version_state import is_deleted, is_purged, is_unread
from ctxd.secrets.policy import DEFAULT, is_laxer
from ctxd.secrets.redaction import Guard
from ctxd.sources.source_interface import FINGERPRINT_BYTES, SourceAdapter, Stamp, size_of
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import NotCached
from ctxd.worker_threads import Lane
from ctxd_protocol.limits import FILE_BYTES_MAX
from ctxd_protocol.object_types import Source, source_label
from ctxd_protocol.secret_types import SecretPolicy

ENTRIES_MAX: Final = 100_000
"""Maximum entries in memory, about 250 bytes each. The oldest are dropped, and their files are read once more."""

_VOLUME: Final = struct.Struct("<Q")

INLINE_BYTES_MAX: Final = 256 * 1024
"""Bytes of text that are hashed on the loop: about a millisecond. Moving them to a thread costs a tenth of that."""

THREADS: Final = 2
"""Concurrent hashing threads: more would not be faster on two cores."""

READ_BATCH: Final = 64
"""Files read per thread hop. Bounds the undecoded bytes in memory, and how long other sessions wait for a thread."""

SLICE_FILES_MAX: Final = 500
"""Maximum files per slice. A slice is one write, which must not delay its neighbours' commit."""

SLICE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of the files in a slice, by their size at the comparison; a single file may exceed it. Up to four
copies are in memory during the write; encoding and hashing on the loop take about 10 ms."""

OVERTAKEN_RETRIES: Final = 3
"""Repeated reads because another version was accepted meanwhile; after these the newest version stands."""


class StatEntry(msgspec.Struct, frozen=True, array_like=True):
    """``signature``: the source's fingerprint; ``volume``: where it was read from (see ``Stamp``); ``held``: the source
    hash in bytes, empty without one."""

    signature: bytes
    volume: int
    held: bytes

    def stands_for(self, document: Document) -> bool:
        """True if this entry belongs to ``document``'s bytes."""
        return self.held == _held(document)

    def encoded(self) -> bytes:
        """The form stored beside a version."""
        return _VOLUME.pack(self.volume) + self.signature + self.held


def decoded(stored: bytes) -> StatEntry:
    """Undo ``StatEntry.encoded``."""
    end = _VOLUME.size + FINGERPRINT_BYTES
    return StatEntry(stored[_VOLUME.size : end], _VOLUME.unpack_from(stored)[0], stored[end:])


class StatCache:
    """The newest entry of each object, by id; ``None`` if the store has none either."""

    def __init__(self) -> None:
        self._entries: dict[str, StatEntry | None] = {}

    async def load(self, versions: VersionStore, ids: Iterable[str]) -> None:
        """Load the stored entries of ``ids`` that are not cached; from then on the cache has the newest entry."""
        unasked = [id for id in ids if id not in self._entries]
        if unasked:
            stored = await versions.signatures(unasked)
            for id in unasked:
                if id not in self._entries:
                    self._keep(id, decoded(stored[id]) if id in stored else None)

    def note(self, id: str, stamp: Stamp | None, document: Document) -> bytes | None:
        """Cache and encode the entry of ``document``, read under ``stamp``; ``None`` if the stamp proves nothing."""
        if stamp is None or not stamp.settled or stamp.volume is None:
            return None
        entry = StatEntry(stamp.fingerprint, stamp.volume, _held(document))
        self._keep(id, entry)
        return entry.encoded()

    def get(self, id: str) -> StatEntry | None:
        """The entry of ``id``; ``None`` without one."""
        return self._entries.get(id)

    def _keep(self, id: str, entry: StatEntry | None) -> None:
        self._entries.pop(id, None)
        self._entries[id] = entry
        if len(self._entries) > ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]


def _held(document: Document) -> bytes:
    return bytes.fromhex(document.source_hash) if document.source_hash else b""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of many files with their stored stats.

    ``slices``: ids of files that may have changed, to be read slice by slice. ``orphaned``: ids of those whose source
    cannot be reached now. ``unread`` counts stubs, which do not change, ``unchanged`` the rest.
    """

    slices: tuple[tuple[str, ...], ...] = ()
    orphaned: tuple[str, ...] = ()
    unchanged: int = 0
    unread: int = 0


class RefreshResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of reading one slice, or many files.

    Put ``documents`` with a valid time of at least ``floor_vt`` (ms), and ``signatures`` in the same write. ``updated``
    and ``deleted`` are their object ids; for the rest see ``Compared``.
    """

    documents: tuple[Document, ...] = ()
    signatures: dict[str, bytes] = {}
    floor_vt: int = 0
    updated: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    orphaned: tuple[str, ...] = ()
    unchanged: int = 0
    unread: int = 0

    @property
    def changed(self) -> bool:
        """True if any file gets a new version."""
        return bool(self.updated or self.deleted)

    def after(self, other: "RefreshResult") -> "RefreshResult":
        """The outcomes of both, but only this one's documents to put."""
        return msgspec.structs.replace(
            self,
            updated=other.updated + self.updated,
            deleted=other.deleted + self.deleted,
            orphaned=other.orphaned + self.orphaned,
            unchanged=other.unchanged + self.unchanged,
            unread=other.unread + self.unread,
        )


class _ReadFile(msgspec.Struct, frozen=True):
    """A file that was read, and its document if one seemed due."""

    seen: Observed
    early: Document | None


class StaleFileReader:
    """Compares files with the stats of their versions, and reads those that changed. Cancel: safe anywhere."""

    def __init__(
        self, versions: VersionStore, sources: SourceAdapter[Source], visibility: HostVisibility, guard: Guard
    ) -> None:
        self.stats = StatCache()
        self.builder = DocumentBuilder(guard)
        self.capturing = Lane("capture", THREADS, inline=INLINE_BYTES_MAX)
        # A sandbox may craft files whose scan takes a thousand times as long: never scan them on the loop, nor in a
        # thread that host files wait for.
        self._capturing_confined = Lane("sandbox-capture", THREADS)
        self._versions = versions
        self._sources = sources
        self._visibility = visibility

    async def compare(self, mounts: MountTable, ids: Iterable[str], policy: SecretPolicy = DEFAULT) -> Compared:
        """Compare the files among ``ids`` that the session with ``mounts`` may read.

        Objects of other types are ignored.
        """
        self._visibility.confine(mounts)
        heads = await self._versions.heads(ids)
        files = {id: head for id, head in heads.items() if head is not None and head.document.type == "file"}
        stubs = {id for id, head in files.items() if is_unread(head.document)}
        readable = await self._visibility.readable(mounts, [_source(head) for head in files.values()])
        orphaned = tuple(id for id, here in zip(files, readable, strict=True) if not here and id not in stubs)
        near = {id: head for (id, head), here in zip(files.items(), readable, strict=True) if here}
        changed = await self._changed(near, policy)
        slices = tuple(_slices(changed))
        unread = len(stubs - changed.keys())
        unchanged = len(near.keys() - stubs - changed.keys())
        return Compared(slices=slices, orphaned=orphaned, unchanged=unchanged, unread=unread)

    async def existing(self, mounts: MountTable, ids: Iterable[str]) -> list[str]:
        """The canonical paths of the files among ``ids`` that exist, of those that the session with ``mounts`` may
        read. Objects of other types are ignored."""
        self._visibility.confine(mounts)
        heads = (await self._versions.heads(ids)).values()
        sources = [_source(head) for head in heads if head is not None and head.document.type == "file"]
        readable = await self._visibility.readable(mounts, sources)
        near = [source for source, here in zip(sources, readable, strict=True) if here]
        signatures = await self._sources.fingerprint(near) if near else []
        return [source_label(source) for source, found in zip(near, signatures, strict=True) if found is not None]

    async def read_slice(self, ids: Sequence[str], policy: SecretPolicy = DEFAULT) -> RefreshResult:
        """Read the files of one slice of a recent comparison, to be captured under ``policy``.

        Decided on the newest versions, without an await before returning (see ``ctxd.indexing.file_indexer``).
        """
        before = {id: head for id, head in (await self._versions.heads(ids)).items() if head is not None}
        seen: dict[str, _ReadFile] = {}
        due, newest = before, before
        for _ in range(1 + OVERTAKEN_RETRIES):
            seen |= await self._read(due, policy)
            newest = {id: self._newest(id, head) for id, head in before.items()}
            due = {id: head for id, head in newest.items() if is_overtaken(before[id], head)}
            if not due:
                break
            before = before | due
        # No await from here to the return. Files that were overtaken every time are left to the next call.
        seen = {id: one for id, one in seen.items() if id not in due}
        return self._judged(seen, newest, unchanged=len(ids) - len(seen))

    async def built(self, id: str, source: Source, seen: Observed, head: Document | None) -> Document | None:
        """Build the document for ``seen`` as the successor of ``head`` if one seems due; large text in a thread. Large
        content is kept.

        Raises: CtxdError as ``VersionStore.keep``.
        """
        if not is_due(decide_outcome(head, seen.state)):
            return None
        state = seen.state
        lane = self._capturing_confined if isinstance(state, ReadSource) and state.author else self.capturing
        document = await lane.run(lambda: self.builder.build(id, source, state, head), size=seen.size)
        return await self._versions.keep(document) if is_large(document.content) else document

    async def _changed(self, files: dict[str, Stored], policy: SecretPolicy) -> dict[str, int]:
        """Those of ``files`` without a matching entry, or captured under a policy laxer than this one, each with the
        bytes to read. For a stub only its absence counts."""
        await self.stats.load(self._versions, files)
        signatures = await self._sources.fingerprint([_source(head) for head in files.values()]) if files else []
        changed: dict[str, int] = {}
        for (id, head), signature in zip(files.items(), signatures, strict=True):
            entry = self.stats.get(id)
            if signature is None and is_deleted(head.document):
                continue
            if signature is not None and is_unread(head.document):
                continue
            document = head.document
            is_captured = document.source_hash is not None and not is_purged(document)
            if (
                entry is None
                or entry.signature != signature
                or not entry.stands_for(document)
                or (is_captured and is_laxer(document.payload, policy))
            ):
                size = 0 if signature is None else size_of(signature)
                changed[id] = size if size <= FILE_BYTES_MAX else 0
        return changed

    async def _read(self, files: dict[str, Stored], policy: SecretPolicy) -> dict[str, _ReadFile]:
        seen: dict[str, _ReadFile] = {}
        items = list(files.items())
        for start in range(0, len(items), READ_BATCH):
            batch = items[start : start + READ_BATCH]
            readings = await self._sources.read_many([_source(head) for _, head in batch])
            for (id, head), reading in zip(batch, readings, strict=True):
                entry = self.stats.get(id)
                author = SANDBOXES if self._visibility.is_from_sandbox(_source(head)) else ""
                one = self.builder.seen_at(
                    reading, volume=entry.volume if entry else None, policy=policy, author=author
                )
                seen[id] = _ReadFile(one, await self.built(id, _source(head), one, head.document))
        return seen

    def _judged(self, seen: dict[str, _ReadFile], newest: dict[str, Stored], *, unchanged: int) -> RefreshResult:
        outcomes: dict[str, list[str]] = {"unchanged": [], "updated": [], "deleted": [], "orphaned": []}
        documents: list[Document] = []
        signatures: dict[str, bytes] = {}
        floor_vt = unread = 0
        for id, one in seen.items():
            head = newest[id]
            outcome = decide_outcome(head.document, one.seen.state)
            if outcome == "updated" and is_unread(head.document):
                # The file reappeared after it was missing. A stub is read when its session requests it, not here.
                unread += 1
                continue
            outcomes[outcome].append(id)
            document = None
            if is_due(outcome):
                document = self.builder.build(id, _source(head), one.seen.state, head.document, one.early)
            entry = None if outcome == "orphaned" else self.stats.note(id, one.seen.stamp, document or head.document)
            if document is not None:
                documents.append(document)
                floor_vt = max(floor_vt, head.valid_time + 1)
                if entry is not None:
                    signatures[id] = entry
        return RefreshResult(
            documents=tuple(documents),
            signatures=signatures,
            floor_vt=floor_vt,
            updated=tuple(outcomes["updated"]),
            deleted=tuple(outcomes["deleted"]),
            orphaned=tuple(outcomes["orphaned"]),
            unchanged=unchanged + len(outcomes["unchanged"]),
            unread=unread,
        )

    def _newest(self, id: str, known: Stored) -> Stored:
        head = self._versions.peek(id)
        # Versions are never removed, so the cache returns ``None`` only for an entity whose write was lost.
        return known if isinstance(head, NotCached) or head is None else head


def _slices(sizes: dict[str, int]) -> Iterator[tuple[str, ...]]:
    ids: list[str] = []
    held = 0
    for id, size in sizes.items():
        if ids and (len(ids) == SLICE_FILES_MAX or held + size > SLICE_BYTES_MAX):
            yield tuple(ids)
            ids, held = [], 0
        ids.append(id)
        held += size
    if ids:
        yield tuple(ids)


def _source(head: Stored) -> Source:
    assert head.document.source is not None, "a file has a source"
    return head.document.source
