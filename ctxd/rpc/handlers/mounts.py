"""``mount.detect``: the mounts that a container has."""

from ctxd.errors import CtxdError
from ctxd.mounts.detect import from_docker_inspect, from_mountinfo
from ctxd.rpc.caller import Caller
from ctxd_protocol.methods.mounts import MountDetectParams, MountDetectResult


class MountCalls:
    """Handler of ``mount.detect``."""

    async def mount_detect(self, _: Caller, params: MountDetectParams) -> MountDetectResult:
        if (params.docker_inspect is None) == (params.mountinfo is None):
            raise CtxdError("invalid_params", "give docker_inspect or mountinfo, and not both")
        if params.docker_inspect is not None:
            found = from_docker_inspect(params.docker_inspect)
        else:
            assert params.mountinfo is not None, "one of both is there"
            found = from_mountinfo(params.mountinfo)
        return MountDetectResult(mounts=found.mounts, filesystem_id=found.filesystem_id, ignored=found.ignored)
