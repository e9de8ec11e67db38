"""A session taken in: read whole from where it is, and written to the journal of this store.

Where it is may be another host's part of XTDB, or this very journal under another id. Owns no rights: who may take
what is settled before. Promise: a break at any point leaves a session that is marked as entering, which is none as of
now, and taking it in again gives the whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Stored
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.objects.identity import assemblies_prefix, assembly_id, is_file_id, number_of, segment_id, segments_prefix
from ctxd.sessions.loading import SEGMENTS_INLINE_MAX
from ctxd.sessions.segments import (
    RUN,
    SessionDelta,
    carries_bundle,
    from_payload,
    head_document,
    read_head,
    segment_document,
    to_text,
)
from ctxd.store.purge import purged_document
from ctxd.store.store import VersionStore
from ctxd.store.writes import Pending, Write
from ctxd_protocol.ids import session_object_id, system_prompt_id, toolcall_alias
from ctxd_protocol.sessions import Message, Mount

_MEMBERS: Final = (
    "called", "collapsed", "read", "discovered", "activated", "shown", "pinned", "unpinned", "deactivated", "hidden",
)  # fmt: skip

DELETES_MAX: Final = 1_000
"""Entities that one write deletes, so that it does not hold up its neighbours' commit."""

ALIASES_TRIED: Final = 4
"""Aliases of one tool call that are looked at: the second is only needed where two sessions of one id met before."""

Place = tuple[int, int]
"""Valid time and sequence of a version."""


class SourceHistory(msgspec.Struct, frozen=True):
    """All that one writer's journal says of a session, text left out.

    ``heads`` and ``prompts``: every version, oldest first. ``segments``, ``assemblies``: the newest of each, by number.
    ``objects``: the versions of each object of its index, oldest first, that matter since it entered.
    """

    session: str
    heads: tuple[Stored, ...]
    prompts: tuple[Stored, ...]
    segments: tuple[Stored, ...]
    assemblies: tuple[Stored, ...]
    objects: Mapping[str, tuple[Stored, ...]]


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal that is written to has already, and what the session is to be in it.

    ``objects``: the newest versions of the objects of ``past``; ``aliases``: those of what its tool calls may be called
    instead. ``stale``: segments and records of an earlier life of the session, none of which is to show through.
    ``filesystem``: the id of the filesystem of the host that the session comes from. ``taken_up``: it is to be active.
    """

    session: str
    ordinal: int
    objects: Mapping[str, Stored | None] = {}
    aliases: Mapping[str, Stored | None] = {}
    stale: tuple[str, ...] = ()
    filesystem: str = ""
    taken_up: bool = False


class PlannedWrite(msgspec.Struct, frozen=True):
    """One write to be: its documents, each with the hash of the text that it takes, null for none or its own."""

    documents: tuple[tuple[Document, str | None], ...]
    knows: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    floor_vt: int = 0

    def write(self, kind: str, principal: str, session: str, texts: Mapping[str, str]) -> Write:
        """The write, its text from ``texts``; what has lost its own to a purge elsewhere is purged here as well."""
        return Write(
            kind=kind,
            principal=principal,
            session=session,
            puts=tuple(
                document if ref is None else _with_text(document, texts.get(ref)) for document, ref in self.documents
            ),
            deletes=self.deletes,
            knows=self.knows,
            floor_vt=self.floor_vt,
        )


def entered(segments: Sequence[Stored]) -> dict[str, int]:
    """The objects of the index that ``segments`` make, in their order, and by which of its journal's sequences."""
    index: dict[str, int] = {}
    for stored in segments:
        delta = from_payload(stored.document.payload)
        for id in (*delta.called, *delta.read, *delta.discovered):
            index.setdefault(id, stored.tx)
    return index


def relevant(versions: Sequence[Stored], since: int) -> tuple[Stored, ...]:
    """Those of ``versions``, oldest first, that an object had at sequence ``since`` or later."""
    before = [stored for stored in versions if stored.tx <= since]
    return (*before[-1:], *(stored for stored in versions if stored.tx > since))


