"""A failed call as the end of the program: its exit code and its one line."""

from ctxd.cli.exits import CONFLICT, FAILURE, NOT_FOUND, PERMISSION, TIMEOUT, UNREACHABLE, USAGE, Stop
from ctxd.cli.words import clause
from ctxd_client.errors import CallFailed, Conflict, ConnectFailed, ConnectionLost, Forbidden, NotFound, TimedOut


def code_of(error: CallFailed) -> int:
    """The exit code for a call that failed."""
    if isinstance(error.__cause__, PermissionError):
        return PERMISSION
    if error.code in ("invalid_params", "method_not_found"):
        return USAGE
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
    return Stop(code_of(error), f"{place}{error.message}", hint=unsure + clause(error.hint), symbol=error.code)
