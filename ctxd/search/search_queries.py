"""Queries of the search index: pages of hits that the caller may see, with texts as they are in the store now.

A hit is returned only if the store still has its text. So purged text is not found once the purge is acknowledged,
although the index may hold its words a moment longer.
"""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from ctxd import sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.objects.commit_document import commit_id
from ctxd.objects.generated_ids import session_of
from ctxd.search import index_database, query_language, ranking
from ctxd.search.index_database import Conditions, Doc
from ctxd.search.journal_texts import JournalTexts
from ctxd.search.ranking import Ranking
from ctxd.search.search_index import SearchIndex
from ctxd.search.snippets import Snippet, Snippets
from ctxd.sessions.project_match import ProjectFilter
from ctxd.sessions.registry import Sessions
from ctxd.store.version_reads import Reader, run_read
from ctxd.worker_threads import Lane, OwnTurns
from ctxd_protocol.ids import session_object_id
from ctxd_protocol.methods import search as wire

R = TypeVar("R")

QUERIES_MAX: Final = 2
"""Concurrent queries; others wait."""

SECONDS_MAX: Final = 10.0
"""Seconds after which a query times out."""

_CHECKED_STEPS: Final = 20_000
"""Steps of SQLite's virtual machine between two checks of the clock."""

_AT_ONCE: Final = 20
"""Texts per read."""

_RANKED_FIRST: Final = 200
"""Results that are put in order for the first pages; ``HITS_REACHED_MAX`` if further ones are requested."""

_RANKINGS_MAX: Final = 32
"""Rankings that are kept for their next pages, of at most 160 KB each."""

_FAULTS: Final = (sqlite_file.FileDamaged, sqlite_file.DiskFailed, sqlite_file.DiskFull)

_CURSOR: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,18})", re.ASCII)


class _Searcher(NamedTuple):
    """The connections of one query, and the generation of the index that they belong to."""

    generation: int
    file: sqlite_file.Connection
    store: Reader
    snippets: Snippets

    def close(self) -> None:
        self.file.close()
        self.store.close()
        self.snippets.close()


class _Expired(Exception):
    """A query has taken ``SECONDS_MAX``."""


class _Deadline:
    """The end of a query's time. Calling it returns whether that has passed: pass it to SQLite."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends = clock.monotonic() + SECONDS_MAX
        self.is_expired = False

    def __call__(self) -> bool:
        self.is_expired = self._clock.monotonic() > self._ends
        return self.is_expired

    def check(self) -> None:
        """Raises: _Expired."""
        if self():
            raise _Expired


class _Rankings:
    """The rankings of the newest queries with further pages: texts that are added or removed meanwhile do not move the
    others from one page to another."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Ranking] = {}

    def take(self, key: Hashable) -> Ranking | None:
        """Return and forget the ranking with ``key``; None if it is not kept."""
        return self._kept.pop(key, None)

    def keep(self, key: Hashable, ranking: Ranking) -> None:
        """Keep ``ranking``, and forget the oldest ones beyond ``_RANKINGS_MAX``."""
        self._kept[key] = ranking
        # Another thread may remove one meanwhile.
        for oldest in list(self._kept)[:-_RANKINGS_MAX]:
            self._kept.pop(oldest, None)


class FoundPage(NamedTuple):
    """A page: its hits, and the number of matches up to its end, including hidden ones; None if there are no more."""

    hits: list[wire.SearchHit]
    skip: int | None
    last: int