class SessionRewriter:
    """``drafts`` in turn; ``landed`` says after each what place it got, before the next is asked for."""

    def __init__(self, past: SourceHistory, here: Destination) -> None:
        """Raises: CtxdError corrupt if ``past`` is no whole session."""
        self._past = past
        self._here = here
        if not past.heads:
            raise CtxdError("corrupt", f"session {past.session} has no head")
        for number, stored in enumerate(past.segments):
            if stored.document.id != segment_id(past.session, number):
                raise CtxdError("corrupt", f"segment {number} of session {past.session} is missing")
        self._entered = entered(past.segments)
        self._renamed = self._renamings()
        self._groups = self._grouped()
        self._is_now = {
            id: None if stored is None else stored.document.content_hash for id, stored in here.objects.items()
        }
        self._places: dict[tuple[str, int], Place] = {}
        self._newest: dict[str, Place] = {
            id: (stored.valid_time, stored.tx) for id, stored in here.objects.items() if stored is not None
        }
        self._index: set[str] = set()
        self._seqs: list[int] = []
        self._run: list[SessionDelta] = []
        self._landing: list[tuple[str, int, str]] = []
        self._has_segment = False

    @property
    def renamed(self) -> Mapping[str, str]:
        """Tool calls that get another id here, by the one they had."""
        return self._renamed

    def drafts(self) -> Iterator[PlannedWrite]:
        """The writes, the last of which makes the session whole."""
        past, here = self._past, self._here
        newest = max(stored.valid_time for group in self._groups.values() for stored in group)
        yield PlannedWrite(documents=((self._head(past.heads[0], entering=True), None),), floor_vt=newest + 1)
        for start in range(0, len(here.stale), DELETES_MAX):
            yield PlannedWrite(documents=(), deletes=here.stale[start : start + DELETES_MAX])
        for _, group in sorted(self._groups.items()):
            self._landing, self._has_segment = [], False
            draft = self._draft(group)
            if draft.documents:
                yield draft
        yield PlannedWrite(documents=((self._head(past.heads[-1], entering=False, taken_up=here.taken_up), None),))

    def landed(self, seq: int, valid_time: int) -> None:
        """The draft given out last was accepted as ``seq``."""
        for id, tx, now in self._landing:
            self._places[id, tx] = self._newest[now] = (valid_time, seq)
        self._landing = []
        if self._has_segment:
            self._seqs.append(seq)
            self._has_segment = False

    # --- which version goes where ---

    def _grouped(self) -> dict[int, list[Stored]]:
        """All versions by the write that they were of, objects first; one that is older than its object's entry goes
        with that."""
        past = self._past
        groups: dict[int, list[Stored]] = {}
        for id, versions in past.objects.items():
            since = self._entered[id]
            for stored in relevant(versions, since):
                groups.setdefault(max(stored.tx, since), []).append(stored)
        first = min((stored.tx for stored in (*past.segments, *past.assemblies)), default=past.heads[-1].tx)
        for versions in (past.prompts, past.heads):
            for stored in relevant(versions, first):
                groups.setdefault(stored.tx, []).append(stored)
        for stored in (*past.segments, *past.assemblies):
            groups.setdefault(stored.tx, []).append(stored)
        return groups

    def _draft(self, group: Sequence[Stored]) -> PlannedWrite:
        documents: list[tuple[Document, str | None]] = []
        knows: tuple[str, ...] = ()
        for stored in group:
            document = stored.document
            match document.type:
                case "session":
                    documents.append((self._head(stored, entering=True), None))
                case "system_prompt":
                    id = system_prompt_id(self._here.session)
                    documents.append((_under(document, id), stored.content_ref))
                case "segment":
                    made, knows = self._segment(stored)
                    documents.append((made, None))
                case "assembly":
                    documents.append((self._assembly(document), None))
                case _:
                    object = self._object(stored)
                    if object is not None:
                        documents.append((object, stored.content_ref))
        return PlannedWrite(tuple(documents), knows=knows)

    # --- what each becomes ---

    def _head(self, stored: Stored, *, entering: bool, taken_up: bool = False) -> Document:
        head, here = read_head(stored), self._here
        settings, names = head.settings, {**head.settings.renamed}
        for id, alias in self._renamed.items():
            names[alias] = names.pop(id, id)
        settings = msgspec.structs.replace(
            settings, ordinal=here.ordinal, mounts=_pinned(settings.mounts, here.filesystem), renamed=names
        )
        if taken_up and settings.state == "paused":
            settings = msgspec.structs.replace(settings, state="active")
        return head_document(here.session, msgspec.structs.replace(head, settings=settings, entering=entering))

    def _segment(self, stored: Stored) -> tuple[Document, tuple[str, ...]]:
        delta = self._delta(from_payload(stored.document.payload))
        number = number_of(stored.document.id)
        bundle = to_text(self._seqs[-len(self._run) :], self._run) if carries_bundle(number) else None
        document = segment_document(segment_id(self._here.session, number), delta, bundle)
        self._run.append(delta)
        if len(self._run) == RUN:
            self._run.clear()
        self._has_segment = True
        new = [id for id in dict.fromkeys((*delta.called, *delta.read, *delta.discovered)) if id not in self._index]
        self._index.update(new)
        return document, tuple(new)

    def _delta(self, delta: SessionDelta) -> SessionDelta:
        if not self._renamed:
            return delta
        changed: dict[str, Any] = {name: self._ids(getattr(delta, name)) for name in _MEMBERS}
        if delta.snapshot is not None:
            changed["snapshot"] = msgspec.structs.replace(delta.snapshot, index=self._ids(delta.snapshot.index))
        changed["messages"] = tuple(map(self._message, delta.messages))
        return msgspec.structs.replace(delta, **changed)

    def _message(self, message: Message) -> Message:
        call = message.toolcall
        return message if call is None else msgspec.structs.replace(message, toolcall=self._renamed.get(call, call))

    def _ids(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple([self._renamed.get(id, id) for id in ids])

    def _assembly(self, document: Document) -> Document:
        """The record, its versions those of here. Fields that only the assembly knows stay as they are."""
        payload = dict(document.payload)
        if "active" in payload:
            payload["active"] = [self._shown(*shown) for shown in payload["active"]]
        if "dropped" in payload:
            payload["dropped"] = [[self._renamed.get(id, id), reason] for id, reason in payload["dropped"]]
        id = assembly_id(self._here.session, number_of(document.id))
        return Document(
            id=id,
            type="assembly",
            identity_hash=identity_hash("assembly", None, id),
            content_hash=content_hash(payload, None),
            payload=payload,
        )

    def _shown(self, id: str, valid_time: int, tx: int) -> list[str | int]:
        return [self._renamed.get(id, id), *self._places.get((id, tx), (valid_time, tx))]

    def _object(self, stored: Stored) -> Document | None:
        """The version of an object, null if the newest one here says the same."""
        id = stored.document.id
        document = _under(stored.document, self._renamed.get(id, id))
        if self._is_now.get(document.id) == document.content_hash:
            if (place := self._newest.get(document.id)) is not None:
                self._places[id, stored.tx] = place
            return None
        self._is_now[document.id] = document.content_hash
        self._landing.append((id, stored.tx, document.id))
        return document

    def _renamings(self) -> dict[str, str]:
        """The tool calls whose ids are here other objects' of other content, and what they are called instead."""
        renamed: dict[str, str] = {}
        for id, versions in self._past.objects.items():
            is_here = self._here.objects.get(id)
            if is_here is None or is_file_id(id) or is_here.document.content_hash == versions[-1].document.content_hash:
                continue
            renamed[id] = free_alias(self._here.session, versions[-1], self._here.aliases)
        return renamed


def aliases_of(session: str, id: str) -> list[str]:
    """What the tool call ``id`` of ``session`` may be called where that id is taken, in the order of preference."""
    return [str(toolcall_alias(session, id + "~" * extra)) for extra in range(ALIASES_TRIED)]


def free_alias(session: str, stored: Stored, taken: Mapping[str, Stored | None]) -> str:
    """The alias for the tool call ``stored``. Raises: CtxdError toolcall_conflict if all are taken by others."""
    hashed = stored.document.content_hash
    for alias in aliases_of(session, stored.document.id):
        other = taken.get(alias)
        if other is None or other.document.content_hash == hashed:
            return alias
    raise CtxdError("toolcall_conflict", f"every other id of tool call {stored.document.id} is taken")


def _with_text(document: Document, text: str | None) -> Document:
    if text is None:
        return purged_document(document, lambda _: document.identity_hash)
    return msgspec.structs.replace(document, content=text)


def _under(document: Document, id: str) -> Document:
    if id == document.id:
        return document
    return msgspec.structs.replace(document, id=id, identity_hash=identity_hash(document.type, document.source, id))


def _pinned(mounts: tuple[Mount, ...], filesystem: str) -> tuple[Mount, ...]:
    """``mounts``, those of "the host" on the one that was meant."""
    if not filesystem:
        return mounts
    replace = msgspec.structs.replace
    return tuple(mount if mount.filesystem_id else replace(mount, filesystem_id=filesystem) for mount in mounts)


TEXTS_AHEAD: Final = 64
"""Texts that are fetched together. Bounds what is held in memory of a session that is taken in."""

TEXTS_AHEAD_MAX: Final = 2_000
TEXTS_HELD_CHARS: Final = 1024 * 1024
"""Characters of texts fetched together up to which four times as many are fetched the next time."""

WAITING_MAX: Final = 512
"""Writes of one entering session that may wait for the disk: other sessions' calls queue behind no more."""

TURN: Final = 16
"""Writes that are made in a row, some milliseconds; then others have their turn."""

HISTORIES_AT_ONCE: Final = 16
_PAGE: Final = 1_000

T = TypeVar("T")


class SessionSource(Protocol):
    """One writer's versions, as of the moment in which the session was its for the last time."""

    async def newest(self, ids: Sequence[str]) -> dict[str, Stored]:
        """The newest version of each of ``ids``, without content; what has none is left out."""
        ...

    async def scan(self, prefix: str) -> list[Stored]:
        """The newest version of each entity with ``prefix``, by id, without content."""
        ...

    async def history(self, id: str) -> list[Stored]:
        """Every version of ``id``, oldest first, without content."""
        ...

    async def contents(self, refs: Iterable[str]) -> dict[str, str]:
        """Text by its ``content_ref``; what a purge took away everywhere is left out.

        Raises: CtxdError corrupt if it cannot be read or does not match its hash.
        """
        ...


class LocalSession:
    """This store as an origin."""

    def __init__(self, store: VersionStore) -> None:
        self._store = store
        self.contents = store.contents

    async def newest(self, ids: Sequence[str]) -> dict[str, Stored]:
        """See ``SessionSource.newest``."""
        return {id: stored for id, stored in (await self._store.heads(ids)).items() if stored is not None}

    async def scan(self, prefix: str) -> list[Stored]:
        """See ``SessionSource.scan``."""
        return await self._store.scan(prefix)

    async def history(self, id: str) -> list[Stored]:
        """See ``SessionSource.history``."""
        found: list[Stored] = []
        while True:
            after = (found[-1].valid_time, found[-1].tx) if found else None
            page = await self._store.history(id, after=after, limit=_PAGE)
            found.extend(page)
            if len(page) < _PAGE:
                return found


async def read_history(origin: SessionSource, session: str) -> SourceHistory | None:
    """All that ``origin`` has of ``session``; null if it has none.

    Raises: CtxdError corrupt if it is not whole, and what ``origin`` raises. Cancel: safe.
    """
    heads = await origin.history(str(session_object_id(session)))
    if not heads:
        return None
    prompts = await origin.history(str(system_prompt_id(session)))
    segments = await origin.scan(segments_prefix(session))
    assemblies = await origin.scan(assemblies_prefix(session))
    index = await _apart(segments, lambda: entered(segments))
    newest = await origin.newest(list(index))
    if missing := next((id for id in index if id not in newest), None):
        raise CtxdError("corrupt", f"{missing} is in session {session}, but has no version where that is")
    # What has not changed since it entered has one version that matters.
    moved = [id for id, since in index.items() if newest[id].tx > since]
    histories = await _histories(origin, moved)
    objects = {id: tuple(histories.get(id) or (newest[id],)) for id in index}
    return SourceHistory(session, tuple(heads), tuple(prompts), tuple(segments), tuple(assemblies), objects)


async def _histories(origin: SessionSource, ids: Iterable[str]) -> dict[str, list[Stored]]:
    histories: dict[str, list[Stored]] = {}
    slots = anyio.Semaphore(HISTORIES_AT_ONCE)

    async def read(id: str) -> None:
        async with slots:
            histories[id] = await origin.history(id)

    try:
        async with anyio.create_task_group() as group:
            for id in ids:
                group.start_soon(read, id)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return histories


async def read_destination(
    store: VersionStore,
    past: SourceHistory,
    session: str,
    *,
    ordinal: int,
    filesystem: str = "",
    taken_up: bool = False,
) -> Destination:
    """What ``store`` has that matters when ``past`` becomes its ``session``.

    Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    objects = await store.heads(past.objects)
    taken = [id for id, stored in objects.items() if stored is not None and not is_file_id(id)]
    aliases = await store.heads([alias for id in taken for alias in aliases_of(session, id)])
    old = [*await store.scan(segments_prefix(session)), *await store.scan(assemblies_prefix(session))]
    return Destination(
        session=session,
        ordinal=ordinal,
        objects=objects,
        aliases=aliases,
        stale=tuple(stored.document.id for stored in old),
        filesystem=filesystem,
        taken_up=taken_up,
    )


async def import_session(
    store: VersionStore, origin: SessionSource, past: SourceHistory, here: Destination, *, kind: str, principal: str
) -> Pending:
    """Write ``past`` as ``here`` says. Returns: the write that makes it whole; every one before it was accepted.

    Raises: CtxdError of ``origin``, ``toolcall_conflict``, and those of the store. Cancel: safe; see the module.
    """
    rewriter = await _apart(past.segments, lambda: SessionRewriter(past, here))
    drafts = rewriter.drafts()
    waiting: list[Pending] = []
    # A draft may be made only when the one before it has landed, but the text of many is fetched at once: which text
    # that is stands in the past.
    texts = _Texts(origin, past)
    while draft := next(drafts, None):
        pending = store.submit(draft.write(kind, principal, here.session, await texts.of(draft)))
        rewriter.landed(pending.seq, pending.vt)
        waiting.append(pending)
        if len(waiting) % TURN == 0:
            await checkpoint()
        if len(waiting) == WAITING_MAX:
            await waiting[-1].wait()
            waiting.clear()
    return waiting[-1] if waiting else pending


async def _apart(segments: Sequence[Stored], work: Callable[[], T]) -> T:
    """What ``work`` returns, done on a thread where there are many ``segments``: other sessions go on meanwhile."""
    return await run_sync(work) if len(segments) > SEGMENTS_INLINE_MAX else work()


class _Texts:
    """The texts of a past, fetched ahead in the order in which they are needed."""

    def __init__(self, origin: SessionSource, past: SourceHistory) -> None:
        self._origin = origin
        self._coming: Iterator[str] = iter(_refs(past))
        self._have: dict[str, str] = {}
        self._gone: set[str] = set()
        self._ahead = TEXTS_AHEAD

    async def of(self, draft: PlannedWrite) -> dict[str, str]:
        needed = [ref for _, ref in draft.documents if ref is not None and ref not in self._gone]
        if any(ref not in self._have for ref in needed):
            asked = dict.fromkeys((*needed, *islice(self._coming, self._ahead)))
            self._have = await self._origin.contents(asked)
            self._gone |= asked.keys() - self._have.keys()
            # Where texts are small, a trip for each few of them would take longer than everything else.
            small = sum(map(len, self._have.values())) <= TEXTS_HELD_CHARS
            self._ahead = min(TEXTS_AHEAD_MAX, 4 * self._ahead) if small else TEXTS_AHEAD
        return {ref: self._have[ref] for ref in needed if ref in self._have}


def _refs(past: SourceHistory) -> list[str]:
    """The texts of ``past`` by the write that they were of."""
    stored = [*past.prompts, *(version for versions in past.objects.values() for version in versions)]
    return [
        version.content_ref for version in sorted(stored, key=lambda each: each.tx) if version.content_ref is not None
    ]
