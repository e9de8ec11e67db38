"""Methods about the daemon itself: who it is, what it speaks, how it is."""

from collections.abc import Callable

import msgspec

from ctxd import __version__
from ctxd.errors import CtxdError
from ctxd.rpc.dispatch import Handler
from ctxd.rpc.identity import Caller, reachable
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.daemon import PROTOCOL_VERSIONS, SERVER_NAME, HelloParams, HelloResult
from ctxd_protocol.methods.row import Nothing
from ctxd_protocol.objects import Receipt
from ctxd_protocol.openrpc import document
from ctxd_protocol.status import DaemonStatus


def handlers(
    *,
    incarnation: int,
    journal: str,
    limits: Limits,
    status: Callable[[], DaemonStatus],
    check_witness: Callable[[Receipt], None],
) -> dict[str, Handler]:
    """The daemon's methods. ``check_witness`` stops writes if the journal does not hold a receipt's row."""
    discovered = msgspec.Raw(msgspec.json.encode(document()))

    async def hello(caller: Caller, params: HelloParams) -> HelloResult:
        common = set(params.protocol) & set(PROTOCOL_VERSIONS)
        if not common:
            message = f"the client speaks protocol {list(params.protocol)}, the daemon {list(PROTOCOL_VERSIONS)}"
            raise CtxdError("unsupported", message, hint="Update the older of the two.")
        # Whoever can stop the daemon may also make it stop taking writes; a sandbox may not.
        if params.last_receipt is not None and params.journal == journal and caller.capability == "host":
            check_witness(params.last_receipt)
        return HelloResult(
            server=SERVER_NAME,
            version=__version__,
            protocol=max(common),
            methods=tuple(sorted(reachable(caller.capability) if caller.methods is None else caller.methods)),
            limits=caller.limits or limits,
            incarnation=incarnation,
            journal=journal,
        )

    async def discover(caller: Caller, params: Nothing) -> msgspec.Raw:
        return discovered

    async def daemon_status(caller: Caller, params: Nothing) -> DaemonStatus:
        return status()

    return {"hello": hello, "rpc.discover": discover, "daemon.status": daemon_status}
