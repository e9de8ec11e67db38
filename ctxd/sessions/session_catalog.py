"""Catalog of the durable heads of all sessions: the source of listings and ``context.current``."""

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Final, NamedTuple

from ctxd.errors import CtxdError
from ctxd.sessions.project_match import Key, ProjectFilter, keys_of
from ctxd.sessions.session_list_index import Candidates, Group, IndexedSession, ListPlace, SessionIndex, count_matches
from ctxd.sessions.session_settings import SessionSettings, origin_of, title_of
from ctxd.sessions.stored_session import SessionHead
from ctxd.transcripts.harness_labels import HARNESS
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.methods.session_list import SessionListParams
from ctxd_protocol.session_types import Project, SessionStatus, SessionSummary

NOWHERE: Final = CurrentContext(context_id=None, session=None, turn=0, assembly=0)
"""The current context if no session is given and not exactly one is open."""

COUNTED_MAX: Final = 1000
"""Sessions examined at most to count those of a group that a listing leaves out."""

_CURSOR: Final = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})", re.ASCII)
_TIME_MAX: Final = 2**63


def no_session(session: str, *, shared: bool = False) -> CtxdError:
    """Return the error for a ``session`` that does not exist here. ``shared``: another host may have it."""
    hint = "session.list lists them."
    if shared:
        hint = (
            "If another host has it, session.resume takes it over here: `ctx session ls --elsewhere` lists such "
            "sessions with their hosts."
        )
    return CtxdError("session_not_found", f"there is no session {session}", hint=hint)


def summary_of(session: str, head: SessionHead, valid_time: int, *, host: str | None = None) -> SessionSummary:
    """Return the row of ``session`` in a listing. Its ``head`` was written at ``valid_time``, by another host if
    ``host`` is given."""
    settings = head.settings
    return SessionSummary(
        session=session,
        agent=settings.agent,
        state=settings.state,
        created_at=began_at(settings),
        updated_at=_last_event(head, valid_time),
        turn_count=head.turn_count,
        index_count=head.index_count,
        active_count=head.active_count,
        preview=head.preview,
        labels=settings.labels,
        workdir=settings.workdir,
        host=host,
        removed=settings.removed,
        harness=settings.labels.get(HARNESS),
        project=settings.project,
        title=title_of(settings, head.first_prompt),
        archived=settings.archived,
        origin=origin_of(settings),
    )


def began_at(settings: SessionSettings) -> int:
    """Return when the session began, in ms: an imported one with its first event."""
    recorded = settings.recorded
    return settings.created_at if recorded is None or recorded.began_at is None else recorded.began_at


def _last_event(head: SessionHead, valid_time: int) -> int:
    recorded = head.settings.recorded
    # An imported session that has turns here has later events of its own.
    return valid_time if recorded is None or recorded.ended_at is None or head.turn_count else recorded.ended_at


class ListPage(NamedTuple):
    """A page of session ids, with its cursor and counts; see ``SessionListResult``."""

    sessions: list[str]
    cursor: str | None
    archived: int | None = None
    removed: int | None = None
    forks: int | None = None


class Filters:
    """The filters of a listing. ``project``: resolved from ``params``. ``knowing``: the sessions that know the file."""

    def __init__(
        self, params: SessionListParams, project: ProjectFilter | None = None, knowing: frozenset[str] | None = None
    ) -> None:
        """Raises: CtxdError invalid_params for a label that is not of the form key=value."""
        self._params = params
        self.project = project
        self.knowing = knowing
        self._label, equals, self._value = (params.label or "=").partition("=")
        if not equals:
            raise CtxdError("invalid_params", f"label {params.label!r} is not of the form key=value")
        self._text = (params.text or "").casefold()
        since, until = params.since, params.until
        self.times = None if since is until is None else (since or 0, _TIME_MAX if until is None else until)
        """The first and the last time of the last event; None for any."""
        self.group: Group = "removed" if params.state == "removed" else "archived" if params.archived else "listed"
        """The sessions that are listed."""
        self._projects: dict[Project | None, bool] = {}
        self.is_keyed = knowing is None and self.times is None and not self._text
        """True if ``keys`` and ``is_of_project`` decide together whether a session passes."""

    def keys(self) -> Iterator[list[Key]]:
        """Yield lists of keys: each session that passes has at least one key of each list."""
        params = self._params
        if params.agent is not None:
            yield [("agent", params.agent)]
        if params.harness is not None:
            yield [("harness", params.harness)]
        if params.state not in (None, "removed"):
            yield [("state", str(params.state))]
        if params.label is not None:
            yield [("label", self._label, self._value)]
        if self.project is not None and (keys := self.project.keys):
            yield keys

    def passes(self, row: SessionSummary, group: Group | None = None) -> bool:
        """True if ``row`` passes all filters and is of ``group``, by default that of the listing."""
        params, times = self._params, self.times
        if _group_of(row) != (group or self.group) or params.state not in (None, "removed", row.state):
            return False
        if params.agent not in (None, row.agent) or params.harness not in (None, row.harness):
            return False
        if params.label is not None and row.labels.get(self._label) != self._value:
            return False
        if times is not None and not times[0] <= row.updated_at <= times[1]:
            return False
        if self.knowing is not None and row.session not in self.knowing:
            return False
        if not self.is_of_project(row.project):
            return False
        if not self._text:
            return True
        return any(self._text in part.casefold() for part in (row.preview, row.session, row.agent, row.title))

    def is_of_project(self, project: Project | None) -> bool:
        """True if sessions of ``project`` pass the filter by project; every session does without that filter."""
        if self.project is None:
            return True
        known = self._projects.get(project)
        if known is None:
            known = self._projects[project] = self.project.passes(project)
        return known


