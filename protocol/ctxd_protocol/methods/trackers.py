"""Method ``tracker.list``: files that are tracked on disk."""

from typing import Final

from ctxd_protocol.ids import SessionIdText
from ctxd_protocol.methods.declaration import Method, PageSize, Params, Result
from ctxd_protocol.tracker_types import Tracker, TrackerState, Watching


class TrackerListParams(Params, frozen=True, kw_only=True):
    """Filters, all of which must hold.

    With ``session``, all files that it has read are listed; without it, only tracked files.
    """

    session: SessionIdText | None = None
    state: TrackerState | None = None
    limit: PageSize = 100
    cursor: str | None = None


class TrackerListResult(Result, frozen=True, kw_only=True):
    """One page ordered by path, and the totals."""

    trackers: tuple[Tracker, ...]
    watching: Watching
    next_cursor: str | None


ROWS: Final = (
    Method(
        name="tracker.list",
        params=TrackerListParams,
        result=TrackerListResult,
        access="host",
        summary="List the files tracked on disk, and their watchers.",
        errors=("session_not_found",),
        example={"session": "s1"},
        shows=".watching.files",
    ),
)
