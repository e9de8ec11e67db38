"""How the program ends: one exit code for each thing a script does differently, and one line that says why."""

from typing import Final

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNREACHABLE: Final = 5
PERMISSION: Final = 6
CHECK_FAILED: Final = 7
FOUND: Final = 8
TIMEOUT: Final = 124
INTERRUPTED: Final = 130

MEANINGS: Final = (
    (OK, "done"),
    (FAILURE, "failed; the message says why"),
    (USAGE, "the command line is wrong"),
    (NOT_FOUND, "no such session, object or context"),
    (CONFLICT, "it clashes with what is there, or an abbreviation fits several"),
    (UNREACHABLE, "no daemon answers"),
    (PERMISSION, "not allowed"),
    (CHECK_FAILED, "a check of `ctx doctor` failed"),
    (FOUND, "`ctx scan` found secrets"),
    (TIMEOUT, "no answer in time"),
    (INTERRUPTED, "interrupted"),
)


class ReaderGone(Exception):
    """Whoever read standard output has closed it: there is nothing more to do, and nothing went wrong."""


class Stop(Exception):
    """End with ``code`` after one line on standard error: cause and place, then the remedy. Empty: no line."""

    def __init__(self, code: int, message: str = "", *, hint: str = "", symbol: str = "failed") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.symbol = symbol


class OutputFailed(Stop):
    """Standard output takes no more, for ``reason``: what was to be said is lost."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(
            FAILURE,
            f"standard output cannot be written: {reason.strerror or reason}",
            hint="write to where there is room",
            symbol="output_failed",
        )
