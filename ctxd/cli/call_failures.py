"""Conversion of failed calls to exit codes and error lines."""

import re
from typing import Final

from msgspec.structs import fields

from ctxd.cli.exit_codes import CONFLICT, FAILURE, NOT_FOUND, PERMISSION, TIMEOUT, UNREACHABLE, USAGE
from ctxd.click_support import Stop
from ctxd.formatting import clause
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
    "session.restore": "session restore",
    "session.close": "session close",
    "session.fork": "session fork",
    "session.remove": "session rm",
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
    "commit.list": "log",
    "artifact.list": "artifact ls",
    "sandbox.list": "sandbox ls",
    "sandbox.release": "sandbox release",
}
"""Command for each method; any other method is called with ``ctx rpc``."""

_METHOD: Final = re.compile(r"(?<![\w./])(" + "|".join(map(re.escape, METHODS)) + r")(?![\w/])(?: with (\{[^{}]*\}))?")


def in_commands(remedy: str) -> str:
    """Replace method names in ``remedy``, which the daemon writes for programs, with commands of ``ctx``."""
    return _METHOD.sub(lambda found: _command(found[1], found[2]), remedy).replace("Call ctx ", "Run ctx ")


def _command(method: str, params: str | None) -> str:
    """The command for ``method``, with the ``params`` from the remedy."""
    if method in COMMANDS:
        return f"ctx {COMMANDS[method]}"
    if params:
        return f"ctx rpc {method} '{params}'"
    required = ", ".join(f'"{each.name}": …' for each in fields(METHODS[method].params) if each.required)
    return f"ctx rpc {method}" + (f" '{{{required}}}'" if required else "")


def reason_of(error: CallFailed) -> str:
    """Return the reason of a failed call with its remedy, for a note about one of several things."""
    return f"{error.message}; {clause(in_commands(error.hint))}" if error.hint else error.message


def code_of(error: CallFailed) -> int:
    """Return the exit code for a failed call."""
    if isinstance(error.__cause__, PermissionError):
        return PERMISSION
    if error.code in ("invalid_params", "method_not_found"):
        return USAGE
    if error.code == "not_in_index":
        return NOT_FOUND  # to the user who typed the id, there is no such object
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
    """Convert a failed call to the program's exit code and error line."""
    unsure = "it may have been applied; " if error.outcome == "unknown" else ""
    return Stop(code_of(error), error.message, hint=unsure + clause(in_commands(error.hint)), symbol=error.code)
