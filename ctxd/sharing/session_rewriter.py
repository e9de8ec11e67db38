"""Session rewriting: turns the rows of one journal that make a session into rows of another.

Pure. Decides which parts of a session are here already, which versions share a row, and which values change: sequences
and valid times in bundles and records, ids of tool calls that are taken, mounts of "the host". ``session_import`` reads
the source and writes the rows.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.commit_document import commit_id, entity_id
from ctxd.objects.document import Document, Stored, renamed
from ctxd.objects.generated_ids import assembly_id, id_in, number_of, segment_id, session_of
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.objects.version_state import is_purged, is_reclaimed
from ctxd.sessions.session_settings import ContinuedCommit, ForkBase
from ctxd.sessions.stored_session import (
    AppendChat,
    RecordUsage,
    SegmentOperation,
    SessionDelta,
    Snapshot,
    carries_bundle,
    entering,
    head_document,
    kept_in_run,
    read_head,
    read_segment,
    segment_document,
    to_text,
)
from ctxd.sharing.commit_rewriter import CommitRewriter, SourceCommit, is_large
from ctxd.sharing.prefetched_texts import expected_chars
from ctxd_protocol.event_types import Event, ToolResultEvent
from ctxd_protocol.ids import system_prompt_id, toolcall_alias
from ctxd_protocol.object_types import source_label
from ctxd_protocol.session_types import Mount

DELETES_MAX: Final = 1_000
"""Maximum entities deleted by one row. More would delay other sessions' commits."""

ROW_DOCUMENTS_MAX: Final = 64
ROW_CHARS_MAX: Final = 256 * 1024
"""Maximum documents of one row, and characters of text above which a row takes no further group. More would delay other
sessions' commits."""

ALIASES_TRIED: Final = 4
"""Aliases tried for one tool call. A second is needed only if two sessions with one id met before."""

VersionPosition = tuple[int, int]
"""Valid time and journal sequence of a version."""


