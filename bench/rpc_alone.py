"""The RPC layer alone, with one constant answer behind it: what ``bench.rpc`` measures where there is no daemon yet."""

import sys
from pathlib import Path

import anyio
import structlog

from ctxd.rpc.caller import Caller
from ctxd.rpc.server import Server
from ctxd_protocol.context import CurrentContext
from ctxd_protocol.methods import ContextCurrentParams


def current(caller: Caller, params: ContextCurrentParams) -> CurrentContext:
    return CurrentContext(context_id=None, session=None, turn=0, assembly=0)


if __name__ == "__main__":
    server = Server(Path(sys.argv[1]), {"context.current": current}, log=structlog.get_logger())
    anyio.run(server.run, backend_options={"use_uvloop": True})
