"""What is told of sandboxes together, and what they have room for. Pure."""

from collections.abc import Callable, Sequence

from ctxd.sandboxes.registry import Sandboxes
from ctxd.trackers.tracker import FILES_MAX
from ctxd_protocol.sandboxes import SandboxView
from ctxd_protocol.status import SandboxesStatus


def census(views: Sequence[SandboxView]) -> SandboxesStatus:
    """The figures of ``views``, which are ordered by age."""
    return SandboxesStatus(
        registered=len(views),
        oldest=views[0].created_at if views else None,
        next_end=min((view.expires_at for view in views if view.expires_at is not None), default=None),
        connections=sum(view.connections for view in views),
        requests=sum(view.requests for view in views),
        refused=sum(view.refused for view in views),
    )


def room_to_track(sandboxes: Sandboxes | None, session: str, count: Callable[[str], int]) -> int:
    """How many more files may be tracked for ``session`` by the quotas of the ``sandboxes`` that may name it.

    ``count`` tells how many are for a session.
    """
    sharing = [] if sandboxes is None else sandboxes.sharing(session)
    rooms = (one.quota.tracked_files - sum(map(count, one.sessions)) for one in sharing)
    return min(rooms, default=FILES_MAX)
