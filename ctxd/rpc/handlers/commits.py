"""Handlers of ``commit.*``: who sees which commits. Separate: one module for each family of methods."""

from ctxd.commits.commit_operations import Commits
from ctxd.commits.commit_reads import CommitViewer
from ctxd.commits.materialize import Materializer
from ctxd.rpc.caller import Caller
from ctxd.sessions.session import Accepted, WriteRequest
from ctxd_protocol.methods import commits as wire


class CommitCalls:
    """Handlers of ``commit.*``."""

    def __init__(self, commits: Commits, materializer: Materializer) -> None:
        self._commits = commits
        self._materializer = materializer

    async def commit_checkpoint(self, caller: Caller, params: wire.CheckpointParams, call: WriteRequest) -> Accepted:
        return await self._commits.checkpoint(viewer_of(caller), params, call)

    async def commit_annotate(self, caller: Caller, params: wire.CommitAnnotateParams, call: WriteRequest) -> Accepted:
        return await self._commits.annotate(viewer_of(caller), params, call)

    async def commit_tag(self, caller: Caller, params: wire.CommitTagParams, call: WriteRequest) -> Accepted:
        return await self._commits.tag(viewer_of(caller), params, call)

    async def commit_show(self, caller: Caller, params: wire.CommitShowParams) -> wire.CommitShowResult:
        return await self._commits.show(viewer_of(caller), params)

    async def commit_history(self, caller: Caller, params: wire.CommitHistoryParams) -> wire.CommitHistoryResult:
        return await self._commits.history(viewer_of(caller), params)

    async def commit_list(self, caller: Caller, params: wire.CommitListParams) -> wire.CommitListResult:
        return await self._commits.list(viewer_of(caller), params)

    async def commit_resolve(self, caller: Caller, params: wire.CommitResolveParams) -> wire.CommitResolveResult:
        return await self._commits.resolve(viewer_of(caller), params)

    async def commit_materialize(
        self, caller: Caller, params: wire.CommitMaterializeParams
    ) -> wire.CommitMaterializeResult:
        return await self._materializer.materialize(viewer_of(caller), params, bytes_max=caller.answer_bytes_max)


def viewer_of(caller: Caller) -> CommitViewer:
    """Return ``caller`` as the operations on commits know it."""
    if caller.capability == "host":
        return CommitViewer(caller, None)
    own = frozenset(() if caller.session is None else (caller.session,))
    return CommitViewer(caller, own if caller.sessions is None else caller.sessions)
