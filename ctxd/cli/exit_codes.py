"""Exit codes of ``ctx``: one for each case that a script handles differently."""

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
    (FAILURE, "failed; see the message"),
    (USAGE, "wrong usage"),
    (NOT_FOUND, "no such session, object or context"),
    (CONFLICT, "conflict, or ambiguous prefix"),
    (UNREACHABLE, "daemon unreachable"),
    (PERMISSION, "permission denied"),
    (CHECK_FAILED, "a check of `ctx doctor` failed"),
    (FOUND, "`ctx scan` found secrets"),
    (TIMEOUT, "timeout"),
    (INTERRUPTED, "interrupted"),
)
