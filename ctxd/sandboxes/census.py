"""What is told of all sandboxes together. Pure."""

from collections.abc import Sequence

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
