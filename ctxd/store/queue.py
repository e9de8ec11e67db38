"""Writes that were accepted and wait for their transaction: one entry each, in journal order."""

from collections import deque
from typing import Final

import msgspec
from blake3 import blake3

from ctxd import limits
from ctxd.backends import documents
from ctxd.backends.port import Version
from ctxd.objects.document import Document, Stored
from ctxd.objects.identity import LOGGED_PREFIX
from ctxd.store import journal
from ctxd.store.writes import Pending, Write

_ENTRY_BYTES: Final = 512
"""Bytes that a write is counted as beside its body and its text."""


class Prepared:
    """A write encoded: its body, its puts and their ids, and the bytes of its text by hash. Made before a sequence is
    given."""

    __slots__ = ("body", "ids", "puts", "size", "texts", "write")

    def __init__(self, write: Write) -> None:
        """Raises: TypeError, ValueError or OverflowError for a payload or text that cannot be encoded."""
        by_id = {document.id: document for document in write.puts}
        # Put twice in one write, an entity is what was said last.
        if len(by_id) < len(write.puts):
            write = msgspec.structs.replace(write, puts=tuple(by_id.values()))
        self.write = write
        self.texts: dict[bytes, bytes] = {}
        self.puts = [self._put(document) for document in write.puts]
        if write.deletes:
            self.puts += [journal.Put(id, b"", None) for id in dict.fromkeys(write.deletes)]
        self.ids = tuple([put.id for put in self.puts])
        self.body = journal.encode_body(write, self.puts)
        self.size = _ENTRY_BYTES + 2 * len(self.body) + sum(map(len, self.texts.values()))

    def _put(self, document: Document) -> journal.Put:
        ref = None
        if document.content is not None:
            data = document.content.encode()
            ref = blake3(data).digest()
            self.texts[ref] = data
        return journal.Put(document.id, documents.encode(document), ref)


class Entry:
    """A write with its place: ``pending`` has sequence and valid time, ``tx_time`` is when it was accepted, in ms."""

    __slots__ = ("pending", "prepared", "tx_time")

    def __init__(self, prepared: Prepared, pending: Pending, tx_time: int) -> None:
        self.prepared = prepared
        self.pending = pending
        self.tx_time = tx_time

    @property
    def write(self) -> Write:
        """The write itself."""
        return self.prepared.write

    @property
    def ids(self) -> tuple[str, ...]:
        """The entities that it puts or deletes."""
        return self.prepared.ids

    def versions(self) -> list[Version]:
        """What it puts, as rows of a backend."""
        seq, vt, tx_time = self.pending.seq, self.pending.vt, self.tx_time
        return [Version(put.id, vt, seq, tx_time, put.document or None, put.content) for put in self.prepared.puts]

    def heads(self) -> list[tuple[Stored, str | None]]:
        """What it puts and may be asked for by id, as the newest versions without content, each with its text."""
        seq, vt, tx_time = self.pending.seq, self.pending.vt, self.tx_time
        heads: list[tuple[Stored, str | None]] = []
        # What is deleted comes last, and has no head.
        for document, put in zip(self.write.puts, self.prepared.puts, strict=False):
            if document.id.startswith(LOGGED_PREFIX):
                continue
            text, ref = document.content, None
            if text is not None and put.content is not None:
                document, ref = msgspec.structs.replace(document, content=None), put.content.hex()
            head = Stored(document=document, content_ref=ref, valid_time=vt, tx=seq, tx_time=tx_time)
            heads.append((head, text))
        return heads


class Queue:
    """A bounded queue of entries. Full means refuse."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._size = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        """Whether no further entry may be put."""
        return len(self._entries) >= limits.QUEUE_WRITES_MAX or self._size >= limits.QUEUE_BYTES_MAX

    def put(self, entry: Entry) -> None:
        """Append an entry."""
        self._entries.append(entry)
        self._size += entry.prepared.size

    def take(self) -> list[Entry]:
        """The entries of the next transaction: all, up to the bounds of one; one at least, if there is one."""
        batch: list[Entry] = []
        size = 0
        while self._entries and len(batch) < limits.COMMIT_WRITES_MAX:
            size += self._entries[0].prepared.size
            if batch and size > limits.COMMIT_BYTES_MAX:
                break
            batch.append(self._entries.popleft())
        self._size -= sum(entry.prepared.size for entry in batch)
        return batch

    def clear(self) -> list[Entry]:
        """Remove and return every entry."""
        entries = list(self._entries)
        self._entries.clear()
        self._size = 0
        return entries
