"""Method ``session.list``: the list of sessions."""

from typing import Final

from ctxd_protocol.methods.declaration import (
    Method,
    Milliseconds,
    PageSize,
    Params,
    PathText,
    Result,
)
from ctxd_protocol.session_types import SessionStatus, SessionSummary


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
)
