"""Texts that journal rows add to the index, and texts that purges remove from it. Blocks; reads the store on a
connection of its own."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple
from zlib import crc32

from ctxd.errors import CtxdError
from ctxd.objects.document import Content, Stored, decode_document
from ctxd.objects.generated_ids import segment_id, session_of
from ctxd.objects.version_state import is_purged
from ctxd.search.index_database import IndexedText, IndexFile, SessionRow, TextPlace
from ctxd.search.searchable_texts import (
    SUMMARY,
    TEXTS_MAX,
    FoundText,
    commit_texts,
    head_texts,
    segment_texts,
    toolcall_texts,
    turns_begun,
)
from ctxd.sessions.session_settings import ForkBase
from ctxd.sessions.stored_session import read_head
from ctxd.store import journal
from ctxd.store.commit_index import fields_of
from ctxd.store.purge import KIND as PURGE
from ctxd.store.version_reads import Reader, run_read
from ctxd.worker_threads import yield_to_other_threads
from ctxd_protocol.ids import session_object_id

_ALL: Final = 2**31
"""A place after those of all texts of any document."""

_OBJECT_BYTES: Final = 400
"""Memory that a text takes beside its characters."""

_LOOKED_BACK_MAX: Final = 1_000
"""Maximum segments of a session examined for the turn at which it was forked."""

_TYPES: Final = frozenset({"segment", "toolcall", "commit", "session"})
_DAMAGED: Final = (ValueError, TypeError, LookupError, CtxdError)
"""Errors of a damaged document: the index skips it, and the scrub reports it."""


class IndexBatch(NamedTuple):
    """Changes of the index from some journal rows. ``seq``, ``chain``: of the last row; ``size``: memory of the texts;
    ``purged``: entities of which no earlier word may be left."""

    seq: int
    chain: bytes
    size: int
    texts: list[IndexedText]
    replaced: dict[int, int]
    sessions: dict[int, SessionRow]
    purged: set[int]


class PurgedEntities(NamedTuple):
    """Entities from which a purge removed text. ``reclaims``: the purge only freed space."""

    ids: tuple[str, ...]
    reclaims: bool


class JournalTexts:
    """Reads of one store for its index."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._connection = reader.connection

    def fits(self, seq: int, chain: bytes) -> bool:
        """True if journal row ``seq`` has the hash ``chain``. Raises: CtxdError of the store."""
        return seq == 0 or run_read(lambda: journal.chain_at(self._connection, seq)) == chain

    def purges_after(self, seq: int) -> list[PurgedEntities]:
        """The purges in the rows after ``seq``. Cost: linear in the rows. Raises: CtxdError of the store."""

        def read() -> list[PurgedEntities]:
            query = "SELECT seq FROM journal WHERE seq>? AND kind=?"
            places: list[tuple[int]] = self._connection.execute(query, (seq, PURGE)).fetchall()  # type: ignore[assignment]
            rows = (row for (at,) in places for row in journal.read_rows(self._connection, after=at - 1, limit=1))
            records = (journal.decode_body(row.body).purged for row in rows)
            return [PurgedEntities(record.ids, record.reclaims) for record in records if record is not None]

        return run_read(read)

    def batch(self, index: IndexFile, rows_max: int, bytes_max: int) -> IndexBatch | None:
        """The rows after the watermark of ``index``: at most ``rows_max``, up to the one with which their texts reach
        ``bytes_max`` bytes. None at the end of the journal. Raises: CtxdError of the store."""
        return run_read(lambda: self._batch(index, rows_max, bytes_max))

    def _batch(self, index: IndexFile, rows_max: int, bytes_max: int) -> IndexBatch | None:
        changes = _Changes(self, index)
        last: journal.Row | None = None
        for row in journal.read_rows(self._connection, after=index.seq, limit=rows_max):
            last = row
            yield_to_other_threads()
            with suppress(*_DAMAGED):
                changes.take(row)
            if changes.size >= bytes_max:
                break
        return None if last is None else changes.batch(last.seq, last.chain)

    def without(self, index: IndexFile, purged: Sequence[PurgedEntities]) -> IndexBatch:
        """The change that removes purged texts of entities; it does not move the watermark."""
        changes = _Changes(self, index)
        for each in purged:
            run_read(partial(changes.purge, each))
        return changes.batch(index.seq, index.chain)

    def number(self, id: str) -> int:
        """The number of the entity ``id``; 0 if it is unknown."""
        found = self._connection.execute("SELECT n FROM entity WHERE id=?", (id,)).fetchone()
        return 0 if found is None else int(found[0])

    def numbers(self, ids: Iterable[str]) -> list[int]:
        """The numbers of the entities ``ids``, without unknown ones."""
        query = "SELECT e.n FROM json_each(?) AS wanted JOIN entity AS e ON e.id=wanted.value"
        return [n for (n,) in self._connection.execute(query, (json.dumps(list(ids)),))]

    def ids(self, numbers: Iterable[int]) -> dict[int, str]:
        """The ids of the entities with ``numbers``, without unknown ones."""
        query = "SELECT e.n, e.id FROM json_each(?) AS wanted JOIN entity AS e ON e.n=wanted.value"
        found: list[tuple[int, str]] = self._connection.execute(query, (json.dumps(list(numbers)),)).fetchall()  # type: ignore[assignment]
        return dict(found)

    def newest(self, ids: Iterable[str]) -> dict[str, Stored | None]:
        """The newest durable versions of ``ids``."""
        return self._reader.heads(ids, _ALL)[0]

    def texts(self, stored: Stored) -> Iterator[FoundText]:
        """The first ``TEXTS_MAX`` texts of a version. Raises: errors of a damaged document."""
        return islice(self._texts(stored), TEXTS_MAX)

    def _texts(self, stored: Stored) -> Iterator[FoundText]:
        document = stored.document
        match document.type:
            case "segment":
                yield from segment_texts(document)
            case "toolcall":
                yield from toolcall_texts(document, self._content(stored.content_ref))
            case "commit":
                fields = fields_of(document)
                assert fields is not None, "a commit has its fields"
                wants = fields.position is None and stored.content_ref is not None
                yield from commit_texts(document, fields, self._content(stored.content_ref) if wants else None)
            case "session":
                head = read_head(stored)
                yield from () if head.entering or head.emptied else head_texts(head)
            case _:
                pass

    def _content(self, ref: str | None) -> Content | None:
        # It may have been purged since its version was read; the purge's row follows.
        with suppress(CtxdError):
            return None if ref is None else self._reader.contents((ref,))[ref]
        return None


