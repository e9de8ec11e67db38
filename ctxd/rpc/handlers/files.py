"""``file.resolve`` and ``mount.detect``: names of files, looked up without writing."""

from ctxd.errors import CtxdError
from ctxd.indexing.indexer import Indexer
from ctxd.mounts.detect import from_docker_inspect, from_mountinfo
from ctxd.rpc.dispatch import Handler
from ctxd.rpc.identity import Caller
from ctxd.sessions.registry import Sessions
from ctxd_protocol.methods.files import FileResolveParams, FileResolveResult, MountDetectParams, MountDetectResult


def handlers(sessions: Sessions, indexer: Indexer) -> dict[str, Handler]:
    """Handlers by method name."""

    async def resolve(caller: Caller, params: FileResolveParams) -> FileResolveResult:
        live = await sessions.live(params.session)
        id, source = await indexer.resolve(live.mounts, live.settings.workdir, params.path)
        shown = live.mounts.display(source)
        head = (await sessions.store.heads((id,)))[id]
        durable = sessions.store.head()
        if head is not None and (durable is None or durable.seq < head.tx):
            head = await sessions.store.get(id, tx=head.tx)
        return FileResolveResult(
            object=id,
            canonical_path=source.path,
            filesystem_id=source.filesystem_id,
            display_path=shown,
            # A sandbox is not to learn which files other sessions know.
            known=head is not None if caller.capability == "host" else id in live.state.index,
        )

    return {"file.resolve": resolve, "mount.detect": detect}


async def detect(_: Caller, params: MountDetectParams) -> MountDetectResult:
    """Read mount mappings from either text. Raises: CtxdError invalid_params."""
    if (params.docker_inspect is None) == (params.mountinfo is None):
        raise CtxdError("invalid_params", "give docker_inspect or mountinfo, and not both")
    if params.docker_inspect is not None:
        found = from_docker_inspect(params.docker_inspect)
    else:
        assert params.mountinfo is not None, "one of both is there"
        found = from_mountinfo(params.mountinfo)
    return MountDetectResult(mounts=found.mounts, filesystem_id=found.filesystem_id, ignored=found.ignored)