class Catalog:
    """The newest head of each session, and cached rows of listings. Memory: about 2 KiB a session."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[SessionHead, int]] = {}
        self._names: list[str] = []
        self._index = SessionIndex()
        # Sessions whose index entries are out of date; only listings need the index.
        self._unindexed: dict[str, None] = {}
        self._rows: dict[str, SessionSummary] = {}
        self._open: dict[str, None] = {}
        self._removed: set[str] = set()
        self._forks: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def __contains__(self, session: object) -> bool:
        return session in self._heads

    def newest(self, session: str) -> tuple[SessionHead, int] | None:
        """Return the head of ``session`` and its valid time, None if the session is unknown."""
        return self._heads.get(session)

    def names(self, after: str, limit: int) -> list[str]:
        """Return the ids of at most ``limit`` sessions after ``after``, sorted."""
        start = bisect_right(self._names, after)
        return self._names[start : start + limit]

    def state(self, session: str) -> SessionStatus | None:
        """Return the state of ``session``, None if it is unknown."""
        known = self._heads.get(session)
        return None if known is None else known[0].settings.state

    def latest(self, principal: str, agent: str | None, limit: int) -> list[str]:
        """Return at most ``limit`` sessions of ``principal``, and of ``agent`` if given, that are not in the trash, by
        the valid time of their heads, newest first. Cost: the number of sessions."""
        found = [
            (valid_time, session)
            for session, (head, valid_time) in self._heads.items()
            if head.settings.principal == principal
            and agent in (None, head.settings.agent)
            and head.settings.state != "removed"
        ]
        return [session for _, session in nlargest(limit, found)]

    def recent(self, filters: Filters, principal: str, limit: int) -> list[tuple[int, str]]:
        """Return at most ``limit`` sessions of ``principal`` that pass ``filters``, the most recently used first, each
        after the time of its last event. Cost: the number of sessions that pass."""
        passing = (place.session for place in self._passing(filters, filters.group, None))
        own = (session for session in passing if self._heads[session][0].settings.principal == principal)
        return nlargest(limit, ((self._index.last_event(session), session) for session in own))

    def states(self) -> dict[str, SessionStatus]:
        """The state of every session."""
        return {session: head.settings.state for session, (head, _) in self._heads.items()}

    def removed(self) -> frozenset[str]:
        """The sessions in the trash. Cost: their number."""
        return frozenset(self._removed)

    def of_harness(self, harness: str) -> list[str]:
        """Return the sessions of ``harness``, in no order. Cost: the number of sessions; building the index that
        listings use would take seconds for many."""
        return [session for session, (head, _) in self._heads.items() if head.settings.labels.get(HARNESS) == harness]

    def heads(self) -> Iterator[SessionHead]:
        """The head of every session."""
        return (head for head, _ in self._heads.values())

    def put(self, session: str, head: SessionHead, valid_time: int) -> None:
        """Make ``head``, written at ``valid_time``, the newest of ``session``."""
        settings = head.settings
        if settings.base is not None:
            self._forks.setdefault(settings.base.session, {})[session] = None
        if session not in self._heads:
            insort(self._names, session)
        self._heads[session] = (head, valid_time)
        self._unindexed[session] = None
        self._rows.pop(session, None)
        # Imported sessions and LangGraph threads are paused and have no turn: they do not count as open.
        if settings.state == "active" or (settings.state == "paused" and head.turn_count):
            self._open[session] = None
        else:
            self._open.pop(session, None)
        if settings.state == "removed":
            self._removed.add(session)
        else:
            self._removed.discard(session)

    def discard(self, session: str) -> None:
        """Remove ``session``. No effect if it is unknown."""
        known = self._heads.pop(session, None)
        if known is not None:
            self._index.discard(session)
            self._unindexed.pop(session, None)
            self._rows.pop(session, None)
            del self._names[bisect_left(self._names, session)]
            self._open.pop(session, None)
            self._removed.discard(session)
            if (base := known[0].settings.base) is not None:
                self._forks[base.session].pop(session, None)

    def forks(self, session: str) -> list[str]:
        """Return the direct and indirect forks of ``session``, in no order."""
        found = list(self._forks.get(session, ()))
        for fork in found:
            found += self._forks.get(fork, ())
        return found

    def settings(self, session: str) -> SessionSettings:
        """Return the settings of ``session``. Raises: CtxdError session_not_found."""
        if session not in self._heads:
            raise no_session(session)
        return self._heads[session][0].settings

    def summary(self, session: str) -> SessionSummary:
        """Return the row of ``session`` in a listing, built once for each head."""
        row = self._rows.get(session)
        if row is None:
            row = self._rows[session] = summary_of(session, *self._heads[session])
        return row

    def current(self, session: str | None) -> CurrentContext:
        """Return the current context of ``session``; None: of the only open session, or ``NOWHERE``.

        Raises: CtxdError session_not_found.
        """
        if session is None:
            if len(self._open) != 1:
                return NOWHERE
            session = next(iter(self._open))
        if session not in self._heads:
            raise no_session(session)
        head, _ = self._heads[session]
        return CurrentContext(context_id=head.context_id, session=session, turn=head.turn_count, assembly=head.assembly)

    def page(self, filters: Filters, limit: int, cursor: str | None) -> ListPage:
        """Return a page of the sessions that pass ``filters``, the latest to begin first. The first page has counts.

        A cursor stays valid if sessions are created meanwhile. Raises: CtxdError invalid_params for a malformed
        cursor.
        """
        before = None
        if cursor is not None:
            if (found := _CURSOR.fullmatch(cursor)) is None:
                message = f"{cursor[:50]!r} is not a cursor of this listing"
                raise CtxdError("invalid_params", message, hint="Pass next_cursor of the previous page unchanged.")
            before = (int(found[1]), int(found[2]))
        places = self._passing(filters, filters.group, before)
        page = list(islice(places, limit + 1))
        last = page[limit - 1] if len(page) > limit else None
        names = [place.session for place in page[:limit]]
        following = None if last is None else f"{last.began_at}.{last.ordinal}"
        if cursor is not None:
            return ListPage(names, following)
        archived = None if filters.group == "archived" else self._left_out(filters, "archived")
        removed = None if filters.group == "removed" else self._left_out(filters, "removed")
        return ListPage(names, following, archived, removed, self._count_forks(filters))

    @property
    def listed_count(self) -> int:
        """Number of sessions that are neither archived nor in the trash."""
        return self.indexed().keyed("listed", [()]).size

    def indexed(self) -> SessionIndex:
        """Return the index, brought up to date. Cost: the number of heads that have changed."""
        for session in self._unindexed:
            head, valid_time = self._heads[session]
            settings = head.settings
            place = ListPlace(began_at(settings), settings.ordinal, session)
            keys = _keys_of(settings)
            self._index.put(IndexedSession(place, _group_of(settings), _last_event(head, valid_time), keys))
        self._unindexed.clear()
        return self._index

    def _candidates(self, filters: Filters, group: Group) -> list[Candidates]:
        index = self.indexed()
        found = [index.keyed(group, [()]), *(index.keyed(group, keys) for keys in filters.keys())]
        if filters.times is not None:
            found.append(index.within(group, *filters.times))
        if filters.knowing is not None:
            found.append(index.among(group, filters.knowing))
        return found

    def _passing(self, filters: Filters, group: Group, before: tuple[int, int] | None) -> Iterator[ListPlace]:
        candidates = self._candidates(filters, group)
        fewest = min(candidates, key=lambda each: each.size)
        places = self._index.walk(group, fewest, before)
        if filters.is_keyed and len(candidates) <= 2:
            if filters.project is None:
                return places
            heads = self._heads
            return (place for place in places if filters.is_of_project(heads[place.session][0].settings.project))
        return (place for place in places if filters.passes(self.summary(place.session), group))

    def _left_out(self, filters: Filters, group: Group) -> int:
        """Return how many of the first ``COUNTED_MAX`` sessions of ``group`` pass."""
        fewest = min(self._candidates(filters, group), key=lambda candidates: candidates.size)
        places = self._index.walk(group, fewest, None)
        return count_matches(places, lambda session: filters.passes(self.summary(session), group), COUNTED_MAX)

    def _count_forks(self, filters: Filters) -> int | None:
        """Return the number of sessions that share a root commit with the listed project but have another remote. None
        if the listing is not of a project with root commits and a remote."""
        at = None if filters.project is None else filters.project.at
        if at is None or not (at.roots and at.remotes):
            return None
        group, remote = filters.group, at.remotes[0]

        def size(*key: str) -> int:
            return self._index.keyed(group, [key]).size

        return max(size("root", root, "") - size("kin", root, remote) - size("unnamed", root, "") for root in at.roots)


def _group_of(of: SessionSettings | SessionSummary) -> Group:
    return "removed" if of.state == "removed" else "archived" if of.archived else "listed"


def _keys_of(settings: SessionSettings) -> frozenset[Key]:
    """Return the keys of a session with ``settings``, in the form of ``Filters.keys``."""
    harness = settings.labels.get(HARNESS)
    return frozenset(
        [
            ("agent", settings.agent),
            ("state", settings.state),
            *([] if harness is None else [("harness", harness)]),
            *(("label", key, value) for key, value in settings.labels.items()),
            *([] if settings.project is None else keys_of(settings.project)),
        ]
    )
