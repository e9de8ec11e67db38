"""Handlers of ``commit.*``, for the host and for sandboxes."""

import msgspec

from ctxd.commits.artifact_operations import Artifacts
from ctxd.commits.commit_import import CommitImports
from ctxd.commits.commit_operations import Commits
from ctxd.commits.materialize import Materializer
from ctxd.fd_passing import PassedFile
from ctxd.rpc.caller import Caller, viewer_of
from ctxd.sessions.live_session import Accepted, WriteRequest
from ctxd_protocol.methods import commits as wire


class CommitCalls:
    """Handlers of ``commit.*``."""

    def __init__(
        self, commits: Commits, imports: CommitImports, materializer: Materializer, artifacts: Artifacts
    ) -> None:
        self._commits = commits
        self._imports = imports
        self._materializer = materializer
        self._artifacts = artifacts

    async def commit_checkpoint(self, caller: Caller, params: wire.CheckpointParams, call: WriteRequest) -> Accepted:
        if params.artifact is not None and not caller.is_confined:
            params = msgspec.structs.replace(params, artifact=await self._artifacts.address(params.artifact))
        return await self._commits.checkpoint(viewer_of(caller), params, call)

    async def commit_import(self, caller: Caller, params: wire.CommitImportParams, call: WriteRequest) -> Accepted:
        return await self._imports.import_commits(viewer_of(caller), params, call)

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

    async def commit_deltas(self, caller: Caller, params: wire.CommitDeltasParams) -> wire.CommitDeltasResult:
        return await self._commits.deltas(viewer_of(caller), params)

    async def commit_discard(self, caller: Caller, params: wire.CommitDiscardParams) -> wire.CommitDiscardResult:
        return await self._commits.discard(viewer_of(caller), params)

    async def commit_resolve(self, caller: Caller, params: wire.CommitResolveParams) -> wire.CommitResolveResult:
        return await self._commits.resolve(viewer_of(caller), params)

    async def commit_materialize(
        self, caller: Caller, params: wire.CommitMaterializeParams
    ) -> wire.CommitMaterializeResult | PassedFile:
        return await self._materializer.materialize(viewer_of(caller), params, bytes_max=caller.reply_bytes_max)
