"""Remedies of failed calls in the words of ``ctx``: the daemon names methods, which its commands call."""

import re
from typing import Final

import msgspec
from msgspec.structs import fields

from ctxd.formatting import clause
from ctxd_client.errors import CallFailed
from ctxd_protocol.methods import METHODS

COMMANDS: Final = {
    "rpc.discover": "rpc rpc.discover",
    "daemon.status": "status",
    "session.create": "session new",
    "session.list": "session ls",
    "session.get": "session show {session}",
    "session.chat": "session chat {session}",
    "session.export": "session export {session}",
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
    "object.get": "object cat {object}",
    "object.history": "object history {object}",
    "object.list": "object ls --level {level}",
    "object.purge": "purge {object}",
    "object.query": "query",
    "object.scan": "scan",
    "context.assemble": "context",
    "context.current": "current",
    "context.list": "context {session} --list",
    "commit.checkpoint": "checkpoint",
    "commit.show": "show {commit}",
    "commit.history": "log {commit}",
    "commit.list": "log",
    "commit.materialize": "materialize {commit}",
    "commit.annotate": "annotate",
    "commit.tag": "tag",
    "artifact.put": "artifact put",
    "artifact.get": "artifact get {artifact}",
    "artifact.stat": "artifact stat {artifact}",
    "artifact.list": "artifact ls",
    "artifact.tag": "artifact tag",
    "artifact.gc": "artifact gc",
    "artifact.fsck": "artifact fsck",
    "epoch.show": "epoch show {session}",
    "search.query": "search",
    "tracker.list": "tracker ls",
    "sandbox.list": "sandbox ls",
    "sandbox.release": "sandbox release",
}
"""Command for each method, with the parameters that it uses in braces, also as options; any other method is called with
``ctx rpc``."""

_PARAMETER: Final = re.compile(r"( --\w+)? \{(\w+)\}")

_METHOD: Final = re.compile(r"(?<![\w./])(" + "|".join(map(re.escape, METHODS)) + r")(?![\w/])(?: with (\{[^{}]*\}))?")


_OPTIONS: Final = {
    "object.list": {"session": "--session"},
    "object.query": {"tx": "--tx", "valid_time": "--at"},
}
"""Options for the parameters that remedies of a failed method name."""


def in_commands(remedy: str, method: str = "") -> str:
    """Replace method names in ``remedy``, which the daemon writes for programs, with commands of ``ctx``, and the
    parameters of ``method``, which failed, with options."""
    for name, option in _OPTIONS.get(method, {}).items():
        remedy = re.sub(rf"\b{name}\b(?!\.\w)", option, remedy)
    return _METHOD.sub(lambda found: _command(found[1], found[2]), remedy).replace("Call ctx ", "Run ctx ")


def _command(method: str, params: str | None) -> str:
    """The command for ``method``, with the ``params`` from the remedy, a JSON object."""
    if method in COMMANDS:
        given = msgspec.json.decode(params) if params else {}
        words = _PARAMETER.sub(
            lambda found: f"{found[1] or ''} {given[found[2]]}" if found[2] in given else "", COMMANDS[method]
        )
        return f"ctx {words}"
    if params:
        return f"ctx rpc {method} '{params}'"
    required = ", ".join(f'"{each.name}": …' for each in fields(METHODS[method].params) if each.required)
    return f"ctx rpc {method}" + (f" '{{{required}}}'" if required else "")


def reason_of(error: CallFailed) -> str:
    """Return the reason of a failed call with its remedy, for a note about one of several things."""
    return f"{error.message}; {clause(in_commands(error.hint, error.method))}" if error.hint else error.message
