"""Reads of context commits: single ones, chains, listings, the newest one at a time; and who may see them.

The host sees every commit. A sandbox sees those of its sessions, and the ancestors that its sessions inherited when
they were forked or started from a commit. ``visible`` checks every read, including ancestors: an invisible commit fails
like one that does not exist.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from ctxd.commits.commit import instant_ms, read_fields, shown
from ctxd.errors import CtxdError
from ctxd.objects.commit_document import STORED_NAMES, Fields, commit_id, entity_id
from ctxd.objects.document import AsOf, Page, Stored, encode_content
from ctxd.objects.generated_ids import assembly_id
from ctxd.sessions.chat import end_of_turn, turn_not_found
from ctxd.sessions.live_session import Actor
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_loading import batched
from ctxd.store import commit_index
from ctxd.store.commit_index import CommitFilter
from ctxd_protocol.limits import PAGE_ITEMS_MAX, SAFE_INTEGER_MAX
from ctxd_protocol.methods import commits as wire
from ctxd_protocol.methods.artifacts import PIECE_BYTES_MAX

CHILDREN_MAX: Final = PAGE_ITEMS_MAX
"""Maximum children returned with a commit."""

PAGE_SUMMARIES_MAX: Final = 512 * 1024
"""Maximum characters of the summaries in one page."""


INHERITANCES_MAX: Final = 64
"""Sandboxes' sessions whose inherited chains are cached."""

_HEADS_AT_ONCE: Final = 100


class CommitViewer(msgspec.Struct, frozen=True):
    """The caller of an operation. ``sessions``: those whose commits it may read, continue and change; None: all."""

    actor: Actor
    sessions: frozenset[str] | None

    def owns(self, stored: Stored) -> bool:
        """True if the viewer may change the commit ``stored``."""
        return self.sessions is None or stored.document.payload.get(STORED_NAMES["session"]) in self.sessions

    @property
    def is_confined(self) -> bool:
        """True for a sandbox."""
        return self.sessions is not None

    @property
    def sandbox(self) -> str | None:
        """The principal of the sandbox; None for the host."""
        return None if self.sessions is None else self.actor.principal


class _Inherited(NamedTuple):
    """The commits that a session inherited: their entity ids, and the journal sequence at which it did."""

    ids: frozenset[str]
    tx: int