class SearchQueries:
    """Queries over the sessions and commits of one daemon."""

    def __init__(self, index: SearchIndex, sessions: Sessions, clock: Clock) -> None:
        self._index = index
        self._sessions = sessions
        self._store = sessions.store
        self._clock = clock
        self._lane = Lane("search", QUERIES_MAX)
        self._turns_of_sandboxes = OwnTurns()
        self._idle: list[_Searcher] = []
        self._rankings = _Rankings()
        index.on_end.append(self.close)

    def close(self) -> None:
        """Close the idle connections of earlier queries."""
        while self._idle:
            self._idle.pop().close()

    async def query(self, params: wire.SearchQueryParams) -> wire.SearchQueryResult:
        """One page of hits for ``params``, of all sessions unless they restrict them.

        Raises: CtxdError ``invalid_params``, ``session_not_found``; ``store_unavailable`` while the index is being
        opened, ``timeout``; those of the store. Cancel: waits for the query.
        """
        query = query_language.parse(params.query, params.file)
        skip, last = _place(params.cursor)
        if params.session is not None and params.session not in self._sessions.catalog:
            raise CtxdError("session_not_found", f"there is no session {params.session}")
        if not self._index.is_open:
            raise _unavailable()
        hidden = self._sessions.catalog.removed().union(self._sessions.emptied)
        sessions = await self._sessions_of(params)
        find = partial(self._hits, params, query, hidden, sessions, skip, last)
        found = await self._on_thread(find)
        cursor = None if found.skip is None else f"{found.skip}.{found.last}"
        return wire.SearchQueryResult(hits=tuple(found.hits), next_cursor=cursor, behind=self._index.status().lag_rows)

    async def query_in_sandbox(self, principal: str, params: wire.SearchQueryParams) -> wire.SearchQueryResult:
        """As ``query``, for the sandbox ``principal`` and one of its own sessions. Raises: as ``query``; CtxdError
        ``invalid_params`` for a project. Cancel: waits for the query."""
        if params.session is None:
            raise CtxdError("session_not_found", "there is no session to search", hint="Name a session.")
        if params.project is not None:
            # The project's directory would be looked up on the host.
            raise CtxdError("invalid_params", "project is only allowed on host connections", hint="Leave project out.")
        # A query may take seconds: those of one sandbox do not fill the threads.
        async with self._turns_of_sandboxes.of(principal):
            found = await self.query(params)
        # The length of the host's journal would reveal the activity of others.
        return msgspec.structs.replace(found, behind=min(1, found.behind))

    async def _sessions_of(self, params: wire.SearchQueryParams) -> list[str] | None:
        """The sessions to search; None for all. Raises: CtxdError for a project's directory."""
        if params.session is None and params.harness is None and params.project is None:
            return None
        project: ProjectFilter | None = None
        if params.project is not None and params.project.startswith("/"):
            project = ProjectFilter(await self._sessions.project_at(params.project, package=True))
        elif params.project is not None:
            project = ProjectFilter(name=params.project)

        catalog = self._sessions.catalog
        if params.harness is None:
            names = catalog.names("", len(catalog)) if params.session is None else [params.session]
        else:
            names = catalog.of_harness(params.harness)
            if params.session is not None:
                names = [params.session] if params.session in names else []
        return names if project is None else [name for name in names if project.passes(catalog.settings(name).project)]

    async def sessions_naming(self, path: str) -> frozenset[str]:
        """The sessions with a tool call whose arguments contain the absolute ``path``, or that path relative to the
        session's working directory; empty while the index is being opened.

        Raises: CtxdError ``timeout``, ``store_unavailable``; those of the store. Cancel: waits for the query.
        """
        if not self._index.is_open:
            return frozenset()
        catalog = self._sessions.catalog
        below: dict[str, set[str]] = {}
        for session in catalog.names("", len(catalog)):
            workdir = catalog.settings(session).workdir.rstrip("/") + "/"
            if len(workdir) > 1 and path.startswith(workdir):
                below.setdefault(path.removeprefix(workdir), set()).add(session)
        return await self._on_thread(partial(self._naming, path, below))

    async def _on_thread(self, work: Callable[[_Searcher, _Deadline], R]) -> R:
        """As ``_with_searcher``, on a thread. Starts a rebuild if the index is damaged."""
        try:
            return await self._lane.run(self._with_searcher, work)
        except CtxdError as error:
            if error.code != "timeout" and isinstance(error.__cause__, sqlite_file.FileDamaged | sqlite_file.SqlFailed):
                self._index.make_anew()
            raise

    async def rebuild(self) -> wire.SearchRebuildResult:
        """Start a rebuild of the index. Cancel: safe; the rebuild continues."""
        await self._index.rebuild()
        head = self._store.head()
        seq = self._index.status().seq
        return wire.SearchRebuildResult(seq=seq, head_seq=0 if head is None else head.seq)

    # --- on a thread

    def _with_searcher(self, work: Callable[[_Searcher, _Deadline], R]) -> R:
        """Return the result of ``work``, which times out after ``SECONDS_MAX``.

        Raises: CtxdError ``timeout``, ``store_unavailable``; the errors of ``work``.
        """
        searcher = self._searcher()
        try:
            found = self._with_deadline(searcher, work)
        except BaseException:
            searcher.close()
            raise
        self._idle.append(searcher)
        return found

    def _searcher(self) -> _Searcher:
        generation = self._index.generation
        while self._idle:
            searcher = self._idle.pop()
            if searcher.generation == generation:
                return searcher
            searcher.close()
        directory = self._store.directory
        try:
            with sqlite_file.faults():
                index = ranking.open_index(self._index.path)
        except (*_FAULTS, sqlite_file.SqlFailed) as error:
            raise _unavailable(error) from error
        try:
            store = run_read(lambda: Reader(directory.database, ArtifactStore(directory.artifacts)))
        except BaseException:
            index.close()
            raise
        return _Searcher(generation, index, store, Snippets())

    def _with_deadline(self, searcher: _Searcher, work: Callable[[_Searcher, _Deadline], R]) -> R:
        deadline = _Deadline(self._clock)
        searcher.file.set_progress_handler(deadline, _CHECKED_STEPS)
        try:
            with sqlite_file.faults():
                return work(searcher, deadline)
        except (sqlite_file.SqlFailed, _Expired) as error:
            if not deadline.is_expired:
                raise _unavailable(error) from error
            message = f"the query took more than {SECONDS_MAX:.0f} s"
            hint = "Add words, use longer prefixes, or limit the search to a session or a time."
            raise CtxdError("timeout", message, hint=hint) from error
        except _FAULTS as error:
            raise _unavailable(error) from error
        finally:
            searcher.file.set_progress_handler(None)

    def _hits(
        self,
        params: wire.SearchQueryParams,
        query: query_language.Query,
        hidden: frozenset[str],
        sessions: Sequence[str] | None,
        skip: int,
        last: int | None,
        searcher: _Searcher,
        deadline: _Deadline,
    ) -> FoundPage:
        texts = JournalTexts(searcher.store)
        # Leave out texts indexed after the first page, so that no page repeats a hit.
        bound = index_database.last_id(searcher.file) if last is None else last
        wanted = Conditions(
            sessions=None if sessions is None else tuple(texts.numbers(map(session_object_id, sessions))),
            tool=params.tool,
            kind=params.kind,
            failed=params.error,
            since=params.since,
            until=params.until,
            last=bound,
        )
        key = (query.all_of, wanted, params.order)
        rank = partial(_rank, searcher, query, wanted, best=params.order == "best")
        ranked = (None if last is None else self._rankings.take(key)) or rank(_RANKED_FIRST)
        hits: list[wire.SearchHit] = []
        names = _Names(texts)
        while len(hits) < params.limit:
            if skip >= len(ranked.ids) and not ranked.is_whole:
                ranked = ranked.extended(rank(wire.HITS_REACHED_MAX))
            if skip >= len(ranked.ids):
                return FoundPage(hits, None, bound)
            end = min(len(ranked.ids), skip + min(_AT_ONCE, params.limit - len(hits)))
            some = list(ranking.docs(searcher.file, ranked, skip, end))
            hits += self._shown(searcher, texts, names, some, query.any_of, hidden, deadline)
            skip = end
        if skip >= len(ranked.ids) and ranked.is_whole:
            return FoundPage(hits, None, bound)
        self._rankings.keep(key, ranked)
        return FoundPage(hits, skip, bound)

    def _naming(self, path: str, below: Mapping[str, set[str]], searcher: _Searcher, _: _Deadline) -> frozenset[str]:
        texts = JournalTexts(searcher.store)

        def naming(name: str) -> set[str]:
            if not query_language.has_word(name):
                return set()
            with searcher.file:
                sessions = ranking.sessions(searcher.file, query_language.naming(name))
            ids = texts.ids(sessions)
            return {id.removeprefix("session:") for id in ids.values()}

        found = naming(path)
        for name, sessions in below.items():
            found |= naming(name) & sessions
        return frozenset(found)

    def _shown(
        self,
        searcher: _Searcher,
        texts: JournalTexts,
        names: "_Names",
        docs: Sequence[Doc],
        any_of: str,
        hidden: frozenset[str],
        deadline: _Deadline,
    ) -> list[wire.SearchHit]:
        """The hits for those of ``docs`` that the caller may see and whose text still exists, in order."""
        names.learn(docs)
        shown = [doc for doc in docs if not doc.session or names.session(doc.session) not in hidden]
        found: dict[int, tuple[str, str]] = {}
        newest = texts.newest({names.entity(doc.entity) for doc in shown})
        for entity, some in index_database.by_entity(shown).items():
            deadline.check()
            stored, places = newest[names.entity(entity)], {doc.nth: doc.id for doc in some}
            with suppress(CtxdError, ValueError, TypeError, LookupError):
                for text in () if stored is None else texts.texts(stored):
                    if (id := places.pop(text.nth, None)) is not None:
                        found[id] = (text.text, text.call)
                    if not places:
                        break
        there = [doc for doc in shown if doc.id in found]
        snippets = searcher.snippets.of([found[doc.id] for doc in there], any_of, deadline.check)
        return [_hit(doc, snippet, names) for doc, snippet in zip(there, snippets, strict=True) if snippet is not None]