class _Changes:
    """Changes of an index, gathered row by row."""

    def __init__(self, journal_texts: JournalTexts, index: IndexFile) -> None:
        self._journal = journal_texts
        self._index = index
        self._texts: dict[int, list[IndexedText]] = {}
        self._replaced: dict[int, int] = {}
        self._sessions: dict[int, SessionRow] = {}
        self._session_numbers: dict[str, int] = {}
        self._purged: set[int] = set()
        self.size = 0

    def batch(self, seq: int, chain: bytes) -> IndexBatch:
        """The changes up to row ``seq``."""
        texts = [text for some in self._texts.values() for text in some]
        return IndexBatch(seq, chain, self.size, texts, self._replaced, self._sessions, self._purged)

    def take(self, row: journal.Row) -> None:
        """Gather the changes of a row."""
        body = journal.decode_body(row.body)
        if body.purged is not None:
            self.purge(PurgedEntities(body.purged.ids, body.purged.reclaims))
        for put in body.puts:
            if not put.document:
                continue
            with suppress(*_DAMAGED):
                document = decode_document(put.id, put.document)
                if document.type in _TYPES:
                    at = row.vt if put.valid_time is None else put.valid_time
                    ref = None if put.content is None else put.content.hex()
                    stored = Stored(document=document, content_ref=ref, valid_time=at, tx=row.seq, tx_time=row.tx_time)
                    self._put(stored, row.session)

    def _put(self, stored: Stored, written_by: str | None) -> None:
        document = stored.document
        entity = self._journal.number(document.id)
        match document.type:
            case "segment":
                session = self._number_of(session_of(document.id))
                known = self._session(session)
                self._add(stored, entity, session, known.turns)
                self._sessions[session] = known._replace(turns=known.turns + turns_begun(document))
            case "toolcall":
                session = self._number_of(written_by)
                self._drop(entity)
                self._add(stored, entity, session, self._session(session).turns)
            case "commit":
                self._commit(stored, entity)
            case _:
                self._head(stored, entity)

    def _commit(self, stored: Stored, entity: int) -> None:
        fields = fields_of(stored.document)
        if fields is None:
            return
        session = self._number_of(fields.session)
        if self._index.holds(entity, beyond=SUMMARY) and not is_purged(stored.document):
            # A later version has a different summary or tags, but the same delta.
            self._drop(entity, SUMMARY)
            self._append(entity, session, 0, stored.valid_time, commit_texts(stored.document, fields, None))
        else:
            self._drop(entity)
            self._add(stored, entity, session, 0)

    def _head(self, stored: Stored, entity: int) -> None:
        head = read_head(stored)
        known = self._known_session(entity)
        if known is None:
            known = SessionRow(0 if head.settings.base is None else self._turn_of_fork(head.settings.base), 0)
        found = list(self._journal.texts(stored))
        # A head is written with every turn, but its text rarely changes.
        check_sum = crc32("\n".join(each.text for each in found).encode())
        if check_sum != known.check_sum:
            self._drop(entity)
            self._append(entity, entity, 0, stored.valid_time, found)
        self._sessions[entity] = SessionRow(known.turns, check_sum)

    def _turn_of_fork(self, base: ForkBase) -> int:
        """The turn at which a session was forked: that of the newest text in the shared segments."""
        for number in range(base.segments - 1, max(-1, base.segments - 1 - _LOOKED_BACK_MAX), -1):
            entity = self._journal.number(segment_id(base.session, number))
            if entity and (turns := [place.turn for place in self._places(entity).values()]):
                return max(turns)
        return self._session(self._number_of(base.session)).turns

    def purge(self, purged: PurgedEntities) -> None:
        """Gather the texts that a purge left of its entities."""
        for id in purged.ids:
            entity = self._journal.number(id)
            if not purged.reclaims:
                self._purged.add(entity)
            places = self._places(entity)
            if not places:
                continue
            self._drop(entity)
            with suppress(*_DAMAGED):
                stored = self._journal.newest((id,))[id]
                for found in () if stored is None else self._journal.texts(stored):
                    assert stored is not None, "texts are those of a version"
                    if (place := places.get(found.nth)) is not None:
                        at = stored.valid_time if found.at is None else found.at
                        text = IndexedText(entity, place.session, at, place.turn, found)
                        self._texts.setdefault(entity, []).append(text)

    def _places(self, entity: int) -> dict[int, TextPlace]:
        """The places of the texts of ``entity``, by their number in it."""
        gathered = {text.found.nth: TextPlace(text.session, text.turn) for text in self._texts.get(entity, ())}
        return self._index.places(entity) | gathered

    def _add(self, stored: Stored, entity: int, session: int, turn: int) -> None:
        self._append(entity, session, turn, stored.valid_time, self._journal.texts(stored))

    def _append(self, entity: int, session: int, turn: int, at: int, found: Iterable[FoundText]) -> None:
        texts = self._texts.setdefault(entity, [])
        for each in found:
            texts.append(IndexedText(entity, session, at if each.at is None else each.at, turn + each.turns, each))
            self.size += len(each.text) + len(each.call) + _OBJECT_BYTES

    def _drop(self, entity: int, most: int = _ALL) -> None:
        """Drop the texts of ``entity`` up to the place ``most``."""
        if entity in self._texts:
            self._texts[entity] = [text for text in self._texts[entity] if text.found.nth > most]
        self._replaced[entity] = max(most, self._replaced.get(entity, 0))

    def _number_of(self, session: str | None) -> int:
        if session is None:
            return 0
        number = self._session_numbers.get(session)
        if number is None:
            number = self._session_numbers[session] = self._journal.number(session_object_id(session))
        return number

    def _known_session(self, session: int) -> SessionRow | None:
        return self._sessions.get(session) or self._index.session(session)

    def _session(self, session: int) -> SessionRow:
        return self._known_session(session) or SessionRow(0, 0)