class CommitReads:
    """Reads of the commits of one store."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.store = sessions.store
        self._inheritances: dict[str, _Inherited] = {}

    async def _head(self, commit: str) -> Stored | None:
        """The newest accepted version of ``commit``; None if it is unknown."""
        head = await self.store.newest(entity_id(commit))
        return head if head is not None and head.document.type == "commit" else None

    async def find(self, viewer: CommitViewer, commit: str) -> Stored:
        """The newest version of ``commit`` that ``viewer`` may read.

        Raises: CtxdError ``commit_not_found`` if it is unknown, or ``viewer`` may not see it.
        """
        head = await self._head(commit)
        seen = await self.visible(viewer, {} if head is None else {head.document.id: head})
        if not seen:
            raise _no_commit(commit)
        return seen[entity_id(commit)]

    async def find_all(self, viewer: CommitViewer, ids: Iterable[str]) -> list[Stored]:
        """The newest versions of the commits with the entity ids ``ids``, in order. Raises: as ``find``."""
        heads = await self.store.heads(ids)
        seen = await self.visible(viewer, heads)
        for id in heads:
            if id not in seen:
                raise _no_commit(commit_id(id))
        return [seen[id] for id in heads]

    async def visible(self, viewer: CommitViewer, heads: Mapping[str, Stored | None]) -> dict[str, Stored]:
        """The commits among ``heads``, newest versions by entity id, that ``viewer`` may read: the check of every read.

        A session that was forked, or started from a commit, has inherited the chain before: a sandbox sees the chain as
        it was then. Raises: those of the store.
        """
        seen = {id: head for id, head in heads.items() if head is not None and viewer.owns(head)}
        for session in viewer.sessions or () if len(seen) < len(heads) else ():
            chain = await self._inherited(session)
            if rest := [id for id in heads if id not in seen and id in chain.ids]:
                seen |= await self.store.bulk(rest, AsOf(tx=chain.tx))
        return seen

    async def require_chain(self, viewer: CommitViewer, tip: str, *, to_boundary: bool = False, last: str = "") -> None:
        """Refuse a chain (see ``commit_index.chain``) unless ``viewer`` may read all of its commits: the check of
        ``visible`` in one read, whatever the length.

        Raises: CtxdError ``commit_not_found`` for the first invisible one; those of the store.
        """
        if viewer.sessions is None:
            return
        query = partial(
            commit_index.chain_beyond, tip=tip, sessions=viewer.sessions, to_boundary=to_boundary, last=last
        )
        beyond = await self.store.read_index(query)
        for session in viewer.sessions if beyond else ():
            chain = await self._inherited(session)
            beyond = [(id, tx) for id, tx in beyond if id not in chain.ids or tx > chain.tx]
        if beyond:
            raise _no_commit(commit_id(beyond[0][0]))

    async def _inherited(self, session: str) -> _Inherited:
        """The commits that ``session`` inherited. Raises: those of the store."""
        if (known := self._inheritances.get(session)) is not None:
            return known
        first = await self.first(session)
        if first is None:
            return _Inherited(frozenset(), 0)
        settings = self._sessions.catalog.settings(session)
        # The walk stops at a boundary for a conversation that became a chat, and at the root for a fork.
        chain = partial(commit_index.chain, tip=first.document.id, to_boundary=settings.base is None)
        ids = frozenset(await self.store.read_index(chain))
        made = (await self.store.history(first.document.id, page=Page(limit=1)))[0].tx
        inherited = _Inherited(ids, made if settings.base is None else max(made, settings.base.tx))
        self._inheritances[session] = inherited
        if len(self._inheritances) > INHERITANCES_MAX:
            del self._inheritances[next(iter(self._inheritances))]
        return inherited

    async def first(self, session: str) -> Stored | None:
        """The commit that the chain of ``session`` continues; None if it starts a chain, or is unknown.

        Raises: those of the store.
        """
        return await self.newest_at(session, None)

    async def newest_at(self, session: str, tx: int | None) -> Stored | None:
        """The newest commit in the chain of ``session`` at the journal sequence ``tx``, with None before its own
        commits; None without one. Raises: those of the store."""
        while True:
            if tx is not None:
                wanted = CommitFilter(session=session, tx=tx)
                if (found := await self.store.read_index(partial(commit_index.newest, wanted=wanted))) is not None:
                    return found
            if (known := self._sessions.catalog.newest(session)) is None:
                return None
            settings = known[0].settings
            if settings.continues is not None:
                return await self._head(settings.continues.commit)
            if settings.base is None:
                return None
            session, tx = settings.base.session, settings.base.tx if tx is None else min(tx, settings.base.tx)

    async def show(self, viewer: CommitViewer, params: wire.CommitShowParams) -> wire.CommitShowResult:
        """One commit, and the commits that continue it.

        Raises: CtxdError ``commit_not_found``, also if it did not exist at the requested time.
        """
        found = await self.find(viewer, params.commit)
        id = entity_id(params.commit)
        children = await self.store.read_index(lambda connection: commit_index.children(connection, id, CHILDREN_MAX))
        heads = await self.store.heads((id, *children))
        seen = await self.visible(viewer, heads)
        visible = [commit_id(child) for child in children if child in seen]
        at = AsOf.given(params.valid_time, params.tx)
        then = await self.store.get(id, AsOf(at.valid_time, min(at.tx, found.tx))) if at.is_past else seen.get(id)
        if then is None:
            message = f"commit {params.commit} did not exist at that time"
            raise CtxdError("commit_not_found", message, hint="Choose a later time.")
        return wire.CommitShowResult(commit=shown(then, confined=viewer.is_confined), children=tuple(visible))

    async def history(self, viewer: CommitViewer, params: wire.CommitHistoryParams) -> wire.CommitHistoryResult:
        """A commit and its ancestors, as far as ``viewer`` may read them. Raises: CtxdError ``commit_not_found``."""
        await self.find(viewer, params.commit)
        tip = entity_id(params.commit)
        # One more than is returned: a sandbox sees a chain up to the first commit that is hidden from it.
        chain = partial(commit_index.chain, tip=tip, limit=params.depth + 1)
        heads = await self.store.heads(await self.store.read_index(chain))
        seen = await self.visible(viewer, heads)
        reached = [seen[id] for id in takewhile(seen.__contains__, heads)]
        found = _short(reached[: params.depth])
        return wire.CommitHistoryResult(
            commits=tuple(shown(stored, confined=viewer.is_confined) for stored in found),
            next_commit=commit_id(reached[len(found)].document.id) if len(reached) > len(found) else None,
        )

    async def list(self, viewer: CommitViewer, params: wire.CommitListParams) -> wire.CommitListResult:
        """A page of commits. Raises: CtxdError ``session_not_found``; ``commit_not_found`` for the parent."""
        if params.session is not None:
            self._sessions.catalog.settings(params.session)
        if params.parent is not None:
            await self.find(viewer, params.parent)
        wanted = CommitFilter(
            principal=params.principal,
            session=params.session,
            tag=params.tag,
            parent=None if params.parent is None else entity_id(params.parent),
            tips=params.tips,
            without_summary=params.without_summary,
            before=None if params.oldest_first else _parsed(params.cursor),
            after=_parsed(params.cursor) if params.oldest_first else None,
        )
        listed = partial(
            commit_index.list_commits, wanted=wanted, limit=params.limit + 1, oldest_first=params.oldest_first
        )
        places = await self.store.read_index(listed)
        page = places[: params.limit]
        found = _short(await self.find_all(viewer, [place.id for place in page]))
        last = page[len(found) - 1] if found else None
        more = len(places) > len(found)
        return wire.CommitListResult(
            commits=tuple(shown(stored, confined=viewer.is_confined) for stored in found),
            next_cursor=f"{last.at}.{last.number}" if last is not None and (more or params.oldest_first) else None,
            more=more,
        )

    async def deltas(self, viewer: CommitViewer, params: wire.CommitDeltasParams) -> wire.CommitDeltasResult:
        """The deltas of the first of the requested commits, as many as fit into one reply.

        Raises: CtxdError ``commit_not_found``; those of the store.
        """
        wanted = [entity_id(commit) for commit in params.commits]
        found = {stored.document.id: stored for stored in await self.find_all(viewer, wanted)}
        refs = {id: stored.content_ref for id, stored in found.items() if stored.content_ref is not None}
        sizes = await self.store.read_index(partial(commit_index.content_sizes, refs=refs.values()))
        read: list[str] = []
        left = PIECE_BYTES_MAX
        for number, id in enumerate(wanted):
            size = sizes.get(refs.get(id, ""), 0)
            is_long = size > PIECE_BYTES_MAX
            left -= 0 if is_long else size
            if left < 0 and number:
                break
            read.append(id)
        short = (refs[id] for id in read if id in refs and sizes.get(refs[id], 0) <= PIECE_BYTES_MAX)
        contents = await self.store.contents(short, keep=False)
        return wire.CommitDeltasResult(
            deltas=tuple(
                wire.CommitDelta(
                    commit=commit_id(id),
                    format=read_fields(found[id]).format,
                    artifact_ref=refs.get(id),
                    size=sizes.get(refs.get(id, ""), 0),
                    data=encode_content(contents[refs[id]]) if refs.get(id) in contents else None,
                )
                for id in read
            )
        )

    async def resolve(self, viewer: CommitViewer, params: wire.CommitResolveParams) -> wire.CommitResolveResult:
        """The newest commit at or before an instant, up to a turn, or before an assembly. Raises: CtxdError
        ``invalid_params``, ``session_not_found``, ``turn_not_found``, ``assembly_not_found``."""
        if params.session is not None:
            self._sessions.catalog.settings(params.session)
            if params.assembly is not None:
                # A fork shares earlier assemblies with the session that recorded them.
                recorder = self._sessions.lineage(params.session).recorder(params.assembly)
                params = msgspec.structs.replace(params, session=recorder.session)
        elif (params.turn, params.assembly) != (None, None):
            name = "assembly" if params.turn is None else "turn"
            raise CtxdError("invalid_params", f"{name} requires session", hint="Name the session.")
        principal = params.principal
        if principal is None and params.session is None:
            principal = viewer.actor.principal
        wanted = CommitFilter(
            principal=principal,
            session=params.session,
            template=params.template,
            until=None if params.at is None else instant_ms(params.at),
        )
        if params.session is not None and params.assembly is not None:
            found = await self._before_assembly(params.session, params.assembly, wanted)
        else:
            found = await self.store.read_index(partial(commit_index.newest, wanted=wanted))
        if found is None and params.session is not None:
            found = await self._inherited_at(viewer, params.session, wanted)
        if found is not None and params.session is not None and params.turn is not None:
            found = await self._up_to_turn(params.session, params.turn, found)
        if found is None:
            return wire.CommitResolveResult(commit=None)
        seen = await self.visible(viewer, {found.document.id: found})
        if not seen:
            raise _no_commit(commit_id(found.document.id))
        return wire.CommitResolveResult(commit=shown(seen[found.document.id], confined=viewer.is_confined))

    async def _inherited_at(self, viewer: CommitViewer, session: str, wanted: CommitFilter) -> Stored | None:
        """The newest commit that ``session`` continues, or one of its ancestors, that matches ``wanted`` and that
        ``viewer`` may read; None without one. Raises: those of the store."""
        first = await self.first(session)
        if first is None:
            return None
        # Most calls ask for the newest one, and the chain behind it may have 100,000 commits.
        if _is_wanted(read_fields(first), wanted) and await self.visible(viewer, {first.document.id: first}):
            return first
        ids = await self.store.read_index(partial(commit_index.chain, tip=first.document.id))
        for some in batched(ids, _HEADS_AT_ONCE):
            seen = await self.visible(viewer, await self.store.heads(some))
            for id in some:
                if id not in seen:
                    return None
                if _is_wanted(read_fields(seen[id]), wanted):
                    return seen[id]
        return None

    async def _before_assembly(self, session: str, number: int, wanted: CommitFilter) -> Stored | None:
        """The newest commit of ``session`` that matches ``wanted`` and was made before the assembly ``number``; None
        without one. Raises: CtxdError ``assembly_not_found``."""
        id = assembly_id(session, number)
        record = (await self.store.heads((id,)))[id]
        if record is None:
            message = f"session {session} has no assembly {number}"
            raise CtxdError("assembly_not_found", message, hint="context.list lists the assemblies.")
        wanted = msgspec.structs.replace(wanted, tx=record.tx)
        while True:
            places = await self.store.read_index(
                partial(commit_index.list_commits, wanted=wanted, limit=_HEADS_AT_ONCE)
            )
            for head in (await self.store.heads([place.id for place in places])).values():
                # A checkpoint imported from another host may be in an earlier row than the assembly.
                position = None if head is None else read_fields(head).position
                if position is None or position.assembly < number:
                    return head
            if len(places) < _HEADS_AT_ONCE:
                return None
            wanted = msgspec.structs.replace(wanted, before=(places[-1].at, places[-1].number))

    async def _up_to_turn(self, session: str, turn: int, tip: Stored) -> Stored | None:
        """The newest one of ``tip`` and its ancestors without anything of ``session`` after ``turn``; None without one.
        Raises: CtxdError ``turn_not_found``."""
        live = await self._sessions.live(session)
        if turn > live.state.turn:
            raise turn_not_found(session, turn, live.state.turn)
        end = end_of_turn(live, turn)
        if end is None:
            return tip
        sessions, began = self._sessions.lineage(session).sessions, self._sessions.commits_begun_with(session)
        ids = await self.store.read_index(partial(commit_index.chain, tip=tip.document.id))
        for some in batched(ids, _HEADS_AT_ONCE):
            for id, head in (await self.store.heads(some)).items():
                fields = None if head is None else read_fields(head)
                if fields is None or fields.session not in sessions:
                    if id in began:
                        # Positions of the commits before it are in the chat of another session.
                        return head
                    position = None
                else:
                    position = began.get(id, fields.position)
                if position is not None and position.chat <= (turn + 1, 0):
                    return head
                # A client's commit represents the session at the time when it was made.
                if position is None and (await self.store.history(id, page=Page(limit=1)))[0].tx <= end:
                    return head
        return None


def _no_commit(commit: str) -> CtxdError:
    hint = "commit.list lists the commits."
    return CtxdError("commit_not_found", f"there is no commit {commit}", hint=hint, outcome="not_applied")


def _short(found: list[Stored]) -> list[Stored]:
    """As many of ``found`` as a page may have by the size of their summaries."""
    left = PAGE_SUMMARIES_MAX
    for number, stored in enumerate(found):
        left -= len(stored.document.payload.get("summary", ""))
        if left < 0 and number:
            return found[:number]
    return found


def _parsed(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    at, dot, number = cursor.partition(".")
    if not (dot and all(part.isascii() and part.isdigit() and len(part) < 20 for part in (at, number))):
        hint = "Pass next_cursor of the previous page unchanged."
        raise CtxdError("invalid_params", f"{cursor!r} is not a cursor of commits", hint=hint)
    return min(int(at), SAFE_INTEGER_MAX), min(int(number), SAFE_INTEGER_MAX)


def _is_wanted(fields: Fields, wanted: CommitFilter) -> bool:
    """True if a commit with ``fields``, of any session, matches the principal, template and instant of ``wanted``."""
    return (
        wanted.principal in (None, fields.principal)
        and wanted.template in (None, fields.template)
        and (wanted.until is None or fields.at <= wanted.until)
    )