def _rank(searcher: _Searcher, query: query_language.Query, wanted: Conditions, most: int, *, best: bool) -> Ranking:
    # One transaction: all shards are read in the same state. It ends before the texts are read, since the log cannot be
    # emptied meanwhile, as a purge requires.
    with searcher.file:
        found = ranking.ranked(searcher.file, query, wanted, best=best, most=most)
    return found


class _Names:
    """Ids of entities by number; empty for an unknown number."""

    def __init__(self, texts: JournalTexts) -> None:
        self._texts = texts
        self._ids: dict[int, str] = {}

    def learn(self, docs: Sequence[Doc]) -> None:
        """Look up the entities and the sessions of ``docs``."""
        wanted = {number for doc in docs for number in (doc.entity, doc.session)}
        self._ids |= self._texts.ids(wanted - self._ids.keys())

    def entity(self, number: int) -> str:
        return self._ids.get(number, "")

    def session(self, number: int) -> str:
        return self.entity(number).removeprefix("session:")


def _hit(doc: Doc, snippet: Snippet, names: _Names) -> wire.SearchHit:
    id = names.entity(doc.entity)
    session = names.session(doc.session) if doc.session else None
    commit = commit_id(id) if id.startswith("commit:") else None
    is_object = commit is None and session_of(id) is None
    if commit is not None:
        opening: tuple[str, ...] = ("ctx", "show", commit)
    elif is_object:
        opening = ("ctx", "object", "cat", id, *(() if session is None else ("-s", session)))
    elif doc.kind == "session":
        opening = ("ctx", "session", "show", session or "")
    else:
        # Without --all, the command cuts output and hides errors of providers.
        whole = () if doc.kind in ("prompt", "response", "thinking", "tool_call", "compaction") else ("--all",)
        opening = ("ctx", "session", "chat", f"{session}@{doc.turn}", *whole)
    in_chat = commit is None and doc.kind != "session"
    return wire.SearchHit(
        kind=doc.kind,
        session=session,
        turn=doc.turn if in_chat else None,
        commit=commit,
        object=id if is_object else None,
        tool=doc.tool,
        error=doc.failed,
        at=doc.at,
        score=round(doc.score, 6),
        snippet=snippet.text,
        matches=snippet.matches,
        open=opening,
    )


def _place(cursor: str | None) -> tuple[int, int | None]:
    if cursor is None:
        return 0, None
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        message = f"{cursor[:100]!r} is not a cursor of a search"
        hint = "Pass next_cursor of the previous page unchanged, with the same query."
        raise CtxdError("invalid_params", message, hint=hint)
    return int(found[1]), int(found[2])


def _unavailable(error: Exception | str = "it is being opened") -> CtxdError:
    hint = "Try again in a moment; ctx status shows the state of the search index."
    return CtxdError(
        "store_unavailable", f"the search index cannot be read now: {error}", hint=hint, retry_after_ms=500
    )
