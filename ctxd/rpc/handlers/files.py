"""``file.resolve``: the object of a path."""

from ctxd.indexing.file_indexer import Indexer
from ctxd.objects.document import AsOf
from ctxd.rpc.caller import Caller
from ctxd.sessions.registry import Sessions
from ctxd_protocol.methods.files import FileResolveParams, FileResolveResult


class FileCalls:
    """Handler of ``file.resolve``."""

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
            known=id in live.state.index if caller.is_confined else head is not None,
        )
