"""``tracker.list``: the files followed on disk, with their states."""

from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.sessions.session_tracking import Row, Tracking, place_of
from ctxd_protocol.methods.trackers import TrackerListParams, TrackerListResult
from ctxd_protocol.tracker_types import Tracker, WatcherKind, Watching


class TrackerCalls:
    """Handler of ``tracker.list``. Without ``tracking``, no file is followed."""

    def __init__(self, tracking: Tracking | None) -> None:
        self._tracking = tracking

    async def tracker_list(self, _: Caller, params: TrackerListParams) -> TrackerListResult:
        tracking = self._tracking
        if tracking is None:
            return TrackerListResult(trackers=(), watching=watching_of(None), next_cursor=None)
        after = _decoded(params.cursor)
        if params.session is None:
            rows = await tracking.rows(after=after, state=params.state, limit=params.limit + 1)
        else:
            rows = await tracking.rows_of(params.session, after=after, state=params.state, limit=params.limit + 1)
        shown = rows[: params.limit]
        return TrackerListResult(
            trackers=tuple(_row(tracking, row) for row in shown),
            watching=watching_of(tracking),
            next_cursor=place_of(*shown[-1]).encode().hex() if len(rows) > len(shown) else None,
        )


def _row(tracking: Tracking, row: Row) -> Tracker:
    id, file = row
    by: WatcherKind | None = None
    if file.active:
        directory = tracking.trackers.tracked.directories[file.places[0][0]]
        by = tracking.trackers.watcher.kind if directory.mode == "watched" else "polling"
    return Tracker(
        object=id,
        path=file.path,
        state=file.state,
        by=by,
        reason=file.reason,
        since=file.since,
        sessions=len(file.sessions),
    )


def watching_of(tracking: Tracking | None) -> Watching:
    """Figures of all trackers; ``tracking`` ``None``: nothing is followed."""
    if tracking is None:
        return Watching(watcher=None)
    trackers = tracking.trackers
    tracked = trackers.tracked
    unwatched = [tracked.directories[directory].mode for directory in tracked.unwatched]
    return Watching(
        watcher=trackers.watcher.kind,
        files=len(tracked.files),
        directories=len(tracked.directories),
        watches=trackers.watches,
        polled=unwatched.count("polled"),
        away=unwatched.count("away"),
        overflows=trackers.overflows,
        refused=trackers.refused,
        events=trackers.events,
        versions=tracking.versions,
    )


def _decoded(cursor: str | None) -> str:
    try:
        return "" if cursor is None else bytes.fromhex(cursor).decode()
    except ValueError as error:
        raise CtxdError(
            "invalid_params",
            f"{cursor!r} is not a cursor of this listing",
            hint="Pass next_cursor of the previous page unchanged.",
        ) from error
