"""What ``tracker.*`` takes and answers."""

from ctxd_protocol.ids import SessionIdText
from ctxd_protocol.methods.parts import PageSize, Params, Result
from ctxd_protocol.trackers import Tracker, TrackerState, Watching


class TrackerListParams(Params, frozen=True, kw_only=True):
    """Filters. With ``session``, all that it has read is listed, followed or not; without, all that is followed."""

    session: SessionIdText | None = None
    state: TrackerState | None = None
    limit: PageSize = 100
    cursor: str | None = None


class TrackerListResult(Result, frozen=True, kw_only=True):
    """A page by path, and all of it in figures."""

    trackers: tuple[Tracker, ...]
    watching: Watching
    next_cursor: str | None
