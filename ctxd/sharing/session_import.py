"""Import of a session from another origin into this journal.

The origin is another host's part of XTDB, or this journal under another id. The parts of the session that this journal
already has, by content, are left unchanged: only the rest is written, many segments and objects per row. Sequences and
valid times in bundles and records become those of the rows written here; ids of tool calls that are taken here are
replaced; mounts of "the host" are pinned to the host of origin.

Promise: the imported session folds to the same sets and chat, and each recorded assembly renders to the same bytes as
of its own row: a row with a record directly follows the versions of shared files that the record saw. Until the last
row, the session is marked as entering, and is not found; importing it again after an interruption completes it.
``session_ownership`` decides whether a host may import a session.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from ctxd.errors import CtxdError
from ctxd.objects.commit_document import REVISION, Position, commit_id, entity_id
from ctxd.objects.document import Artifact, Content, Document, Page, Stored, renamed, select_visible_versions
from ctxd.objects.generated_ids import (
    assemblies_prefix,
    component_texts_prefix,
    entries_prefix,
    entry_id,
    id_in,
    number_of,
    segments_prefix,
)
from ctxd.objects.hashing import content_hash
from ctxd.objects.version_state import is_purged, is_reclaimed
from ctxd.projection.ownership_checks import Fences
from ctxd.sessions.event_erasure import without_bundle
from ctxd.sessions.session_loading import SEGMENTS_INLINE_MAX
from ctxd.sessions.session_settings import ContinuedCommit
from ctxd.sessions.stored_session import read_head
from ctxd.sharing.commit_rewriter import SourceCommit, ids_instead, is_one_commit, read_commit
from ctxd.sharing.prefetched_texts import PrefetchedTexts
from ctxd.sharing.session_rewriter import (
    INNER,
    SETTABLE,
    TEXTS,
    Destination,
    PlannedWrite,
    SessionRewriter,
    SourceHistory,
    aliases_of,
    entered,
)
from ctxd.store import commit_index
from ctxd.store.purge import KIND, purged_document
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import NotCached, Pending, PurgeRequest, Write
from ctxd.task_groups import task_group
from ctxd.worker_threads import in_thread
from ctxd_protocol.ids import session_object_id, system_prompt_id
from ctxd_protocol.limits import SAFE_INTEGER_MAX

WAITING_MAX: Final = 512
"""Rows of one import that may wait for the disk. It bounds how long calls of other sessions queue behind them."""

TURN: Final = 4
"""Rows submitted in a row, which takes some milliseconds, before other tasks run."""

HISTORIES_AT_ONCE: Final = 16
_PAGE: Final = 1_000

T = TypeVar("T")


class SessionSource(Protocol):
    """One writer's versions, as of the last moment at which it owned the session."""

    async def newest(self, ids: Sequence[str]) -> dict[str, Stored]:
        """Return the newest versions of ``ids``, without content; ids without a version are left out."""
        ...

    async def scan(self, prefix: str, *, first: int | None = None) -> list[Stored]:
        """Return the newest version of each entity with ``prefix``, by id, without content. Entities with ids of more
        than 224 bytes may be left out. ``first``: the entities are numbered consecutively from it."""
        ...

    async def commits_of(self, session: str) -> list[str]:
        """Return the entity ids of the commits of ``session``, possibly with other writers' versions."""
        ...

    async def history(self, id: str) -> list[Stored]:
        """Return every version of ``id`` that was once the newest, oldest first, without content."""
        ...

    async def contents(self, refs: Iterable[str]) -> dict[str, Content]:
        """Return contents by their ``content_ref``; purged ones are left out.

        Raises: CtxdError corrupt if one cannot be read or does not match its hash.
        """
        ...


