"""A failed call as the end of the program: its exit code and its one line."""

import re
from typing import Final

from ctxd.cli.exits import CONFLICT, FAILURE, NOT_FOUND, PERMISSION, TIMEOUT, UNREACHABLE, USAGE, Stop
from ctxd.cli.words import clause
from ctxd_client.errors import CallFailed, Conflict, ConnectFailed, ConnectionLost, Forbidden, NotFound, TimedOut
from ctxd_protocol.methods import METHODS

COMMANDS: Final = {
    "rpc.discover": "rpc",
    "daemon.status": "status",
    "session.create": "session new",
    "session.list": "session ls",
    "session.get": "session show",
    "session.pause": "session pause",
    "session.resume": "session resume",
    "session.close": "session close",
    "session.activate": "activate",
    "session.deactivate": "deactivate",
    "session.pin": "pin",
    "session.unpin": "unpin",
    "session.notices": "watch",
    "object.get": "object cat",
    "object.history": "object history",
    "object.list": "object ls",
    "context.assemble": "context",
    "context.current": "current",
    "sandbox.list": "sandbox ls",
    "sandbox.release": "sandbox release",
}
"""The command for what a method does; a method that is missing here is called by ``ctx rpc``."""

_METHOD: Final = re.compile(r"(?<![\w./])(" + "|".join(map(re.escape, METHODS)) + r")(?![\w/])")


def in_commands(remedy: str) -> str:
    """``remedy``, which the daemon words for programs, with the commands of ``ctx`` in place of its methods."""
    named = _METHOD.sub(lambda found: f"ctx {COMMANDS.get(found[0], f'rpc {found[0]}')}", remedy)
    return named.replace("Call ctx ", "Run ctx ")


def code_of(error: CallFailed) -> int:
    """The exit code for a call that failed."""
    if isinstance(error.__cause__, PermissionError):
        return PERMISSION
    if error.code in ("invalid_params", "method_not_found"):
        return USAGE
    if error.code == "not_in_index":
        return NOT_FOUND  # to who typed the id, it is of no object
    for kind, code in (
        (NotFound, NOT_FOUND),
        (Conflict, CONFLICT),
        (TimedOut, TIMEOUT),
        (ConnectFailed, UNREACHABLE),
        (ConnectionLost, UNREACHABLE),
        (Forbidden, PERMISSION),
    ):
        if isinstance(error, kind):
            return code
    return FAILURE


def stop_for(error: CallFailed) -> Stop:
    """A failed call as the end of the program."""
    place = f"{error.method}: " if error.method else ""
    unsure = "it may have been applied; " if error.outcome == "unknown" else ""
    return Stop(
        code_of(error), f"{place}{error.message}", hint=unsure + clause(in_commands(error.hint)), symbol=error.code
    )
