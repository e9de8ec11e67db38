"""Remedies of failed calls in the words of ``ctx``: the daemon names methods, which its commands call."""

import re
from typing import Final

from msgspec.structs import fields

from ctxd.formatting import clause
from ctxd_client.errors import CallFailed
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