class LocalSession:
    """This store as the source of a session."""

    def __init__(self, store: VersionStore) -> None:
        self._store = store
        self.contents = store.contents

    async def newest(self, ids: Sequence[str]) -> dict[str, Stored]:
        """See ``SessionSource.newest``."""
        return {id: stored for id, stored in (await self._store.heads(ids)).items() if stored is not None}

    async def scan(self, prefix: str, *, first: int | None = None) -> list[Stored]:
        """See ``SessionSource.scan``."""
        return await self._store.scan(prefix)

    async def commits_of(self, session: str) -> list[str]:
        """See ``SessionSource.commits_of``."""
        return await self._store.read_index(partial(commit_index.of_session, session=session))

    async def history(self, id: str) -> list[Stored]:
        """See ``SessionSource.history``."""
        found: list[Stored] = []
        while True:
            after = (found[-1].valid_time, found[-1].tx) if found else None
            page = await self._store.history(id, page=Page(after=after, limit=_PAGE), corrections=True)
            found.extend(page)
            if len(page) < _PAGE:
                return select_visible_versions(found)


async def read_history(source: SessionSource, session: str) -> SourceHistory | None:
    """Read the whole ``session`` from ``source``. Returns: ``None`` if it does not exist.

    Raises: CtxdError corrupt if it is incomplete; the exceptions of ``source``. Cancel: safe.
    """
    if not await source.history(str(session_object_id(session))):
        return None
    line = await _line_of(source, session)
    heads, prompts, parts = list[Stored](), list[Stored](), dict[str, Stored]()
    for origin in line:
        heads += origin.until(await source.history(str(session_object_id(origin.session))))
        prompts += origin.until(await source.history(str(system_prompt_id(origin.session))))
        for stored in origin.until(await source.scan(component_texts_prefix(origin.session))):
            parts.setdefault(stored.document.id.partition("#")[2], stored)
    segments, assemblies = await _inner(source, line)
    index = await _in_thread(segments, lambda: entered(segments))
    newest = await source.newest(list(index))
    if missing := next((id for id in index if id not in newest), None):
        raise CtxdError("corrupt", f"{missing} is in session {session}, but has no version in the session's journal")
    # An object that has not changed since it entered has one version that matters.
    moved = [id for id, since in index.items() if newest[id].tx > since]
    versions = await histories(source, moved)
    objects = {id: tuple(versions.get(id) or (newest[id],)) for id in index}
    entries = {stored.document.id: stored for stored in await source.scan(entries_prefix(session))}
    # A scan may leave out long ids.
    known = [entry_id(session, key) for key in read_head(heads[-1]).settings.entries]
    entries |= await source.newest([id for id in known if id not in entries])
    inner = (*parts.values(), *entries.values())
    commits, tip = await _commits(source, line)
    return SourceHistory(
        session, tuple(heads), tuple(prompts), tuple(segments), tuple(assemblies), objects, inner, commits, tip
    )


class _Origin(NamedTuple):
    """The part of a session that another one continues: its first ``segments``, its assemblies up to ``assemblies``,
    and its rows up to ``tx``."""

    session: str
    segments: int = SAFE_INTEGER_MAX
    assemblies: int = SAFE_INTEGER_MAX
    tx: int = SAFE_INTEGER_MAX

    def until(self, versions: Iterable[Stored]) -> list[Stored]:
        """The ``versions`` that belong to it."""
        return [stored for stored in versions if stored.tx <= self.tx]


async def _line_of(source: SessionSource, session: str) -> list[_Origin]:
    """Return ``session`` after the sessions that it was forked from, the oldest first."""
    line = [_Origin(session)]
    while True:
        latest, id = line[0], str(session_object_id(line[0].session))
        head = (await source.newest([id])).get(id)
        base = None if head is None else read_head(head).settings.base
        if base is None:
            return line
        limits = min(base.segments, latest.segments), min(base.assembly, latest.assemblies), min(base.tx, latest.tx)
        line.insert(0, _Origin(base.session, *limits))


async def _inner(source: SessionSource, line: Sequence[_Origin]) -> tuple[list[Stored], list[Stored]]:
    """Return the segments and the assembly records of ``line``, by number, from all its sessions."""
    segments, assemblies = list[Stored](), list[Stored]()
    for origin, before in zip(line, (None, *line), strict=False):
        first, recorded = (0, 0) if before is None else (before.segments, before.assemblies)
        for stored in await source.scan(segments_prefix(origin.session), first=first):
            if first <= number_of(stored.document.id) < origin.segments:
                segments.append(stored)
        for stored in await source.scan(assemblies_prefix(origin.session), first=recorded + 1):
            if recorded < number_of(stored.document.id) <= origin.assemblies:
                assemblies.append(stored)
    return segments, assemblies


