"""``python -m tests.xtdb.skewed MS …``: ``ctxd …`` on a host whose clock is MS milliseconds ahead; with the path of a
file in place of MS, by what the file holds at each moment.
"""

import sys
from pathlib import Path

import ctxd.daemon
from ctxd.__main__ import main
from ctxd.clock import SystemClock

AHEAD_MS = sys.argv.pop(1)


class Skewed(SystemClock):
    """The host's clocks, the wall's with an error."""

    def wall_ms(self) -> int:
        return super().wall_ms() + int(Path(AHEAD_MS).read_text() if AHEAD_MS.startswith("/") else AHEAD_MS)


if __name__ == "__main__":
    ctxd.daemon.SystemClock = Skewed  # type: ignore[misc]
    main()
