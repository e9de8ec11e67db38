"""Types of writes: submitted, encoded, queued and pending ones, purges, replays, and the listeners of the store."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import anyio
import msgspec
from blake3 import blake3

from ctxd import sqlite_file
from ctxd.errors import CtxdError
from ctxd.objects.document import Artifact, Document, encode_document
from ctxd.store import journal
from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.limits import CONTENT_INLINE_BYTES_MAX
from ctxd_protocol.object_types import Receipt

Restate = Callable[[Document], Document | None]
"""Function from a version with its content to its replacement without the purged part; None if it has no such part."""


class PurgeRequest:
    """Content to destroy: every version of ``ids``, and the parts that ``restate`` removes from versions of the
    entities ``within`` (entity ids, id prefixes that end in ``#``, or ``commit@`` and a session for its commits). From
    the latter, ``searched`` leaves out the commits up to this number: those among them to restate are named.
    ``keyed`` returns the keyed hash that replaces a source hash, so that the same bytes are still recognised.
    ``sharing`` returns the replacement of another entity's version that has the same text and cannot do without one;
    None to purge that too. ``unreferenced``: ``ids`` are artifacts without tags; only those that no pin and no other
    version refers to at commit time are purged. ``reclaimed``: a removed session whose space the purge frees. Secrecy
    is not its purpose: objects that another session knows stay, and so do texts that other entities have. ``done``: the
    result, once durable; None if the purge failed."""

    __slots__ = (
        "done",
        "ids",
        "keyed",
        "messages",
        "reclaimed",
        "restate",
        "searched",
        "sharing",
        "unreferenced",
        "within",
    )

    def __init__(
        self,
        ids: Sequence[str],
        keyed: Callable[[str], str],
        *,
        within: Sequence[str] = (),
        restate: Restate | None = None,
        sharing: Restate | None = None,
        messages: int = 0,
        searched: int = 0,
        unreferenced: bool = False,
        reclaimed: str | None = None,
    ) -> None:
        """``restate`` and ``sharing`` are called on the commit thread, so they must be quick and pure; ``restate``
        removes ``messages`` messages."""
        self.ids = tuple(ids)
        self.keyed = keyed
        self.within = tuple(within)
        self.restate = restate
        self.sharing = sharing
        self.messages = messages
        self.searched = searched
        self.unreferenced = unreferenced
        self.reclaimed = reclaimed
        self.done: Purged | None = None


class Purged(msgspec.Struct, frozen=True):
    """Result of a purge: the entities, the number of versions, the BLAKE3 of each removed text, and the number of
    texts and messages; ``body`` is the journal row's."""

    ids: tuple[str, ...]
    versions: int
    texts: tuple[bytes, ...]
    text_count: int
    body: bytes


class PackedText(NamedTuple):
    """An already encoded text: its BLAKE3, its size in bytes, and its ``sqlite_file.pack_content``."""

    hash: bytes
    size: int
    data: bytes


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of one call: all become durable, or none.

    ``kind`` is the method's name. ``request`` is a digest of the parameters, compared when an ``op_id`` comes again.
    ``result`` is the encoded result without receipt, returned for a resend. ``knows`` are objects that enter the index
    of ``session``. ``deletes`` are entities deleted from then on; none of them is in ``puts``. ``floor_vt`` is the
    least valid time, in ms: one above the newest of all entities that are rewritten or deleted. ``valid_times``: past
    times, in ms, from which some of ``puts`` hold, by entity; the others hold from the write on. ``signatures`` are
    files' stat signatures, a cache for the decision whether to read a file again. ``purge``: content to destroy; such a
    write puts nothing. ``unchanged``: by entity, the content hash of those of ``puts`` whose content is that of their
    previous version; see ``VersionStore.is_purging``. ``packed``: by entity, the encoded text of those of ``puts``
    whose documents have none.
    """

    kind: str
    principal: str
    session: str | None = None
    op_id: str | None = None
    request: bytes = b""
    result: bytes = b""
    puts: tuple[Document, ...] = ()
    deletes: tuple[str, ...] = ()
    knows: tuple[str, ...] = ()
    signatures: dict[str, bytes] = {}
    floor_vt: int = 0
    valid_times: Mapping[str, int] = {}
    purge: PurgeRequest | None = None
    unchanged: Mapping[str, str] = {}
    packed: Mapping[str, PackedText] = {}


class Pending(msgspec.Struct, eq=False):
    """An accepted write that waits for its flush. ``seq`` and ``vt`` are final once it is durable; ``size`` is roughly
    its size in the journal, in bytes. ``done`` is True once the write is durable or has failed. ``behind``: the
    entities that had a newer version when this wrote one at a past valid time."""

    seq: int
    vt: int
    size: int
    done: bool = False
    receipt: Receipt | None = None
    error: Exception | None = None
    behind: tuple[str, ...] = ()
    _callbacks: list[Callable[["Pending"], None]] = []
    _event: anyio.Event | None = None

    def on_done(self, callback: Callable[["Pending"], None]) -> None:
        """Call ``callback`` on the loop once this is done; immediately if it already is."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def resolve(self, receipt: Receipt | None, error: Exception | None = None) -> tuple[Exception, ...]:
        """End the wait with a receipt or an error; with both, the journal has a row for a write that failed. Called
        once, on the loop, by the store.

        Returns: exceptions of callbacks. Even if one raises, all are called and waiting callers resume.
        """
        assert not self.done, "a write is resolved once"
        self.done, self.receipt, self.error = True, receipt, error
        raised: list[Exception] = []
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception as fault:  # noqa: BLE001 - one caller's fault is not that of its neighbours' writes
                raised.append(fault)
        self._callbacks.clear()
        if self._event is not None:
            self._event.set()
        return tuple(raised)

    async def wait(self) -> Receipt:
        """The receipt, once the write is durable.

        Raises: the store's ``CtxdError`` if it failed. Cancel: safe; the write continues.
        """
        if not self.done:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        if self.error is not None:
            raise self.error
        assert self.receipt is not None
        return self.receipt


class StoreFailed(Exception):
    """The journal's disk failed. The process must end with exit code 74; the next start finds the durable writes."""


class NotCached:
    """The type of ``NOT_CACHED``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOT_CACHED"


NOT_CACHED: Final = NotCached()
"""The head is not cached. None would mean that the object does not exist."""


class Replay(msgspec.Struct, frozen=True):
    """Stored result of an earlier write under the same operation id.

    ``result`` is the encoded result without receipt. ``receipt`` is the original one, None while ``pending`` waits
    for its flush; ``pending`` is None once the write is durable.
    """

    result: bytes
    pending: Pending | None
    receipt: Receipt | None

    async def durable(self) -> Receipt:
        """Wait until the write is durable, and return its receipt. Raises: CtxdError of the store. Cancel: safe."""
        if self.receipt is not None:
            return self.receipt
        assert self.pending is not None, "a write is durable or pending"
        return await self.pending.wait()


class Change(msgspec.Struct, frozen=True):
    """One journal row: its writer, its time (``vt``, ms since 1970), and its versions as ``(entity id, valid
    time)``."""

    seq: int
    kind: str
    session: str | None
    principal: str
    vt: int
    puts: tuple[tuple[str, int], ...]


_ENTRY_BYTES: Final = 512
"""Bytes counted per write in addition to its body and texts."""


class EncodedWrite:
    """An encoded write, without a sequence yet: its body, its puts and their ids, and its contents by hash: the size,
    and the bytes unless they are in the artifact store. ``failure``: the error of a purge that failed; its row, which
    the rows after it continue, records that nothing was purged."""

    __slots__ = ("artifacts", "body", "contents", "failure", "ids", "puts", "size", "write")

    def __init__(self, write: Write) -> None:
        """Raises: TypeError, ValueError or OverflowError for a payload or text that cannot be encoded; AssertionError
        for large content that ``VersionStore.keep`` was not called for."""
        self.failure: CtxdError | None = None
        puts: list[journal.Put] = []
        contents: dict[bytes, tuple[int, bytes | None]] = {}
        artifacts: list[Artifact] = []
        size = _ENTRY_BYTES
        ids = [document.id for document in write.puts]
        if len(set(ids)) < len(ids):
            # If a write puts an entity twice, the last version counts.
            by_id = {document.id: document for document in write.puts}
            write, ids = msgspec.structs.replace(write, puts=tuple(by_id.values())), list(by_id)
        for document in write.puts:
            ref = bytes.fromhex(write.unchanged.get(document.id, "")) or None if write.unchanged else None
            if document.artifact is not None:
                ref = bytes.fromhex(document.artifact.ref)
                contents[ref] = (document.artifact.size, None)
                artifacts.append(document.artifact)
            elif (content := document.content) is not None:
                data = content if isinstance(content, bytes) else content.encode()
                assert len(data) <= CONTENT_INLINE_BYTES_MAX, "large content is kept before it is submitted"
                ref = blake3(data).digest()
                # Deltas of commits are many, and rarely read one by one.
                contents[ref] = (len(data), sqlite_file.pack_content(data) if document.type == "commit" else data)
            elif write.packed and (packed := write.packed.get(document.id)) is not None:
                ref = packed.hash
                contents[ref] = packed.size, packed.data
            valid_time = write.valid_times.get(document.id) if write.valid_times else None
            puts.append(journal.Put(document.id, encode_document(document), ref, valid_time))
        if write.deletes:
            puts += [journal.Put(id, b"", None) for id in dict.fromkeys(write.deletes)]
            ids = [put.id for put in puts]
        self.write, self.puts, self.contents, self.artifacts = write, puts, contents, artifacts
        self.ids = tuple(ids)
        self.body = journal.encode_body(write.request, write.result, write.knows, puts)
        for length, _ in contents.values():
            size += length
        self.size = size + 2 * len(self.body)


class QueuedWrite(msgspec.Struct, frozen=True, eq=False):
    """A write with its position: ``pending`` has sequence and valid time, ``tx_time`` the time of acceptance in ms."""

    encoded: EncodedWrite
    pending: Pending
    tx_time: int


def purged_ids(entry: QueuedWrite) -> tuple[str, ...]:
    """The ids of all entities from which the write purged content."""
    purge = entry.encoded.write.purge
    return () if purge is None or purge.done is None else purge.done.ids


def split_at_purges(entries: Sequence[QueuedWrite]) -> Iterator[Sequence[QueuedWrite]]:
    """Split ``entries`` so that each purge is alone: it has to see the rows of the writes before it."""
    first = 0
    for number, entry in enumerate(entries):
        if entry.encoded.write.purge is not None:
            if first < number:
                yield entries[first:number]
            yield entries[number : number + 1]
            first = number + 1
    if first < len(entries):
        yield entries[first:]


class StoredWrite(NamedTuple):
    """A durable write: the name and the session of its method, the content of its journal row, and its receipt."""

    kind: str
    session: str | None
    body: journal.Body
    receipt: Receipt


DurableWrites = Sequence[tuple[Write, Pending]]


class Listeners:
    """Callbacks of one store, by event, in the order of their registration.

    Each of ``on_durable`` is registered for a set of entity types, ``None`` for all.
    """

    def __init__(self) -> None:
        self.on_lost: list[Callable[[frozenset[str]], None]] = []
        self.on_durable: list[tuple[Callable[[DurableWrites], None], Collection[str] | None]] = []
        self.on_health: list[Callable[[ErrorCode | None], None]] = []
        self.on_fault: list[Callable[[Exception], None]] = []

    def lost(self, sessions: frozenset[str]) -> None:
        """Report the sessions whose writes were lost."""
        for callback in self.on_lost:
            try:
                callback(sessions)
            except Exception as raised:  # noqa: BLE001 - a write is lost whatever a listener does
                self.fault(raised)

    def durable(self, writes: DurableWrites) -> None:
        """Report durable writes; a group with a purge, whose types are unknown here, goes to every listener."""
        types = {document.type for write, _ in writes for document in write.puts}
        purges = any(write.purge is not None for write, _ in writes)
        for callback, wanted in self.on_durable:
            if purges or wanted is None or not types.isdisjoint(wanted):
                try:
                    callback(writes)
                except Exception as raised:  # noqa: BLE001 - a write stands whatever a listener does
                    self.fault(raised)

    def health(self, code: ErrorCode | None) -> None:
        """Report the error code of refused writes, or None if they are accepted again."""
        for callback in self.on_health:
            try:
                callback(code)
            except Exception as raised:  # noqa: BLE001 - the store refuses writes whatever a listener does
                self.fault(raised)

    def fault(self, raised: Exception) -> None:
        """Report an exception of a callback."""
        for callback in self.on_fault:
            # A failure to log must not stop the store.
            with suppress(Exception):
                callback(raised)
