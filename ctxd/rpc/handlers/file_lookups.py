"""``file.resolve`` and ``mount.detect``: lookups of file names. Separate: one module for each family of methods."""

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.mounts.detect import from_docker_inspect, from_mountinfo
from ctxd.objects.document import AsOf
from ctxd.rpc.caller import Caller
from ctxd.sessions.registry import Sessions
from ctxd_protocol.methods.files import FileResolveParams, FileResolveResult
from ctxd_protocol.methods.mounts import MountDetectParams, MountDetectResult


class FileCalls:
    """Handlers of ``file.resolve`` and ``mount.detect``."""

    def __init__(self, sessions: Sessions, indexer: Indexer) -> None:
        self._sessions = sessions
        self._indexer = indexer

    async def file_resolve(self, caller: Caller, params: FileResolveParams) -> FileResolveResult:
        live = await self._sessions.live(params.session)
        id, source = await self._indexer.resolve(live.mounts, live.settings.workdir, params.path)
        store = self._sessions.store
        head = (await store.heads((id,)))[id]
        durable = store.head()
        if head is not None and (durable is None or durable.seq < head.tx):
            head = await store.get(id, AsOf(tx=head.tx))
        return FileResolveResult(
            object=id,
            canonical_path=source.path,
            filesystem_id=source.filesystem_id,
            display_path=live.mounts.display(source),
            # A sandbox must not learn which files other sessions know.
            known=head is not None if caller.capability == "host" else id in live.state.index,
        )

    async def mount_detect(self, _: Caller, params: MountDetectParams) -> MountDetectResult:
        if (params.docker_inspect is None) == (params.mountinfo is None):
            raise CtxdError("invalid_params", "give docker_inspect or mountinfo, and not both")
        if params.docker_inspect is not None:
            found = from_docker_inspect(params.docker_inspect)
        else:
            assert params.mountinfo is not None, "one of both is there"
            found = from_mountinfo(params.mountinfo)
        return MountDetectResult(mounts=found.mounts, filesystem_id=found.filesystem_id, ignored=found.ignored)