class SourceHistory(msgspec.Struct, frozen=True):
    """A session in one journal, without text. Entities that a fork shares with its ancestors have the ancestors' ids.

    ``heads`` and ``prompts``: every version, oldest first. ``segments``, ``assemblies``: the newest of each, by number.
    ``objects``: the relevant versions of each object since it entered the index, oldest first. ``parts``: the newest of
    its component texts and entries. ``commits``: those of the session and their ancestors, parents first;
    ``continues``: the one that its next checkpoint continues.
    """

    session: str
    heads: tuple[Stored, ...]
    prompts: tuple[Stored, ...]
    segments: tuple[Stored, ...]
    assemblies: tuple[Stored, ...]
    objects: Mapping[str, tuple[Stored, ...]]
    parts: tuple[Stored, ...] = ()
    commits: tuple[SourceCommit, ...] = ()
    continues: ContinuedCommit | None = None


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the journal that a session is imported into, and the id and settings of the session there.

    ``objects``: the newest versions of the source's objects. ``aliases``: those of the alternative ids of its tool
    calls. ``segments``, ``assemblies``: those of an earlier copy of the session; those that do not match the beginning
    of the source are deleted, and so are ``fenced`` ones, which the node lacks. ``texts``: the newest versions of the
    prompt and the entries of that copy, without fenced ones. ``filesystem``: the id of the filesystem of the session's
    host of origin. ``state``: the final state of the session, ``None`` for the source's; a closed session stays closed.
    ``base``: that of the earlier copy, included in ``segments`` and ``assemblies``. ``commits``: the newest versions of
    the source's commits, and of their alternative ids.
    """

    session: str
    ordinal: int
    objects: Mapping[str, Stored | None] = {}
    aliases: Mapping[str, Stored | None] = {}
    segments: tuple[Stored, ...] = ()
    assemblies: tuple[Stored, ...] = ()
    texts: Mapping[str, Stored] = {}
    filesystem: str = ""
    fenced: frozenset[str] = frozenset()
    state: Literal["active", "paused"] | None = None
    base: ForkBase | None = None
    commits: Mapping[str, Stored | None] = {}


class PlannedWrite:
    """One row in preparation.

    ``documents``: segments, prompts and records, each with the hash of its text, ``None`` for no text. ``objects``:
    versions by the object's id here; one is written only if the newest version here differs when the row is submitted.
    ``prompts``: the versions of the system prompt in the row; ``head``: the newest head of its groups.
    """

    def __init__(self, deletes: tuple[str, ...] = ()) -> None:
        self.documents: dict[str, tuple[Document, str | None]] = {}
        self.objects: dict[str, Stored] = {}
        self.deletes = deletes
        self.knows: list[str] = []
        self.prompts: list[Stored] = []
        self.head: Stored | None = None
        self.segments = 0
        self.chars = 0
        self.has_commits = False


def entered(segments: Sequence[Stored]) -> dict[str, int]:
    """Return the objects that ``segments`` add to the index, in order, each with the sequence of its row."""
    index: dict[str, int] = {}
    for stored in segments:
        for id in entering(read_segment(stored.document)):
            index.setdefault(id, stored.tx)
    return index


def relevant(versions: Sequence[Stored], since: int) -> tuple[Stored, ...]:
    """Return the ``versions``, oldest first, that an object had at sequence ``since`` or later."""
    before = [stored for stored in versions if stored.tx <= since]
    return (*before[-1:], *(stored for stored in versions if stored.tx > since))


PROMPT: Final = "system_prompt"
SETTABLE: Final = (PROMPT, "session_entry")
"""Types whose versions clients replace, so that an earlier copy may have another one; component texts never change."""

TEXTS: Final = (*SETTABLE, "component_text")
INNER: Final = ("session", *TEXTS, "segment", "assembly", "commit")


class SessionRewriter:
    """Turns the rows of one journal into rows of another. Pure: ``add`` fills a row, and ``note_written`` must record
    its place before the next row is filled."""

    def __init__(self, history: SourceHistory, destination: Destination) -> None:
        """Raises: CtxdError corrupt if ``history`` is not a complete session."""
        if not history.heads:
            raise CtxdError("corrupt", f"session {history.session} has no head")
        for number, stored in enumerate(history.segments):
            if number_of(stored.document.id) != number:
                raise CtxdError("corrupt", f"segment {number} of session {history.session} is missing")
        self._history = history
        self._destination = destination
        self.session = destination.session
        self._entered = entered(history.segments)
        self._records = sorted(record.tx for record in history.assemblies)
        self._versions_shown: dict[str, set[int]] = {}
        for record in history.assemblies:
            for id, _, tx in record.document.payload.get("active", ()):
                self._versions_shown.setdefault(id, set()).add(tx)
        self.renamed = self._renamings()
        self._commits = CommitRewriter([each.stored for each in history.commits], destination.commits)
        self._prompts = {stored.document.id for stored in history.prompts}
        self._base: ForkBase | None = None
        self._expected: dict[str, Stored] = {}
        self._places: dict[tuple[str, int], VersionPosition] = {}
        self._wrote: dict[str, set[int]] = {}
        self._index: set[str] = set()
        self._seqs: list[int] = []
        self._run: list[SessionDelta | None] = []
        self._settled: set[str] = set()
        self._head = history.heads[0]
        self._reused = self._reuse()
        groups = self._grouped()
        self._newest_vt = max(stored.valid_time for group in groups.values() for stored in group)
        self._boundary = max((stored.tx for stored in self._reused), default=0)
        late = [each.stored for each in history.commits if each.made <= self._boundary]
        self.groups = [[stored] for stored in late if self._commits.is_wanted(stored)] + self._pending(groups)

    @property
    def floor_vt(self) -> int:
        """The minimum valid time of the rows to write: above all of the source's."""
        return self._newest_vt + 1

    def stale(self) -> Iterator[tuple[str, ...]]:
        """Yield, in batches, the segments and records of an earlier copy that are not part of the session."""
        kept = {self._id(stored) for stored in self._reused}
        here = (*self._destination.segments, *self._destination.assemblies)
        ids = [id for stored in here if (id := stored.document.id) not in kept and session_of(id) == self.session]
        for start in range(0, len(ids), DELETES_MAX):
            yield tuple(ids[start : start + DELETES_MAX])

    def expected_chars(self) -> dict[str, int]:
        """Return the texts that the destination may lack, in the order of their rows, with their expected sizes."""
        hashes = {id: stored.document.content_hash for id, stored in self._destination.objects.items() if stored}
        # Large deltas are fetched one by one.
        groups = ((stored for stored in group if not is_large(stored)) for group in self.groups)
        versions = (stored for group in groups for stored in group if stored.content_ref is not None)
        return {
            stored.content_ref: expected_chars(stored)
            for stored in versions
            if stored.content_ref and hashes.get(stored.document.id) != stored.document.content_hash
        }

    # --- filling rows ---

    def fits(self, row: PlannedWrite, group: Sequence[Stored]) -> bool:
        """True if ``group`` may be added to ``row``: a row has one version per entity, and a bundle refers to the rows
        of the segments before it."""
        ids = [self._id(stored) for stored in group if stored.document.type != "session"]
        size = len(row.documents) + len(row.objects) + len(ids)
        # A group that is too large fits no row; the empty row before it is not written.
        if row.deletes or size > ROW_DOCUMENTS_MAX or row.chars > ROW_CHARS_MAX:
            return False
        segments = [stored for stored in group if stored.document.type == "segment"]
        if row.segments and any(carries_bundle(number_of(stored.document.id)) for stored in segments):
            return False
        return not any(id in row.documents or id in row.objects for id in ids)

    def add(self, row: PlannedWrite, group: Sequence[Stored]) -> None:
        """Add ``group`` to ``row``."""
        self.add_objects(row, group)
        for stored in group:
            match stored.document.type:
                case "session":
                    row.head = self._head = stored
                case "system_prompt" | "component_text" | "session_entry":
                    row.documents[self._id(stored)] = (renamed(stored.document, self._id(stored)), stored.content_ref)
                    if stored.document.type == PROMPT:
                        row.prompts.append(stored)
                case "segment":
                    row.documents[self._id(stored)] = (self._segment(row, stored), None)
                case "assembly":
                    row.documents[self._id(stored)] = (self._assembly(stored.document), stored.content_ref)
                case "commit":
                    row.has_commits = True
                    row.documents[self._id(stored)] = (self._commits.rewritten(stored), stored.content_ref)

    def add_objects(self, row: PlannedWrite, group: Sequence[Stored]) -> None:
        """Add the versions of objects in ``group`` to ``row``."""
        for stored in group:
            if stored.document.type not in INNER and not self._is_purged_here(stored):
                row.objects[self._id(stored)] = self._expected[self._id(stored)] = stored

    def _is_purged_here(self, stored: Stored) -> bool:
        here = self._destination.objects.get(self._id(stored))
        return here is not None and is_purged(here.document) and not is_reclaimed(here.document)

    def files(self) -> dict[str, Stored]:
        """Return the shared files as the session last saw them, by id: other sessions write versions of them too."""
        return {id: stored for id, stored in self._expected.items() if stored.document.type == "file"}

    def note_written(
        self, row: PlannedWrite, places: Mapping[str, VersionPosition], written: VersionPosition | None
    ) -> None:
        """Record the ``places`` of the objects of ``row``, and the place at which it was ``written``; ``None``: nothing
        had to be written."""
        seq = None if written is None else written[1]
        for id, place in places.items():
            stored = row.objects[id]
            self._places[stored.document.id, stored.tx] = place
            self._settled.add(id)
            if place[1] == seq:
                self._wrote.setdefault(id, set()).add(place[1])
        if written is not None:
            self._places.update({(stored.document.id, stored.tx): written for stored in row.prompts})
            self._seqs.extend([written[1]] * row.segments)

    def wrote(self, id: str, tx: int) -> bool:
        """True if the version of ``id`` in row ``tx`` was written by this import."""
        return tx in self._wrote.get(id, ())

    def is_restored(self, id: str, displaced: Stored) -> bool:
        """True if the version ``displaced`` of a file must be restored: it was written since the import began, or the
        session is imported under another id, or has not seen a newer version since it was here."""
        known = self._destination.objects.get(id)
        if known is None or known.tx != displaced.tx or self._history.session != self.session:
            return True
        return id in self._expected and self._expected[id].tx <= self._boundary

    def require_expected(self, id: str, stored: Stored, head: Stored) -> None:
        """Raises: CtxdError toolcall_conflict if another session has taken ``id``, which is for ``stored``, since the
        import began."""
        known = self._destination.objects.get(id) or self._destination.aliases.get(id)
        if _are_files(stored, head) or (known is not None and known.tx == head.tx) or id in self._settled:
            return
        raise CtxdError(
            "toolcall_conflict", f"the id {id} was taken by another session meanwhile", outcome="not_applied"
        )

    # --- the beginning that is here already ---

    def _reuse(self) -> list[Stored]:
        """Return the segments and records of the source that are here already, up to the first that is not, and fold
        them."""
        here = _in_order(self._destination.segments, self._destination.assemblies)
        there = _in_order(self._history.segments, self._history.assemblies)
        reused: list[tuple[Stored, Stored]] = []
        for mine, theirs in zip(here, there, strict=False):
            if not self._is_same(mine, theirs):
                break
            reused.append((mine, theirs))
        shared = [mine for mine in here if session_of(mine.document.id) != self.session]
        if not {mine.document.id for mine in shared} <= {mine.document.id for mine, _ in reused}:
            # The beginning differs from that of the session with which it was shared.
            return []
        self._base = self._destination.base if shared else None
        for mine, theirs in reused:
            if theirs.document.type == "segment":
                delta = self._delta(read_segment(theirs.document))
                self._fold(number_of(theirs.document.id), delta)
                self._seqs.append(mine.tx)
        return [theirs for _, theirs in reused]

    def _is_same(self, mine: Stored, theirs: Stored) -> bool:
        if mine.document.type != theirs.document.type or mine.document.id in self._destination.fenced:
            return False
        if number_of(mine.document.id) != number_of(theirs.document.id):
            return False
        if theirs.document.type == "assembly":
            return all(mine.document.payload.get(name) == theirs.document.payload.get(name) for name in _RECORD)
        original = read_segment(theirs.document)
        return read_segment(mine.document) == self._delta(original) and all(map(self._has_object, entering(original)))

    def _has_object(self, id: str) -> bool:
        """True if the object ``id`` of the source is here with the session's content; a file may have another
        content."""
        target = self.renamed.get(id, id)
        here = self._destination.objects.get(id) if target == id else self._destination.aliases.get(target)
        if here is None:
            return False
        return _is_one(here, self._history.objects[id][-1])

    # --- which version goes where ---

    def _grouped(self) -> dict[int, list[Stored]]:
        """Return all versions by their row, objects first; a version older than its object's entry is in the row of the
        entry."""
        history = self._history
        groups: dict[int, list[Stored]] = {}
        for id, versions in history.objects.items():
            since = self._entered[id]
            for number, stored in enumerate(self._seen(relevant(versions, since))):
                # A purge may have left only a version newer than the entry.
                groups.setdefault(max(stored.tx, since) if number else since, []).append(stored)
        first = min((stored.tx for stored in (*history.segments, *history.assemblies)), default=history.heads[-1].tx)
        for versions in (history.prompts, history.heads):
            for stored in relevant(versions, first):
                groups.setdefault(stored.tx, []).append(stored)
        for stored in (*history.segments, *history.assemblies, *history.parts):
            groups.setdefault(stored.tx, []).append(stored)
        for each in history.commits:
            if self._commits.is_wanted(each.stored):
                # In the row of its creation, so that a fork at the commit has the content of that time.
                groups.setdefault(each.made, []).append(each.stored)
        return groups

    def _seen(self, versions: Sequence[Stored]) -> Sequence[Stored]:
        """Return the ``versions`` that the session's records saw, with the first and the last; all of a tool call.

        The others of a shared file are written by other sessions and their imports: if they were copied, each import
        would double them."""
        if len(versions) <= 2 or versions[0].document.type != "file":
            return versions
        rows = sorted({stored.tx for stored in versions})
        seen = {rows[0], rows[-1], *self._versions_shown.get(versions[0].document.id, ())}
        for row, following in zip(rows, rows[1:], strict=False):
            if bisect_left(self._records, row) < bisect_left(self._records, following):
                seen.add(row)
        return [stored for stored in versions if stored.tx in seen]

    def _pending(self, groups: Mapping[int, list[Stored]]) -> list[list[Stored]]:
        """Return the groups to write, in order, and record the state of the reused ones."""
        reused = {stored.document.id for stored in self._reused}
        pending: list[list[Stored]] = []
        texts: dict[str, Stored] = {}
        for tx, group in sorted(groups.items()):
            if tx > self._boundary:
                pending.append(group)
                continue
            rest = [stored for stored in group if stored.document.type in ("segment", "assembly")]
            rest = [stored for stored in rest if stored.document.id not in reused]
            for stored in group:
                if stored.document.type == "session":
                    self._head = stored
                elif stored.document.type in SETTABLE:
                    texts[self._id(stored)] = stored
                elif stored.document.type not in INNER:
                    self._expected[self._id(stored)] = stored
            if rest:
                # A row that is partly here: objects added by the rest of it may be missing.
                segments = [stored for stored in rest if stored.document.type == "segment"]
                new = {id for stored in segments for id in entering(read_segment(stored.document))}
                objects = [stored for stored in group if stored.document.id in new]
                pending.append([*objects, *rest])
        # Their entry is here already, but their purge may be missing.
        purged = [
            versions[-1]
            for id, versions in self._history.objects.items()
            if self.renamed.get(id, id) in self._index and is_purged(versions[-1].document)
        ]
        if purged:
            pending.insert(0, purged)
        if missing := [stored for id, stored in texts.items() if not self._is_here(id, stored)]:
            pending.insert(0, missing)
        return pending

    def _is_here(self, id: str, text: Stored) -> bool:
        """True if ``text`` is the newest version of ``id`` here, or was purged here."""
        here = self._destination.texts.get(id)
        if here is None or here.document.content_hash == text.document.content_hash:
            return here is not None
        return is_purged(here.document) and not is_reclaimed(here.document)

    # --- the new form of each version ---

    def _id(self, stored: Stored) -> str:
        """Return the new id of the entity of ``stored``."""
        id = stored.document.id
        if stored.document.type == "commit":
            return self._commits.id(id)
        return id_in(self.session, id) if stored.document.type in INNER else self.renamed.get(id, id)

    def head(self, stored: Stored | None, *, entering: bool) -> Document:
        """Return the head of a row; ``stored`` ``None``: the previous row's. The last head is not ``entering``."""
        head, destination = read_head(stored or self._head if entering else self._history.heads[-1]), self._destination
        settings, names = head.settings, {**head.settings.renamed}
        for id, alias in self.renamed.items():
            names[alias] = names.pop(id, id)
        mounts = _pinned(settings.mounts, destination.filesystem)
        settings = msgspec.structs.replace(
            settings, ordinal=destination.ordinal, mounts=mounts, renamed=names, base=self._base
        )
        if not entering and (tip := self._history.continues) is not None:
            commit = commit_id(self._commits.id(entity_id(tip.commit)))
            settings = msgspec.structs.replace(settings, continues=msgspec.structs.replace(tip, commit=commit))
        if not entering and destination.state is not None and settings.state != "closed":
            settings = msgspec.structs.replace(settings, state=destination.state)
        return head_document(self.session, msgspec.structs.replace(head, settings=settings, entering=entering))

    def _segment(self, row: PlannedWrite, stored: Stored) -> Document:
        delta = self._delta(read_segment(stored.document))
        number = number_of(stored.document.id)
        bundle = to_text(self._seqs[-len(self._run) :], self._run) if carries_bundle(number) else None
        row.knows.extend(id for id in dict.fromkeys(entering(delta)) if id not in self._index)
        row.segments += 1
        self._fold(number, delta)
        return segment_document(segment_id(self.session, number), delta, bundle)

    def _fold(self, number: int, delta: SessionDelta) -> None:
        self._run.append(kept_in_run(delta))
        if carries_bundle(number):
            self._run.clear()
        self._index.update(entering(delta))

    def _delta(self, delta: SessionDelta) -> SessionDelta:
        return tuple([self._operation(operation) for operation in delta]) if self.renamed else delta

    def _operation(self, operation: SegmentOperation) -> SegmentOperation:
        match operation:
            case Snapshot():
                return msgspec.structs.replace(operation, index=self._ids(operation.index))
            case AppendChat():
                return AppendChat(tuple(map(self._event, operation.events)))
            case RecordUsage():
                return operation
            case _:
                return type(operation)(self._ids(operation.objects))

    def _event(self, event: Event) -> Event:
        if not isinstance(event, ToolResultEvent) or event.object is None:
            return event
        return msgspec.structs.replace(event, object=self.renamed.get(event.object, event.object))

    def _ids(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple([self.renamed.get(id, id) for id in ids])

    def _assembly(self, document: Document) -> Document:
        """Return the record with the versions of this journal. Other fields of the assembly are unchanged."""
        payload, origin = dict(document.payload), session_of(document.id) or self._history.session
        if "active" in payload:
            payload["active"] = [self._shown(*shown) for shown in payload["active"]]
        if "dropped" in payload:
            payload["dropped"] = [[self.renamed.get(id, id), reason] for id, reason in payload["dropped"]]
        if "window" in payload:
            payload["window"] = self._keyed(self._window(payload["window"], origin), origin)
        if "form" in payload:
            payload["form"] = self._keyed(payload["form"], origin)
        id = assembly_id(self.session, number_of(document.id))
        return Document(
            id=id,
            type="assembly",
            identity_hash=identity_hash("assembly", None, id),
            content_hash=content_hash(payload, None),
            payload=payload,
        )

    def _window(self, window: dict[str, Any], origin: str) -> dict[str, Any]:
        """Return the part of a window in a record of the session ``origin`` with the versions of this journal."""
        made = dict(window)
        for name in ("refs", "noted"):
            if name in window:
                made[name] = [*map(self._reference if name == "refs" else self._noted, window[name])]
        if (prompt := window.get("prompt")) is not None:
            made["prompt"] = self._shown(str(system_prompt_id(origin)), 0, prompt)[2]
        return made

    def _keyed(self, part: dict[str, Any], origin: str) -> dict[str, Any]:
        """Return ``part`` of a record with the cache key of its request, which is the session's id at that time."""
        return part if self.session == origin or "format" not in part else {"cache_key": origin, **part}

    def _reference(self, ref: dict[str, Any]) -> dict[str, Any]:
        if ref["ref"] != "object":
            return ref
        id, valid_time, tx = self._shown(ref["object"], ref["valid_time"], ref["tx"])
        made = {**ref, "object": id, "valid_time": valid_time, "tx": tx}
        # The window's texts have the id under which the object was sent.
        return {"name": ref["object"], **made} if ref["object"] in self.renamed else made

    def _noted(self, noted: list[Any]) -> list[Any]:
        id, _, tx = self._shown(noted[0], 0, noted[1])
        return [id, tx, *noted[2:]]

    def _shown(self, id: str, valid_time: int, tx: int) -> list[str | int]:
        if id in self._prompts:
            target = str(system_prompt_id(self.session))
            here = self._destination.texts.get(target)
        else:
            target = self.renamed.get(id, id)
            here = self._destination.objects.get(id) if target == id else self._destination.aliases.get(target)
        fallback = (valid_time, tx) if here is None else (here.valid_time, here.tx)
        return [target, *self._places.get((id, tx), fallback)]

    def _renamings(self) -> dict[str, str]:
        """Return the tool calls whose ids belong to different objects here, with their new ids."""
        renamed: dict[str, str] = {}
        for id, versions in self._history.objects.items():
            here = self._destination.objects.get(id)
            if here is None or _is_one(here, versions[-1]):
                continue
            if versions[-1].document.type == "file":
                path = "" if (source := versions[-1].document.source) is None else source_label(source)
                message = f"the id of file {path} is a tool call's here: {id}"
                raise CtxdError("toolcall_conflict", message, outcome="not_applied")
            renamed[id] = free_alias(self._destination.session, versions[-1], self._destination.aliases)
        return renamed


_RECORD: Final = ("number", "segments", "sha256")
"""The members that identify a record of a session: equal text, from the same number of segments."""


def _is_one(here: Stored, there: Stored) -> bool:
    """True if two versions with one id are of the same file or tool call, which may be purged on one host."""
    if here.document.type != there.document.type:
        return False
    if _are_files(here, there) or is_purged(here.document) or is_purged(there.document):
        return True
    return here.document.content_hash == there.document.content_hash


def _are_files(here: Stored, there: Stored) -> bool:
    return here.document.type == there.document.type == "file"


def _in_order(segments: Sequence[Stored], assemblies: Sequence[Stored]) -> list[Stored]:
    return sorted((*segments, *assemblies), key=lambda stored: (stored.tx, stored.document.type != "segment"))


def aliases_of(session: str, id: str) -> list[str]:
    """Return the alternative ids of the tool call ``id`` of ``session``, for when its own is taken, best first."""
    return [str(toolcall_alias(session, id + "~" * extra)) for extra in range(ALIASES_TRIED)]


def free_alias(session: str, stored: Stored, taken: Mapping[str, Stored | None]) -> str:
    """Return the alias for the tool call ``stored``. Raises: CtxdError toolcall_conflict if all are taken."""
    hashed = stored.document.content_hash
    for alias in aliases_of(session, stored.document.id):
        other = taken.get(alias)
        if other is None or other.document.content_hash == hashed:
            return alias
    raise CtxdError("toolcall_conflict", f"every other id of tool call {stored.document.id} is taken")


def _pinned(mounts: tuple[Mount, ...], filesystem: str) -> tuple[Mount, ...]:
    """Return ``mounts`` with those of "the host" on ``filesystem``."""
    if not filesystem:
        return mounts
    replace = msgspec.structs.replace
    return tuple(mount if mount.filesystem_id else replace(mount, filesystem_id=filesystem) for mount in mounts)