async def _commits(
    source: SessionSource, line: Sequence[_Origin]
) -> tuple[tuple[SourceCommit, ...], ContinuedCommit | None]:
    """Return the commits of the session and their ancestors, parents first, and the one that the session's next
    checkpoint continues."""
    own = await dated(source, (await source.newest(await source.commits_of(line[-1].session))).values())
    found = {each.stored.document.id: each for each in own}
    tip = await _tip(source, line, {line[-1].session: own})
    known = {id: each.stored for id, each in found.items()}
    listed, ancestors = {line[-1].session}, dict[str, Stored]()
    wanted = [*found, *([] if tip is None else [entity_id(tip.commit)])]
    while wanted:
        id = wanted.pop()
        if id not in known:
            known |= await source.newest([id])
        stored = known.get(id)
        if stored is None or id in ancestors:
            continue
        fields = read_commit(stored)
        if id not in found:
            ancestors[id] = stored
        if fields.session is not None and fields.session not in listed:
            # Most chains stay within few sessions, so a session's commits are read at once.
            listed.add(fields.session)
            known |= await source.newest(await source.commits_of(fields.session))
        if fields.parent and entity_id(fields.parent) not in found:
            wanted.append(entity_id(fields.parent))
    found |= {each.stored.document.id: each for each in await dated(source, ancestors.values())}
    return tuple(sorted(found.values(), key=lambda each: each.made)), tip


async def _tip(
    source: SessionSource, line: Sequence[_Origin], known: Mapping[str, Sequence[SourceCommit]]
) -> ContinuedCommit | None:
    """Return the commit that the next checkpoint of the last session of ``line`` continues: the newest commit of that
    session, or of the nearest ancestor with commits at the fork, and the end position of the newest checkpoint.
    ``known``: the commits of sessions that were read already."""
    commit: str | None = None
    position: Position | None = None
    for origin in reversed(line):
        commits = known.get(origin.session)
        if commits is None:
            commits = await dated(source, (await source.newest(await source.commits_of(origin.session))).values())
        had = [(read_commit(each.stored), each) for each in commits]
        # Commits of the same instant are in the order of the journal.
        had.sort(key=lambda each: (each[0].at, each[1].made), reverse=True)
        had = [each for each in had if each[1].made <= origin.tx]
        commit = commit or next((commit_id(each.stored.document.id) for _, each in had), None)
        position = position or next((fields.position for fields, _ in had if fields.position is not None), None)
        head = (await source.newest([id := str(session_object_id(origin.session))])).get(id)
        begun = None if head is None else read_head(head).settings.continues
        if begun is not None:
            commit, position = commit or begun.commit, position or begun.position
        if position is not None:
            break
    return None if commit is None else ContinuedCommit(commit, position or Position())


async def tip_of(source: SessionSource, fork: str, branch: str) -> ContinuedCommit | None:
    """Return the commit that the next checkpoint of ``fork`` continues, if ``branch`` has the late commits of the
    session that it was forked from. Raises: as ``source``."""
    line = await _line_of(source, fork)
    line.insert(-1, line[-2]._replace(session=branch))
    return await _tip(source, line, {})


async def dated(source: SessionSource, commits: Iterable[Stored]) -> list[SourceCommit]:
    """Return ``commits`` with the rows that created them."""
    commits = list(commits)
    # Any other commit has one version. A purge may have removed the summary of a later one.
    changed = [
        stored.document.id
        for stored in commits
        if stored.document.payload.keys() & {"tags", "summary", REVISION} or is_purged(stored.document)
    ]
    versions = await histories(source, changed)
    return [
        SourceCommit(stored, min((each.tx for each in versions.get(stored.document.id, ())), default=stored.tx))
        for stored in commits
    ]


