"""Handlers of ``artifact.*``, for the host and for sandboxes."""

from ctxd.commits.artifact_operations import Artifacts
from ctxd.rpc.caller import Caller, viewer_of
from ctxd.sessions.live_session import Accepted, WriteRequest
from ctxd_protocol.methods import artifacts as wire


class ArtifactCalls:
    """Handlers of ``artifact.*``."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    async def artifact_upload(self, caller: Caller, params: wire.ArtifactUploadParams) -> wire.ArtifactUploadResult:
        return await self._artifacts.upload(viewer_of(caller), params)

    async def artifact_put(self, caller: Caller, params: wire.ArtifactPutParams, call: WriteRequest) -> Accepted:
        return await self._artifacts.put(viewer_of(caller), params, call)

    async def artifact_get(self, caller: Caller, params: wire.ArtifactGetParams) -> wire.ArtifactGetResult:
        return await self._artifacts.get(viewer_of(caller), params)

    async def artifact_stat(self, _: Caller, params: wire.ArtifactParams) -> wire.ArtifactStatResult:
        return await self._artifacts.stat(params)

    async def artifact_list(self, _: Caller, params: wire.ArtifactListParams) -> wire.ArtifactListResult:
        return await self._artifacts.list(params)

    async def artifact_tag(self, _: Caller, params: wire.ArtifactTagParams, call: WriteRequest) -> Accepted:
        return await self._artifacts.tag(params, call)

    async def artifact_gc(self, caller: Caller, params: wire.ArtifactGcParams) -> wire.ArtifactGcResult:
        return await self._artifacts.collection.collect(caller.principal, params)

    async def artifact_fsck(self, _: Caller, params: wire.ArtifactFsckParams) -> wire.ArtifactFsckResult:
        return await self._artifacts.fsck(params)
