"""Conversion of failed calls to exit codes and error lines."""

from typing import Final

from ctxd.cli.exit_codes import CONFLICT, FAILURE, NOT_FOUND, PERMISSION, TIMEOUT, UNREACHABLE, USAGE
from ctxd.click_support import Stop
from ctxd.formatting import clause
from ctxd.remedies import in_commands
from ctxd.terminal import cell
from ctxd_client.errors import CallFailed, Conflict, ConnectFailed, ConnectionLost, Forbidden, NotFound, TimedOut
from ctxd_protocol.methods import METHODS

_TEXT_CHARS: Final = 200
"""Longest part of an argument in a message."""


def code_of(error: CallFailed) -> int:
    """Return the exit code for a failed call."""
    if isinstance(error.__cause__, PermissionError):
        return PERMISSION
    if error.code == "method_not_found":
        # A method that exists is excluded from this connection.
        return PERMISSION if error.method in METHODS else USAGE
    if error.code == "invalid_params":
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
    if isinstance(cause := error.__cause__, UnicodeEncodeError):
        hint = "write it in UTF-8, and rename a file or a folder with such a name"
        return Stop(USAGE, f"{cell(cause.object)[:_TEXT_CHARS]} is not UTF-8", hint=hint, symbol=error.code)
    unsure = "the operation may have been applied" if error.outcome == "unknown" else ""
    hint = "; ".join(filter(None, (unsure, clause(in_commands(error.hint, error.method)))))
    return Stop(code_of(error), error.message, hint=hint, symbol=error.code)
