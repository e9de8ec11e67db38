"""Handlers of ``object.purge`` and ``object.scan``. Separate: ``objects`` only reads, and sandboxes may call it."""

from ctxd.commits.stored_secrets import StoredSecrets
from ctxd.indexing.file_indexer import Indexer
from ctxd.rpc.caller import Caller
from ctxd.sessions.live_session import WriteRequest
from ctxd.sessions.object_purge import ObjectPurges
from ctxd.sessions.registry import Sessions
from ctxd_protocol.methods import objects as wire


class SecretCalls:
    """Handlers of ``object.purge`` and ``object.scan``."""

    def __init__(self, sessions: Sessions, indexer: Indexer) -> None:
        self._purges = ObjectPurges(sessions, indexer)
        self._secrets = StoredSecrets(sessions)

    async def object_purge(
        self, _: Caller, params: wire.ObjectPurgeParams, call: WriteRequest
    ) -> wire.ObjectPurgeResult:
        return await (self._purges.foresee(params) if params.dry_run else self._purges.purge(params, call))

    async def object_scan(self, _: Caller, params: wire.ObjectScanParams) -> wire.ObjectScanResult:
        return await self._secrets.page(params)