async def histories(source: SessionSource, ids: Iterable[str]) -> dict[str, list[Stored]]:
    """Return the versions of each of ``ids``, reading several at once. Raises: as ``SessionSource.history``."""
    found: dict[str, list[Stored]] = {}
    slots = anyio.Semaphore(HISTORIES_AT_ONCE)

    async def read(id: str) -> None:
        async with slots:
            found[id] = await source.history(id)

    async with task_group() as group:
        for id in ids:
            group.start_soon(read, id)
    return found


async def read_destination(
    store: VersionStore, history: SourceHistory, session: str, fences: Fences, *, ordinal: int, filesystem: str = "",
    state: Literal["active", "paused"] | None = None,
) -> Destination:  # fmt: skip
    """Read the state of ``store``, a journal with ``fences``, that matters for importing ``history`` as ``session``.

    Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    objects = await store.heads(history.objects)
    taken = [
        id for id, stored in objects.items() if stored is not None and history.objects[id][-1].document.type != "file"
    ]
    head_id = session_object_id(session)
    head = (await store.heads((head_id,)))[head_id]
    inner = (*history.prompts, *history.parts)
    newest = await store.heads({id_in(session, each.document.id) for each in inner if each.document.type in SETTABLE})
    here = LocalSession(store)
    segments, assemblies = await _inner(here, await _line_of(here, session))
    commits = await store.heads([each.stored.document.id for each in history.commits])
    longer = {
        id
        for each in history.commits
        if (other := commits[each.stored.document.id]) is not None and not is_one_commit(other, each.stored)
        for id in ids_instead(each.stored)
    }
    return Destination(
        session=session,
        ordinal=ordinal,
        objects=objects,
        aliases=await store.heads([alias for id in taken for alias in aliases_of(session, id)]),
        segments=tuple(segments),
        assemblies=tuple(assemblies),
        texts={id: each for id, each in newest.items() if each is not None and not fences.skips(id, each.tx)},
        fenced=frozenset(
            each.document.id for each in (*segments, *assemblies) if fences.skips(each.document.id, each.tx)
        ),
        filesystem=filesystem,
        state=state,
        base=None if head is None else read_head(head).settings.base,
        commits={**commits, **await store.heads(longer)},
    )


async def apply_remote_purges(
    store: VersionStore, history: SourceHistory, session: str, keyed: Callable[[str], str], principal: str
) -> None:
    """Purge from ``store`` the commits and the tool calls of ``session`` that are purged in ``history``: an import adds
    versions after the existing ones, whose texts would remain.

    Files are not purged: they have texts of other sessions of this host. ``keyed``: as in ``PurgeRequest``.
    Raises: those of the store. Cancel: safe; repeating the import purges the rest.
    """
    there = {id: versions[-1] for id, versions in history.objects.items() if versions[-1].document.type == "toolcall"}
    there |= {each.stored.document.id: each.stored for each in history.commits}
    there = {id: each for id, each in there.items() if is_purged(each.document) and not is_reclaimed(each.document)}
    here = await store.heads(there)
    ids = [id for id, head in here.items() if head is not None and await _is_same(store, session, head, there[id])]
    if not ids:
        return
    asked = PurgeRequest(ids, keyed, sharing=without_bundle)
    await store.submit(Write(kind=KIND, principal=principal, purge=asked)).wait()
    await store.purge_residue()


async def _is_same(store: VersionStore, session: str, here: Stored, there: Stored) -> bool:
    """True if ``here`` is not purged, and is the same commit, or the same tool call of ``session``, as ``there``."""
    if is_purged(here.document) or here.document.type != there.document.type:
        return False
    if here.document.type == "commit":
        return is_one_commit(here, there)
    return session in await store.knowing(here.document.id)


async def import_session(
    store: VersionStore, source: SessionSource, history: SourceHistory, destination: Destination, *, kind: str,
    principal: str,
) -> Pending:  # fmt: skip
    """Write ``history`` to ``store`` as ``destination`` requires. Returns: the write that completes it; all earlier
    writes were accepted.

    Raises: CtxdError of ``source``, ``toolcall_conflict``, and those of the store. Cancel: safe; see the module.
    """
    rewriter = await _in_thread(history.segments, lambda: SessionRewriter(history, destination))
    return await _Import(store, source, rewriter, kind, principal).run()


class _Import:
    """One run of ``import_session``."""

    def __init__(
        self, store: VersionStore, source: SessionSource, rewriter: SessionRewriter, kind: str, principal: str
    ) -> None:
        self._store = store
        self._rewriter = rewriter
        self._kind = kind
        self._principal = principal
        self._texts = PrefetchedTexts(source.contents, rewriter.expected_chars())
        self._waiting: list[Pending] = []
        self._submitted = 0
        self._heads: Mapping[str, Stored | None] = {}
        self._displaced: dict[str, Stored] = {}
        self._artifacts: dict[str, Artifact] = {}

    async def run(self) -> Pending:
        rewriter, row = self._rewriter, PlannedWrite()
        for deletes in rewriter.stale():
            await self._flush(PlannedWrite(deletes))
        for group in rewriter.groups:
            if row.has_commits and any(stored.document.type != "commit" for stored in group):
                # As of a commit's row, the session has nothing later than the commit.
                await self._flush(row)
                row = PlannedWrite()
            if any(stored.document.type == "assembly" for stored in group):
                await self._write_record(row, group)
                row = PlannedWrite()
                continue
            if not rewriter.fits(row, group):
                await self._flush(row)
                row = PlannedWrite()
            rewriter.add(row, group)
            row.chars = sum(map(len, (await self._texts.of(self._refs_of(row))).values()))
        if restored := {id: stored for id, stored in self._displaced.items() if rewriter.is_restored(id, stored)}:
            await self._flush(row)
            row = await self._restoring(restored)
        texts = await self._prepare(row)
        return self._submit(row, texts, entering=False)

    async def _flush(self, row: PlannedWrite) -> None:
        """Submit ``row`` unless it is empty."""
        if not (row.documents or row.objects or row.deletes or row.head):
            return
        self._submit(row, await self._prepare(row), entering=True)
        if self._submitted % TURN == 0:
            await checkpoint()
        await self._wait_for_disk()

    async def _write_record(self, row: PlannedWrite, group: Sequence[Stored]) -> None:
        """Submit ``row`` with every shared file as the record in ``group`` saw it, directly followed by the row of the
        record: no write of another session comes in between."""
        rewriter = self._rewriter
        rewriter.add_objects(row, group)
        row.objects = {**rewriter.files(), **row.objects}
        inner = [stored for stored in group if stored.document.type in INNER]
        texts = await self._prepare(
            row,
            [stored.content_ref for stored in inner if stored.document.type in ("assembly", "commit", *TEXTS)],
        )
        if row.documents or row.deletes or row.head or self._changed(row):
            self._submit(row, texts, entering=True)
        else:
            self._note_written(row, (), None)
        record = PlannedWrite()
        rewriter.add(record, inner)
        self._submit(record, texts, entering=True)
        await checkpoint()
        await self._wait_for_disk()

    async def _wait_for_disk(self) -> None:
        """Wait until all submitted rows are on the disk, if they are too many. Call it after each row, or pair of
        rows."""
        if len(self._waiting) >= WAITING_MAX:
            await self._waiting[-1].wait()
            self._waiting.clear()

    async def _restoring(self, restored: Mapping[str, Stored]) -> PlannedWrite:
        """A row that restores versions of shared files that were replaced for a record."""
        row = PlannedWrite()
        texts = await self._store.contents(stored.content_ref for stored in restored.values() if stored.content_ref)
        for id, stored in restored.items():
            newest = self._store.peek(id)
            # A version written by another session since then is newer than the displaced one.
            if isinstance(newest, Stored) and self._rewriter.wrote(id, newest.tx):
                text = texts.get(stored.content_ref or "")
                if stored.content_ref is None or text is not None:
                    document = msgspec.structs.replace(stored.document, content=text)
                    row.documents[id] = (await self._store.keep(document), None)
        return row

    async def _prepare(self, row: PlannedWrite, others: Iterable[str | None] = ()) -> dict[str, Content]:
        """Return the texts that ``row`` needs, and ``others``, after loading the newest versions of its objects."""
        self._heads = await self._store.heads(row.objects)
        while True:
            refs = [*self._refs_of(row), *(ref for ref in others if ref is not None)]
            texts = await self._texts.of(refs)
            held: dict[str, Artifact] = {}
            for ref, text in texts.items():
                if (artifact := self._artifacts.get(ref) or await self._store.keep_content(text)) is not None:
                    held[ref] = artifact
            self._artifacts = held
            # Another session may have written one of the files meanwhile.
            if set(self._refs_of(row)) <= set(refs):
                return texts

    def _refs_of(self, row: PlannedWrite) -> list[str]:
        versions = [stored.content_ref for stored in self._changed(row).values()]
        return [ref for ref in (*versions, *(ref for _, ref in row.documents.values())) if ref is not None]

    def _changed(self, row: PlannedWrite) -> dict[str, Stored]:
        """The objects of ``row`` whose newest version here is different, by id."""
        hashes = {id: None if (head := self._head(id)) is None else head.document.content_hash for id in row.objects}
        return {id: stored for id, stored in row.objects.items() if hashes[id] != stored.document.content_hash}

    def _head(self, id: str) -> Stored | None:
        head = self._store.peek(id)
        return self._heads.get(id) if isinstance(head, NotCached) else head

    def _submit(self, row: PlannedWrite, texts: Mapping[str, Content], *, entering: bool) -> Pending:
        """Submit ``row``, with no await after its texts were complete."""
        rewriter, changed = self._rewriter, self._changed(row)
        for id in changed:
            if (head := self._head(id)) is not None and not rewriter.wrote(id, head.tx):
                rewriter.require_expected(id, row.objects[id], head)
                self._displaced[id] = head
        objects = ((renamed(stored.document, id), stored.content_ref) for id, stored in changed.items())
        documents = [
            document if ref is None else _with_text(document, texts.get(ref), self._artifacts.get(ref))
            for document, ref in (*objects, *row.documents.values())
        ]
        if row.head is not None or not entering or not self._submitted:
            documents.append(rewriter.head(row.head, entering=entering))
        pending = self._store.submit(
            Write(
                kind=self._kind,
                principal=self._principal,
                session=rewriter.session,
                puts=tuple(documents),
                deletes=row.deletes,
                knows=tuple(row.knows),
                floor_vt=0 if self._submitted else rewriter.floor_vt,
            )
        )
        self._submitted += 1
        self._waiting.append(pending)
        self._note_written(row, changed, pending)
        return pending

    def _note_written(self, row: PlannedWrite, changed: Container[str], pending: Pending | None) -> None:
        places = {id: (head.valid_time, head.tx) for id in row.objects if (head := self._head(id)) is not None}
        if pending is not None:
            places |= {id: (pending.vt, pending.seq) for id in row.objects if id in changed}
        self._rewriter.note_written(row, places, None if pending is None else (pending.vt, pending.seq))


async def _in_thread(segments: Sequence[Stored], work: Callable[[], T]) -> T:
    """Return the result of ``work``, run in a thread if there are many ``segments``, so as not to block other
    sessions."""
    return await in_thread(work) if len(segments) > SEGMENTS_INLINE_MAX else work()


def _with_text(document: Document, text: Content | None, artifact: Artifact | None) -> Document:
    if document.type == "assembly":
        # Its payload differs from the source's.
        digest = content_hash(document.payload, text)
        return msgspec.structs.replace(document, content=text, artifact=artifact, content_hash=digest)
    if document.type == "commit" and (text is not None or is_purged(document)):
        return msgspec.structs.replace(document, content=text, artifact=artifact)
    if text is None:
        return purged_document(document, lambda _: document.identity_hash)
    return msgspec.structs.replace(document, content=text, artifact=artifact)
