"""Methods ``session.list`` and ``session.annotate``: the list of sessions, and the properties that it shows."""

from typing import Annotated, Final

import msgspec

from ctxd_protocol.ids import OpIdText
from ctxd_protocol.methods.declaration import (
    SESSION_ERRORS,
    Method,
    Milliseconds,
    PageSize,
    Params,
    PathText,
    Result,
    SessionParams,
)
from ctxd_protocol.methods.sessions import SessionResult
from ctxd_protocol.session_types import RecordedSession, SessionStatus, SessionSummary

TITLE_CHARS_MAX: Final = 200


class SessionListParams(Params, frozen=True, kw_only=True):
    """Filters, all of which must hold.

    ``label`` is ``name=value``; ``text`` occurs in id, agent, title or preview. Removed sessions are listed with the
    ``state`` ``removed`` only, archived ones with ``archived`` only. ``harness``: the value of the label ``harness``.
    ``project``: an absolute path of the host, for the project there or for the package of it that contains the path;
    else the address of a remote, the end of one (``owner/name``), the name of a directory, or at least the first 7
    digits of a root commit. ``since`` and ``until``: sessions whose last event is not older, and not newer.
    ``file``: sessions that have read, changed or named the file at an absolute path of the host.
    ``elsewhere``: list the sessions of other hosts instead of this one's, ordered by id; it excludes ``file``.
    """

    state: SessionStatus | None = None
    agent: str | None = None
    label: str | None = None
    text: str | None = None
    limit: PageSize = 100
    cursor: str | None = None
    elsewhere: bool = False
    harness: str | None = None
    project: PathText | None = None
    since: Milliseconds | None = None
    until: Milliseconds | None = None
    file: PathText | None = None
    archived: bool = False


class SessionListResult(Result, frozen=True, kw_only=True):
    """One page, newest first; no ``next_cursor`` at the end.

    The counts are on the first page only. ``total``: sessions that are neither archived nor in the trash, regardless of
    the filters. ``archived`` and ``removed``: those that match the filters but are left out because they are archived,
    or in the trash; at most 1,000 of each are counted. ``forks``: sessions of forks of the project, which have the same
    root commits and another remote.
    """

    sessions: tuple[SessionSummary, ...]
    next_cursor: str | None
    total: int | None = None
    archived: int | None = None
    removed: int | None = None
    forks: int | None = None


class SessionAnnotateParams(SessionParams, frozen=True, kw_only=True):
    """Properties of a session in a listing, in any state; those left out are unchanged.

    ``title``: an empty one restores the harness's title or the first prompt. ``labels``: added to the existing ones;
    one with the value None is removed. ``directory``: the new path of the project on the host, if it was moved.
    ``recorded``: the data of the harness's own record of the session, replaced as a whole.
    """

    title: Annotated[str, msgspec.Meta(max_length=TITLE_CHARS_MAX)] | None = None
    archived: bool | None = None
    labels: dict[str, str | None] | None = None
    directory: PathText | None = None
    recorded: RecordedSession | None = None
    op_id: OpIdText | None = None


ROWS: Final = (
    Method(
        name="session.list",
        params=SessionListParams,
        result=SessionListResult,
        access="host",
        summary="List sessions with previews, newest first.",
        description="Pass ``next_cursor`` as ``cursor`` for the next page.",
        errors=("unsupported", "store_unavailable", "invalid_path"),
        example={"state": "active"},
        shows=".sessions",
    ),
    Method(
        name="session.annotate",
        params=SessionAnnotateParams,
        result=SessionResult,
        access="host",
        writes=True,
        handle="annotate",
        summary="Set a session's title, labels and project, and archive it.",
        description="Listings omit archived sessions unless ``archived`` is set; ``session.resume`` makes a session"
        " visible again.",
        errors=(*SESSION_ERRORS, "invalid_path"),
        example={"session": "s1", "title": "Fix the parser"},
        shows=".session.title",
    ),
)
