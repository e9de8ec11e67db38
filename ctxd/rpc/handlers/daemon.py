"""Handlers of ``hello``, ``rpc.discover`` and ``daemon.status``."""

from collections.abc import Callable

import anyio
import msgspec

from ctxd import __version__
from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.rpc.grants import allowed_methods
from ctxd.worker_threads import in_thread
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.daemon import PROTOCOL_VERSIONS, SERVER_NAME, HelloParams, HelloResult
from ctxd_protocol.methods.declaration import Nothing
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.openrpc import document
from ctxd_protocol.status_types import DaemonStatus


class DaemonCalls:
    """Handlers of the daemon's own methods. ``check_receipt`` stops writes if the journal lacks a receipt's row."""

    def __init__(
        self,
        *,
        incarnation: int,
        journal: str,
        limits: Limits,
        status: Callable[[], DaemonStatus],
        check_receipt: Callable[[Receipt], None],
    ) -> None:
        self._incarnation = incarnation
        self._journal = journal
        self._limits = limits
        self._status = status
        self._check_receipt = check_receipt
        self._document: msgspec.Raw | None = None
        self._documenting = anyio.Lock()

    async def hello(self, caller: Caller, params: HelloParams) -> HelloResult:
        common = set(params.protocol) & set(PROTOCOL_VERSIONS)
        if not common:
            message = f"the client supports protocol {list(params.protocol)}, the daemon {list(PROTOCOL_VERSIONS)}"
            raise CtxdError("unsupported", message, hint="Update the older of the two.")
        # Only a caller with full authority may make the daemon refuse writes.
        if params.last_receipt is not None and params.journal == self._journal and not caller.is_confined:
            self._check_receipt(params.last_receipt)
        return HelloResult(
            server=SERVER_NAME,
            version=__version__,
            protocol=max(common),
            methods=tuple(sorted(allowed_methods(caller.capability) if caller.methods is None else caller.methods)),
            limits=caller.limits or self._limits,
            incarnation=self._incarnation,
            journal=self._journal,
            descriptors=not caller.is_confined,
        )

    async def rpc_discover(self, _: Caller, params: Nothing) -> msgspec.Raw:
        if self._document is None:
            async with self._documenting:
                if self._document is None:
                    # Build it on demand: it would be a tenth of the start, and few clients call this.
                    self._document = await in_thread(lambda: msgspec.Raw(msgspec.json.encode(document())))
        return self._document

    async def daemon_status(self, _: Caller, params: Nothing) -> DaemonStatus:
        return self._status()
